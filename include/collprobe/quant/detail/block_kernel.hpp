// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/quant/detail/wire.hpp>
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

/// The bits of a block's largest magnitude, where those that are not finite count, too. Counts its zeros if that is
/// asked for.
template <bool with_zeros>
[[gnu::always_inline]] inline std::uint32_t largest_bits(
    const float* x, std::uint32_t count, std::uint32_t& zeros) noexcept
{
    ints most[2] = {};
    ints least = ints{} + 0x7fffffff;
    for (std::uint32_t i = 0; i < count; i += 32) {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            const ints magnitudes = magnitudes_of(load<floats>(x + i + float_lanes * k));
            most[k % 2] = lanewise_maximum(most[k % 2], magnitudes);
            if constexpr (with_zeros) least = lanewise_minimum(least, magnitudes);
        }
    }
    if (with_zeros && any_bit(least == 0)) {
        ints found = {};
        for (std::uint32_t i = 0; i < count; i += float_lanes) found -= magnitudes_of(load<floats>(x + i)) == 0;
        zeros = static_cast<std::uint32_t>(sum_of_lanes(found));
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

/// The sums of the lanes of three vectors.
[[gnu::always_inline]] inline auto sums_of_three(floats a, floats b, floats c) noexcept
{
    const halves_of<floats> halves(sums_of_pairs(sums_of_pairs(a, b), sums_of_pairs(c, floats{})));
    return halves.both[0] + halves.both[1];
}

/// The codes of a block by its scale, if its elements are finite.
template <bool probed, coding kind>
[[gnu::always_inline]] inline void encode_block(const codec& how, const float* elements, const std::uint16_t* random,
    unsigned char* to, encoded_block& made) noexcept
{
    const coder<kind> code_of(how);
    const bool as_nibbles = how.format == code_format::int4;
    const floats inverse = floats{} + made.by.inverse;
    floats squares[2] = {};
    floats error_squares[2] = {};
    floats error_sum = {};
    vector<unsigned char, 32> zero_codes = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        ints codes[group_vectors];
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            const std::uint32_t at = i + float_lanes * k;
            const floats value = load<floats>(elements + at) * inverse;
            floats error;
            codes[k] = code_of(value, kind == coding::stochastic ? random + at : nullptr, error);
            if constexpr (probed) {
                squares[k % 2] += value * value;
                error_squares[k % 2] += error * error;
                error_sum += error;
            }
        }
        const code_bytes bytes = bytes_of_ints(codes);
        store_codes(bytes, as_nibbles, to + (as_nibbles ? i / 2 : i));
        if constexpr (probed) zero_codes -= reinterpret_cast<vector<unsigned char, 32>>(bytes == 0);
    }
    if constexpr (probed) {
        const auto sums = sums_of_three(squares[0] + squares[1], error_squares[0] + error_squares[1], error_sum);
        made.errors = {sums[0], sums[1], sums[2], made.errors.zeros,
            static_cast<std::uint32_t>(sum_of_lanes(sums_of_bytes(zero_codes)))};
    }
}
template <bool probed, coding kind>
inline void encode_blocks(const codec& how, const float* elements, const std::uint16_t* random, std::uint32_t blocks,
    std::uint32_t left_out, unsigned char* to, encoded_block* made) noexcept
{
    for (std::uint32_t b = 0; b < blocks; ++b) {
        if ((left_out >> b & 1) != 0) continue;
        encode_block<probed, kind>(how, elements + b * how.block,
            random + (kind == coding::stochastic ? b * how.block : 0), to + b * how.code_bytes(), made[b]);
    }
}

/// `encode_portably` for some whole blocks, at most 32. Returns bits of those with an element that is not finite, for
/// which it does nothing of use. Step by step for all of them, or each would wait for its scale and its sums.
template <bool probed>
inline std::uint32_t encode_blocks(const codec& how, const float* elements, const std::uint16_t* random,
    std::uint32_t blocks, unsigned char* to, encoded_block* made) noexcept
{
    std::uint32_t left_out = 0;
    for (std::uint32_t b = 0; b < blocks; ++b) {
        std::uint32_t largest = largest_bits<probed>(elements + b * how.block, how.block, made[b].errors.zeros);
        if (largest >= how.overflow) {
            left_out |= 1u << b;
            largest = 0;
        }
        made[b].largest = bit_cast<float>(largest);
    }
    for (std::uint32_t b = 0; b < blocks; ++b) made[b].by = scale_of(how, made[b].largest);
    const auto encode = [&]<coding kind>() {
        encode_blocks<probed, kind>(how, elements, random, blocks, left_out, to, made);
    };
    if (!is_integer(how.format)) encode.template operator()<coding::float8>();
    else if (random == nullptr) encode.template operator()<coding::nearest>();
    else encode.template operator()<coding::stochastic>();
    return left_out;
}

/// Whether codes stand for NaN.
using code_flags = vector<signed char, 16>;

/// Thirty-two codes as vectors, in units of their scale. Adds to the flags.
template <class Code>
[[gnu::always_inline]] inline void load_units(
    bool as_nibbles, const unsigned char* from, floats (&to)[group_vectors], code_flags& nans) noexcept
{
    const signed char nan_of = !std::is_integral_v<Code> ? 127 : as_nibbles ? -8 : -128;
    const code_flags nan = code_flags{} + nan_of;
    code_flags codes[2];
    if (as_nibbles) {
        const auto pairs = load<vector<unsigned char, 16>>(from);
        const auto low = reinterpret_cast<code_flags>(pairs & 0xf);
        const auto high = reinterpret_cast<code_flags>(pairs >> 4);
        codes[0] = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        codes[1] = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        for (auto& each : codes) each = (each ^ 8) - 8;
    } else {
        for (int k = 0; k < 2; ++k) codes[k] = load<code_flags>(from + 16 * k);
    }
    for (std::uint32_t k = 0; k < 2; ++k) {
        floats sixteen[2];
        floats_of_sixteen<Code>(codes[k], sixteen);
        for (std::uint32_t half = 0; half < 2; ++half) to[2 * k + half] = sixteen[half];
        if constexpr (std::is_integral_v<Code>) nans |= codes[k] == nan;
        else nans |= (codes[k] & nan) == nan;
    }
}

/// `decode_portably` for a block whose codes decode to no element beyond the largest one. False, with nothing of use,
/// if there is a NaN.
template <class Code, class T>
inline bool decode_block(const codec& how, float scale, const unsigned char* from, T* elements) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    code_flags nans = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats x[group_vectors];
        load_units<Code>(as_nibbles, from + (as_nibbles ? i / 2 : i), x, nans);
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) store_floats(x[k] * scale, elements + i + float_lanes * k);
    }
    return !any_bit(nans);
}

/// `sum_terms` for terms with such scales. False, with nothing of use, if there is a NaN.
template <class Code, bool probed>
inline bool sum_terms(const codec& how, const block_terms& terms, float divisor, float factor, float* to,
    block_terms::squares& squares) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    const bool divides = divisor != 1;
    floats of_terms[2] = {};
    floats of_sums = {};
    code_flags nans = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats sum[group_vectors] = {};
        for (std::uint32_t term = 0; term < terms.count; ++term) {
            floats x[group_vectors];
            load_units<Code>(as_nibbles, terms.codes(term) + (as_nibbles ? i / 2 : i), x, nans);
            const float scale = terms.scale(term);
            COLLPROBE_UNROLL_VECTORS
            for (std::uint32_t k = 0; k < group_vectors; ++k) {
                x[k] *= scale;
                if constexpr (probed) {
                    const floats scaled = x[k] * factor;
                    of_terms[k % 2] += scaled * scaled;
                }
                sum[k] = hidden(sum[k] + x[k]); // no other order; fused or not, as the product is exact
            }
        }
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            if constexpr (probed) {
                const floats scaled = sum[k] * factor;
                of_sums += scaled * scaled;
            }
            if (divides) sum[k] = rounded_quotient(sum[k], floats{} + divisor);
            store(to + i + float_lanes * k, sum[k]);
        }
    }
    if constexpr (probed) {
        const auto sums = sums_of_three(of_terms[0] + of_terms[1], of_sums, floats{});
        squares = {sums[0], sums[1]};
    }
    return !any_bit(nans);
}

/// The leading multiple of 8 elements; return how many they are.
[[gnu::noinline]] inline std::uint32_t add_floats(const float* from, std::uint32_t count, float* to) noexcept
{
    std::uint32_t i = 0;
    for (; i + float_lanes <= count; i += float_lanes) store(to + i, load<floats>(to + i) + load<floats>(from + i));
    return i;
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

/// Encodes whole blocks, at most 32, or the first `count` of a block's elements, and writes code 0 behind them.
/// `random`: 16 bits for each element, or null for nearest rounding.
inline void encode_blocks(isa path, const codec& how, const float* x, std::uint32_t count, const std::uint16_t* random,
    unsigned char* to, bool probed, encoded_block* made) noexcept
{
    const std::uint32_t whole = count / how.block;
    std::uint32_t left_out = ~0u;
    if (whole != 0 && (is_integer(how.format) || random == nullptr)) {
        if (probed) left_out = COLLPROBE_ON_ISA(path, ~0u, encode_blocks<true>(how, x, random, whole, to, made));
        else left_out = COLLPROBE_ON_ISA(path, ~0u, encode_blocks<false>(how, x, random, whole, to, made));
    }
    for (std::uint32_t b = 0; b == 0 || b < whole; ++b) {
        if ((left_out >> b & 1) == 0) continue;
        const std::uint32_t first = b * how.block;
        made[b] = encode_portably(how, x + first, whole == 0 ? count : how.block,
            random == nullptr ? nullptr : random + first, to + b * how.code_bytes(), probed);
    }
}

/// Decodes a block. Whether surely all elements are finite.
template <floating_element T>
bool decode_block(isa path, const codec& how, float scale, const unsigned char* codes, T* to) noexcept
{
    bool done = false;
    if (is_plain_scale(how, scale)) {
        if (is_integer(how.format))
            done = COLLPROBE_ON_ISA(path, false, decode_block<std::int8_t>(how, scale, codes, to));
        else done = COLLPROBE_ON_ISA(path, false, decode_block<float8_e4m3>(how, scale, codes, to));
    }
    if (!done) decode_portably(how, scale, codes, to);
    return done;
}

/// to += from
inline void add_floats(isa path, const float* from, std::uint32_t count, float* to) noexcept
{
    for (std::uint32_t i = COLLPROBE_ON_ISA(path, 0u, add_floats(from, count, to)); i < count; ++i)
        to[i] = rounded_sum(to[i], from[i]);
}

/// What is added to the elements the next time.
inline void keep_residual(isa path, const float* elements, const float* decoded, std::uint32_t count,
    float* residual) noexcept
{
    std::uint32_t i = COLLPROBE_ON_ISA(path, 0u, keep_residual(elements, decoded, count, residual));
    for (; i < count; ++i) residual[i] = residual_of(elements[i], decoded[i]);
}

/// The squares of a block's elements, times the square of `factor`.
inline float squares_of(const float* x, std::uint32_t block, float factor) noexcept
{
    float lane[16] = {}; // sums of few terms, or their rounding would show
    for (std::uint32_t i = 0; i < block; ++i) lane[i % 16] += (x[i] * factor) * (x[i] * factor);
    float sum = 0;
    for (const float each : lane) sum += each;
    return sum;
}

/// The sums of a block's terms, in their order, divided by `divisor`; and, if `probed`, squares times that of `factor`.
inline block_terms::squares sum_terms(isa path, const codec& how, const block_terms& terms, float divisor, bool probed,
    float factor, float* to) noexcept
{
    block_terms::squares squares;
    bool done = true;
    for (std::uint32_t term = 0; term < terms.count; ++term) done &= is_plain_scale(how, terms.scale(term));
    const auto by_vectors = [&]<class Code>() {
        if (probed)
            return COLLPROBE_ON_ISA(path, false, sum_terms<Code, true>(how, terms, divisor, factor, to, squares));
        return COLLPROBE_ON_ISA(path, false, sum_terms<Code, false>(how, terms, divisor, factor, to, squares));
    };
    if (done) {
        done = is_integer(how.format) ? by_vectors.template operator()<std::int8_t>()
                                      : by_vectors.template operator()<float8_e4m3>();
    }
    if (done) return squares;
    squares = {};
    float x[largest_block];
    for (std::uint32_t i = 0; i < how.block; ++i) to[i] = 0;
    for (std::uint32_t term = 0; term < terms.count; ++term) {
        decode_portably(how, terms.scale(term), terms.codes(term), x);
        add_floats(path, x, how.block, to);
        if (probed) squares.of_terms += squares_of(x, how.block, factor);
    }
    if (probed) squares.of_sums = squares_of(to, how.block, factor);
    for (std::uint32_t i = 0; divisor != 1 && i < how.block; ++i) to[i] = rounded_quotient(to[i], divisor);
    return squares;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
