// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/quant/detail/code.hpp>

/// A block of floats to codes and back on the host, and its errors.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The errors of a block, in units of its scale. Rounded in float, so their last digits differ between a host
/// and a GPU.
struct block_errors {
    float squares = 0;
    float error_squares = 0;
    float error_sum = 0;
    std::uint32_t zeros = 0;
    std::uint32_t zero_codes = 0; ///< of finite elements

    /// Takes in a finite element: `value` in units of the scale, and what its code stands for.
    void add(float element, float value, float units) noexcept
    {
        const float error = units - value;
        squares += value * value;
        error_squares += error * error;
        error_sum += error;
        // By bits: a build may take subnormal elements for zero.
        zeros += magnitude_bits(element) == 0 ? 1 : 0;
        zero_codes += magnitude_bits(units) == 0 ? 1 : 0;
    }
    void merge(const block_errors& next) noexcept
    {
        squares += next.squares;
        error_squares += next.error_squares;
        error_sum += next.error_sum;
        zeros += next.zeros;
        zero_codes += next.zero_codes;
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
COLLPROBE_HD inline void add_block(quantisation_errors& into, const encoded_block& block, std::uint32_t count,
    std::uint64_t first, double energy) noexcept
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
    into.zeroed += block.errors.zero_codes - block.errors.zeros;
    const double scale = exact_double(block.by.scale);
    const auto squares = static_cast<double>(block.errors.squares);
    const auto error_squares = static_cast<double>(block.errors.error_squares);
    into.squares += scale * scale * energy * squares;
    into.error_squares += scale * scale * energy * error_squares;
    into.error_sum += scale * static_cast<double>(block.errors.error_sum);
    if (!(squares > 0)) return;
    const float per_rms = reciprocal_root(block.errors.squares / static_cast<float>(count - block.nonfinite));
    into.scale_sum += static_cast<double>(per_rms);
    into.crest_sum += static_cast<double>(rounded_product(block.largest, block.by.inverse) * per_rms);
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
        if (probed) part.add(elements[i], value, units_of(how, codes[i]));
    }
    made.errors.merge(part);
    pack_codes(how, codes, to);
    return made;
}

template <floating_element T>
void decode_portably(const codec& how, float scale, const unsigned char* codes, T* elements) noexcept
{
    for (std::uint32_t i = 0; i < how.block; ++i) elements[i] = T(element_of(how, scale, read_code(how, codes, i)));
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
