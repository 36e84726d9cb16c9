// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

template <class Comm>
void stop(Comm& comm)
{
    if constexpr (requires {
                      comm.abort("");
                  }) {
        comm.abort("");
    }
}
