// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/quant/format.hpp>
#include <collprobe/simd/rounding.hpp>

/// The arithmetic of one code and of one block's scale. Host and device run it and get the same bits,
/// whatever the flags of the build, inside `gradual_underflow`, which holds on the threads of host streams.
namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_HD constexpr std::uint32_t magnitude_bits(float x) noexcept { return to_bits(x) & 0x7fffffffu; }
inline constexpr std::uint32_t nan_bits = 0x7fc00000u;
COLLPROBE_HD constexpr float nan_element() noexcept { return bit_cast<float>(nan_bits); }
inline constexpr std::uint32_t smallest_scale = 0x00800000u; ///< its bits: the smallest normal number

/// The largest finite T, and the bits of the least float that rounds to no finite T.
template <floating_element T>
requires(sizeof(T) <= 4) inline constexpr float largest_float_of
    = static_cast<float>(bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(
        element_traits<T>::smallest_nonfinite - 1)));
template <floating_element T>
requires(sizeof(T) <= 4) inline constexpr std::uint32_t overflow_from = [] {
    constexpr int kept = element_traits<T>::digits;
    return to_bits(largest_float_of<T>) + (kept >= 24 ? 1u : 1u << (23 - (kept < 24 ? kept : 23)));
}();

inline constexpr std::uint32_t largest_block = 1024; ///< elements

/// How a kernel makes codes out of elements and elements out of codes.
struct codec {
    code_format format = code_format::int8;
    code_rounding rounding = code_rounding::nearest;
    bool rotate = false;
    std::uint32_t block = 128;
    std::uint32_t overflow = 0x7f800000; ///< bits of the least magnitude that counts as not finite
    float largest = largest_float_of<float>; ///< magnitude that a code decodes to
    std::uint64_t seed = 0;

    template <floating_element T>
    static constexpr codec of(const quantisation& how) noexcept
    {
        return {how.format, how.rounding, how.rotate, how.block,
            how.rotate ? overflow_from<float> : overflow_from<T>, // rotated elements are floats
            how.rotate ? largest_float_of<float> : largest_float_of<T>, how.seed};
    }
    COLLPROBE_HD constexpr std::uint32_t code_bytes() const noexcept
    {
        return format == code_format::int4 ? block / 2 : block;
    }
    /// The elements of the blocks that hold `count` elements.
    constexpr std::uint32_t whole(std::uint32_t count) const noexcept { return (count + block - 1) / block * block; }
    COLLPROBE_HD constexpr bool is_finite(float element) const noexcept
    {
        return magnitude_bits(element) < overflow;
    }
};

/// What turns the elements of a block into codes and back. Both are 0 for a block of zeros.
struct block_scale {
    float scale = 0;
    float inverse = 0; ///< 1 / scale, rounded; decoding needs none
};

/// The scale of a block whose finite elements are at most `largest`: the least bfloat16 by which that is no more than
/// the largest code.
COLLPROBE_HD inline block_scale scale_of(const codec& how, float largest) noexcept
{
    if (to_bits(largest) == 0) return {}; // by bits: a build for GPUs may take subnormal numbers for zero
    const float steps = largest_code(how.format);
    const std::uint32_t quotient = to_bits(rounded_quotient(largest, steps));
    // Of a `largest` above scale * steps the quotient is nearer to the number above the scale than to the scale.
    const std::uint32_t scale = ((quotient < smallest_scale ? smallest_scale : quotient) + 0xffffu) & 0xffff0000u;
    return {bit_cast<float>(scale), rounded_quotient(1.0f, bit_cast<float>(scale))};
}

/// The nearest integer, ties to even, of |value| < 2^22: at 1.5 * 2^23 the unit of a float is 1.
COLLPROBE_HD inline std::int32_t nearest_integer(float value) noexcept
{
    return bit_cast<std::int32_t>(rounded_sum(value, 12582912.0f)) - 0x4b400000;
}
/// The integer below or above `value`, by 16 random bits. The mean over the bits is `value`, rounded to
/// 2^-16.
COLLPROBE_HD inline std::int32_t stochastic_integer(float value, std::uint32_t bits16) noexcept
{
    const std::int32_t near = nearest_integer(value);
    const float rest = rounded_difference(value, static_cast<float>(near)); // exact
    return near + ((nearest_integer(rest * 65536.0f) + static_cast<std::int32_t>(bits16)) >> 16);
}

/// The 8-bit floats of e4m3: sign, four bits of exponent, three of fraction; no infinities.
namespace e4m3 {

inline constexpr int fraction_bits = 3;
inline constexpr int min_exponent = -6;
inline constexpr std::uint32_t largest = 0x7e; ///< bits of the largest number; 0x7f is NaN
inline constexpr std::uint32_t nan = 0x7f;

COLLPROBE_HD constexpr float power(int exponent) noexcept
{
    return bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}
/// A carry out of the fraction moves into the exponent. Zero has no sign.
COLLPROBE_HD inline std::uint32_t code_of(float value, bool stochastic, std::uint32_t bits16) noexcept
{
    const std::uint32_t magnitude = magnitude_bits(value);
    const int own = static_cast<int>(magnitude >> 23) - 127;
    const int unit = (own < min_exponent ? min_exponent : own) - fraction_bits;
    const float units = bit_cast<float>(magnitude) * power(-unit); // exact
    const std::int32_t whole = stochastic ? stochastic_integer(units, bits16) : nearest_integer(units);
    const auto code = static_cast<std::uint32_t>(
        ((unit + fraction_bits - min_exponent) << fraction_bits) + whole);
    return (code == 0 ? 0 : to_bits(value) >> 31 << 7) | (code > largest ? largest : code);
}
COLLPROBE_HD constexpr float number(std::uint32_t code) noexcept
{
    const std::uint32_t sign = (code & 0x80u) << 24;
    const std::uint32_t magnitude = code & 0x7fu;
    if (magnitude > largest) return bit_cast<float>(nan_bits | sign);
    const auto field = static_cast<int>(magnitude >> fraction_bits);
    const auto fraction = static_cast<float>(magnitude & 7u);
    const float value = field == 0 ? fraction * power(min_exponent - fraction_bits)
                                   : (fraction + 8) * power(min_exponent - fraction_bits + field - 1);
    return bit_cast<float>(to_bits(value) | sign);
}

} // namespace e4m3

/// The largest integer code that stands for a number. The one below its negative stands for NaN.
COLLPROBE_HD constexpr std::int32_t most_code(code_format format) noexcept
{
    return format == code_format::int4 ? 7 : 127;
}
COLLPROBE_HD constexpr std::int32_t nan_code(code_format format) noexcept
{
    return format == code_format::e4m3 ? static_cast<std::int32_t>(e4m3::nan) : -most_code(format) - 1;
}

/// The code of a finite element in units of its scale: an integer, or the bits of an 8-bit float.
COLLPROBE_HD inline std::int32_t code_of(const codec& how, float value, std::uint32_t bits16) noexcept
{
    const bool stochastic = how.rounding == code_rounding::stochastic;
    if (!is_integer(how.format)) return static_cast<std::int32_t>(e4m3::code_of(value, stochastic, bits16));
    const std::int32_t code = stochastic ? stochastic_integer(value, bits16) : nearest_integer(value);
    const std::int32_t most = most_code(how.format);
    return code < -most ? -most : code > most ? most : code;
}

/// A code in units of its scale; NaN for a code that stands for NaN.
COLLPROBE_HD constexpr float units_of(const codec& how, std::int32_t code) noexcept
{
    if (!is_integer(how.format)) return e4m3::number(static_cast<std::uint32_t>(code));
    return code == nan_code(how.format) ? nan_element() : static_cast<float>(code);
}
/// The element that a code stands for. A code of a finite element is finite, also where its scale was rounded
/// up beyond the largest number. The product of a code and a scale is exact.
COLLPROBE_HD inline float element_of(const codec& how, float scale, std::int32_t code) noexcept
{
    const float units = units_of(how, code);
    if (magnitude_bits(units) > 0x7f800000u || magnitude_bits(scale) >= 0x7f800000u) return nan_element();
    const float value = rounded_product(units, scale);
    if (magnitude_bits(value) <= to_bits(how.largest)) return value;
    return bit_cast<float>((to_bits(value) & 0x80000000u) | to_bits(how.largest));
}

/// What is added to an element the next time: never a number that is not finite.
COLLPROBE_HD inline float residual_of(float element, float decoded) noexcept
{
    const float left = rounded_difference(element, decoded);
    return magnitude_bits(left) < 0x7f800000u ? left : 0.0f;
}

/// Whether surely no code of a block decodes to an element beyond the largest one. By bits: NaN is no such scale.
COLLPROBE_HD inline bool is_plain_scale(const codec& how, float scale) noexcept
{
    return magnitude_bits(rounded_product(scale, largest_code(how.format))) <= to_bits(how.largest);
}

/// The same for what a rotation back has made of decoded elements: finite numbers that a type cannot hold become its
/// largest.
COLLPROBE_HD inline float clamped(float value, float largest) noexcept
{
    const bool beyond = magnitude_bits(value) > to_bits(largest) && magnitude_bits(value) < 0x7f800000u;
    return beyond ? bit_cast<float>((to_bits(value) & 0x80000000u) | to_bits(largest)) : value;
}

/// Code `i` of a block.
COLLPROBE_HD constexpr std::int32_t read_code(
    const codec& how, const unsigned char* codes, std::uint32_t i) noexcept
{
    if (how.format == code_format::e4m3) return codes[i];
    if (how.format == code_format::int8) return static_cast<signed char>(codes[i]);
    return static_cast<std::int32_t>((codes[i / 2] >> (4 * (i % 2)) & 0xfu) ^ 8u) - 8;
}

/// Reads and writes a scale in a plane of them.
inline constexpr std::uint32_t scale_bytes = 2;
COLLPROBE_HD inline float read_scale(const unsigned char* plane, std::uint64_t block) noexcept
{
    return bit_cast<float>(std::uint32_t{reinterpret_cast<const std::uint16_t*>(plane)[block]} << 16);
}
COLLPROBE_HD inline void write_scale(unsigned char* plane, std::uint64_t block, float scale) noexcept
{
    reinterpret_cast<std::uint16_t*>(plane)[block] = static_cast<std::uint16_t>(to_bits(scale) >> 16);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
