// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A number to be rounded: significand * 2^exponent, and a rest of less than one unit of the significand if `sticky`.
/// With `sticky` the significand must have its bit 63 or 62 set, so that the rest lies below every bit that the
/// rounding uses.
struct scaled {
    std::uint64_t significand = 0;
    int exponent = 0;
    bool sticky = false;
    bool negative = false;
};

/// The element nearest to a number, ties to even, in one step. Subnormal results and overflow to infinity are those
/// of IEEE 754; zero keeps the sign. Computes on integers alone, so no flag of the build matters.
template <floating_element T>
COLLPROBE_HD constexpr T round_scaled(const scaled& number) noexcept
{
    using traits = element_traits<T>;
    using bits_type = typename traits::bits_type;
    constexpr int fraction_bits = traits::digits - 1;
    const auto finish = [&](std::uint64_t bits) {
        return bit_cast<T>(static_cast<bits_type>((number.negative ? std::uint64_t{traits::sign_mask} : 0) | bits));
    };

    std::uint64_t significand = number.significand;
    if (significand == 0) return finish(0);
    const int leading = number.exponent + highest_bit(significand); // 2^leading <= |number|
    if (leading > traits::max_exponent) return finish(traits::smallest_nonfinite);
    const int unit = (leading > traits::min_exponent ? leading : traits::min_exponent) - fraction_bits;
    const int shift = unit - number.exponent;
    std::uint64_t rounded = 0;
    if (shift <= 0) {
        rounded = significand << -shift;
    } else if (shift <= 64) {
        const std::uint64_t half_unit = std::uint64_t{1} << (shift - 1);
        const std::uint64_t rest = significand & (half_unit | (half_unit - 1));
        if (shift < 64) rounded = significand >> shift;
        const bool above = rest > half_unit || (rest == half_unit && number.sticky);
        if (above || (rest == half_unit && (rounded & 1) != 0)) ++rounded;
    }
    // The hidden bit of `rounded` adds one to the exponent field, and so does a carry out of it.
    const std::uint64_t bits
        = (static_cast<std::uint64_t>(unit - traits::min_subnormal_exponent) << fraction_bits) + rounded;
    return finish(bits < traits::smallest_nonfinite ? bits : traits::smallest_nonfinite);
}

/// A finite number taken apart: |value| = significand * 2^exponent.
template <floating_element T>
COLLPROBE_HD constexpr scaled take_apart(T value) noexcept
{
    using traits = element_traits<T>;
    constexpr int fraction_bits = traits::digits - 1;
    const auto bits = to_bits(value);
    const int field = static_cast<int>((bits & traits::exponent_mask) >> fraction_bits);
    const std::uint64_t hidden = field != 0 ? std::uint64_t{1} << fraction_bits : 0;
    return {(bits & traits::fraction_mask) | hidden,
        traits::min_exponent - fraction_bits + (field != 0 ? field - 1 : 0), false, (bits & traits::sign_mask) != 0};
}

/// (high * 2^64 + low) * 2^exponent / divisor, with 64 significant bits. Precondition: divisor != 0.
COLLPROBE_HD constexpr scaled divide(
    std::uint64_t high, std::uint64_t low, int exponent, std::uint32_t divisor, bool negative) noexcept
{
    if ((high | low) == 0) return {0, 0, false, negative};
    exponent += 64;
    if (high == 0) {
        high = low;
        low = 0;
        exponent -= 64;
    }
    const int up = 63 - highest_bit(high);
    if (up > 0) {
        high = (high << up) | (low >> (64 - up));
        low <<= up;
        exponent -= up;
    }
    if (divisor == 1) return {high, exponent, low != 0, negative};
    // The quotient in three digits: the first has at least 32 bits, the others 32 more each.
    const std::uint64_t first = high / divisor;
    const std::uint64_t rest = (high % divisor << 32) | (low >> 32);
    const std::uint64_t second = rest / divisor;
    const std::uint64_t last = (rest % divisor << 32) | (low & 0xffffffff);
    const int taken = 63 - highest_bit(first); // <= 32, since divisor < 2^32
    const std::uint64_t untaken = second & ((std::uint64_t{1} << (32 - taken)) - 1);
    return {(first << taken) | (second >> (32 - taken)), exponent - taken, untaken != 0 || last != 0, negative};
}

template <floating_element T>
COLLPROBE_HD constexpr T quiet_nan() noexcept
{
    return bit_cast<T>(element_traits<T>::quiet_nan);
}

/// Infinity or, in a type without infinities, NaN.
template <floating_element T>
COLLPROBE_HD constexpr T signed_infinity(bool negative) noexcept
{
    using traits = element_traits<T>;
    return bit_cast<T>(static_cast<typename traits::bits_type>(
        negative ? traits::smallest_nonfinite | traits::sign_mask : traits::smallest_nonfinite));
}

} // namespace collprobe::detail
