// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace collprobe::inline COLLPROBE_ABI::detail {

template <class Float>
requires(sizeof(Float) > 2)
inline Float opaque(Float value) noexcept
{
    return value;
}
inline const char* name(interval) noexcept { return "interval"; }

} // namespace collprobe::detail
