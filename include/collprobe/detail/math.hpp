// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>

/// The few functions of <cmath> that the library needs. <cmath> itself would cost an including file a tenth of a
/// second.
namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_HD inline double square_root(double value) noexcept { return __builtin_sqrt(value); }
COLLPROBE_HD inline double natural_log(double value) noexcept { return __builtin_log(value); }
COLLPROBE_HD inline double exponential(double value) noexcept { return __builtin_exp(value); }
/// 1 - erf(value), accurate in the tail.
COLLPROBE_HD inline double error_function_complement(double value) noexcept { return __builtin_erfc(value); }
COLLPROBE_HD constexpr double absolute(double value) noexcept
{
    return bit_cast<double>(bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63));
}

/// Whether a rate of errors, or a chance of one, can be asked for.
constexpr bool is_rate(double value) noexcept { return is_finite(value) && value > 0 && value < 1; }

/// 2^exponent for a normal result: -1022 <= exponent <= 1023.
COLLPROBE_HD constexpr double power_of_two(int exponent) noexcept
{
    return bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The exponent e of 2^e <= |value| < 2^(e+1), read from the bits: -1023 for zero and subnormals.
COLLPROBE_HD constexpr int binary_exponent(double value) noexcept
{
    return static_cast<int>((bit_cast<std::uint64_t>(value) >> 52) & 0x7ff) - 1023;
}

/// Constants by bits, so that `-ffast-math` cannot reason about them.
COLLPROBE_HD constexpr double not_a_number() noexcept { return bit_cast<double>(std::uint64_t{0x7ff8} << 48); }
/// Stands for a number that was not given. A NaN with bits of its own, which no arithmetic makes.
COLLPROBE_HD constexpr double not_given() noexcept { return bit_cast<double>(std::uint64_t{0x7ff8'0000'0061'6273}); }
COLLPROBE_HD constexpr double infinity() noexcept { return bit_cast<double>(std::uint64_t{0x7ff0} << 48); }

/// The 64-bit finaliser of SplitMix64: a bijection in which every input bit moves every output bit.
COLLPROBE_HD constexpr std::uint64_t mix64(std::uint64_t value) noexcept
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

template <class T>
COLLPROBE_HD constexpr T larger(T a, T b) noexcept
{
    return a > b ? a : b;
}
COLLPROBE_HD constexpr std::uint32_t saturated_sum(std::uint32_t a, std::uint32_t b) noexcept
{
    return a + b < a ? 0xffffffffu : a + b;
}
COLLPROBE_HD constexpr std::uint64_t lesser(std::uint64_t a, std::uint64_t b) noexcept { return a < b ? a : b; }

} // namespace collprobe::detail
