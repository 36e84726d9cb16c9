// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/code.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/simd/vector.hpp>

/// A block of floats to codes and back, on the host.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr std::uint32_t largest_block = 4096;

/// The errors of a block, in units of its scale. Rounded in float, so their last digits differ between a host
/// and a GPU.
struct block_errors {
    float squares = 0;
    float error_squares = 0;
    float error_sum = 0;
    std::uint32_t zeros = 0;
    std::uint32_t zeroed = 0;
    std::uint32_t saturated = 0;
    std::uint32_t outliers = 0;

    /// Takes in a finite element and its code. `half`: half of the block's largest magnitude.
    COLLPROBE_HD void add(const codec& how, const block_scale& by, float element, float value, std::int32_t code,
        float half) noexcept
    {
        const float error = units_of(how, code) - value;
        const float magnitude = error < 0 ? -error : error;
        squares += value * value;
        error_squares += error * error;
        error_sum += error;
        // By bits: a build for GPUs may take subnormal elements for zero.
        const std::uint32_t bits = bit_cast<std::uint32_t>(element) & 0x7fffffffu;
        const bool is_zero = bits == 0;
        zeros += is_zero ? 1 : 0;
        // With an offset code 0 stands for the offset.
        const float decoded = how.has_offsets() ? element_of(how, by, code) : units_of(how, code);
        zeroed += decoded == 0 && !is_zero ? 1 : 0;
        const float most = how.rounding == code_rounding::nearest ? 0.5f : 1.0f;
        saturated += is_integer(how.format) && magnitude > most + 0x1p-10f ? 1 : 0;
        outliers += bits > bit_cast<std::uint32_t>(half) ? 1 : 0;
    }
    /// Takes in the errors of elements behind these.
    COLLPROBE_HD void merge(const block_errors& next) noexcept
    {
        squares += next.squares;
        error_squares += next.error_squares;
        error_sum += next.error_sum;
        zeros += next.zeros;
        zeroed += next.zeroed;
        saturated += next.saturated;
        outliers += next.outliers;
    }
};

/// Half of a block's largest magnitude, beyond which elements are outliers.
COLLPROBE_HD inline float half_of(const block_range& range) noexcept
{
    return rounded_product(range.magnitude(), 0.5f);
}

/// Takes the errors of a block into those of a buffer. `count`: the elements of the block; `nonfinite` of
/// them were not finite. `first`: index of its first element. `energy`: `rotation::energy`, 1 without a
/// rotation.
COLLPROBE_HD inline void add_block(quantisation_errors& into, const block_scale& by,
    const block_errors& block, float magnitude, std::uint32_t count, std::uint32_t nonfinite,
    std::uint64_t first, double energy) noexcept
{
    if (count == 0) return; // beyond the end of the buffer
    into.count += count;
    into.nonfinite += nonfinite;
    ++into.blocks;
    into.zeros += block.zeros;
    if (is_nan_block(by)) return;
    if (bit_cast<std::uint32_t>(magnitude) == 0) { // by bits, as subnormal ones are not zero
        ++into.zero_blocks;
        return;
    }
    into.zeroed += block.zeroed;
    into.saturated += block.saturated;
    into.outliers += block.outliers;
    const double scale = absolute(static_cast<double>(by.scale));
    if (scale == 0) return; // a constant block, which its offset holds
    const double unit = scale * scale * energy;
    const auto squares = static_cast<double>(block.squares);
    const auto error_squares = static_cast<double>(block.error_squares);
    into.squares += unit * squares;
    into.error_squares += unit * error_squares;
    into.error_sum += exact_double(by.scale) * static_cast<double>(block.error_sum); // scales have signs
    if (squares > 0) {
        const float rms = static_cast<float>(square_root(squares / static_cast<double>(count - nonfinite)));
        into.scale_sum += static_cast<double>(1 / rms);
        const float crest = rounded_product(magnitude, by.inverse < 0 ? -by.inverse : by.inverse) / rms;
        into.crest_sum += static_cast<double>(crest);
        if (error_squares > into.worst_ratio * squares) {
            into.worst_ratio = error_squares / squares;
            into.worst_block = first;
        }
    }
}

COLLPROBE_HD constexpr void merge(quantisation_errors& into, const quantisation_errors& next) noexcept
{
    into.count += next.count;
    into.nonfinite += next.nonfinite;
    into.zeros += next.zeros;
    into.zeroed += next.zeroed;
    into.saturated += next.saturated;
    into.outliers += next.outliers;
    into.blocks += next.blocks;
    into.zero_blocks += next.zero_blocks;
    into.squares += next.squares;
    into.error_squares += next.error_squares;
    into.error_sum += next.error_sum;
    into.crest_sum += next.crest_sum;
    into.scale_sum += next.scale_sum;
    // Of equals the first, so that the order of a merge does not matter.
    if (next.worst_ratio > into.worst_ratio
        || (next.worst_ratio == into.worst_ratio && next.worst_block < into.worst_block)) {
        into.worst_ratio = next.worst_ratio;
        into.worst_block = next.worst_block;
    }
}

COLLPROBE_HD constexpr void merge(combined_errors& into, const combined_errors& next) noexcept
{
    merge(into.errors, next.errors);
    into.term_squares += next.term_squares;
    into.sum_squares += next.sum_squares;
}

/// Writes the codes of a block. `codes[i]` of elements beyond `count` is 0.
inline void pack_codes(const codec& how, const std::int32_t* codes, unsigned char* to) noexcept
{
    if (how.format == code_format::int4) {
        for (std::uint32_t i = 0; i < how.block / 2; ++i)
            to[i] = static_cast<unsigned char>((codes[2 * i] & 0xf) | (codes[2 * i + 1] & 0xf) << 4);
    } else {
        for (std::uint32_t i = 0; i < how.block; ++i) to[i] = static_cast<unsigned char>(codes[i] & 0xff);
    }
}

/// Encodes the first `count` of a block's elements, and writes code 0 behind them. `random`: 16 bits for each
/// element, or null for nearest rounding.
[[gnu::noinline]] inline block_scale encode_portably(const codec& how, const float* elements,
    std::uint32_t count, const std::uint16_t* random, unsigned char* to, block_errors* errors,
    block_range& range) noexcept
{
    for (std::uint32_t i = 0; i < count; ++i) range.add(bit_cast<std::uint32_t>(elements[i]), how.overflow);
    const block_scale by = scale_of(how, range);
    const float half = half_of(range);
    std::int32_t codes[largest_block];
    block_errors part; // sums of few terms, or their rounding would show in those of long blocks
    for (std::uint32_t i = 0; i < count; ++i) {
        if (i % 64 == 0 && errors != nullptr) {
            errors->merge(part);
            part = {};
        }
        const float element = elements[i];
        if ((bit_cast<std::uint32_t>(element) & 0x7fffffffu) >= how.overflow) {
            codes[i] = how.rule == scaling::symmetric ? code_of_nonfinite(how) : 0;
            continue;
        }
        const float value = in_scales(how, by, element);
        codes[i] = code_of(how, value, random == nullptr ? 0 : random[i]);
        if (errors != nullptr && !is_nan_block(by)) part.add(how, by, element, value, codes[i], half);
    }
    if (errors != nullptr) errors->merge(part);
    for (std::uint32_t i = count; i < how.block; ++i) codes[i] = 0;
    pack_codes(how, codes, to);
    return by;
}

/// The elements of a block's codes: set, or added to what is there.
template <bool add>
[[gnu::noinline]] inline void decode_portably(
    const codec& how, const block_scale& by, const unsigned char* codes, float* elements) noexcept
{
    for (std::uint32_t i = 0; i < how.block; ++i) {
        const float element = element_of(how, by, read_code(how, codes, i));
        elements[i] = add ? rounded_sum(elements[i], element) : element;
    }
}

/// Consecutive whole blocks that vectors encode together, and what they find. By block, in units of its scale.
struct block_batch {
    static constexpr std::uint32_t most_blocks = 32;

    std::uint32_t blocks = 0;
    std::uint32_t nonfinite = 0; ///< bit b: block b has elements that are not finite, and was left out
    std::uint32_t extreme[most_blocks] = {}; ///< as in `block_range`; 0 if it was left out
    float scale[most_blocks] = {};
    float inverse[most_blocks] = {};
    float squares[most_blocks] = {};
    float error_squares[most_blocks] = {};
    float error_sum[most_blocks] = {};
    std::uint64_t zeros = 0; ///< of all blocks together
    std::uint64_t zero_codes = 0;
    std::uint64_t outliers = 0;
    std::uint64_t saturated = 0;
    std::uint32_t worst = 0; ///< the block with the largest noise

    /// How many blocks a batch takes: as many as stay in the first cache.
    static constexpr std::uint32_t capacity(std::uint32_t block) noexcept
    {
        const std::uint32_t fit = largest_block / block;
        return fit < most_blocks ? fit : most_blocks;
    }
    block_scale by(std::uint32_t b) const noexcept { return {scale[b], inverse[b], 0}; }
    double error_ratio(std::uint32_t b) const noexcept
    {
        return squares[b] > 0 ? static_cast<double>(error_squares[b]) / static_cast<double>(squares[b]) : 0;
    }
};

/// Whether surely no code of a block decodes to an element beyond the largest one. By bits: NaN is no such scale.
inline bool is_plain_scale(const codec& how, float scale) noexcept
{
    const float above_codes = is_integer(how.format) ? 0x1p7f : how.format == code_format::e4m3 ? 0x1p9f : 0x1p16f;
    const float limit = bit_cast<float>(how.largest) / above_codes; // exact
    return (bit_cast<std::uint32_t>(scale) & 0x7fffffffu) <= bit_cast<std::uint32_t>(limit);
}

/// Where the terms of a sum of blocks stand: the same block of some messages.
struct term_blocks {
    const unsigned char* first_codes;
    const unsigned char* scales; ///< of the first message
    std::uint64_t stride; ///< from a message to the next
    std::uint64_t block;
    std::uint32_t count;

    const unsigned char* codes(std::uint32_t term) const noexcept { return first_codes + term * stride; }
    float scale(const codec& how, std::uint32_t term) const noexcept
    {
        return read_scale(how.scale, scales + term * stride, block);
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail

#include <collprobe/quant/detail/block_kernel.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether a path has vectors that make these codes, and that read them.
constexpr bool decodes_by_vectors(isa path, const codec& how) noexcept
{
    return path != isa::portable && how.rule != scaling::asymmetric;
}
constexpr bool encodes_by_vectors(isa path, const codec& how) noexcept
{
    return decodes_by_vectors(path, how) && (is_integer(how.format) || how.rounding == code_rounding::nearest);
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
    const double ratio = batch.error_ratio(batch.worst);
    if (ratio > into.worst_ratio) {
        into.worst_ratio = ratio;
        into.worst_block = first + std::uint64_t{batch.worst} * how.block;
    }
}

/// Decodes at most 32 whole blocks, one behind the other. Returns the number of elements that are not finite.
template <class T>
std::uint64_t decode_batch(isa path, const codec& how, const block_scale* by, std::uint32_t blocks,
    const unsigned char* codes, T* elements) noexcept
{
    std::uint64_t nonfinite = 0;
    std::uint32_t left_out = 0xffffffffu;
    if (decodes_by_vectors(path, how)) {
        [[maybe_unused]] float scales[block_batch::most_blocks];
        for (std::uint32_t b = 0; b < blocks; ++b) scales[b] = by[b].scale;
        if (is_integer(how.format))
            left_out = COLLPROBE_ON_ISA(path, 0u, decode_blocks<std::int8_t>(how, scales, blocks, codes, elements));
        else if (how.format == code_format::e4m3)
            left_out = COLLPROBE_ON_ISA(path, 0u, decode_blocks<float8_e4m3>(how, scales, blocks, codes, elements));
        else left_out = COLLPROBE_ON_ISA(path, 0u, decode_blocks<float8_e5m2>(how, scales, blocks, codes, elements));
    }
    for (std::uint32_t b = 0; b < blocks && left_out >> b != 0; ++b) {
        if ((left_out >> b & 1) == 0) continue;
        float x[largest_block];
        decode_portably<false>(how, by[b], codes + b * how.code_bytes(), x);
        for (std::uint32_t i = 0; i < how.block; ++i) {
            const T element(x[i]);
            nonfinite += is_finite(element) ? 0 : 1;
            elements[b * how.block + i] = element;
        }
    }
    return nonfinite;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
