// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/quant/format.hpp>
#include <collprobe/simd/rounding.hpp>

/// The arithmetic of one code and of one block's scale. Host and device run it and get the same bits,
/// whatever the flags of the build, inside `gradual_underflow`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The bits of the largest finite T and of the least float that rounds to no finite T, as floats without a
/// sign.
template <floating_element T>
requires(sizeof(T) <= 4) inline constexpr std::uint32_t largest_float_of = [] {
    using traits = element_traits<T>;
    const auto bits = static_cast<typename traits::bits_type>(traits::smallest_nonfinite - 1);
    return bit_cast<std::uint32_t>(static_cast<float>(bit_cast<T>(bits)));
}();
template <floating_element T>
requires(sizeof(T) <= 4) inline constexpr std::uint32_t overflow_from = [] {
    constexpr int kept = element_traits<T>::digits;
    return largest_float_of<T> + (kept >= 24 ? 1u : 1u << (23 - (kept < 24 ? kept : 23)));
}();

/// How a kernel makes codes out of elements and elements out of codes.
struct codec {
    code_format format = code_format::int8;
    scaling rule = scaling::symmetric;
    scale_format scale = scale_format::bfloat16;
    code_rounding rounding = code_rounding::nearest;
    bool rotate = false;
    std::uint32_t block = 128;
    std::uint32_t overflow = 0x7f800000; ///< bits of the least magnitude that counts as not finite
    std::uint32_t largest = 0x7f7fffff; ///< bits of the largest magnitude that a code decodes to
    std::uint64_t seed = 0;

    template <floating_element T>
    static constexpr codec of(const quantisation& how) noexcept
    {
        return {how.format, how.rule, how.scale, how.rounding, how.rotate, how.block,
            how.rotate ? overflow_from<float> : overflow_from<T>, // rotated elements are floats
            how.rotate ? largest_float_of<float> : largest_float_of<T>, how.seed};
    }
    COLLPROBE_HD constexpr bool has_offsets() const noexcept { return rule == scaling::asymmetric; }
    COLLPROBE_HD constexpr std::uint32_t scale_bytes() const noexcept
    {
        return scale == scale_format::bfloat16 ? 2 : 4;
    }
    COLLPROBE_HD constexpr std::uint32_t code_bytes() const noexcept
    {
        return format == code_format::int4 ? block / 2 : block;
    }
};

/// The largest and smallest of a block's finite elements, and the number of the others. Its members are
/// folded with maxima, minima and sums, so the order of elements does not matter.
struct block_range {
    /// Of the element of largest magnitude: twice the bits of the magnitude, plus its sign.
    std::uint32_t extreme = 0;
    std::int32_t least = 0x7fffffff; ///< in the order of the numbers
    std::int32_t greatest = -0x7fffffff - 1;
    std::uint32_t nonfinite = 0;

    COLLPROBE_HD constexpr void add(std::uint32_t bits, std::uint32_t overflow) noexcept
    {
        if ((bits & 0x7fffffffu) >= overflow) {
            ++nonfinite;
            return;
        }
        const std::uint32_t key = bits << 1 | bits >> 31;
        const std::int32_t place = ordered(bits);
        extreme = key > extreme ? key : extreme;
        least = place < least ? place : least;
        greatest = place > greatest ? place : greatest;
    }
    COLLPROBE_HD constexpr void merge(const block_range& other) noexcept
    {
        extreme = other.extreme > extreme ? other.extreme : extreme;
        least = other.least < least ? other.least : least;
        greatest = other.greatest > greatest ? other.greatest : greatest;
        nonfinite += other.nonfinite;
    }
    COLLPROBE_HD constexpr float magnitude() const noexcept { return bit_cast<float>(extreme >> 1); }
    COLLPROBE_HD constexpr bool extreme_is_negative() const noexcept { return (extreme & 1) != 0; }
    COLLPROBE_HD constexpr float minimum() const noexcept { return number(least); }
    COLLPROBE_HD constexpr float maximum() const noexcept { return number(greatest); }

private:
    /// Maps the bits of a float to an integer of the same order, and back.
    COLLPROBE_HD static constexpr std::int32_t ordered(std::uint32_t bits) noexcept
    {
        const std::uint32_t flip = 0u - (bits >> 31);
        return bit_cast<std::int32_t>(bits ^ (flip & 0x7fffffffu));
    }
    COLLPROBE_HD static constexpr float number(std::int32_t place) noexcept
    {
        const auto bits = bit_cast<std::uint32_t>(place);
        return bit_cast<float>(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu));
    }
};

/// What turns the elements of a block into codes and back.
struct block_scale {
    float scale = 0; ///< 0 for a block of zeros
    float inverse = 0; ///< 1 / scale, rounded; 0 for a block of zeros
    float offset = 0; ///< of `asymmetric`
};

inline constexpr std::uint32_t nan_bits = 0x7fc00000u;
COLLPROBE_HD constexpr bool is_nan_bits(std::uint32_t bits) noexcept
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

/// The least number of a scale's type that is at least `value`, a normal or zero, by its bits.
COLLPROBE_HD constexpr float up_to_scale(float value, scale_format format) noexcept
{
    const auto bits = bit_cast<std::uint32_t>(value);
    return format == scale_format::float32 ? value : bit_cast<float>((bits + 0xffffu) & 0xffff0000u);
}
/// The scale whose product with `steps` is at least `range` > 0, out of their quotient; never subnormal.
COLLPROBE_HD inline float scale_at_least(
    float quotient, double range, float steps, scale_format format) noexcept
{
    constexpr std::uint32_t smallest_normal = 0x00800000u;
    const auto bits = bit_cast<std::uint32_t>(quotient);
    const float scale = up_to_scale(bit_cast<float>(bits < smallest_normal ? smallest_normal : bits), format);
    // The quotient may have been rounded down, by less than a unit of the scale. The product is exact.
    if (static_cast<double>(scale) * static_cast<double>(steps) >= range) return scale;
    return bit_cast<float>(
        bit_cast<std::uint32_t>(scale) + (format == scale_format::float32 ? 1u : 0x10000u));
}

/// The greatest number of a scale's type that is at most `value`; finite.
COLLPROBE_HD constexpr float down_to_scale(float value, scale_format format) noexcept
{
    if (format == scale_format::float32) return value;
    const auto bits = bit_cast<std::uint32_t>(value);
    if (bits >> 31 == 0) return bit_cast<float>(bits & 0xffff0000u);
    const std::uint32_t away = (bits + 0xffffu) & 0xffff0000u;
    return bit_cast<float>(away >= 0xff800000u ? 0xff7f0000u : away);
}

/// The scale and offset of a block. A rule without a code for NaN makes the whole block NaN by its scale or
/// offset.
COLLPROBE_HD inline block_scale scale_of(const codec& how, const block_range& range) noexcept
{
    const bool has_nan_code = how.rule == scaling::symmetric;
    if (!has_nan_code && range.nonfinite != 0)
        return {bit_cast<float>(nan_bits), 0, bit_cast<float>(nan_bits)};
    block_scale made;
    if (how.rule == scaling::asymmetric) {
        if (range.least > range.greatest) return made;
        made.offset = down_to_scale(range.minimum(), how.scale);
        const double width = exact_double(range.maximum()) - exact_double(made.offset);
        if (!(width > 0)) return made;
        const float steps = how.format == code_format::int8 ? 255 : 15;
        const auto quotient = static_cast<float>(rounded_quotient(width, static_cast<double>(steps)));
        made.scale = scale_at_least(quotient, width, steps, how.scale);
    } else {
        if (range.extreme >> 1 == 0) return made;
        const float steps = largest_code(how.format) + (how.rule == scaling::signed_maximum ? 1 : 0);
        const float most = range.magnitude();
        made.scale
            = scale_at_least(rounded_quotient(most, steps), exact_double(most), steps, how.scale);
        if (how.rule == scaling::signed_maximum && !range.extreme_is_negative())
            made.scale = bit_cast<float>(bit_cast<std::uint32_t>(made.scale) | 0x80000000u);
    }
    made.inverse = rounded_quotient(1.0f, made.scale);
    return made;
}
/// The same out of what was on the wire. Decoding needs no inverse.
COLLPROBE_HD constexpr bool is_nan_block(const block_scale& by) noexcept
{
    return is_nan_bits(bit_cast<std::uint32_t>(by.scale)) || is_nan_bits(bit_cast<std::uint32_t>(by.offset));
}

/// An element in units of its scale.
COLLPROBE_HD inline float in_scales(const codec& how, const block_scale& by, float element) noexcept
{
    if (how.rule != scaling::asymmetric) return rounded_product(element, by.inverse);
    // In double, because the difference of two finite floats may overflow.
    const double above = exact_double(element) - exact_double(by.offset);
    return nearest_float(rounded_product(above, exact_double(by.inverse)));
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

/// The smallest and largest integer codes that stand for numbers.
COLLPROBE_HD constexpr std::int32_t lowest_code(const codec& how) noexcept
{
    if (how.rule == scaling::asymmetric) return 0;
    const std::int32_t most = how.format == code_format::int8 ? 127 : 7;
    return how.rule == scaling::symmetric ? -most : -most - 1;
}
COLLPROBE_HD constexpr std::int32_t highest_code(const codec& how) noexcept
{
    if (how.rule == scaling::asymmetric) return how.format == code_format::int8 ? 255 : 15;
    return how.format == code_format::int8 ? 127 : 7;
}
/// The integer code that stands for NaN with `symmetric`.
COLLPROBE_HD constexpr std::int32_t nan_code(const codec& how) noexcept
{
    return how.format == code_format::int8 ? -128 : -8;
}

/// An 8-bit float without infinities in the way of the codes: sign, exponent and fraction of `digits` - 1
/// bits.
struct float8_format {
    int digits;
    int min_exponent;
    std::uint32_t largest; ///< bits of the largest finite number
    std::uint32_t nan;

    COLLPROBE_HD static constexpr float8_format of(code_format format) noexcept
    {
        return format == code_format::e4m3 ? float8_format{4, -6, 0x7e, 0x7f}
                                           : float8_format{3, -14, 0x7b, 0x7f};
    }
    /// The bits of the unit of numbers as large as the one with these bits, as a float.
    COLLPROBE_HD constexpr int unit_exponent(std::uint32_t magnitude) const noexcept
    {
        const int exponent = static_cast<int>(magnitude >> 23) - 127;
        return (exponent < min_exponent ? min_exponent : exponent) - (digits - 1);
    }
    COLLPROBE_HD static constexpr float power(int exponent) noexcept
    {
        return bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
    }
    /// The code of `units` units of numbers with that unit. A carry moves into the exponent. Zero has no
    /// sign.
    COLLPROBE_HD constexpr std::uint32_t code(std::uint32_t sign, int unit, std::int32_t units) const noexcept
    {
        const auto bits
            = static_cast<std::uint32_t>(((unit + digits - 1 - min_exponent) << (digits - 1)) + units);
        return (bits == 0 ? 0 : sign << 7) | (bits > largest ? largest : bits);
    }
    COLLPROBE_HD constexpr float number(std::uint32_t bits) const noexcept
    {
        const std::uint32_t magnitude = bits & 0x7fu;
        const std::uint32_t sign = (bits & 0x80u) << 24;
        if (magnitude > largest) return bit_cast<float>(nan_bits | sign);
        const auto field = static_cast<int>(magnitude >> (digits - 1));
        const auto fraction = static_cast<float>(magnitude & ((1u << (digits - 1)) - 1));
        const float value = field == 0 ? fraction * power(min_exponent - (digits - 1))
                                       : (fraction + static_cast<float>(1 << (digits - 1)))
                * power(field - 1 + min_exponent - (digits - 1));
        return bit_cast<float>(bit_cast<std::uint32_t>(value) | sign);
    }
};

/// The code of an element in units of its scale: an integer, or the bits of an 8-bit float.
COLLPROBE_HD inline std::int32_t code_of(const codec& how, float value, std::uint32_t bits16) noexcept
{
    const bool stochastic = how.rounding == code_rounding::stochastic;
    if (is_integer(how.format)) {
        const std::int32_t code = stochastic ? stochastic_integer(value, bits16) : nearest_integer(value);
        const std::int32_t low = lowest_code(how);
        const std::int32_t high = highest_code(how);
        return code < low ? low : code > high ? high : code;
    }
    const float8_format format = float8_format::of(how.format);
    const auto bits = bit_cast<std::uint32_t>(value);
    const int unit = format.unit_exponent(bits & 0x7fffffffu);
    const float units = bit_cast<float>(bits & 0x7fffffffu) * float8_format::power(-unit); // exact
    const std::int32_t whole = stochastic ? stochastic_integer(units, bits16) : nearest_integer(units);
    return static_cast<std::int32_t>(format.code(bits >> 31, unit, whole));
}
/// The code of an element that is not finite, for `symmetric`.
COLLPROBE_HD constexpr std::int32_t code_of_nonfinite(const codec& how) noexcept
{
    return is_integer(how.format) ? nan_code(how)
                                  : static_cast<std::int32_t>(float8_format::of(how.format).nan);
}

/// A code in units of its scale; NaN for a code that stands for NaN.
COLLPROBE_HD constexpr float units_of(const codec& how, std::int32_t code) noexcept
{
    if (!is_integer(how.format))
        return float8_format::of(how.format).number(static_cast<std::uint32_t>(code));
    if (how.rule == scaling::symmetric && code == nan_code(how)) return bit_cast<float>(nan_bits);
    return static_cast<float>(code);
}
/// The element that a code stands for. A code of a finite element is finite, also where its scale was rounded
/// up beyond the largest number.
COLLPROBE_HD inline float element_of(const codec& how, const block_scale& by, std::int32_t code) noexcept
{
    const float units = units_of(how, code);
    if (is_nan_bits(bit_cast<std::uint32_t>(units)) || is_nan_block(by)) return bit_cast<float>(nan_bits);
    // In double where an offset follows: the product may be beyond the floats, and the sum within.
    const float value = how.rule != scaling::asymmetric
        ? rounded_product(units, by.scale)
        : nearest_float(rounded_sum(
              rounded_product(exact_double(units), exact_double(by.scale)), exact_double(by.offset)));
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    return magnitude > how.largest ? bit_cast<float>((bits & 0x80000000u) | how.largest) : value;
}

/// The same for what a rotation back has made of decoded elements: finite numbers that a type cannot hold become its
/// largest. `largest`: its bits as a float.
COLLPROBE_HD inline float clamped(float value, std::uint32_t largest) noexcept
{
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const bool beyond = magnitude > largest && magnitude < 0x7f800000u;
    return beyond ? bit_cast<float>((bits & 0x80000000u) | largest) : value;
}

/// A code out of its bits, 4 for int4 and 8 for the others.
COLLPROBE_HD constexpr std::int32_t code_of_bits(const codec& how, std::uint32_t bits) noexcept
{
    if (!is_integer(how.format) || how.rule == scaling::asymmetric) return static_cast<std::int32_t>(bits);
    const std::uint32_t sign = how.format == code_format::int4 ? 8 : 128;
    return static_cast<std::int32_t>(bits ^ sign) - static_cast<std::int32_t>(sign);
}
/// Code `i` of a block.
COLLPROBE_HD constexpr std::int32_t read_code(
    const codec& how, const unsigned char* codes, std::uint32_t i) noexcept
{
    if (how.format == code_format::int4)
        return code_of_bits(how, std::uint32_t{codes[i / 2]} >> (4 * (i % 2)) & 0xfu);
    return code_of_bits(how, codes[i]);
}

/// Reads and writes a scale or an offset, in a plane of them.
COLLPROBE_HD inline float read_scale(
    scale_format format, const unsigned char* plane, std::uint64_t block) noexcept
{
    if (format == scale_format::bfloat16)
        return bit_cast<float>(std::uint32_t{reinterpret_cast<const std::uint16_t*>(plane)[block]} << 16);
    return reinterpret_cast<const float*>(plane)[block];
}
COLLPROBE_HD inline void write_scale(
    scale_format format, unsigned char* plane, std::uint64_t block, float value) noexcept
{
    const auto bits = bit_cast<std::uint32_t>(value);
    if (format == scale_format::bfloat16)
        reinterpret_cast<std::uint16_t*>(plane)[block] = static_cast<std::uint16_t>(bits >> 16);
    else reinterpret_cast<std::uint32_t*>(plane)[block] = bits;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
