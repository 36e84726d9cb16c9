// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>

/// The result of the scan of one block of elements, and the arithmetic on it that all paths share.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr double largest_double = 0x1.fffffffffffffp1023;

/// Squares of these are exact in a double.
template <class T>
inline constexpr bool squares_are_exact = (element_traits<T>::is_floating_point && sizeof(T) <= 4) || sizeof(T) <= 2;

template <element T>
COLLPROBE_HD constexpr bool is_negative(T value) noexcept
{
    if constexpr (element_traits<T>::is_floating_point) return (to_bits(value) & element_traits<T>::sign_mask) != 0;
    else if constexpr (element_traits<T>::is_signed_type) return value < 0;
    else return false;
}

template <element T>
COLLPROBE_HD constexpr bool is_zero(T value) noexcept
{
    using traits = element_traits<T>;
    return static_cast<typename traits::bits_type>(to_bits(value) & ~traits::sign_mask) == 0;
}

template <element T>
COLLPROBE_HD constexpr bool is_subnormal(T value) noexcept
{
    using traits = element_traits<T>;
    if constexpr (!traits::is_floating_point) return false;
    else return !is_zero(value) && (to_bits(value) & traits::exponent_mask) == 0;
}

/// Powers of two for scaling: if the numbers are multiplied by 2^-scale, their squares, and sums of 2^64 squares,
/// stay well within the range of a double. Three values suffice.
inline constexpr std::int32_t scale_step = 600;
COLLPROBE_HD constexpr std::int32_t scale_for(double absolute_maximum) noexcept
{
    const auto bits = bit_cast<std::uint64_t>(absolute_maximum);
    constexpr auto small = bit_cast<std::uint64_t>(0x1p-400);
    constexpr auto large = bit_cast<std::uint64_t>(0x1p470);
    return bits >= large ? scale_step : bits < small && bits != 0 ? -scale_step : 0;
}

/// The place of element i of a block among sixteen, the same on every path. Modulo 8 it is the element's lane in each
/// sum. Two elements of bfloat16 share a word of 32 bits: the even elements of eight words come first, then the odd
/// ones.
template <class T>
constexpr std::uint64_t lane_position(std::uint64_t i) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) return (i % 2) * 8 + i / 2 % 8;
    else return i % 16;
}

/// Lane sums and counts over a block. The initial extrema are those of no elements.
struct block_sums {
    double sum[8] = {};
    double magnitudes[8] = {};
    double squares[8] = {};
    double minimum = largest_double;
    double maximum = -largest_double;
    std::uint64_t zero = 0;
    std::uint64_t subnormal = 0;
    std::uint64_t nan = 0;
    std::uint64_t positive_infinity = 0;
    std::uint64_t negative_infinity = 0;
    std::uint64_t first_nonfinite = no_index; // within the block

    std::uint64_t nonfinite() const noexcept { return nan + positive_infinity + negative_infinity; }
};

struct distance_sums {
    double sum[8] = {};
    double squares[8] = {};
};

inline double add_lanes(const double (&lane)[8]) noexcept
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

} // namespace collprobe::detail
