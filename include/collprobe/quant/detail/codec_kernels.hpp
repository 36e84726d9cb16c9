// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/quant/detail/block_cursor.hpp>
#include <collprobe/quant/detail/block_kernel.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/quant/detail/hadamard.hpp>
#include <collprobe/quant/detail/wire.hpp>
#include <collprobe/simd/convert.hpp>

/// What a device runs over the blocks of messages: reducers over block numbers, which read, write and return
/// errors. Their kernels for GPUs are in quant/cuda/.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Rotates whole blocks.
inline void rotate_blocks(const codec& how, float* x, std::uint32_t count, bool back) noexcept
{
    const rotation turn = rotation::of(how.block, how.seed);
    for (std::uint32_t i = 0; i < count; i += turn.length) {
        if (back) turn.undo(x + i);
        else turn.apply(x + i);
    }
}

/// Decodes the blocks of a message that have `count` elements. Whether surely all elements are finite.
template <floating_element T>
bool decode_blocks(isa path, const codec& how, const wire_layout& wire, const unsigned char* message,
    std::uint64_t block, std::uint32_t count, T* to) noexcept
{
    bool finite = true;
    for (std::uint32_t i = 0; i < count; i += how.block, ++block) {
        const float scale = read_block_scale(wire, message, block);
        finite &= decode_block(path, how, scale, message + block * how.code_bytes(), to + i);
    }
    return finite;
}

/// What the quantisation of blocks needs beside their elements.
struct block_encoder {
    codec how;
    dither noise;
    /// For each element of each block, by the number of the block, the residual of the time before: the element less
    /// what its code decodes to. Null without feedback.
    float* residual = nullptr;
    bool probed = true;

    COLLPROBE_HD double energy() const noexcept { return how.rotate ? rotation::of(how.block, how.seed).energy() : 1; }

    /// Blocks of a message, and where their elements stand in the buffer: whole ones, or one that may have fewer.
    struct target {
        unsigned char* message;
        std::uint64_t block; ///< the place of the first one in the message
        std::uint64_t number; ///< of the first one in all blocks of the work
        std::uint64_t element; ///< index of the first element in the buffer
        std::uint32_t count; ///< elements; the rest of the last block is empty
    };

    /// Encodes floats, to which it adds the residual.
    void encode(isa path, float* x, std::uint64_t key, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        float* const own = residual == nullptr ? nullptr : residual + to.number * how.block;
        if (own != nullptr) add_floats(path, own, to.count, x);
        encode_as_is(path, x, key, wire, to, into);
        if (own == nullptr) return;
        float decoded[largest_block];
        decode_blocks(path, how, wire, to.message, to.block, to.count, decoded);
        keep_residual(path, x, decoded, to.count, own);
    }
    /// The same without a residual.
    void encode_as_is(isa path, const float* x, std::uint64_t key, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        // Room for the random bits of blocks that start within an eighth, and for what vectors draw beyond their end.
        std::uint16_t random[largest_block + 8 + 24];
        const bool stochastic = how.rounding == code_rounding::stochastic;
        if (stochastic) {
            const std::uint64_t first = to.element / 8;
            const auto eighths = static_cast<std::uint32_t>((to.element + to.count + 7) / 8 - first);
            draw_random_bits(path, noise, key, first, eighths, random);
        }
        encoded_block made[largest_block / 32];
        encode_blocks(path, how, x, to.count, stochastic ? random + to.element % 8 : nullptr,
            to.message + to.block * how.code_bytes(), probed, made);
        const double factor = energy();
        const std::uint32_t in_block = to.count < how.block ? to.count : how.block;
        for (std::uint32_t b = 0; b == 0 || (b + 1) * how.block <= to.count; ++b) {
            write_block_scale(wire, to.message, to.block + b, made[b].by.scale);
            if (probed) {
                add_block(into, made[b], in_block, to.element + b * how.block, factor);
            } else {
                into.count += in_block;
                into.nonfinite += made[b].nonfinite;
            }
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
        const isa path = best_isa();
        const codec& how = encoder.how;
        const wire_layout wire = wire_layout::of(how, cut.blocks_per_message());
        const std::uint64_t key = encoder.noise.key();
        float x[largest_block];
        for_each_run(cut, first, count, [&, this](std::uint64_t number, const block_cursor&, const auto& at) {
            block_encoder::target to{messages + at.message * message_stride, at.block, number, at.element, at.count};
            if constexpr (std::is_same_v<T, float>) {
                if (!how.rotate && encoder.residual == nullptr) {
                    encoder.encode_as_is(path, source + at.element, key, wire, to, into);
                    return;
                }
            }
            widen_run(source + at.element, static_cast<int>(at.count), x, path);
            if (how.rotate && at.count != 0) {
                for (; to.count < how.whole(at.count); ++to.count) x[to.count] = 0;
                rotate_blocks(how, x, to.count, false);
            }
            encoder.encode(path, x, key, wire, to, into);
        });
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        detail::merge(into, next);
    }
    COLLPROBE_HD quantisation_errors finish(const partial& from) const noexcept
    {
        return including(before, from);
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
    bool probed;
    T* result; ///< where the element with index 0 of `cut` would stand; null for codes
    block_encoder encoder; ///< of the codes: each slice becomes a message
    unsigned char* codes;
    std::uint64_t codes_stride;
    const combined_errors* before = nullptr; ///< of the pieces before, which the result includes

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        const isa path = best_isa();
        const wire_layout in = wire_layout::of(how, cut.blocks_per_message());
        const wire_layout out = wire_layout::of(encoder.how, cut.blocks_per_slice());
        const std::uint64_t key = encoder.noise.key();
        float sums[largest_block];
        for_each_run(cut, first, count, [&, this](std::uint64_t number, const block_cursor& cursor, const auto& at) {
            const std::uint32_t whole = how.whole(at.count);
            for (std::uint32_t i = 0; i < whole; i += how.block)
                add_up(path, in, number + i / how.block, sums + i, into);
            if (result != nullptr) {
                if (how.rotate) rotate_blocks(how, sums, whole, true);
                round_run(sums, static_cast<int>(at.count), result + at.element, path);
                return;
            }
            encoder.encode(path, sums, key, out,
                {codes + cursor.slice(cut) * codes_stride, cursor.in_slice(), number, at.element,
                    how.rotate ? whole : at.count},
                into.errors);
        });
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        detail::merge(into, next);
    }
    COLLPROBE_HD combined_errors finish(const partial& from) const noexcept
    {
        return including(before, from);
    }

    /// A power of two that brings the terms of a block into the range of float squares. `largest`: the bits of the
    /// largest scale among them.
    COLLPROBE_HD static constexpr float range_factor(std::uint32_t largest) noexcept
    {
        const std::uint32_t exponent = largest >> 23;
        return bit_cast<float>((exponent < 1 ? 253 : exponent > 253 ? 1 : 254 - exponent) << 23);
    }
    /// 1 / factor
    COLLPROBE_HD static constexpr float inverse_of(float factor) noexcept
    {
        return bit_cast<float>((254u << 23) - to_bits(factor));
    }

    /// Takes in the squares of a block's terms and sums, times the square of `factor`. Blocks with terms that are not
    /// finite say nothing of the spread. `energy`: `block_encoder::energy`.
    COLLPROBE_HD static void note_spread(
        float squares, float sum_squares, float factor, double energy, partial& into) noexcept
    {
        if (!is_finite(squares) || !is_finite(sum_squares)) return;
        const double back = exact_double(inverse_of(factor));
        into.term_squares += static_cast<double>(squares) * back * back * energy;
        into.sum_squares += static_cast<double>(sum_squares) * back * back * energy;
    }

private:
    /// The sums of block `b`, divided.
    void add_up(isa path, const wire_layout& in, std::uint64_t b, float* sums, partial& into) const noexcept
    {
        const block_terms of{
            messages + b * how.code_bytes(), messages + in.scales_at() + b * scale_bytes, message_stride, terms};
        std::uint32_t largest = 0; // scale
        for (std::uint32_t term = 0; probed && term < terms; ++term) {
            const std::uint32_t bits = magnitude_bits(of.scale(term));
            if (bits < 0x7f800000u && bits > largest) largest = bits;
        }
        const float factor = range_factor(largest);
        const auto squares = sum_terms(path, how, of, static_cast<float>(divisor), probed, factor, sums);
        if (probed) note_spread(squares.of_terms, squares.of_sums, factor, encoder.energy(), into);
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
        const isa path = best_isa();
        const wire_layout wire = wire_layout::of(how, cut.blocks_per_message());
        float x[largest_block];
        for_each_run(cut, first, count, [&, this](std::uint64_t, const block_cursor&, const auto& at) {
            const unsigned char* const message = messages + at.message * message_stride;
            T* const to = result + at.element;
            bool finite = false;
            if (!how.rotate && at.count % how.block == 0) {
                finite = decode_blocks(path, how, wire, message, at.block, at.count, to);
            } else {
                decode_blocks(path, how, wire, message, at.block, at.count, x);
                if (how.rotate) {
                    rotate_blocks(how, x, how.whole(at.count), true);
                    for (std::uint32_t i = 0; i < at.count; ++i) x[i] = clamped(x[i], largest_float_of<T>);
                }
                round_run(x, static_cast<int>(at.count), to, path);
            }
            for (std::uint32_t i = 0; !finite && i < at.count; ++i) into += is_finite(to[i]) ? 0 : 1;
        });
    }
    COLLPROBE_HD static constexpr void merge(partial& into, partial next) noexcept { into += next; }
    COLLPROBE_HD constexpr std::uint64_t finish(partial from) const noexcept
    {
        return before == nullptr ? from : *before + from;
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
