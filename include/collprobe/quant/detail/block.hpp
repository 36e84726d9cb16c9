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
    float largest = 0;
    std::uint32_t largest_at = 0;
    std::uint32_t zeros = 0;
    std::uint32_t zeroed = 0;
    std::uint32_t saturated = 0;
    std::uint32_t outliers = 0;

    /// Takes in a finite element and its code. `half`: half of the block's largest magnitude.
    COLLPROBE_HD void add(const codec& how, float element, float value, std::int32_t code, float half,
        std::uint32_t at) noexcept
    {
        const float error = units_of(how, code) - value;
        const float magnitude = error < 0 ? -error : error;
        squares += value * value;
        error_squares += error * error;
        error_sum += error;
        if (magnitude > largest) {
            largest = magnitude;
            largest_at = at;
        }
        // By bits: a build for GPUs may take subnormal elements for zero.
        const std::uint32_t bits = bit_cast<std::uint32_t>(element) & 0x7fffffffu;
        const bool is_zero = bits == 0;
        zeros += is_zero ? 1 : 0;
        zeroed += units_of(how, code) == 0 && !is_zero ? 1 : 0;
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
        if (next.largest > largest) {
            largest = next.largest;
            largest_at = next.largest_at;
        }
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
    const bool smallest = by.inverse == 0x1p126f || by.inverse == -0x1p126f;
    into.underflowed_blocks += smallest ? 1 : 0;
    const double unit = scale * scale * energy;
    const auto squares = static_cast<double>(block.squares);
    const auto error_squares = static_cast<double>(block.error_squares);
    into.squares += unit * squares;
    into.error_squares += unit * error_squares;
    into.error_sum += scale * static_cast<double>(block.error_sum);
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
    const double largest = scale * static_cast<double>(block.largest);
    if (largest > into.largest_error) {
        into.largest_error = largest;
        into.largest_error_at = first + block.largest_at;
    }
}

COLLPROBE_HD constexpr void merge(quantisation_errors& into, const quantisation_errors& next) noexcept
{
    into.count += next.count;
    into.nonfinite += next.nonfinite;
    into.first_nonfinite = lesser(into.first_nonfinite, next.first_nonfinite);
    into.zeros += next.zeros;
    into.zeroed += next.zeroed;
    into.saturated += next.saturated;
    into.outliers += next.outliers;
    into.blocks += next.blocks;
    into.zero_blocks += next.zero_blocks;
    into.underflowed_blocks += next.underflowed_blocks;
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
    if (next.largest_error > into.largest_error
        || (next.largest_error == into.largest_error && next.largest_error_at < into.largest_error_at)) {
        into.largest_error = next.largest_error;
        into.largest_error_at = next.largest_error_at;
    }
}

COLLPROBE_HD constexpr void merge(combined_errors& into, const combined_errors& next) noexcept
{
    merge(into.errors, next.errors);
    into.term_squares += next.term_squares;
    into.sum_squares += next.sum_squares;
    into.terms += next.terms;
    into.nonfinite_blocks += next.nonfinite_blocks;
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
/// element, or null for nearest rounding. Returns how many elements were not finite; `*first_nonfinite` is
/// the first one.
[[gnu::noinline]] inline block_scale encode_portably(const codec& how, const float* elements,
    std::uint32_t count, const std::uint16_t* random, unsigned char* to, block_errors* errors,
    block_range& range, std::uint32_t& first_nonfinite) noexcept
{
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t before = range.nonfinite;
        range.add(bit_cast<std::uint32_t>(elements[i]), how.overflow);
        if (before == 0 && range.nonfinite != 0) first_nonfinite = i;
    }
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
        if (errors != nullptr && !is_nan_block(by)) part.add(how, element, value, codes[i], half, i);
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

} // namespace collprobe::inline COLLPROBE_ABI::detail

#define COLLPROBE_KERNEL <collprobe/quant/detail/block_kernel.hpp>
#include <collprobe/simd/dispatch.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The index of an element with the error `largest`, which the vectors of a block have found.
inline std::uint32_t find_error(
    const codec& how, const block_scale& by, const float* elements, float largest) noexcept
{
    const std::uint32_t wanted = bit_cast<std::uint32_t>(largest) & 0x7fffffffu;
    for (std::uint32_t i = 0; i < how.block; ++i) {
        const float value = in_scales(how, by, elements[i]);
        const float error = units_of(how, code_of(how, value, 0)) - value;
        if ((bit_cast<std::uint32_t>(error) & 0x7fffffffu) >= wanted) return i;
    }
    return 0;
}

/// `encode_portably`, by vectors where a path has them; the codes and the scale have the same bits.
inline block_scale encode_floats([[maybe_unused]] isa path, const codec& how, const float* elements,
    std::uint32_t count, const std::uint16_t* random, unsigned char* to, block_errors* errors, block_range& range,
    std::uint32_t& first_nonfinite) noexcept
{
    const bool has_kernel = is_integer(how.format) && how.rule != scaling::asymmetric && random == nullptr;
    block_scale by;
    if (has_kernel && count == how.block
        && COLLPROBE_ON_ISA(path, false, encode_integers(how, elements, to, errors, range, by)))
        return by;
    return encode_portably(how, elements, count, random, to, errors, range, first_nonfinite);
}

template <bool add>
void decode_floats(
    isa path, const codec& how, const block_scale& by, const unsigned char* codes, float* elements) noexcept
{
    const double reach = absolute(static_cast<double>(by.scale)) * 128;
    const bool has_kernel = path != isa::portable && is_integer(how.format) && how.rule != scaling::asymmetric
        && reach <= static_cast<double>(bit_cast<float>(how.largest));
    if (!has_kernel) return decode_portably<add>(how, by, codes, elements);
    const bool has_nan = COLLPROBE_ON_ISA(path, false, decode_integers<add>(how, by, codes, elements));
    for (std::uint32_t i = 0; has_nan && i < how.block; ++i) {
        if (read_code(how, codes, i) == nan_code(how)) elements[i] = bit_cast<float>(nan_bits);
    }
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
