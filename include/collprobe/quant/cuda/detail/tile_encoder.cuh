// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/quant/cuda/detail/tile.cuh>
#include <collprobe/quant/detail/codec_kernels.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// The sums of a lane over the blocks of a slot, in shared memory: few instructions need them. A slot has
/// less than 2^32 elements for each lane.
struct lane_sums {
    double squares, error_squares, error_sum, crest_sum, scale_sum, worst_ratio;
    std::uint64_t worst_block;
    std::uint32_t count, nonfinite, zeros, zeroed, saturated, outliers, blocks, zero_blocks;

    __device__ void clear()
    {
        *this = {};
        worst_block = no_index;
    }
    /// Takes in one block.
    __device__ void add(const quantisation_errors& one)
    {
        count += static_cast<std::uint32_t>(one.count);
        nonfinite += static_cast<std::uint32_t>(one.nonfinite);
        blocks += static_cast<std::uint32_t>(one.blocks);
        zero_blocks += static_cast<std::uint32_t>(one.zero_blocks);
        squares += one.squares;
        error_squares += one.error_squares;
        crest_sum += one.crest_sum;
        scale_sum += one.scale_sum;
        if (one.worst_ratio > worst_ratio) {
            worst_ratio = one.worst_ratio;
            worst_block = one.worst_block;
        }
    }
    __device__ quantisation_errors all() const
    {
        return {count, nonfinite, zeros, zeroed, saturated, outliers, blocks, zero_blocks, squares, error_squares,
            error_sum, crest_sum, scale_sum, worst_ratio, worst_block};
    }
};

/// Takes in the errors of blocks. Sums over elements are those of each lane. What needs a whole block is kept
/// until each lane of a block has one of its own, for it costs as much as several elements.
class lane_errors {
public:
    __device__ explicit lane_errors(lane_sums& sums) : sums_(sums) { sums_.clear(); }

    /// Takes in a block whose codes are not compared with its elements.
    __device__ void count(std::uint32_t elements, std::uint32_t nonfinite)
    {
        sums_.count += elements;
        sums_.nonfinite += nonfinite;
    }
    /// Takes in a block. `mine`: of this lane's elements. `exists` is false for a lane that has no block. A
    /// warp's lanes call this together.
    __device__ void add(const tile_lane& lane, bool exists, const quant::block_scale& by,
        const quant::block_errors& mine, float magnitude, std::uint32_t count, std::uint32_t nonfinite,
        std::uint64_t first, double energy)
    {
        sums_.zeros += mine.zeros;
        sums_.zeroed += mine.zeroed;
        sums_.saturated += mine.saturated;
        sums_.outliers += mine.outliers;
        if (!quant::is_nan_block(by))
            sums_.error_sum
                += quant::exact_double(by.scale) * static_cast<double>(mine.error_sum); // scales have signs
        const float squares = lane.sum(mine.squares);
        const float error_squares = lane.sum(mine.error_squares);
        if (lane.rank == turn_)
            kept_
                = {by.scale, by.inverse, squares, error_squares, magnitude, count, nonfinite, first, exists};
        if (++turn_ == lane.lanes) flush(energy);
    }
    /// Takes in what is kept.
    __device__ void flush(double energy)
    {
        turn_ = 0;
        if (!kept_.exists) return;
        quant::block_errors sums;
        sums.squares = kept_.squares;
        sums.error_squares = kept_.error_squares;
        quantisation_errors one;
        quant::add_block(one, {kept_.scale, kept_.inverse, 0}, sums, kept_.magnitude, kept_.count,
            kept_.nonfinite, kept_.first, energy);
        sums_.add(one);
        kept_.exists = false;
    }

private:
    /// Of a block without numbers the scale is NaN, too.
    struct block {
        float scale;
        float inverse;
        float squares;
        float error_squares;
        float magnitude;
        std::uint32_t count;
        std::uint32_t nonfinite;
        std::uint64_t first;
        bool exists;
    };

    lane_sums& sums_;
    unsigned turn_ = 0;
    block kept_{};
};

/// Encodes tiles: `block_encoder` for the lanes of a warp.
template <unsigned piece_elements>
class tile_encoder {
public:
    using target = quant::block_encoder::target; ///< without a message: the lane has no block

    __device__ tile_encoder(const quant::block_encoder& encoder, const block_constants& constants,
        const tile_lane& lane, unsigned char* memory)
        : encoder_(encoder),
          constants_(constants),
          lane_(lane),
          codes_{memory, static_cast<unsigned>(bits_of(encoder.how.format))}
    {
    }

    /// Encodes the blocks of a warp's lanes. `load(x, tile)` gets the lane's elements of a tile of its block.
    /// Blocks of several tiles are loaded twice: once for their scale.
    template <class Load>
    __device__ void encode(const target& to, lane_errors& into, Load load)
    {
        const quant::codec& how = encoder_.how;
        const unsigned tiles = lane_.tiles(how.block);
        float x[lane_elements];
        quant::block_range range;
        quant::block_scale by;
        bool plain = false;
        quant::block_errors errors;
        COLLPROBE_NO_UNROLL
        for (unsigned turn = 0; turn < 2 * tiles; ++turn) {
            lane_ = lane_.again();
            const unsigned tile = turn < tiles ? turn : turn - tiles;
            const unsigned before = tile * tile_elements;
            const unsigned count = to.count > before ? to.count - before : 0;
            if (turn == 0 || tiles > 1) {
                load(x, tile);
                if (encoder_.residual != nullptr) add_residual(to, before, count, x);
            }
            if (turn < tiles) {
                look_at(x, count, range);
                if (turn + 1 < tiles) continue;
                plain = merge_over_block(range) && has_plain_codes();
                by = quant::scale_of(how, range);
                continue;
            }
            if (!plain) encode_carefully(x, to, before, count, by, quant::half_of(range), errors);
            else if (!encoder_.probed) encode_plainly<false, true>(x, count, by, 0, errors);
            else if (how.rule == scaling::symmetric)
                encode_plainly<true, false>(x, count, by, quant::half_of(range), errors);
            else encode_plainly<true, true>(x, count, by, quant::half_of(range), errors);
            codes_.template store<piece_elements>(lane_,
                to.message == nullptr ? nullptr
                                      : to.message + to.block * how.code_bytes() + before / 8 * codes_.bits);
        }
        const bool exists = to.message != nullptr;
        if (exists && lane_.rank == 0)
            quant::write_block_scale(how, constants_.out, to.message, to.block, by);
        if (encoder_.probed) {
            into.add(lane_, exists, by, errors, range.magnitude(), to.count, range.nonfinite, to.element,
                constants_.energy);
        } else if (exists && lane_.rank == 0) {
            into.count(to.count, range.nonfinite);
        }
    }

    /// After the last tile of a slot.
    __device__ void finish_slot(lane_errors& into) const
    {
        if (encoder_.probed) into.flush(constants_.energy);
    }

private:
    static constexpr unsigned pieces = lane_elements / piece_elements;

    __device__ bool has_plain_codes() const
    {
        const quant::codec& how = encoder_.how;
        return is_integer(how.format) && how.rule != scaling::asymmetric
            && how.rounding == code_rounding::nearest && encoder_.residual == nullptr;
    }
    __device__ void add_residual(
        const target& to, unsigned before, unsigned count, float (&x)[lane_elements]) const
    {
        const float* const kept = encoder_.residual + to.number * encoder_.how.block + before;
        COLLPROBE_NO_UNROLL
        for (unsigned piece = 0; piece < pieces; ++piece) {
            const unsigned at = lane_.position<piece_elements>(piece);
            float next[piece_elements];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < piece_elements; ++i)
                next[i] = at + i < count ? quant::rounded_sum(x[i], kept[at + i]) : x[i];
            move_to_end(x, next);
        }
    }

    /// Takes the lane's elements into its range. Those beyond `count` are 0.
    __device__ void look_at(float (&x)[lane_elements], unsigned count, quant::block_range& range) const
    {
        std::uint32_t extreme = 0;
        COLLPROBE_UNROLL
        for (const float one : x) {
            const auto bits = quant::bit_cast<std::uint32_t>(one);
            const std::uint32_t key = bits << 1 | bits >> 31;
            extreme = key > extreme ? key : extreme;
        }
        const bool is_rare
            = encoder_.how.rule == scaling::asymmetric || extreme >> 1 >= encoder_.how.overflow;
        if (!__any_sync(all_lanes, is_rare)) {
            range.extreme = extreme > range.extreme ? extreme : range.extreme;
            return;
        }
        for_each_four(x, [&](const float(&four)[4], unsigned at) {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                if (at + i >= count) continue;
                range.add(quant::bit_cast<std::uint32_t>(four[i]), encoder_.how.overflow);
            }
        });
    }
    /// Gives the range of the block to all of its lanes. Returns whether the elements of the warp are finite.
    __device__ bool merge_over_block(quant::block_range& range) const
    {
        const bool finite = !__any_sync(all_lanes, range.nonfinite != 0);
        if (finite && encoder_.how.rule != scaling::asymmetric) {
            range.extreme = lane_.over_block(
                range.extreme, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
            return true;
        }
        range = lane_.range(range);
        return finite;
    }

    /// `body(four, at)` for each four elements of the lane; `at`: their place in the tile's part of the
    /// block. In a loop that is not unrolled, for bodies that are long.
    template <class Body>
    __device__ void for_each_four(float (&x)[lane_elements], Body body) const
    {
        COLLPROBE_NO_UNROLL
        for (unsigned k = 0; k < lane_elements; k += 4) {
            const float four[4] = {x[0], x[1], x[2], x[3]};
            body(four, lane_.position<piece_elements>(k / piece_elements) + k % piece_elements);
            move_to_end(x, four);
        }
    }

    /// The codes of integers, nearest, where all elements are finite.
    template <bool probed, bool clips>
    __device__ void encode_plainly(float (&x)[lane_elements], unsigned count, const quant::block_scale& by, float half,
        quant::block_errors& errors) const
    {
        const bool as_nibbles = encoder_.how.format == code_format::int4;
        const std::int32_t most = above_zero + (as_nibbles ? 7 : 127);
        std::uint32_t zeros = 0;
        std::uint32_t zero_codes = 0;
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < lane_elements; k += 4) {
            std::uint32_t codes[4];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                const float value = quant::rounded_product(x[k + i], by.inverse);
                codes[i] = code_above_zero<clips>(value, most);
                if constexpr (probed) {
                    const float error = error_of(codes[i], value);
                    errors.squares += value * value;
                    errors.error_squares += error * error;
                    errors.error_sum += error;
                    const std::uint32_t bits = quant::bit_cast<std::uint32_t>(x[k + i]) & 0x7fffffffu;
                    zeros += bits == 0 ? 1 : 0;
                    zero_codes += codes[i] == above_zero ? 1 : 0;
                    errors.outliers += bits > quant::bit_cast<std::uint32_t>(half) ? 1 : 0;
                    if constexpr (clips) errors.saturated += fabsf(error) > 0.5f + 0x1p-10f ? 1 : 0;
                }
            }
            write_codes(codes, lane_.position<piece_elements>(k / piece_elements) + k % piece_elements);
        }
        if constexpr (!probed) return;
        const unsigned beyond = lane_elements - lane_.elements_below<piece_elements>(count);
        errors.zeros += zeros - beyond;
        errors.zeroed += zero_codes - zeros;
    }
    /// The bits of the float whose unit is 1 and whose last digits are the code: see `nearest_integer`.
    static constexpr std::int32_t above_zero = 0x4b400000;
    template <bool clips>
    __device__ static std::uint32_t code_above_zero(float value, std::int32_t most)
    {
        const auto code = quant::bit_cast<std::int32_t>(quant::rounded_sum(value, 12582912.0f));
        return static_cast<std::uint32_t>(clips && code > most ? most : code);
    }
    __device__ static float error_of(std::uint32_t code, float value)
    {
        return quant::rounded_difference(quant::bit_cast<float>(code), 12582912.0f) - value;
    }

    /// The codes of any format and element.
    __device__ void encode_carefully(float (&x)[lane_elements], const target& to, unsigned before,
        unsigned count, const quant::block_scale& by, float half, quant::block_errors& errors) const
    {
        const quant::codec& how = encoder_.how;
        const bool probed = encoder_.probed && !quant::is_nan_block(by);
        float* const kept
            = encoder_.residual == nullptr ? nullptr : encoder_.residual + to.number * how.block + before;
        for_each_four(x, [&](const float(&four)[4], unsigned at) {
            std::uint32_t random[2] = {};
            if (how.rounding == code_rounding::stochastic) draw_four(to.element + before + at, random);
            std::uint32_t codes[4];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                std::int32_t code = 0;
                if (at + i < count) {
                    code = code_of_element(
                        four[i], by, random[i / 2] >> (16 * (i % 2)) & 0xffffu, probed, half, errors);
                    if (kept != nullptr)
                        kept[at + i] = encoder_.error_to_keep(four[i], quant::element_of(how, by, code));
                }
                codes[i] = static_cast<std::uint32_t>(code);
            }
            write_codes(codes, at);
        });
    }
    __device__ std::int32_t code_of_element(float element, const quant::block_scale& by, std::uint32_t bits16,
        bool probed, float half, quant::block_errors& errors) const
    {
        const quant::codec& how = encoder_.how;
        if ((quant::bit_cast<std::uint32_t>(element) & 0x7fffffffu) >= how.overflow)
            return how.rule == scaling::symmetric ? quant::code_of_nonfinite(how) : 0;
        const float value = quant::in_scales(how, by, element);
        const std::int32_t code = quant::code_of(how, value, bits16);
        if (probed) errors.add(how, by, element, value, code, half);
        return code;
    }

    /// The random bits of four elements of the buffer, which need not be a multiple of eight from its begin.
    __device__ void draw_four(std::uint64_t element, std::uint32_t (&random)[2]) const
    {
        const auto lane = static_cast<unsigned>(element % 8);
        quant::philox eight = encoder_.noise.of_eight(constants_.key, element / 8);
        std::uint32_t word[7] = {eight.word[0], eight.word[1], eight.word[2], eight.word[3]};
        if (lane > 4) {
            eight = encoder_.noise.of_eight(constants_.key, element / 8 + 1);
            for (unsigned k = 0; k < 3; ++k) word[4 + k] = eight.word[k];
        }
        for (unsigned k = 0; k < 5; ++k) word[k] = (lane & 4) != 0 ? word[k + 2] : word[k];
        for (unsigned k = 0; k < 4; ++k) word[k] = (lane & 2) != 0 ? word[k + 1] : word[k];
        for (unsigned k = 0; k < 2; ++k) random[k] = __funnelshift_r(word[k], word[k + 1], lane % 2 * 16);
    }

    /// Writes the last digits of four numbers to the warp's memory.
    __device__ void write_codes(const std::uint32_t (&codes)[4], unsigned at) const
    {
        std::uint32_t bytes = __byte_perm(
            __byte_perm(codes[0], codes[1], 0x0040), __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
        unsigned char* const to = codes_.template codes<piece_elements>(lane_, at);
        if (codes_.bits == 8) {
            *reinterpret_cast<std::uint32_t*>(to) = bytes;
            return;
        }
        bytes &= 0x0f0f0f0fu;
        bytes |= bytes >> 4;
        *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(__byte_perm(bytes, 0, 0x4420));
    }

    const quant::block_encoder& encoder_;
    const block_constants& constants_;
    tile_lane lane_;
    tile_codes codes_;
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
