// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The number of steps from a to b, each from a number to the next. It is 0 for equal numbers (-0 and +0 are equal)
/// and 1 for neighbours. Infinity is the neighbour of the largest number. ~0 if exactly one of them is NaN, 0 if both
/// are.
template <floating_element T>
COLLPROBE_HD constexpr std::uint64_t ulp_distance(T a, T b) noexcept
{
    if (is_nan(a) || is_nan(b)) return is_nan(a) == is_nan(b) ? 0 : ~std::uint64_t{0};
    const std::uint64_t sign = element_traits<T>::sign_mask;
    const std::uint64_t x = to_bits(a) & ~sign; // steps from zero
    const std::uint64_t y = to_bits(b) & ~sign;
    if (((to_bits(a) ^ to_bits(b)) & sign) != 0) return x + y;
    return x > y ? x - y : y - x;
}

/// The unit in the last place of a finite number: the distance 2^e of the numbers of T next to it. Below the smallest
/// normal number it is that of the smallest normal number.
template <floating_element T>
COLLPROBE_HD constexpr double ulp(T value) noexcept
{
    using traits = element_traits<T>;
    const int field = static_cast<int>((to_bits(value) & traits::exponent_mask) >> (traits::digits - 1));
    const int exponent = (field != 0 ? field - 1 : 0) + traits::min_exponent - (traits::digits - 1);
    // The smallest units of a double are subnormal themselves.
    return exponent >= -1022 ? detail::power_of_two(exponent)
                             : detail::bit_cast<double>(std::uint64_t{1} << (exponent + 1074));
}

} // namespace collprobe
