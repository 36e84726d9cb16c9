// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
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

/// What the quantisation of blocks needs beside their elements.
struct block_encoder {
    codec how;
    dither noise;
    /// For each element of each block, by the number of the block, the residual of the time before: the element less
    /// what its code decodes to. Null without feedback.
    float* residual = nullptr;
    bool probed = true;

    /// What is added to an element the next time: never a number that is not finite.
    COLLPROBE_HD static float residual_of(float element, float decoded) noexcept
    {
        const float left = rounded_difference(element, decoded);
        return magnitude_bits(left) < 0x7f800000u ? left : 0.0f;
    }

    /// Consecutive blocks of a message, and where their elements stand in the buffer: as many whole ones as
    /// `block_batch` takes, or one that may have fewer elements.
    struct target {
        unsigned char* message;
        std::uint64_t block; ///< the place of the first one in the message
        std::uint64_t number; ///< of all blocks of the work
        std::uint64_t element; ///< index of the first element in the buffer
        std::uint32_t count; ///< elements; the rest of the last block is empty
    };

    /// Encodes floats that may change.
    void encode(isa path, float* x, std::uint64_t key, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        if (residual == nullptr) return encode_as_is(path, x, x, key, wire, to, into);
        float* const own = residual + to.number * how.block;
        const std::uint32_t by_vectors = path == isa::portable ? 0 : to.count / 32 * 32;
        COLLPROBE_ON_ISA(path, void(), add_residual(x, own, by_vectors));
        for (std::uint32_t i = by_vectors; i < to.count; ++i) x[i] = rounded_sum(x[i], own[i]);
        encode_as_is(path, x, x, key, wire, to, into);
        float decoded[batch_elements];
        decode(path, how, wire, to.message, to.block, blocks_of(to), decoded);
        COLLPROBE_ON_ISA(path, void(), keep_residual(x, decoded, by_vectors, own));
        for (std::uint32_t i = by_vectors; i < to.count; ++i) own[i] = residual_of(x[i], decoded[i]);
    }

    /// The same without a residual. `room` takes the elements as floats unless they are.
    template <floating_element T>
    void encode_as_is(isa path, const T* from, float* room, std::uint64_t key, const wire_layout& wire,
        const target& to, quantisation_errors& into) const noexcept
    {
        std::uint16_t random_room[most_random];
        const bool stochastic = how.rounding == code_rounding::stochastic;
        const std::uint16_t* const random = stochastic ? draw(path, key, to, random_room) : nullptr;
        const float* elements = room;
        if constexpr (std::is_same_v<T, float>) elements = from;
        const std::uint32_t blocks = blocks_of(to);
        std::uint32_t left = 0xffffffffu;
        if (encodes_by_vectors(path, how) && to.count == blocks * how.block) {
            block_batch batch;
            batch.blocks = blocks;
            encode_batch(path, how, from, random, probed, room, to.message + to.block * how.code_bytes(), batch);
            left = batch.nonfinite;
            for (std::uint32_t b = 0; b < blocks; ++b) {
                write_block_scale(wire, to.message, to.block + b, batch.scale[b]);
                if (!probed && (left >> b & 1) == 0) into.count += how.block;
            }
            if (probed) add_batch(path, how, energy(), to.element, batch, into);
        } else if constexpr (!std::is_same_v<T, float>) {
            widen_run(from, static_cast<int>(to.count), room, path);
        }
        for (std::uint32_t b = 0; b < blocks && left >> b != 0; ++b) {
            if ((left >> b & 1) == 0) continue;
            const std::uint32_t first = b * how.block;
            encode_one(elements + first, stochastic ? random + first : nullptr, wire,
                {to.message, to.block + b, to.number + b, to.element + first, blocks == 1 ? to.count : how.block},
                into);
        }
    }

    /// Decodes whole blocks of a message. Returns the number of elements that are not finite.
    template <floating_element T>
    static std::uint64_t decode(isa path, const codec& how, const wire_layout& wire, const unsigned char* message,
        std::uint64_t block, std::uint32_t blocks, T* to) noexcept
    {
        float scales[block_batch::most_blocks];
        for (std::uint32_t b = 0; b < blocks; ++b) scales[b] = read_block_scale(wire, message, block + b);
        return decode_batch(path, how, scales, blocks, message + block * how.code_bytes(), to);
    }

private:
    std::uint32_t blocks_of(const target& to) const noexcept
    {
        return to.count <= how.block ? 1 : to.count / how.block;
    }
    double energy() const noexcept { return how.rotate ? rotation::of(how.block, how.seed).energy() : 1; }

    void encode_one(const float* x, const std::uint16_t* random, const wire_layout& wire, const target& to,
        quantisation_errors& into) const noexcept
    {
        const encoded_block made
            = encode_portably(how, x, to.count, random, to.message + to.block * how.code_bytes(), probed);
        write_block_scale(wire, to.message, to.block, made.by.scale);
        if (probed) {
            add_block(into, made, to.count, to.element, energy());
        } else {
            into.count += to.count;
            into.nonfinite += made.nonfinite;
        }
    }
    /// Room for the random bits of a batch that starts within an eighth, and for what vectors draw beyond its end.
    static constexpr std::uint32_t most_random = batch_elements + 8 + 128;

    /// Draws the bits of the elements and returns where they are.
    const std::uint16_t* draw(
        isa path, std::uint64_t key, const target& to, std::uint16_t (&room)[most_random]) const noexcept
    {
        const std::uint64_t first = to.element / 8;
        const auto eighths = static_cast<std::uint32_t>((to.element + to.count + 7) / 8 - first);
        draw_random_bits(path, noise, key, first, eighths, room);
        return room + to.element % 8;
    }
};

/// What the host takes at once from a place on: whole blocks of the same part, or a single one that may be shorter.
struct run_of_blocks {
    std::uint32_t blocks;
    std::uint32_t elements;

    static run_of_blocks at(const message_slices::place& from, const codec& how, std::uint64_t blocks) noexcept
    {
        const auto whole = static_cast<std::uint32_t>(
            lesser(from.left / how.block, lesser(blocks, block_batch::capacity(how.block))));
        return whole == 0 ? run_of_blocks{1, from.count} : run_of_blocks{whole, whole * how.block};
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
        float x[batch_elements];
        std::uint32_t blocks = 0;
        for (std::uint64_t b = first; b < first + count; b += blocks) {
            const message_slices::place at = cut.at(b);
            const run_of_blocks run = run_of_blocks::at(at, how, first + count - b);
            blocks = run.blocks;
            block_encoder::target to{
                messages + at.message * message_stride, at.block, b, at.element, run.elements};
            if (!how.rotate && encoder.residual == nullptr) {
                encoder.encode_as_is(path, source + at.element, x, key, wire, to, into);
                continue;
            }
            widen_run(source + at.element, static_cast<int>(to.count), x, path);
            if (how.rotate && to.count != 0) {
                for (; to.count < blocks * how.block; ++to.count) x[to.count] = 0;
                rotate_blocks(how, x, to.count, false);
            }
            encoder.encode(path, x, key, wire, to, into);
        }
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
        float sums[batch_elements];
        std::uint32_t blocks = 0;
        for (std::uint64_t b = first; b < first + count; b += blocks) {
            const message_slices::place at = cut.at(b);
            const run_of_blocks run = run_of_blocks::at(at, how, first + count - b);
            blocks = run.blocks;
            const std::uint32_t elements = run.elements;
            for (std::uint32_t k = 0; k < blocks; ++k)
                add_up(path, in, b + k, sums + k * how.block, into);
            if (result != nullptr) {
                if (how.rotate) rotate_blocks(how, sums, blocks * how.block, true);
                round_run(sums, static_cast<int>(elements), result + at.element, path);
                continue;
            }
            const std::uint64_t slice = b / out.blocks;
            const std::uint32_t coded = how.rotate && elements != 0 ? blocks * how.block : elements;
            encoder.encode(path, sums, key, out,
                {codes + slice * codes_stride, b - slice * out.blocks, b, at.element, coded}, into.errors);
        }
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
        float squares, float sum_squares, float factor, partial& into) const noexcept
    {
        if (!is_finite(squares) || !is_finite(sum_squares)) return;
        const double back = 1 / static_cast<double>(factor);
        const double energy = how.rotate ? rotation::of(how.block, how.seed).energy() : 1;
        into.term_squares += static_cast<double>(squares) * back * back * energy;
        into.sum_squares += static_cast<double>(sum_squares) * back * back * energy;
    }

private:
    /// The sums of block `b`, divided.
    void add_up(isa path, const wire_layout& in, std::uint64_t b, float* sums, partial& into) const noexcept
    {
        const float factor = probed ? factor_of(in, b) : 1.0f;
        float squares = 0;
        float sum_squares = 0;
        if (!add_by_vectors(path, in, b, factor, sums, squares, sum_squares)) {
            add(path, in, b, factor, sums, squares);
            if (probed) sum_squares = squares_of(sums, factor);
            if (divisor != 1) {
                for (std::uint32_t i = 0; i < how.block; ++i)
                    sums[i] = rounded_quotient(sums[i], static_cast<float>(divisor));
            }
        }
        if (probed) note_spread(squares, sum_squares, factor, into);
    }
    bool add_by_vectors(isa path, const wire_layout& in, std::uint64_t b, float factor, float* sums, float& squares,
        float& sum_squares) const noexcept
    {
        const term_blocks of{messages + b * how.code_bytes(), messages + in.scales_at(), message_stride, b, terms};
        if (is_integer(how.format)) return sum_blocks<std::int8_t>(path, of, factor, sums, squares, sum_squares);
        return sum_blocks<float8_e4m3>(path, of, factor, sums, squares, sum_squares);
    }
    template <class Code>
    bool sum_blocks([[maybe_unused]] isa path, [[maybe_unused]] const term_blocks& of,
        [[maybe_unused]] float factor, [[maybe_unused]] float* sums, [[maybe_unused]] float& squares,
        [[maybe_unused]] float& sum_squares) const noexcept
    {
        [[maybe_unused]] const auto by = static_cast<float>(divisor);
        if (probed) {
            return COLLPROBE_ON_ISA(
                path, false, sum_blocks<Code, true>(how, of, by, factor, sums, squares, sum_squares));
        }
        return COLLPROBE_ON_ISA(path, false, sum_blocks<Code, false>(how, of, by, factor, sums, squares, sum_squares));
    }
    void add(isa path, const wire_layout& in, std::uint64_t b, float factor, float* sums, float& squares) const noexcept
    {
        float x[largest_block];
        squares = 0;
        for (std::uint32_t i = 0; i < how.block; ++i) sums[i] = 0;
        for (std::uint32_t term = 0; term < terms; ++term) {
            block_encoder::decode(path, how, in, messages + term * message_stride, b, 1, x);
            if (probed) squares += squares_of(x, factor);
            for (std::uint32_t i = 0; i < how.block; ++i) sums[i] = rounded_sum(sums[i], x[i]);
        }
    }

    float factor_of(const wire_layout& in, std::uint64_t b) const noexcept
    {
        std::uint32_t largest = 0;
        for (std::uint32_t term = 0; term < terms; ++term) {
            const std::uint32_t bits
                = magnitude_bits(read_block_scale(in, messages + term * message_stride, b));
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
        const isa path = best_isa();
        const wire_layout wire = wire_layout::of(how, cut.blocks_per_message());
        float x[batch_elements];
        std::uint32_t blocks = 0;
        for (std::uint64_t b = first; b < first + count; b += blocks) {
            const message_slices::place at = cut.at(b);
            const run_of_blocks run = run_of_blocks::at(at, how, first + count - b);
            blocks = run.blocks;
            const unsigned char* const message = messages + at.message * message_stride;
            T* const to = result + at.element;
            if (!how.rotate && run.elements == blocks * how.block) {
                into += block_encoder::decode(path, how, wire, message, at.block, blocks, to);
                continue;
            }
            const std::uint32_t elements = run.elements;
            block_encoder::decode(path, how, wire, message, at.block, blocks, x);
            if (how.rotate) {
                rotate_blocks(how, x, blocks * how.block, true);
                for (std::uint32_t i = 0; i < elements; ++i) x[i] = clamped(x[i], largest_float_of<T>);
            }
            round_run(x, static_cast<int>(elements), to, path);
            for (std::uint32_t i = 0; i < elements; ++i) into += is_finite(to[i]) ? 0 : 1;
        }
    }
    COLLPROBE_HD static constexpr void merge(partial& into, partial next) noexcept { into += next; }
    COLLPROBE_HD constexpr std::uint64_t finish(partial from) const noexcept
    {
        return before == nullptr ? from : *before + from;
    }

};

} // namespace collprobe::inline COLLPROBE_ABI::detail
