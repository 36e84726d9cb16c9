// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/vector.hpp>

/// Blocks to codes and back on the host, by vectors where they are to be had, with the bits of block.hpp.

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// Codes are made and read 32 at a time.
inline constexpr std::uint32_t group_vectors = 32 / float_lanes;
using code_bytes = vector<signed char, 32>;

template <class V>
[[gnu::always_inline]] inline auto magnitudes_of(V x) noexcept
{
    return reinterpret_cast<vector<int, int{sizeof(V)}>>(x) & 0x7fffffff;
}
/// Writes 32 codes.
[[gnu::always_inline]] inline void store_codes(code_bytes codes, bool as_nibbles, unsigned char* to) noexcept
{
    if (!as_nibbles) {
        __builtin_memcpy(to, &codes, 32);
        return;
    }
    const auto pairs = reinterpret_cast<vector<std::uint16_t, 32>>(codes);
    const auto nibbles = lower_halves((pairs & 0xf) | (pairs >> 4 & 0xf0));
    __builtin_memcpy(to, &nibbles, 16);
}

/// The bits of the largest magnitude, where those that are not finite count, too.
[[gnu::always_inline]] inline std::uint32_t largest_bits(const float* x, std::uint32_t count) noexcept
{
    ints most[2] = {};
    for (std::uint32_t i = 0; i < count; i += 2 * float_lanes) {
        most[0] = lanewise_maximum(most[0], magnitudes_of(load<floats>(x + i)));
        most[1] = lanewise_maximum(most[1], magnitudes_of(load<floats>(x + i + float_lanes)));
    }
    return static_cast<std::uint32_t>(highest_lane(lanewise_maximum(most[0], most[1])));
}

/// The random bits of `eighths` times 8 elements, `philox` of four counters at a time. Writes up to 3 eighths more.
[[gnu::noinline]] inline void draw_bits(const dither& noise, std::uint64_t key, std::uint64_t first_eighth,
    std::uint32_t eighths, std::uint16_t* to) noexcept
{
    for (std::uint32_t e = 0; e < eighths; e += 4) {
        // Of each lane the lower half is the word; a product reads no more.
        words64 c0 = words64{0, 1, 2, 3} + (first_eighth + e);
        words64 c1 = c0 >> 32;
        words64 c2 = words64{} + noise.rank;
        words64 c3 = words64{} + noise.call;
        words64 k0 = words64{} + static_cast<std::uint32_t>(key);
        words64 k1 = words64{} + (key >> 32);
        for (int round = 0; round < 10; ++round) {
            const words64 a = multiply_low_halves(c0, words64{} + 0xd2511f53u);
            const words64 b = multiply_low_halves(c2, words64{} + 0xcd9e8d57u);
            c0 = (b >> 32) ^ c1 ^ k0;
            c2 = (a >> 32) ^ c3 ^ k1;
            c1 = b;
            c3 = a;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        const words64 low = (c0 & 0xffffffffu) | c1 << 32;
        const words64 high = (c2 & 0xffffffffu) | c3 << 32;
        const words64 in_order[2]
            = {__builtin_shufflevector(low, high, 0, 4, 1, 5), __builtin_shufflevector(low, high, 2, 6, 3, 7)};
        __builtin_memcpy(to + 8 * e, in_order, sizeof in_order);
    }
}

/// How elements in units of their scale become codes.
enum class coding : std::uint8_t { nearest, stochastic, float8 };

template <coding kind>
struct coder {
    ints most;

    [[gnu::always_inline]] explicit coder(const codec& how) noexcept : most(ints{} + most_code(how.format)) {}
    /// The codes as signed bytes, and what they stand for less the values. `random`: 16 bits for each.
    [[gnu::always_inline]] ints operator()(floats value, const std::uint16_t* random, floats& error) const noexcept
    {
        ints code;
        if constexpr (kind == coding::float8) {
            const auto bits = reinterpret_cast<ints>(value);
            const ints magnitude = bits & 0x7fffffff;
            constexpr int fraction_bits = e4m3::fraction_bits;
            constexpr int least_exponent = e4m3::min_exponent + 127;
            const ints exponent = lanewise_maximum(magnitude >> 23, ints{} + least_exponent);
            const auto to_units = reinterpret_cast<floats>((254 + fraction_bits - exponent) << 23);
            const auto to_value = reinterpret_cast<floats>((exponent - fraction_bits) << 23);
            const ints units = nearest_ints(reinterpret_cast<floats>(magnitude) * to_units);
            code = lanewise_minimum(((exponent - least_exponent) << fraction_bits) + units,
                ints{} + static_cast<int>(e4m3::largest));
            const ints sign = bits & static_cast<int>(0x80000000u);
            code |= (sign >> 24) & (code != 0);
            const ints number
                = lanewise_minimum(reinterpret_cast<ints>(__builtin_convertvector(units, floats) * to_value),
                    ints{} + bit_cast<int>(largest_code(code_format::e4m3)));
            const floats above = reinterpret_cast<floats>(number) - reinterpret_cast<floats>(magnitude);
            error = reinterpret_cast<floats>(reinterpret_cast<ints>(above) ^ sign);
        } else {
            code = nearest_ints(value);
            if constexpr (kind == coding::stochastic) {
                const floats rest = value - __builtin_convertvector(code, floats); // exact
                const auto bits = ints_of_shorts(random);
                code += (nearest_ints(rest * 65536.0f) + bits) >> 16;
                code = lanewise_maximum(lanewise_minimum(code, most), -most);
            }
            error = __builtin_convertvector(code, floats) - value;
        }
        return code;
    }
};

/// The codes of a block, whose elements are finite.
template <bool probed, coding kind>
inline void encode_block(const codec& how, const float* elements, const std::uint16_t* random, unsigned char* to,
    encoded_block& made) noexcept
{
    const coder<kind> code_of(how);
    const bool as_nibbles = how.format == code_format::int4;
    const floats inverse = floats{} + made.by.inverse;
    floats squares[2] = {};
    floats error_squares[2] = {};
    floats error_sum = {};
    ints counts = {}; // of zeros, and in the upper half of codes that are zero
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        ints codes[group_vectors];
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            const std::uint32_t at = i + float_lanes * k;
            const auto x = load<floats>(elements + at);
            const floats value = x * inverse;
            floats error;
            codes[k] = code_of(value, kind == coding::stochastic ? random + at : nullptr, error);
            if constexpr (probed) {
                squares[k % 2] += value * value;
                error_squares[k % 2] += error * error;
                error_sum += error;
                counts += ((magnitudes_of(x) == 0) & 1) + ((codes[k] == 0) & 0x10000);
            }
        }
        store_codes(bytes_of_ints(codes), as_nibbles, to + (as_nibbles ? i / 2 : i));
    }
    if constexpr (probed) {
        const auto both = static_cast<std::uint32_t>(sum_of_lanes(counts));
        made.errors = {sum_of_lanes(squares[0] + squares[1]), sum_of_lanes(error_squares[0] + error_squares[1]),
            sum_of_lanes(error_sum), both & 0xffff, both >> 16};
    }
}

/// `encode_portably` for a whole block. False, with nothing of use, if one of its elements is not finite.
template <bool probed>
inline bool encode_block(const codec& how, const float* elements, const std::uint16_t* random, unsigned char* to,
    encoded_block& made) noexcept
{
    const std::uint32_t largest = largest_bits(elements, how.block);
    if (largest >= how.overflow) return false;
    made.largest = bit_cast<float>(largest);
    made.by = scale_of(how, made.largest);
    if (!is_integer(how.format)) encode_block<probed, coding::float8>(how, elements, random, to, made);
    else if (random == nullptr) encode_block<probed, coding::nearest>(how, elements, random, to, made);
    else encode_block<probed, coding::stochastic>(how, elements, random, to, made);
    return true;
}

/// Thirty-two codes as vectors, in units of their scale. Returns lanes that are set if a code stands for NaN.
template <class Code>
[[gnu::always_inline]] inline ints load_units(
    bool as_nibbles, const unsigned char* from, floats (&to)[group_vectors]) noexcept
{
    using v16qi = vector<signed char, 16>;
    v16qi codes[2];
    if (as_nibbles) {
        const auto pairs = load<vector<unsigned char, 16>>(from);
        const auto low = reinterpret_cast<v16qi>(pairs & 0xf);
        const auto high = reinterpret_cast<v16qi>(pairs >> 4);
        codes[0] = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        codes[1] = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        for (v16qi& each : codes) each = (each ^ 8) - 8;
    } else {
        for (int k = 0; k < 2; ++k) codes[k] = load<v16qi>(from + 16 * k);
    }
    ints nans = {};
    for (std::uint32_t k = 0; k < group_vectors; k += 2) {
        floats sixteen[2];
        floats_of_sixteen<Code>(codes[k / 2], sixteen);
        for (std::uint32_t half = 0; half < 2; ++half) {
            ints is_nan;
            if constexpr (std::is_integral_v<Code>)
                is_nan = sixteen[half] == (as_nibbles ? -8.0f : -128.0f);
            else is_nan = magnitudes_of(sixteen[half]) > 0x7f800000;
            const ints bits = (reinterpret_cast<ints>(sixteen[half]) & ~is_nan) | (static_cast<int>(nan_bits) & is_nan);
            to[k + half] = reinterpret_cast<floats>(bits);
            nans |= is_nan;
        }
    }
    return nans;
}

/// `decode_portably` for a block whose codes decode to no element beyond the largest one. Whether all are finite.
template <class Code, class T>
inline bool decode_block(const codec& how, float scale, const unsigned char* from, T* elements) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    ints nans = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats x[group_vectors];
        nans |= load_units<Code>(as_nibbles, from + (as_nibbles ? i / 2 : i), x);
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) store_floats(x[k] * scale, elements + i + float_lanes * k);
    }
    return !any_bit(nans);
}

/// Adds the elements of such a block. Returns their squares, times the square of `factor`.
template <class Code>
[[gnu::noinline]] inline float add_block(
    const codec& how, float scale, const unsigned char* from, float factor, float* sums) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    floats squares[2] = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats x[group_vectors];
        load_units<Code>(as_nibbles, from + (as_nibbles ? i / 2 : i), x);
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            float* const to = sums + i + float_lanes * k;
            const floats element = x[k] * scale; // exact, so the sum may be fused
            const floats scaled = element * factor;
            squares[k % 2] += scaled * scaled;
            store_floats(load<floats>(to) + element, to);
        }
    }
    return sum_of_lanes(squares[0] + squares[1]);
}

/// The leading multiple of 8 elements; return how many they are.
[[gnu::noinline]] inline std::uint32_t add_floats(const float* from, std::uint32_t count, float* to) noexcept
{
    std::uint32_t i = 0;
    for (; i + float_lanes <= count; i += float_lanes) store(to + i, load<floats>(to + i) + load<floats>(from + i));
    return i;
}
inline std::uint32_t divide_floats(float* x, std::uint32_t count, float by) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes)
        store(x + i, rounded_quotient(load<floats>(x + i), floats{} + by));
    return count;
}
[[gnu::noinline]] inline std::uint32_t keep_residual(
    const float* elements, const float* decoded, std::uint32_t count, float* residual) noexcept
{
    std::uint32_t i = 0;
    for (; i + float_lanes <= count; i += float_lanes) {
        const floats left = load<floats>(elements + i) - load<floats>(decoded + i);
        const ints is_finite = magnitudes_of(left) < 0x7f800000;
        store(residual + i, reinterpret_cast<ints>(left) & is_finite);
    }
    return i;
}

/// The squares of a block's elements, times the square of `factor`.
inline float squares_of(const float* x, std::uint32_t block, float factor) noexcept
{
    floats squares[2] = {};
    for (std::uint32_t i = 0; i < block; i += 2 * float_lanes) {
        for (std::uint32_t k = 0; k < 2; ++k) {
            const floats scaled = load<floats>(x + i + float_lanes * k) * factor;
            squares[k] += scaled * scaled;
        }
    }
    return sum_of_lanes(squares[0] + squares[1]);
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The random bits of `eighths` times 8 elements. May write up to 24 numbers more.
inline void draw_random_bits(isa path, const dither& noise, std::uint64_t key, std::uint64_t first_eighth,
    std::uint32_t eighths, std::uint16_t* to) noexcept
{
    if (path != isa::portable) {
        COLLPROBE_ON_ISA(path, void(), draw_bits(noise, key, first_eighth, eighths, to));
        return;
    }
    for (std::uint32_t i = 0; i < 8 * eighths; ++i)
        to[i] = static_cast<std::uint16_t>(noise.of_eight(key, first_eighth + i / 8).bits16(i % 8));
}

/// Encodes the first `count` of a block's elements, and writes code 0 behind them. `random`: 16 bits for each element,
/// or null for nearest rounding.
inline void encode_block(isa path, const codec& how, const float* x, std::uint32_t count, const std::uint16_t* random,
    unsigned char* to, bool probed, encoded_block& made) noexcept
{
    bool done = false;
    if (count == how.block && (is_integer(how.format) || random == nullptr)) {
        if (probed) done = COLLPROBE_ON_ISA(path, false, encode_block<true>(how, x, random, to, made));
        else done = COLLPROBE_ON_ISA(path, false, encode_block<false>(how, x, random, to, made));
    }
    if (!done) made = encode_portably(how, x, count, random, to, probed);
}

/// Decodes a block. Whether surely all elements are finite.
template <floating_element T>
bool decode_block(isa path, const codec& how, float scale, const unsigned char* codes, T* to) noexcept
{
    if (path == isa::portable || !is_plain_scale(how, scale)) {
        decode_portably(how, scale, codes, to);
        return false;
    }
    if (is_integer(how.format)) return COLLPROBE_ON_ISA(path, false, decode_block<std::int8_t>(how, scale, codes, to));
    return COLLPROBE_ON_ISA(path, false, decode_block<float8_e4m3>(how, scale, codes, to));
}

/// to += from
inline void add_floats(isa path, const float* from, std::uint32_t count, float* to) noexcept
{
    for (std::uint32_t i = COLLPROBE_ON_ISA(path, 0u, add_floats(from, count, to)); i < count; ++i)
        to[i] = rounded_sum(to[i], from[i]);
}

/// x /= by, for whole blocks.
inline void divide_floats(isa path, float* x, std::uint32_t count, float by) noexcept
{
    for (std::uint32_t i = COLLPROBE_ON_ISA(path, 0u, divide_floats(x, count, by)); i < count; ++i)
        x[i] = rounded_quotient(x[i], by);
}

/// What is added to the elements the next time.
inline void keep_residual(isa path, const float* elements, const float* decoded, std::uint32_t count,
    float* residual) noexcept
{
    std::uint32_t i = COLLPROBE_ON_ISA(path, 0u, keep_residual(elements, decoded, count, residual));
    for (; i < count; ++i) residual[i] = residual_of(elements[i], decoded[i]);
}

/// The squares of a block's elements, times the square of `factor`.
inline float squares_of(isa path, const float* x, std::uint32_t block, float factor) noexcept
{
    if (path != isa::portable) return COLLPROBE_ON_ISA(path, 0.0f, squares_of(x, block, factor));
    float lane[16] = {}; // sums of few terms, or their rounding would show
    for (std::uint32_t i = 0; i < block; ++i) lane[i % 16] += (x[i] * factor) * (x[i] * factor);
    float sum = 0;
    for (const float each : lane) sum += each;
    return sum;
}

/// Adds the elements of a block's codes. Returns their squares, times the square of `factor`.
inline float add_block(isa path, const codec& how, float scale, const unsigned char* codes, float factor,
    float* sums) noexcept
{
    if (path != isa::portable && is_plain_scale(how, scale)) {
        if (is_integer(how.format))
            return COLLPROBE_ON_ISA(path, 0.0f, add_block<std::int8_t>(how, scale, codes, factor, sums));
        return COLLPROBE_ON_ISA(path, 0.0f, add_block<float8_e4m3>(how, scale, codes, factor, sums));
    }
    float x[largest_block];
    decode_portably(how, scale, codes, x);
    add_floats(path, x, how.block, sums);
    return squares_of(path, x, how.block, factor);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
