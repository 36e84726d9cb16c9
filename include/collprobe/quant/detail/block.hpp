// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/code.hpp>

/// A block of floats to codes and back on the host, and its errors.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr std::uint32_t largest_block = 1024;
inline constexpr std::uint32_t batch_elements = 4096; ///< that stay in the first cache

/// The errors of a block, in units of its scale. Rounded in float, so their last digits differ between a host
/// and a GPU.
struct block_errors {
    float squares = 0;
    float error_squares = 0;
    float error_sum = 0;
    std::uint32_t zeros = 0;
    std::uint32_t zeroed = 0;
    std::uint32_t outliers = 0;

    /// Takes in a finite element: `value` in units of the scale, and what its code stands for. `half`: half of the
    /// block's largest magnitude.
    void add(float element, float value, float units, float half) noexcept
    {
        const float error = units - value;
        squares += value * value;
        error_squares += error * error;
        error_sum += error;
        // By bits: a build may take subnormal elements for zero.
        const bool is_zero = magnitude_bits(element) == 0;
        zeros += is_zero ? 1 : 0;
        zeroed += units == 0 && !is_zero ? 1 : 0;
        outliers += magnitude_bits(element) > to_bits(half) ? 1 : 0;
    }
    void merge(const block_errors& next) noexcept
    {
        squares += next.squares;
        error_squares += next.error_squares;
        error_sum += next.error_sum;
        zeros += next.zeros;
        zeroed += next.zeroed;
        outliers += next.outliers;
    }
};

/// What the encoding of a block finds.
struct encoded_block {
    block_scale by;
    float largest = 0; ///< magnitude of its finite elements
    std::uint32_t nonfinite = 0;
    block_errors errors; ///< if they are asked for
};

/// Takes the errors of a block into those of a buffer. `count`: the elements of the block. `first`: index of its first
/// element. `energy`: `rotation::energy`, 1 without a rotation.
inline void add_block(quantisation_errors& into, const encoded_block& block, std::uint32_t count, std::uint64_t first,
    double energy) noexcept
{
    if (count == 0) return; // beyond the end of the buffer
    into.count += count;
    into.nonfinite += block.nonfinite;
    ++into.blocks;
    into.zeros += block.errors.zeros;
    if (to_bits(block.largest) == 0) { // by bits, as subnormal ones are not zero
        ++into.zero_blocks;
        return;
    }
    into.zeroed += block.errors.zeroed;
    into.outliers += block.errors.outliers;
    const auto scale = static_cast<double>(block.by.scale);
    const auto squares = static_cast<double>(block.errors.squares);
    const auto error_squares = static_cast<double>(block.errors.error_squares);
    into.squares += scale * scale * energy * squares;
    into.error_squares += scale * scale * energy * error_squares;
    into.error_sum += scale * static_cast<double>(block.errors.error_sum);
    if (!(squares > 0)) return;
    const float rms = static_cast<float>(square_root(squares / static_cast<double>(count - block.nonfinite)));
    into.scale_sum += static_cast<double>(1 / rms);
    into.crest_sum += static_cast<double>(rounded_product(block.largest, block.by.inverse) / rms);
    if (error_squares > into.worst_ratio * squares) {
        into.worst_ratio = error_squares / squares;
        into.worst_block = first;
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

/// Writes the codes of a block.
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
[[gnu::noinline]] inline encoded_block encode_portably(const codec& how, const float* elements, std::uint32_t count,
    const std::uint16_t* random, unsigned char* to, bool probed) noexcept
{
    encoded_block made;
    std::uint32_t largest = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = magnitude_bits(elements[i]);
        if (magnitude >= how.overflow) ++made.nonfinite;
        else if (magnitude > largest) largest = magnitude;
    }
    made.largest = bit_cast<float>(largest);
    made.by = scale_of(how, made.largest);
    const float half = rounded_product(made.largest, 0.5f);
    std::int32_t codes[largest_block] = {};
    block_errors part; // sums of few terms, or their rounding would show in those of long blocks
    for (std::uint32_t i = 0; i < count; ++i) {
        if (i % 64 == 0) {
            made.errors.merge(part);
            part = {};
        }
        codes[i] = nan_code(how.format);
        if (!how.is_finite(elements[i])) continue;
        const float value = rounded_product(elements[i], made.by.inverse);
        codes[i] = code_of(how, value, random == nullptr ? 0 : random[i]);
        if (probed) part.add(elements[i], value, units_of(how, codes[i]), half);
    }
    made.errors.merge(part);
    pack_codes(how, codes, to);
    return made;
}

inline void decode_portably(const codec& how, float scale, const unsigned char* codes, float* elements) noexcept
{
    for (std::uint32_t i = 0; i < how.block; ++i) elements[i] = element_of(how, scale, read_code(how, codes, i));
}

/// Consecutive whole blocks that vectors encode together, and what they find. By block, in units of its scale.
struct block_batch {
    static constexpr std::uint32_t most_blocks = 32;

    std::uint32_t blocks = 0;
    std::uint32_t nonfinite = 0; ///< bit b: block b has elements that are not finite, and was left out
    float largest[most_blocks] = {}; ///< 0 if it was left out
    float scale[most_blocks] = {};
    float inverse[most_blocks] = {};
    float squares[most_blocks] = {};
    float error_squares[most_blocks] = {};
    float error_sum[most_blocks] = {};
    std::uint64_t zeros = 0; ///< of all blocks together
    std::uint64_t zero_codes = 0;
    std::uint64_t outliers = 0;
    std::uint32_t worst = 0; ///< the block with the largest noise

    static constexpr std::uint32_t capacity(std::uint32_t block) noexcept
    {
        return batch_elements / block < most_blocks ? batch_elements / block : most_blocks;
    }
};

/// Whether surely no code of a block decodes to an element beyond the largest one. By bits: NaN is no such scale.
inline bool is_plain_scale(const codec& how, float scale) noexcept
{
    return magnitude_bits(scale) < 0x7f800000u
        && magnitude_bits(rounded_product(scale, largest_code(how.format))) <= to_bits(how.largest);
}

/// Where the terms of a sum of blocks stand: the same block of some messages.
struct term_blocks {
    const unsigned char* first_codes;
    const unsigned char* scales; ///< of the first message
    std::uint64_t stride; ///< from a message to the next
    std::uint64_t block;
    std::uint32_t count;

    const unsigned char* codes(std::uint32_t term) const noexcept { return first_codes + term * stride; }
    float scale(std::uint32_t term) const noexcept { return read_scale(scales + term * stride, block); }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
