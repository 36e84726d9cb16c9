// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

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
template <class V>
[[gnu::always_inline]] inline floats fold(V x) noexcept
{
    if constexpr (sizeof(V) == 32) {
        return x;
    } else {
        const halves_of<V> halves(x);
        return halves.both[0] + halves.both[1];
    }
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

template <class V>
[[gnu::always_inline]] inline bool has_zero(V magnitudes) noexcept
{
    if constexpr (sizeof(V) > 32) {
        const halves_of<V> halves(magnitudes);
        return has_zero(lanewise_minimum(halves.both[0], halves.both[1]));
    } else {
        return any_bit(magnitudes == 0);
    }
}

/// Reads a block of elements, as floats to `to` unless they are floats. Returns its extreme as in `block_range`, where
/// those that are not finite count, too, and adds the number of its zeros if that is asked for.
template <bool with_signs, bool with_zeros, class T>
[[gnu::always_inline]] inline std::uint32_t read_block(
    const T* from, std::uint32_t count, float* to, std::uint64_t& zeros) noexcept
{
    using keys = std::conditional_t<with_signs, words32, ints>;
    keys most[2] = {};
    ints least = ints{} + 0x7fffffff;
    for (std::uint32_t i = 0; i < count; i += 32) {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint32_t k = 0; k < group_vectors; ++k) {
            const std::uint32_t at = i + float_lanes * k;
            const floats x = load_floats(from + at);
            if constexpr (!std::is_same_v<T, float>) store_floats(x, to + at);
            const ints magnitudes = magnitudes_of(x);
            if constexpr (with_signs) {
                const auto bits = reinterpret_cast<words32>(x);
                most[k % 2] = lanewise_maximum(most[k % 2], bits << 1 | bits >> 31);
            } else {
                most[k % 2] = lanewise_maximum(most[k % 2], magnitudes);
            }
            if constexpr (with_zeros) least = lanewise_minimum(least, magnitudes);
        }
    }
    if (with_zeros && has_zero(least)) {
        ints found = {};
        for (std::uint32_t i = 0; i < count; i += float_lanes) found += magnitudes_of(load_floats(from + i)) == 0;
        zeros += static_cast<std::uint32_t>(-sum_of_lanes(found));
    }
    const auto extreme = static_cast<std::uint32_t>(highest_lane(lanewise_maximum(most[0], most[1])));
    return with_signs ? extreme : extreme << 1;
}

/// `scale_of` for all blocks of a batch, from their extremes.
inline void find_scales(const codec& how, block_batch& batch) noexcept
{
    const bool has_sign = how.rule == scaling::signed_maximum;
    const bool narrow = how.scale == scale_format::bfloat16;
    const floats steps = floats{} + (largest_code(how.format) + (has_sign ? 1.0f : 0.0f));
    for (std::uint32_t b = 0; b < batch.blocks; b += 8) {
        const auto extreme = load<words32>(batch.extreme + b);
        const auto most = reinterpret_cast<floats>(extreme >> 1);
        const auto is_zero = reinterpret_cast<ints>(extreme >> 1) == 0;
        ints scale = lanewise_maximum(
            reinterpret_cast<ints>(rounded_quotient(most, steps)), ints{} + 0x00800000);
        if (narrow) scale = (scale + 0xffff) & static_cast<int>(0xffff0000u);
        // The quotient may have been rounded down. What rounds once has the sign of the exact difference.
        const floats above = fused_multiply_add(reinterpret_cast<floats>(scale), steps, -most);
        scale += (above < 0) & (narrow ? 0x10000 : 1);
        if (has_sign) scale |= reinterpret_cast<ints>(~extreme << 31);
        scale &= ~is_zero;
        const auto inverse = rounded_quotient(floats{} + 1.0f, reinterpret_cast<floats>(scale));
        const ints inverse_bits = reinterpret_cast<ints>(inverse) & ~is_zero;
        __builtin_memcpy(batch.scale + b, &scale, 32);
        __builtin_memcpy(batch.inverse + b, &inverse_bits, 32);
    }
}

/// The lanes of two vectors in turn.
template <class V>
[[gnu::always_inline]] inline void interleave(V a, V b, V (&to)[2]) noexcept
{
    if constexpr (sizeof(V) == 32) {
        to[0] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        to[1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    } else {
        to[0] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        to[1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
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
            interleave((c0[k] & 0xffffffffu) | c1[k] << 32, (c2[k] & 0xffffffffu) | c3[k] << 32, in_order);
            __builtin_memcpy(to + 8 * (e + k * lanes), in_order, sizeof in_order);
        }
    }
}

/// How elements in units of their scale become codes.
enum class coding : std::uint8_t { nearest, clipped, stochastic, float8 };

[[gnu::always_inline]] inline coding coding_of(const codec& how) noexcept
{
    if (!is_integer(how.format)) return coding::float8;
    if (how.rounding == code_rounding::stochastic) return coding::stochastic;
    return how.rule == scaling::signed_maximum ? coding::clipped : coding::nearest;
}

template <coding kind>
struct coder {
    ints most;
    float8_format small;
    int fraction_bits;
    ints largest_small;

    [[gnu::always_inline]] explicit coder(const codec& how) noexcept
        : most(ints{} + (how.format == code_format::int4 ? 7 : 127)),
          small(),
          fraction_bits(0),
          largest_small(ints{})
    {
        if constexpr (kind == coding::float8) {
            small = float8_format::of(how.format);
            fraction_bits = small.digits - 1;
            largest_small = ints{} + bit_cast<int>(small.number(small.largest));
        }
    }
    /// The codes as signed bytes, and what they stand for less the values. `random`: 16 bits for each.
    [[gnu::always_inline]] ints operator()(floats value, const std::uint16_t* random, floats& error) const noexcept
    {
        ints code;
        if constexpr (kind == coding::float8) {
            const auto bits = reinterpret_cast<ints>(value);
            const ints magnitude = bits & 0x7fffffff;
            const ints exponent = lanewise_maximum(magnitude >> 23, ints{} + (small.min_exponent + 127));
            const auto to_units = reinterpret_cast<floats>((254 + fraction_bits - exponent) << 23);
            const auto to_value = reinterpret_cast<floats>((exponent - fraction_bits) << 23);
            const ints units = nearest_ints(reinterpret_cast<floats>(magnitude) * to_units);
            code = lanewise_minimum(((exponent - (small.min_exponent + 127)) << fraction_bits) + units,
                ints{} + static_cast<int>(small.largest));
            const ints sign = bits & static_cast<int>(0x80000000u);
            code |= (sign >> 24) & (code != 0);
            const ints number = lanewise_minimum(
                reinterpret_cast<ints>(__builtin_convertvector(units, floats) * to_value), largest_small);
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
            if constexpr (kind == coding::clipped) code = lanewise_minimum(code, most);
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
    ints clipped;
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
    const auto half = ints{} + bit_cast<int>(bit_cast<float>(batch.extreme[b] >> 1) * 0.5f);
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
                if constexpr (kind == coding::clipped)
                    counts.clipped += magnitudes_of(error) > bit_cast<std::int32_t>(0.5f + 0x1p-10f);
            }
        }
        const code_bytes bytes = bytes_of_ints(codes);
        store_codes(bytes, as_nibbles, to + (as_nibbles ? i / 2 : i));
        if constexpr (probed) zero_codes -= reinterpret_cast<vector<unsigned char, 32>>(bytes == 0);
    }
    if constexpr (probed) {
        const floats all_errors = fold(error_squares[0] + error_squares[1]);
        const floats pairs = sums_of_pairs(fold(squares[0] + squares[1]), all_errors);
        const floats sum_pairs = sums_of_pairs(fold(error_sum), floats{});
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
        batch.saturated = static_cast<std::uint32_t>(-sum_of_lanes(counts.clipped));
        batch.zero_codes = sum_of_lanes(counts.zero_codes);
    }
}

template <bool probed>
inline void encode_blocks(const codec& how, const float* elements, const std::uint16_t* random,
    const next_batch& next, unsigned char* to, block_batch& batch) noexcept
{
    switch (coding_of(how)) {
    case coding::nearest: return encode_blocks<probed, coding::nearest>(how, elements, random, next, to, batch);
    case coding::clipped: return encode_blocks<probed, coding::clipped>(how, elements, random, next, to, batch);
    case coding::stochastic: return encode_blocks<probed, coding::stochastic>(how, elements, random, next, to, batch);
    case coding::float8: return encode_blocks<probed, coding::float8>(how, elements, random, next, to, batch);
    }
}

/// Encodes the blocks of a batch, but for those that have elements that are not finite. `room` takes the elements as
/// floats, unless they are.
template <class T>
inline void encode_batch(const codec& how, const T* from, const std::uint16_t* random, bool probed, float* room,
    unsigned char* to, block_batch& batch) noexcept
{
    const bool with_signs = how.rule == scaling::signed_maximum;
    for (std::uint32_t b = 0; b < batch.blocks; ++b) {
        const T* const first = from + b * how.block;
        float* const as_floats = room + b * how.block;
        std::uint64_t zeros = 0;
        std::uint32_t extreme;
        if (probed && with_signs) extreme = read_block<true, true>(first, how.block, as_floats, zeros);
        else if (probed) extreme = read_block<false, true>(first, how.block, as_floats, zeros);
        else if (with_signs) extreme = read_block<true, false>(first, how.block, as_floats, zeros);
        else extreme = read_block<false, false>(first, how.block, as_floats, zeros);
        if (extreme >> 1 >= how.overflow) {
            batch.nonfinite |= 1u << b;
            extreme = 0;
            zeros = 0;
        }
        batch.extreme[b] = extreme;
        batch.zeros += zeros;
    }
    find_scales(how, batch);
    const float* elements = room;
    if constexpr (std::is_same_v<T, float>) elements = from;
    const auto next = next_batch::after(from, batch.blocks * how.block);
    if (probed) encode_blocks<true>(how, elements, random, next, to, batch);
    else encode_blocks<false>(how, elements, random, next, to, batch);
}

/// `add_block` for all blocks of a batch whose elements are finite; without the place of the worst block, whose number
/// in the batch it leaves there.
inline void add_batch(const codec& how, double energy, block_batch& batch, quantisation_errors& into) noexcept
{
    constexpr int parts = 64 / width; // vectors of doubles for eight blocks
    doubles squares = {};
    doubles error_squares = {};
    doubles error_sum = {};
    doubles crests = {};
    doubles scales = {};
    ints zero_blocks = {};
    ints worst = {};
    ints worst_at = {};
    const floats count = floats{} + static_cast<float>(how.block);
    for (std::uint32_t b = 0; b < batch.blocks; b += 8) {
        const auto extreme = load<words32>(batch.extreme + b) >> 1;
        const auto signed_scale = load<floats>(batch.scale + b);
        const auto scale = reinterpret_cast<floats>(magnitudes_of(signed_scale));
        const auto inverse = reinterpret_cast<floats>(magnitudes_of(load<floats>(batch.inverse + b)));
        const auto sum = load<floats>(batch.squares + b);
        const auto errors = load<floats>(batch.error_squares + b);
        // Of the errors with their signs, as scales have signs.
        const auto bias = reinterpret_cast<floats>(
            reinterpret_cast<ints>(load<floats>(batch.error_sum + b))
            ^ (reinterpret_cast<ints>(signed_scale) & static_cast<int>(0x80000000u)));
                const auto is_zero = reinterpret_cast<ints>(extreme) == 0;
        const auto has_squares = reinterpret_cast<ints>(sum) > 0;
        zero_blocks += is_zero;
        const floats one_over_rms = square_roots(count / sum);
        const auto per_rms = reinterpret_cast<floats>(reinterpret_cast<ints>(one_over_rms) & has_squares);
        const floats crest = reinterpret_cast<floats>(extreme) * inverse * per_rms;
        const ints ratio = reinterpret_cast<ints>(errors / sum) & has_squares;
        for (int k = 0; k < parts; ++k) {
            const doubles unit = k == 0 ? doubles_of_eight<0>(scale) : doubles_of_eight<1>(scale);
            const doubles energies = unit * unit;
            squares += energies * (k == 0 ? doubles_of_eight<0>(sum) : doubles_of_eight<1>(sum));
            error_squares += energies * (k == 0 ? doubles_of_eight<0>(errors) : doubles_of_eight<1>(errors));
            error_sum += unit * (k == 0 ? doubles_of_eight<0>(bias) : doubles_of_eight<1>(bias));
            crests += k == 0 ? doubles_of_eight<0>(crest) : doubles_of_eight<1>(crest);
            scales += k == 0 ? doubles_of_eight<0>(per_rms) : doubles_of_eight<1>(per_rms);
        }
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
    into.saturated += batch.saturated;
    into.outliers += batch.outliers;
    into.zero_blocks += static_cast<std::uint32_t>(-sum_of_lanes(zero_blocks)) - left_out - beyond;
    into.squares += energy * sum_of_lanes(squares);
    into.error_squares += energy * sum_of_lanes(error_squares);
    into.error_sum += sum_of_lanes(error_sum);
    into.crest_sum += sum_of_lanes(crests);
    into.scale_sum += sum_of_lanes(scales);
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
    floats halves[2][16 / float_lanes];
    floats_of_sixteen<Code>(first, halves[0]);
    floats_of_sixteen<Code>(second, halves[1]);
    COLLPROBE_UNROLL_VECTORS
    for (std::uint32_t k = 0; k < group_vectors; ++k) to[k] = halves[2 * k / group_vectors][k % (16 / float_lanes)];
    if constexpr (std::is_integral_v<Code>) {
        const auto nan = static_cast<signed char>(nan_code(how));
        nans |= (first == nan) | (second == nan);
    } else {
        const auto largest = static_cast<signed char>(float8_format::of(how.format).largest);
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
    const bool has_nan_code = how.rule == scaling::symmetric;
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
        if (has_nan_code && any_bit(nans)) left_out |= 1u << b;
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
    const bool has_nan_code = how.rule == scaling::symmetric;
    for (std::uint32_t term = 0; term < terms.count; ++term)
        if (!is_plain_scale(how, terms.scale(how, term))) return false;
    const bool divides = divisor != 1;
    code_flags nans = {};
    floats of_terms[group_vectors] = {};
    floats of_sums[group_vectors] = {};
    for (std::uint32_t i = 0; i < how.block; i += 32) {
        floats sum[group_vectors] = {};
        for (std::uint32_t term = 0; term < terms.count; ++term) {
            floats x[group_vectors];
            load_units<Code>(how, terms.codes(term) + (as_nibbles ? i / 2 : i), x, nans);
            const float scale = terms.scale(how, term);
            COLLPROBE_UNROLL_VECTORS
            for (std::uint32_t k = 0; k < group_vectors; ++k) {
                x[k] *= scale;
                x[k] = hidden(x[k]); // rounded before it is added
                if constexpr (probed) {
                    const floats scaled = x[k] * factor;
                    of_terms[k] += scaled * scaled;
                }
                sum[k] = term == 0 ? x[k] : sum[k] + x[k];
                sum[k] = hidden(sum[k]); // no other order
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
        const floats pairs = sums_of_pairs(fold(of_terms[0]), fold(of_sums[0]));
        const halves_of<floats> halves(sums_of_pairs(pairs, pairs));
        const auto both = halves.both[0] + halves.both[1];
        squares = both[0];
        sum_squares = both[1];
    }
    return !(has_nan_code && any_bit(nans));
}

/// Elements as floats, and floats rounded to elements, in multiples of 32.
template <class T>
inline void widen_groups(const T* from, std::uint32_t count, float* to) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes) store_floats(load_floats(from + i), to + i);
}
template <class T>
inline void narrow_groups(const float* from, std::uint32_t count, T* to) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes) store_floats(load<floats>(from + i), to + i);
}

/// elements += kept, and kept = elements - decoded where that is finite; in multiples of 32.
inline void add_kept(float* elements, const float* kept, std::uint32_t count) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes)
        store_floats(load<floats>(elements + i) + load<floats>(kept + i), elements + i);
}
inline void keep_errors(const float* elements, const float* decoded, std::uint32_t count, float* kept) noexcept
{
    for (std::uint32_t i = 0; i < count; i += float_lanes) {
        const floats error = load<floats>(elements + i) - load<floats>(decoded + i);
        const ints is_finite = magnitudes_of(error) < 0x7f800000;
        store_floats(reinterpret_cast<floats>(reinterpret_cast<ints>(error) & is_finite), kept + i);
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
