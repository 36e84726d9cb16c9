// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace collprobe::inline COLLPROBE_ABI::detail {

struct deadline {};
struct interval {};

inline double opaque(double value) noexcept { return value; }
inline const char* name(deadline) noexcept { return "deadline"; }

} // namespace collprobe::detail
