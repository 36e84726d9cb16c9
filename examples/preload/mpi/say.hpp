// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace collprobe_mpi {

/// One line on the standard error: "collprobe: ...".
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) noexcept;

/// By what the launcher tells each process; true where it tells nothing. For what is said before MPI can be asked.
bool is_first_process() noexcept;

} // namespace collprobe_mpi
