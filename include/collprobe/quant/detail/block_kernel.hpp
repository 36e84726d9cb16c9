// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/vector.hpp>

/// Batches of blocks to codes and back on the host, by vectors where they are to be had.

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

/// Reads a block of elements, as floats to `to` unless they are floats. Returns the bits of their largest magnitude,
/// where those that are not finite count, too, and adds the number of its zeros if that is asked for.
template <bool with_zeros, class T>
[[gnu::always_inline]] inline std::uint32_t read_block(
    const T* from, std::uint32_t count, float* to, std::uint64_t& zeros) noexcept
{
    ints most[2] = {};
    ints least = ints{} + 0x7fffffff;
    for (std::uint32_t i = 0; i < count; i += 32) {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            const std::uint32_t at = i + float_lanes * k;
            const floats x = load_floats(from + at);
            if constexpr (!std::is_same_v<T, float>) store_floats(x, to + at);
            const ints magnitudes = magnitudes_of(x);
            most[k % 2] = lanewise_maximum(most[k % 2], magnitudes);
            if constexpr (with_zeros) least = lanewise_minimum(least, magnitudes);
        }
    }
    if (with_zeros && any_bit(least == 0)) {
        ints found = {};
        for (std::uint32_t i = 0; i < count; i += float_lanes) found += magnitudes_of(load_floats(from + i)) == 0;
        zeros += static_cast<std::uint32_t>(-sum_of_lanes(found));
    }
    return static_cast<std::uint32_t>(highest_lane(lanewise_maximum(most[0], most[1])));
}

/// `scale_of` for all blocks of a batch.
inline void find_scales(const codec& how, block_batch& batch) noexcept
{
    const floats steps = floats{} + largest_code(how.format);
    for (std::uint32_t b = 0; b < batch.blocks; b += 8) {
        const auto largest = load<floats>(batch.largest + b);
        const ints is_zero = reinterpret_cast<ints>(largest) == 0;
        ints scale = lanewise_maximum(
            reinterpret_cast<ints>(rounded_quotient(largest, steps)), ints{} + static_cast<int>(smallest_scale));
        scale = (scale + 0xffff) & static_cast<int>(0xffff0000u);
        // The quotient may have been rounded down. The product is exact.
        scale = (scale + ((reinterpret_cast<floats>(scale) * steps < largest) & 0x10000)) & ~is_zero;
        const auto inverse = rounded_quotient(floats{} + 1.0f, reinterpret_cast<floats>(scale));
        store(batch.scale + b, scale);
        store(batch.inverse + b, reinterpret_cast<ints>(inverse) & ~is_zero);
    }
}

/// The random bits of `eighths` times 8 elements, `philox` of several counters at a time. Writes up to 15 eighths more.
[[gnu::noinline]] inline void draw_bits(const dither& noise, std::uint64_t key, std::uint64_t first_eighth,
    std::uint32_t eighths, std::uint16_t* to) noexcept
{
    constexpr std::uint32_t lanes = width / 8;
    words64 numbers = {};
    for (std::uint32_t lane = 0; lane < lanes; ++lane) numbers[lane] = lane;
    for (std::uint32_t e = 0; e < eighths; e += 2 * lanes) {
        // Of each lane the lower half is the word; a product reads no more. Two at a time hide the products' latency.
        words64 c0[2];
        words64 c1[2];
        words64 c2[2];
        words64 c3[2];
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < 2; ++k) {
            c0[k] = numbers + (first_eighth + e + k * lanes);
            c1[k] = c0[k] >> 32;
            c2[k] = words64{} + noise.rank;
            c3[k] = words64{} + noise.call;
        }
        words64 k0 = words64{} + static_cast<std::uint32_t>(key);
        words64 k1 = words64{} + (key >> 32);
        for (int round = 0; round < 10; ++round) {
            COLLPROBE_UNROLL_VECTORS
            for (std::uint32_t k = 0; k < 2; ++k) {
                const words64 a = multiply_low_halves(c0[k], words64{} + 0xd2511f53u);
                const words64 b = multiply_low_halves(c2[k], words64{} + 0xcd9e8d57u);
                c0[k] = (b >> 32) ^ c1[k] ^ k0;
                c2[k] = (a >> 32) ^ c3[k] ^ k1;
                c1[k] = b;
                c3[k] = a;
            }
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < 2; ++k) {
            words64 in_order[2];
            const words64 low = (c0[k] & 0xffffffffu) | c1[k] << 32;
            const words64 high = (c2[k] & 0xffffffffu) | c3[k] << 32;
            in_order[0] = __builtin_shufflevector(low, high, 0, 4, 1, 5);
            in_order[1] = __builtin_shufflevector(low, high, 2, 6, 3, 7);
            __builtin_memcpy(to + 8 * (e + k * lanes), in_order, sizeof in_order);
        }
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

/// The elements of the next batch. They are asked for while the errors of this one are summed up, or memory and
/// processor would wait for each other. (Without errors the processor's own prefetching is as good.)
struct next_batch {
    const char* from;
    std::uint32_t element_bytes;

    template <class T>
    [[gnu::always_inline]] static next_batch after(const T* from, std::uint32_t count) noexcept
    {
        return {reinterpret_cast<const char*>(from + count), sizeof(T)};
    }
    /// Those in the place of 32 elements of this batch.
    [[gnu::always_inline]] void prefetch(std::uint32_t element) const noexcept
    {
        const char* const line = from + element * element_bytes;
        __builtin_prefetch(line);
        __builtin_prefetch(line + 16 * element_bytes);
    }
};

/// What a batch counts, in lanes.
struct lane_counts {
    ints outliers;
    vector<std::uint64_t, 32> zero_codes;
};

/// Codes of block `b` of a batch, whose elements are finite.
template <bool probed, coding kind>
[[gnu::always_inline]] inline void encode_block(const codec& how, const float* elements, const std::uint16_t* random,
    const next_batch& next, unsigned char* to, block_batch& batch, std::uint32_t b, lane_counts& counts) noexcept
{
    const coder<kind> code_of(how);
    const bool as_nibbles = how.format == code_format::int4;
    const floats inverse = floats{} + batch.inverse[b];
    const auto half = ints{} + bit_cast<int>(batch.largest[b] * 0.5f);
    floats squares[2] = {};
    floats error_squares[2] = {};
    floats error_sum = {};
    vector<unsigned char, 32> zero_codes = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        if constexpr (probed) next.prefetch(b * how.block + i);
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
                counts.outliers += magnitudes_of(x) > half;
            }
        }
        const code_bytes bytes = bytes_of_ints(codes);
        store_codes(bytes, as_nibbles, to + (as_nibbles ? i / 2 : i));
        if constexpr (probed) zero_codes -= reinterpret_cast<vector<unsigned char, 32>>(bytes == 0);
    }
    if constexpr (probed) {
        const floats all_errors = error_squares[0] + error_squares[1];
        const floats pairs = sums_of_pairs(squares[0] + squares[1], all_errors);
        const floats sum_pairs = sums_of_pairs(error_sum, floats{});
        const halves_of<floats> halves(sums_of_pairs(pairs, sum_pairs));
        const auto all = halves.both[0] + halves.both[1];
        batch.squares[b] = all[0];
        batch.error_squares[b] = all[1];
        batch.error_sum[b] = all[2];
        counts.zero_codes += sums_of_bytes(zero_codes);
    }
}

template <bool probed, coding kind>
inline void encode_blocks(const codec& how, const float* elements, const std::uint16_t* random,
    const next_batch& next, unsigned char* to, block_batch& batch) noexcept
{
    lane_counts counts = {};
    for (std::uint32_t b = 0; b < batch.blocks; ++b) {
        if ((batch.nonfinite >> b & 1) != 0) continue;
        const std::uint32_t first = b * how.block;
        encode_block<probed, kind>(how, elements + first, random + (kind == coding::stochastic ? first : 0),
            next, to + b * how.code_bytes(), batch, b, counts);
    }
    if constexpr (probed) {
        batch.outliers = static_cast<std::uint32_t>(-sum_of_lanes(counts.outliers));
        batch.zero_codes = sum_of_lanes(counts.zero_codes);
    }
}

template <bool probed>
inline void encode_blocks(const codec& how, const float* elements, const std::uint16_t* random,
    const next_batch& next, unsigned char* to, block_batch& batch) noexcept
{
    if (!is_integer(how.format)) return encode_blocks<probed, coding::float8>(how, elements, random, next, to, batch);
    if (how.rounding == code_rounding::nearest)
        return encode_blocks<probed, coding::nearest>(how, elements, random, next, to, batch);
    encode_blocks<probed, coding::stochastic>(how, elements, random, next, to, batch);
}

/// Encodes the blocks of a batch, but for those that have elements that are not finite. `room` takes the elements as
/// floats, unless they are.
template <class T>
inline void encode_batch(const codec& how, const T* from, const std::uint16_t* random, bool probed, float* room,
    unsigned char* to, block_batch& batch) noexcept
{
    for (std::uint32_t b = 0; b < batch.blocks; ++b) {
        const T* const first = from + b * how.block;
        float* const as_floats = room + b * how.block;
        std::uint64_t zeros = 0;
        const std::uint32_t largest = probed ? read_block<true>(first, how.block, as_floats, zeros)
                                             : read_block<false>(first, how.block, as_floats, zeros);
        if (largest >= how.overflow) {
            batch.nonfinite |= 1u << b;
            continue;
        }
        batch.largest[b] = bit_cast<float>(largest);
        batch.zeros += zeros;
    }
    find_scales(how, batch);
    const float* elements = room;
    if constexpr (std::is_same_v<T, float>) elements = from;
    const auto next = next_batch::after(from, batch.blocks * how.block);
    if (probed) encode_blocks<true>(how, elements, random, next, to, batch);
    else encode_blocks<false>(how, elements, random, next, to, batch);
}

/// Sums over the blocks of a batch, in lanes.
struct batch_sums {
    doubles squares;
    doubles error_squares;
    doubles error_sum;
    doubles crests;
    doubles scales;

    /// Takes in half of eight blocks.
    template <int half>
    [[gnu::always_inline]] void add(
        floats scale, floats square, floats errors, floats bias, floats crest, floats per_rms) noexcept
    {
        const doubles unit = doubles_of_eight<half>(scale);
        squares += unit * unit * doubles_of_eight<half>(square);
        error_squares += unit * unit * doubles_of_eight<half>(errors);
        error_sum += unit * doubles_of_eight<half>(bias);
        crests += doubles_of_eight<half>(crest);
        scales += doubles_of_eight<half>(per_rms);
    }
};

/// `add_block` for all blocks of a batch whose elements are finite; without the place of the worst block, whose number
/// in the batch it leaves there.
inline void add_batch(const codec& how, double energy, block_batch& batch, quantisation_errors& into) noexcept
{
    batch_sums sums = {};
    ints zero_blocks = {};
    ints worst = {};
    ints worst_at = {};
    const floats count = floats{} + static_cast<float>(how.block);
    for (std::uint32_t b = 0; b < batch.blocks; b += 8) {
        const auto largest = load<floats>(batch.largest + b);
        const auto scale = load<floats>(batch.scale + b);
        const auto sum = load<floats>(batch.squares + b);
        const auto errors = load<floats>(batch.error_squares + b);
        const auto bias = load<floats>(batch.error_sum + b);
        const ints has_squares = reinterpret_cast<ints>(sum) > 0;
        zero_blocks += reinterpret_cast<ints>(largest) == 0;
        const floats one_over_rms = square_roots(count / sum);
        const auto per_rms = reinterpret_cast<floats>(reinterpret_cast<ints>(one_over_rms) & has_squares);
        const floats crest = largest * load<floats>(batch.inverse + b) * per_rms;
        const ints ratio = reinterpret_cast<ints>(errors / sum) & has_squares;
        sums.add<0>(scale, sum, errors, bias, crest, per_rms);
        sums.add<1>(scale, sum, errors, bias, crest, per_rms);
        const ints is_worse = ratio > worst;
        worst = lanewise_maximum(worst, ratio);
        worst_at = (worst_at & ~is_worse) | (static_cast<int>(b) & is_worse);
    }
    const std::uint32_t left_out = static_cast<std::uint32_t>(__builtin_popcount(batch.nonfinite));
    const std::uint32_t beyond = (batch.blocks + 7) / 8 * 8 - batch.blocks;
    into.count += (batch.blocks - left_out) * how.block;
    into.blocks += batch.blocks - left_out;
    into.zeros += batch.zeros;
    into.zeroed += batch.zero_codes - batch.zeros;
    into.outliers += batch.outliers;
    into.zero_blocks += static_cast<std::uint32_t>(-sum_of_lanes(zero_blocks)) - left_out - beyond;
    into.squares += energy * sum_of_lanes(sums.squares);
    into.error_squares += energy * sum_of_lanes(sums.error_squares);
    into.error_sum += sum_of_lanes(sums.error_sum);
    into.crest_sum += sum_of_lanes(sums.crests);
    into.scale_sum += sum_of_lanes(sums.scales);
    batch.worst = 0;
    int most = 0;
    for (std::uint32_t lane = 0; lane < 8; ++lane) {
        const std::uint32_t place = static_cast<std::uint32_t>(worst_at[lane]) + lane;
        if (worst[lane] > most || (worst[lane] == most && place < batch.worst)) {
            most = worst[lane];
            batch.worst = place;
        }
    }
}

/// Whether 16 of the codes stand for NaN.
using code_flags = vector<signed char, 16>;

/// Thirty-two codes as vectors, in units of their scale. Adds to the flags of those that stand for NaN.
template <class Code>
[[gnu::always_inline]] inline void load_units(
    const codec& how, const unsigned char* from, floats (&to)[group_vectors], code_flags& nans) noexcept
{
    using v16qi = vector<signed char, 16>;
    v16qi first;
    v16qi second;
    if (how.format == code_format::int4) {
        const auto pairs = load<vector<unsigned char, 16>>(from);
        const auto low = reinterpret_cast<v16qi>(pairs & 0xf);
        const auto high = reinterpret_cast<v16qi>(pairs >> 4);
        first = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        first = (first ^ 8) - 8;
        second = (second ^ 8) - 8;
    } else {
        first = load<v16qi>(from);
        second = load<v16qi>(from + 16);
    }
    floats halves[2][2];
    floats_of_sixteen<Code>(first, halves[0]);
    floats_of_sixteen<Code>(second, halves[1]);
    for (std::uint32_t k = 0; k < group_vectors; ++k) to[k] = halves[k / 2][k % 2];
    if constexpr (std::is_integral_v<Code>) {
        const auto nan = static_cast<signed char>(nan_code(how.format));
        nans |= (first == nan) | (second == nan);
    } else {
        const auto largest = static_cast<signed char>(e4m3::largest);
        const v16qi magnitude = v16qi{} + static_cast<signed char>(0x7f);
        nans |= ((first & magnitude) > largest) | ((second & magnitude) > largest);
    }
}

/// Decodes blocks, but for those whose scale could reach beyond `how.largest` and those with a code for NaN, whose
/// bits in the result are set. `scales`: of the blocks, at most 32.
template <class Code, class T>
inline std::uint32_t decode_blocks(
    const codec& how, const float* scales, std::uint32_t blocks, const unsigned char* from, T* elements) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    std::uint32_t left_out = 0;
    for (std::uint32_t b = 0; b < blocks; ++b) {
        if (!is_plain_scale(how, scales[b])) {
            left_out |= 1u << b;
            continue;
        }
        const unsigned char* const codes = from + b * how.code_bytes();
        T* const to = elements + b * how.block;
        code_flags nans = {};
        for (std::uint32_t i = 0; i < how.block; i += 32) {
            floats x[group_vectors];
            load_units<Code>(how, codes + (as_nibbles ? i / 2 : i), x, nans);
            COLLPROBE_UNROLL_VECTORS
            for (std::uint32_t k = 0; k < group_vectors; ++k) store_floats(x[k] * scales[b], to + i + float_lanes * k);
        }
        if (any_bit(nans)) left_out |= 1u << b;
    }
    return left_out;
}

/// The sums of a block's terms, in their order, divided by `divisor`; and, if `probed`, the squares of the terms and of
/// the sums before the division, times the square of `factor`. False, with nothing of use, if one of the terms is no
/// block for `decode_blocks`.
template <class Code, bool probed>
inline bool sum_blocks(const codec& how, const term_blocks& terms, float divisor, float factor, float* sums,
    float& squares, float& sum_squares) noexcept
{
    const bool as_nibbles = how.format == code_format::int4;
    for (std::uint32_t term = 0; term < terms.count; ++term)
        if (!is_plain_scale(how, terms.scale(term))) return false;
    const bool divides = divisor != 1;
    code_flags nans = {};
    floats of_terms[group_vectors] = {};
    floats of_sums[group_vectors] = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats sum[group_vectors] = {};
        for (std::uint32_t term = 0; term < terms.count; ++term) {
            floats x[group_vectors];
            load_units<Code>(how, terms.codes(term) + (as_nibbles ? i / 2 : i), x, nans);
            const float scale = terms.scale(term);
            COLLPROBE_UNROLL_VECTORS
            for (std::uint32_t k = 0; k < group_vectors; ++k) {
                x[k] *= scale;
                if constexpr (probed) {
                    const floats scaled = x[k] * factor;
                    of_terms[k] += scaled * scaled;
                }
                sum[k] = hidden(sum[k] + x[k]); // no other order; fused or not, as the product is exact
            }
        }
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            if constexpr (probed) {
                const floats scaled = sum[k] * factor;
                of_sums[k] += scaled * scaled;
            }
            if (divides) sum[k] = rounded_quotient(sum[k], floats{} + divisor);
            store_floats(sum[k], sums + i + float_lanes * k);
        }
    }
    if constexpr (probed) {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 1; k < group_vectors; ++k) {
            of_terms[0] += of_terms[k];
            of_sums[0] += of_sums[k];
        }
        const floats pairs = sums_of_pairs(of_terms[0], of_sums[0]);
        const halves_of<floats> halves(sums_of_pairs(pairs, pairs));
        const auto both = halves.both[0] + halves.both[1];
        squares = both[0];
        sum_squares = both[1];
    }
    return !any_bit(nans);
}

/// elements += residual, and residual = elements - decoded where that is finite; in multiples of 32.
inline void add_residual(float* elements, const float* residual, std::uint32_t count) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes)
        store_floats(load<floats>(elements + i) + load<floats>(residual + i), elements + i);
}
inline void keep_residual(const float* elements, const float* decoded, std::uint32_t count, float* residual) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes) {
        const floats left = load<floats>(elements + i) - load<floats>(decoded + i);
        const ints is_finite = magnitudes_of(left) < 0x7f800000;
        store_floats(reinterpret_cast<floats>(reinterpret_cast<ints>(left) & is_finite), residual + i);
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

constexpr bool encodes_by_vectors(isa path, const codec& how) noexcept
{
    return path != isa::portable && (is_integer(how.format) || how.rounding == code_rounding::nearest);
}

/// The random bits of `eighths` times 8 elements. May write up to 128 numbers more.
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

/// Encodes the blocks of a batch by vectors, but for those with elements that are not finite. The codes and scales
/// have the bits of `encode_portably`. `room` takes the elements as floats unless they are.
/// Precondition: encodes_by_vectors(path, how).
template <class T>
void encode_batch([[maybe_unused]] isa path, [[maybe_unused]] const codec& how, [[maybe_unused]] const T* from,
    [[maybe_unused]] const std::uint16_t* random, [[maybe_unused]] bool probed, [[maybe_unused]] float* room,
    [[maybe_unused]] unsigned char* to, [[maybe_unused]] block_batch& batch) noexcept
{
    COLLPROBE_ON_ISA(path, void(), encode_batch(how, from, random, probed, room, to, batch));
}

/// Takes the errors of a batch into those of a buffer. `first`: index of its first element.
inline void add_batch([[maybe_unused]] isa path, const codec& how, [[maybe_unused]] double energy, std::uint64_t first,
    block_batch& batch, quantisation_errors& into) noexcept
{
    COLLPROBE_ON_ISA(path, void(), add_batch(how, energy, batch, into));
    const auto squares = static_cast<double>(batch.squares[batch.worst]);
    const double ratio = squares > 0 ? static_cast<double>(batch.error_squares[batch.worst]) / squares : 0;
    if (ratio > into.worst_ratio) {
        into.worst_ratio = ratio;
        into.worst_block = first + std::uint64_t{batch.worst} * how.block;
    }
}

/// Decodes at most 32 whole blocks, one behind the other. Returns the number of elements that are not finite.
template <class T>
std::uint64_t decode_batch([[maybe_unused]] isa path, const codec& how, const float* scales, std::uint32_t blocks,
    const unsigned char* codes, T* elements) noexcept
{
    std::uint32_t left_out = ~0u;
    if (is_integer(how.format))
        left_out = COLLPROBE_ON_ISA(path, ~0u, decode_blocks<std::int8_t>(how, scales, blocks, codes, elements));
    else left_out = COLLPROBE_ON_ISA(path, ~0u, decode_blocks<float8_e4m3>(how, scales, blocks, codes, elements));
    std::uint64_t nonfinite = 0;
    for (std::uint32_t b = 0; b < blocks && left_out >> b != 0; ++b) {
        if ((left_out >> b & 1) == 0) continue;
        float x[largest_block];
        decode_portably(how, scales[b], codes + b * how.code_bytes(), x);
        for (std::uint32_t i = 0; i < how.block; ++i) {
            const T element(x[i]);
            nonfinite += is_finite(element) ? 0 : 1;
            elements[b * how.block + i] = element;
        }
    }
    return nonfinite;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
