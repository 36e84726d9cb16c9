// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
struct point {
    int x = 0;
    int y = 0; ///< upwards
};
