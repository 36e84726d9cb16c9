// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/quant/detail/hadamard.hpp>
#include <collprobe/quant/detail/wire.hpp>

/// What a device runs over the blocks of messages: reducers over block numbers, which read, write and return
/// errors. Their kernels for GPUs are in quant/cuda/.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Elements as floats and back, in groups that compilers make vectors of.
template <floating_element T>
COLLPROBE_COMPILED_FOR_AVX2 inline void widen_elements(const T* from, std::uint32_t count, float* to) noexcept
{
    constexpr std::uint32_t group = 32;
    std::uint32_t i = 0;
    for (; i + group <= count; i += group)
        for (std::uint32_t k = 0; k < group; ++k) to[i + k] = static_cast<float>(from[i + k]);
    for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
template <floating_element T>
COLLPROBE_COMPILED_FOR_AVX2 inline void narrow_elements(
    const float* from, std::uint32_t count, T* to) noexcept
{
    constexpr std::uint32_t group = 32;
    std::uint32_t i = 0;
    for (; i + group <= count; i += group)
        for (std::uint32_t k = 0; k < group; ++k) to[i + k] = T(from[i + k]);
    for (; i < count; ++i) to[i] = T(from[i]);
}

inline void rotate_block(const codec& how, float* x, bool back) noexcept
{
    const rotation turn = rotation::of(how.block, how.seed);
    for (std::uint32_t i = 0; i < how.block; i += turn.length) {
        if (back) turn.undo(x + i);
        else turn.apply(x + i);
    }
}

/// What the quantisation of blocks needs beside their elements.
struct block_encoder {
    codec how;
    dither noise;
    /// For each element of each block, by the number of the block, the error that the time before has left;
    /// or null.
    float* residual = nullptr;
    bool probed = true;
    bool feeds_back = true; ///< adds the residual before it is replaced

    /// What is added to an element the next time: never a number that is not finite.
    COLLPROBE_HD static float error_to_keep(float element, float decoded) noexcept
    {
        const float error = rounded_difference(element, decoded);
        return (bit_cast<std::uint32_t>(error) & 0x7fffffffu) < 0x7f800000u ? error : 0.0f;
    }

    /// A block of a message, and where its elements stand in the buffer.
    struct target {
        unsigned char* message;
        std::uint64_t block; ///< its place in the message
        std::uint64_t number; ///< of all blocks of the work
        std::uint64_t element; ///< index of the first element in the buffer
        std::uint32_t count; ///< elements; the rest of the block is empty
    };

    /// Encodes a block of floats that may change.
    void encode(isa path, float* x, std::uint64_t key, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        if (residual == nullptr) return encode_as_is(path, x, key, wire, to, into);
        float* const kept = residual + to.number * how.block;
        for (std::uint32_t i = 0; feeds_back && i < to.count; ++i) x[i] = rounded_sum(x[i], kept[i]);
        encode_as_is(path, x, key, wire, to, into);
        const block_scale by = read_block_scale(how, wire, to.message, to.block);
        const unsigned char* const codes = to.message + to.block * how.code_bytes();
        for (std::uint32_t i = 0; i < to.count; ++i)
            kept[i] = error_to_keep(x[i], element_of(how, by, read_code(how, codes, i)));
    }

    /// The same, where no error is kept.
    void encode_as_is(isa path, const float* x, std::uint64_t key, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        std::uint16_t random[largest_block];
        const bool stochastic = how.rounding == code_rounding::stochastic;
        if (stochastic) draw(key, to, random);
        block_range range;
        block_errors errors;
        std::uint32_t first_nonfinite = 0;
        unsigned char* const codes = to.message + to.block * how.code_bytes();
        const block_scale by = encode_floats(path, how, x, to.count, stochastic ? random : nullptr, codes,
            probed ? &errors : nullptr, range, first_nonfinite);
        write_block_scale(how, wire, to.message, to.block, by);
        if (range.nonfinite != 0)
            into.first_nonfinite = lesser(into.first_nonfinite, to.element + first_nonfinite);
        if (!probed) {
            into.count += to.count;
            into.nonfinite += range.nonfinite;
            return;
        }
        // The vectors do not say where an error is. It matters only for the largest so far.
        const double largest = absolute(static_cast<double>(by.scale)) * static_cast<double>(errors.largest);
        if (largest > into.largest_error && !stochastic)
            errors.largest_at = find_error(how, by, x, errors.largest);
        const double energy = how.rotate ? rotation::of(how.block, how.seed).energy() : 1;
        add_block(into, by, errors, range.magnitude(), to.count, range.nonfinite, to.element, energy);
    }

private:
    void draw(std::uint64_t key, const target& to, std::uint16_t* random) const noexcept
    {
        std::uint32_t i = 0;
        while (i < to.count) {
            const std::uint64_t at = to.element + i;
            const philox eight = noise.of_eight(key, at / 8);
            for (auto lane = static_cast<unsigned>(at % 8); lane < 8 && i < to.count; ++lane, ++i)
                random[i] = static_cast<std::uint16_t>(eight.bits16(lane));
        }
    }
};

/// What the pieces of a call before this one have left, and this one.
template <class Result>
COLLPROBE_HD constexpr Result including(const Result* before, const Result& now) noexcept
{
    if (before == nullptr) return now;
    Result both = *before;
    merge(both, now);
    return both;
}

/// Encodes the elements of a buffer into messages.
template <floating_element T>
struct encode_reducer {
    using partial = quantisation_errors;
    using has_own_kernel = void; // on a GPU: quant/cuda/codec_kernels.cuh
    static constexpr std::uint64_t block = 64; ///< blocks that a leaf of the reduction covers

    block_encoder encoder;
    message_slices cut;
    const T* source; ///< the whole buffer
    unsigned char* messages;
    std::uint64_t message_stride; ///< bytes from a message to the next
    const quantisation_errors* before = nullptr; ///< of the pieces before, which the result includes

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        run_blocks(into, first, count);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        detail::merge(into, next);
    }
    COLLPROBE_HD quantisation_errors finish(const partial& from) const noexcept
    {
        return including(before, from);
    }

private:
    [[gnu::noinline]] void run_blocks(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const isa path = best_isa();
        const codec& how = encoder.how;
        const wire_layout wire = wire_layout::of(how, cut.blocks_per_message());
        const std::uint64_t key = encoder.noise.key();
        float x[largest_block];
        for (std::uint64_t b = first; b < first + count; ++b) {
            const message_slices::place at = cut.at(b);
            block_encoder::target to{
                messages + at.message * message_stride, at.block, b, at.element, at.count};
            if constexpr (std::is_same_v<T, float>) {
                if (at.count == how.block && !how.rotate && encoder.residual == nullptr) {
                    encoder.encode_as_is(path, source + at.element, key, wire, to, into);
                    continue;
                }
            }
            widen_elements(source + at.element, at.count, x);
            if (how.rotate && at.count != 0) {
                for (std::uint32_t i = at.count; i < how.block; ++i) x[i] = 0;
                rotate_block(how, x, false);
                to.count = how.block;
            }
            encoder.encode(path, x, key, wire, to, into);
        }
    }
};

/// Adds the decoded elements of some messages, in the order of the messages, divides the sums, and writes
/// them as elements or as codes.
template <floating_element T>
struct combine_reducer {
    using partial = combined_errors;
    using has_own_kernel = void; // on a GPU: quant/cuda/codec_kernels.cuh
    static constexpr std::uint64_t block = 64;

    codec how; ///< of the messages that arrived
    message_slices cut; ///< of one of them
    const unsigned char* messages;
    std::uint64_t message_stride;
    std::uint32_t terms;
    std::uint32_t divisor;
    bool wide; ///< adds in double
    bool probed;
    T* result; ///< where the element with index 0 of `cut` would stand; null for codes
    block_encoder encoder; ///< of the codes: each slice becomes a message
    unsigned char* codes;
    std::uint64_t codes_stride;
    const combined_errors* before = nullptr; ///< of the pieces before, which the result includes

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        run_blocks(into, first, count);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        detail::merge(into, next);
    }
    COLLPROBE_HD combined_errors finish(const partial& from) const noexcept
    {
        return including(before, from);
    }

    /// A power of two that brings the terms of a block into the range of float squares. `largest`: the bits
    /// of the largest scale among them.
    COLLPROBE_HD static constexpr float range_factor(std::uint32_t largest) noexcept
    {
        const std::uint32_t exponent = largest >> 23;
        return bit_cast<float>((exponent < 1 ? 253 : exponent > 253 ? 1 : 254 - exponent) << 23);
    }

    /// Takes in the squares of a block's terms and sums, times the square of `factor`. Blocks with terms that are not
    /// finite say nothing of the spread.
    COLLPROBE_HD void note_spread(
        float squares, float sum_squares, float factor, std::uint32_t count, partial& into) const noexcept
    {
        if (!is_finite(squares) || !is_finite(sum_squares)) {
            ++into.nonfinite_blocks;
            return;
        }
        const double back = 1 / static_cast<double>(factor);
        const double energy = how.rotate ? rotation::of(how.block, how.seed).energy() : 1;
        into.terms += std::uint64_t{terms} * count;
        into.term_squares += static_cast<double>(squares) * back * back * energy;
        into.sum_squares += static_cast<double>(sum_squares) * back * back * energy;
    }

private:
    [[gnu::noinline]] void run_blocks(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const isa path = best_isa();
        const wire_layout in = wire_layout::of(how, cut.blocks_per_message());
        const wire_layout out = wire_layout::of(encoder.how, cut.blocks_per_slice());
        const std::uint64_t key = encoder.noise.key();
        float sums[largest_block];
        for (std::uint64_t b = first; b < first + count; ++b) {
            const message_slices::place at = cut.at(b);
            if (wide) add_wide(path, in, b, sums, into);
            else if (probed) add_probed(path, in, b, sums, into);
            else add(path, in, b, sums);
            if (divisor != 1) {
                for (std::uint32_t i = 0; i < how.block; ++i)
                    sums[i] = rounded_quotient(sums[i], static_cast<float>(divisor));
            }
            if (result != nullptr) {
                if (how.rotate) rotate_block(how, sums, true);
                narrow_elements(sums, at.count, result + at.element);
                continue;
            }
            const std::uint64_t slice = b / out.blocks;
            const std::uint32_t coded = how.rotate && at.count != 0 ? how.block : at.count;
            encoder.encode(path, sums, key, out,
                {codes + slice * codes_stride, b - slice * out.blocks, b, at.element, coded}, into.errors);
        }
    }

    const unsigned char* codes_of(std::uint32_t term, std::uint64_t b) const noexcept
    {
        return messages + term * message_stride + b * how.code_bytes();
    }
    block_scale scale_of_term(const wire_layout& in, std::uint32_t term, std::uint64_t b) const noexcept
    {
        return read_block_scale(how, in, messages + term * message_stride, b);
    }
    void add(isa path, const wire_layout& in, std::uint64_t b, float* sums) const noexcept
    {
        decode_floats<false>(path, how, scale_of_term(in, 0, b), codes_of(0, b), sums);
        for (std::uint32_t term = 1; term < terms; ++term)
            decode_floats<true>(path, how, scale_of_term(in, term, b), codes_of(term, b), sums);
    }
    void add_probed(
        isa path, const wire_layout& in, std::uint64_t b, float* sums, partial& into) const noexcept
    {
        float x[largest_block];
        const float factor = factor_of(in, b);
        float squares = 0;
        for (std::uint32_t term = 0; term < terms; ++term) {
            decode_floats<false>(path, how, scale_of_term(in, term, b), codes_of(term, b), x);
            squares += term == 0 ? take_term<false>(x, sums, factor) : take_term<true>(x, sums, factor);
        }
        note_spread(squares, squares_of(sums, factor), factor, cut.at(b).count, into);
    }
    void add_wide(isa path, const wire_layout& in, std::uint64_t b, float* sums, partial& into) const noexcept
    {
        float x[largest_block];
        double wide_sums[largest_block] = {};
        const float factor = factor_of(in, b);
        float squares = 0;
        for (std::uint32_t term = 0; term < terms; ++term) {
            decode_floats<false>(path, how, scale_of_term(in, term, b), codes_of(term, b), x);
            if (probed) squares += squares_of(x, factor);
            for (std::uint32_t i = 0; i < how.block; ++i) wide_sums[i] += static_cast<double>(x[i]);
        }
        for (std::uint32_t i = 0; i < how.block; ++i) sums[i] = static_cast<float>(wide_sums[i]);
        if (probed) note_spread(squares, squares_of(sums, factor), factor, cut.at(b).count, into);
    }

    float factor_of(const wire_layout& in, std::uint64_t b) const noexcept
    {
        std::uint32_t largest = 0;
        for (std::uint32_t term = 0; term < terms; ++term) {
            const std::uint32_t bits
                = bit_cast<std::uint32_t>(scale_of_term(in, term, b).scale) & 0x7fffffffu;
            if (bits < 0x7f800000u && bits > largest) largest = bits;
        }
        return range_factor(largest);
    }
    static constexpr std::uint32_t lanes = 8;
    /// Elements whose squares are summed apart: the rounding of many terms would show in the sums of long blocks.
    static constexpr std::uint32_t run_length = 256;
    static float sum_of(const float (&lane)[lanes]) noexcept
    {
        return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    }
    /// Adds a term, and returns the sum of its squares.
    template <bool add>
    COLLPROBE_COMPILED_FOR_AVX2 float take_term(const float* x, float* sums, float factor) const noexcept
    {
        float sum = 0;
        for (std::uint32_t run = 0; run < how.block; run += run_length) {
            float lane[lanes] = {};
            for (std::uint32_t i = run; i < how.block && i < run + run_length; i += lanes) {
                for (std::uint32_t k = 0; k < lanes; ++k) {
                    sums[i + k] = add ? rounded_sum(sums[i + k], x[i + k]) : x[i + k];
                    const float scaled = x[i + k] * factor;
                    lane[k] += scaled * scaled;
                }
            }
            sum += sum_of(lane);
        }
        return sum;
    }
    COLLPROBE_COMPILED_FOR_AVX2 float squares_of(const float* x, float factor) const noexcept
    {
        float sum = 0;
        for (std::uint32_t run = 0; run < how.block; run += run_length) {
            float lane[lanes] = {};
            for (std::uint32_t i = run; i < how.block && i < run + run_length; i += lanes) {
                for (std::uint32_t k = 0; k < lanes; ++k) {
                    const float scaled = x[i + k] * factor;
                    lane[k] += scaled * scaled;
                }
            }
            sum += sum_of(lane);
        }
        return sum;
    }
};

/// Decodes messages into a buffer. The result of the reduction is the number of elements that are not finite.
template <floating_element T>
struct decode_reducer {
    using partial = std::uint64_t;
    using has_own_kernel = void; // on a GPU: quant/cuda/codec_kernels.cuh
    static constexpr std::uint64_t block = 64;

    codec how;
    message_slices cut;
    const unsigned char* messages;
    std::uint64_t message_stride;
    T* result; ///< the whole buffer
    const std::uint64_t* before = nullptr; ///< of the pieces before, which the result includes

    COLLPROBE_HD static constexpr partial identity() noexcept { return 0; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        run_blocks(into, first, count);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, partial next) noexcept { into += next; }
    COLLPROBE_HD constexpr std::uint64_t finish(partial from) const noexcept
    {
        return before == nullptr ? from : *before + from;
    }

private:
    [[gnu::noinline]] void run_blocks(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const isa path = best_isa();
        const wire_layout wire = wire_layout::of(how, cut.blocks_per_message());
        float x[largest_block];
        for (std::uint64_t b = first; b < first + count; ++b) {
            const message_slices::place at = cut.at(b);
            const unsigned char* const message = messages + at.message * message_stride;
            const block_scale by = read_block_scale(how, wire, message, at.block);
            bool in_place = false;
            if constexpr (std::is_same_v<T, float>) in_place = at.count == how.block && !how.rotate;
            float* to = x;
            if constexpr (std::is_same_v<T, float>) to = in_place ? result + at.element : x;
            decode_floats<false>(path, how, by, message + at.block * how.code_bytes(), to);
            if (how.rotate) rotate_block(how, x, true);
            for (std::uint32_t i = 0; i < at.count; ++i) into += is_finite(to[i]) ? 0 : 1;
            if (!in_place) narrow_elements(x, at.count, result + at.element);
        }
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
