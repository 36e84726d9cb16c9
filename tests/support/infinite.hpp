// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/element.hpp>

namespace collprobe::testing {

/// False for `float8_e4m3`, where what others have as infinity is the only NaN.
template <floating_element T>
inline constexpr bool has_infinity = (element_traits<T>::smallest_nonfinite & element_traits<T>::fraction_mask) == 0;

template <element T>
constexpr bool is_infinite(T value) noexcept
{
    return !is_finite(value) && !is_nan(value);
}

} // namespace collprobe::testing
