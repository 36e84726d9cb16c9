// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/quant/cuda/detail/lane_codec.cuh>
#include <collprobe/quant/detail/block_cursor.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>

/// The kernels of `encode_reducer`, `combine_reducer` and `decode_reducer`: the same bits as on the host. Elements are
/// read once, except those of blocks above 256 elements, which are read again, out of a cache, behind their scale.
/// Formats, roundings and block sizes are values, not template parameters: a warp has few branches on them for each
/// eight elements of a lane.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// What a block of threads computes once, and keeps in shared memory rather than in registers.
struct codec_constants {
    quant::wire_layout in; ///< of the messages that are read
    quant::wire_layout out; ///< of those that are written
    quant::rotation turn;
    double energy; ///< of the rotation, if there is one
    std::uint64_t key; ///< of random bits
};

/// The block that some lanes of a warp have. In shared memory, as few instructions need it.
struct block_task {
    unsigned char* message; ///< that its codes go to; null for none
    std::uint64_t block; ///< in the message
    std::uint64_t number; ///< of all blocks of the work
    std::uint64_t element; ///< index of the first element in the buffer
    std::uint32_t count; ///< of elements
    bool exists; ///< or the lanes have none, and work on zeros
    float scale; ///< of codes that are read
};

/// The errors of a lane's elements, in shared memory.
struct element_errors {
    double squares = 0, error_squares = 0, error_sum = 0;
    std::uint32_t nonfinite = 0, zeros = 0, zero_codes = 0;
    std::uint32_t nonfinite_before = 0; ///< the block that is under way

    __device__ void merge(const element_errors& next)
    {
        squares += next.squares;
        error_squares += next.error_squares;
        error_sum += next.error_sum;
        nonfinite += next.nonfinite;
        zeros += next.zeros;
        zero_codes += next.zero_codes;
    }
};
/// Those of blocks as a whole, for all lanes of a block.
struct block_sums {
    double crest_sum = 0, scale_sum = 0;
    std::uint64_t worst_block = no_index;
    float worst_ratio = 0;
    std::uint32_t count = 0, blocks = 0, zero_blocks = 0;

    __device__ void merge(const block_sums& next)
    {
        crest_sum += next.crest_sum;
        scale_sum += next.scale_sum;
        count += next.count;
        blocks += next.blocks;
        zero_blocks += next.zero_blocks;
        if (next.worst_ratio > worst_ratio || (next.worst_ratio == worst_ratio && next.worst_block < worst_block)) {
            worst_ratio = next.worst_ratio;
            worst_block = next.worst_block;
        }
    }
};
__device__ inline quantisation_errors errors_of(const element_errors& elements, const block_sums& blocks)
{
    return {blocks.count, elements.nonfinite, elements.zeros, elements.zero_codes - elements.zeros, 0,
        blocks.blocks, blocks.zero_blocks, elements.squares, elements.error_squares, elements.error_sum,
        blocks.crest_sum, blocks.scale_sum, static_cast<double>(blocks.worst_ratio), blocks.worst_block};
}

/// Encodes blocks, each by some lanes of a warp, which call it together.
struct lane_encoder {
    const quant::block_encoder& of;
    const codec_constants& constants;
    const block_lanes& lane;
    const block_task& to;
    element_errors& elements;
    block_sums& blocks;

    /// `load(x, pass, again)` gets the lane's elements of a pass. If there are several, it is called twice for each.
    template <class Load>
    __device__ void encode(Load load) const
    {
        const quant::codec& how = of.how;
        const unsigned passes = lane.passes;
        eight_floats x;
        std::uint32_t rare = 0; // bit i: element i is not finite, and replaced by 0
        std::uint32_t largest = 0;
        quant::block_scale by;
        float squares = 0, error_squares = 0, error_sum = 0;
        elements.nonfinite_before = elements.nonfinite;
        COLLPROBE_NO_UNROLL
        for (unsigned turn = 0; turn < 2 * passes; ++turn) {
            const unsigned pass = turn < passes ? turn : turn - passes;
            const unsigned at = lane.position(pass);
            const unsigned count = to.count > at ? to.count - at : 0;
            if (turn == 0 || passes > 1) {
                load(x, pass, turn >= passes);
                if (of.residual != nullptr) add_residual(at, count, x);
                rare = replace_rare(x, largest, turn < passes);
                if (rare != 0 && turn < passes) elements.nonfinite += __popc(rare);
            }
            if (turn < passes) {
                if (turn + 1 < passes) continue;
                largest = lane.over_block(largest, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
                by = quant::scale_of(how, quant::bit_cast<float>(largest));
                continue;
            }
            std::uint32_t random[4] = {};
            if (how.rounding == code_rounding::stochastic)
                draw_eight(of.noise, constants.key, to.element + at, random);
            eight_codes codes;
            encode_eight(how, x, by.inverse, random, codes);
            if (of.probed)
                add_errors(x, codes, by.inverse, count, rare, squares, error_squares, error_sum);
            if (of.residual != nullptr) keep_residual(at, count, x, by.scale, codes);
            if (rare != 0) mark_rare(codes, rare);
            if (to.exists)
                store_codes(how, to.message + to.block * how.code_bytes() + place_of_codes(how, at), codes);
        }
        if (to.exists && lane.rank == 0) {
            quant::write_block_scale(constants.out, to.message, to.block, by.scale);
            blocks.count += to.count;
        }
        if (of.probed)
            add_block(by, quant::bit_cast<float>(largest), squares, error_squares, error_sum);
    }

private:
    __device__ void add_residual(unsigned at, unsigned count, eight_floats& x) const
    {
        const float* const own = of.residual + to.number * of.how.block + at;
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < lane_elements; k += 4) {
            if (k + 4 <= count) {
                const float4 four = *reinterpret_cast<const float4*>(own + k);
                x[k] = quant::rounded_sum(x[k], four.x);
                x[k + 1] = quant::rounded_sum(x[k + 1], four.y);
                x[k + 2] = quant::rounded_sum(x[k + 2], four.z);
                x[k + 3] = quant::rounded_sum(x[k + 3], four.w);
                continue;
            }
            COLLPROBE_UNROLL
            for (unsigned i = k; i < k + 4; ++i)
                if (i < count) x[i] = quant::rounded_sum(x[i], own[i]);
        }
    }
    __device__ void keep_residual(
        unsigned at, unsigned count, const eight_floats& x, float scale, const eight_codes& codes) const
    {
        eight_floats residual;
        decode_eight(of.how, scale, quant::is_plain_scale(of.how, scale), codes, residual);
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i)
            residual[i] = quant::residual_of(x[i], residual[i]);
        store_eight(of.residual + to.number * of.how.block + at, count, to.count == of.how.block, residual);
    }

    /// Takes the elements into their block's largest magnitude, without those that are not finite, which become 0.
    __device__ std::uint32_t replace_rare(eight_floats& x, std::uint32_t& largest, bool counts) const
    {
        std::uint32_t most = 0;
        COLLPROBE_UNROLL
        for (const float one : x) most = quant::magnitude_bits(one) > most ? quant::magnitude_bits(one) : most;
        std::uint32_t rare = 0;
        if (most >= of.how.overflow) {
            most = 0;
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < lane_elements; ++i) {
                const std::uint32_t magnitude = quant::magnitude_bits(x[i]);
                const bool is_rare = magnitude >= of.how.overflow;
                rare |= is_rare ? 1u << i : 0;
                x[i] = is_rare ? 0 : x[i];
                most = !is_rare && magnitude > most ? magnitude : most;
            }
        }
        if (counts && most > largest) largest = most;
        return rare;
    }
    __device__ void mark_rare(eight_codes& codes, std::uint32_t rare) const
    {
        const std::uint32_t nan = static_cast<std::uint32_t>(quant::nan_code(of.how.format)) & 0xffu;
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i)
            codes[i / 4] |= (rare >> i & 1) != 0 ? nan << (i % 4 * 8) : 0; // they are 0
    }

    /// What depends on single elements.
    __device__ void add_errors(const eight_floats& x, const eight_codes& codes, float inverse, unsigned count,
        std::uint32_t rare, float& squares, float& error_squares, float& error_sum) const
    {
        eight_floats units;
        units_of_eight(of.how, codes, units);
        std::uint32_t least = ~0u;
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i) {
            const float value = quant::rounded_product(x[i], inverse);
            const float error = units[i] - value;
            squares += value * value;
            error_squares += error * error;
            error_sum += error;
            const std::uint32_t magnitude = quant::magnitude_bits(x[i]);
            least = magnitude < least ? magnitude : least;
        }
        // Neither what is beyond the block's end nor what is not finite counts as zero.
        const unsigned others = (count < lane_elements ? lane_elements - count : 0) + __popc(rare);
        elements.zero_codes += __popc(zero_bytes(codes[0])) + __popc(zero_bytes(codes[1])) - others;
        if (least != 0) return;
        std::uint32_t zeros = 0;
        COLLPROBE_UNROLL
        for (const float one : x) zeros += quant::magnitude_bits(one) == 0 ? 1 : 0;
        elements.zeros += zeros - others;
    }
    /// What depends on a block.
    __device__ void add_block(
        const quant::block_scale& by, float largest, float squares, float error_squares, float error_sum) const
    {
        const double scale = quant::exact_double(by.scale);
        const double unit = scale * scale * constants.energy;
        elements.squares += unit * static_cast<double>(squares);
        elements.error_squares += unit * static_cast<double>(error_squares);
        elements.error_sum += scale * static_cast<double>(error_sum);
        squares = lane.sum(squares);
        error_squares = lane.sum(error_squares);
        std::uint32_t nonfinite = elements.nonfinite - elements.nonfinite_before;
        if (__any_sync(all_lanes, nonfinite != 0)) nonfinite = lane.sum(nonfinite);
        if (lane.rank != 0 || to.count == 0) return;
        ++blocks.blocks;
        if (to_bits(largest) == 0) ++blocks.zero_blocks;
        if (!(squares > 0)) return;
        const float per_rms = rsqrtf(__fdividef(squares, static_cast<float>(to.count - nonfinite)));
        blocks.scale_sum += static_cast<double>(per_rms);
        blocks.crest_sum += static_cast<double>(quant::rounded_product(largest, by.inverse) * per_rms);
        const float ratio = __fdividef(error_squares, squares);
        if (ratio > blocks.worst_ratio) {
            blocks.worst_ratio = ratio;
            blocks.worst_block = to.element;
        }
    }
};

/// What the three have in common. The count of the reduction is that of blocks; the warps of a thread block take those
/// of a slot in turn. `Elements`: what a lane keeps of its elements.
template <class Reducer, class Elements>
struct codec_reduction {
    static constexpr unsigned warps = block_threads / warp_lanes;
    static constexpr unsigned most_blocks = block_threads * lane_elements / 32; ///< at once

    struct partial {
        typename Reducer::partial value = Reducer::identity();

        __device__ void merge(const partial& next) { Reducer::merge(value, next.value); }
    };
    /// What the lanes of a block have in common.
    struct shared_task {
        quant::block_cursor cursor;
        block_task task;
        block_sums sums;
    };
    struct shared {
        union {
            partial partials[warps];
            Elements of_warps[warps];
        };
        alignas(8) unsigned char tasks[most_blocks][sizeof(shared_task) + 8]; ///< in different banks
        Elements lanes[block_threads];
        codec_constants constants;
    };

    const Reducer& reducer;
    shared& memory;

    /// `encoder`: null if nothing is encoded.
    __device__ codec_reduction(const Reducer& own, shared& room, const quant::codec& how, const quant::wire_layout& in,
        const quant::wire_layout& out, const quant::block_encoder* encoder)
        : reducer(own), memory(room)
    {
        if (threadIdx.x == 0) {
            const auto turn = quant::rotation::of(how.block, how.seed);
            const bool draws = encoder != nullptr && encoder->how.rounding == code_rounding::stochastic;
            memory.constants
                = {in, out, turn, how.rotate ? turn.energy() : 1, draws ? encoder->noise.key() : 0};
        }
        __syncthreads();
    }

    /// As if an element of a block had half a byte: a slot has four turns of the warps, or more.
    static std::uint64_t element_bytes_of(const Reducer& reducer) { return reducer.cut.block / 2; }

    __device__ shared_task& task_of(const block_lanes& lane) const
    {
        const unsigned own = threadIdx.x / warp_lanes * lane.blocks() + lane.block;
        return *reinterpret_cast<shared_task*>(memory.tasks[own]);
    }
    __device__ auto& own() const { return memory.lanes[threadIdx.x]; }

    /// `make(cursor, number, exists)` makes the task of a block, and `body()` does it, for each block of this lane.
    template <class Make, class Body>
    __device__ void for_each_block(
        std::uint64_t first, std::uint32_t count, const block_lanes& lane, Make make, Body body) const
    {
        const unsigned stride = warps * lane.blocks();
        const std::uint32_t begin = threadIdx.x / warp_lanes * lane.blocks();
        shared_task& mine = task_of(lane);
        own() = {};
        if (lane.rank == 0) mine.sums = {};
        COLLPROBE_NO_UNROLL
        for (std::uint32_t at = begin; at < count; at += stride) {
            if (lane.rank == 0) {
                if (at == begin) mine.cursor = quant::block_cursor(reducer.cut, first + at + lane.block);
                else mine.cursor.advance(reducer.cut, stride);
                mine.task = make(mine.cursor, first + at + lane.block, at + lane.block < count);
            }
            __syncwarp();
            body();
            __syncwarp();
        }
    }
    /// `partial_of(elements, sums)`: the partial result of a slot.
    template <class PartialOf>
    __device__ void write_slot(
        const block_lanes& lane, partial_results to, unsigned slot, PartialOf partial_of) const
    {
        const Elements elements = over_block(memory.of_warps, own());
        if (threadIdx.x < warp_lanes) {
            block_sums sums;
            for (unsigned k = threadIdx.x; k < warps * lane.blocks(); k += warp_lanes)
                sums.merge(reinterpret_cast<const shared_task*>(memory.tasks[k])->sums);
            sums = over_warp(sums);
            if (threadIdx.x == 0) to.write(slot, partial_of(elements, sums));
        }
        __syncthreads();
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result) const
    {
        partial mine;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
            mine.merge({from.template read<typename Reducer::partial>(slot)});
        mine = over_block(memory.partials, mine);
        if (threadIdx.x == 0) *result = reducer.finish(mine.value);
    }

private:
    /// Merges a value of each thread, in a fixed order. Thread 0 gets the result.
    template <class Part>
    __device__ static Part over_block(Part (&of_warps)[warps], Part mine)
    {
        const unsigned in_warp = threadIdx.x % warp_lanes;
        mine = over_warp(mine);
        if (in_warp == 0) of_warps[threadIdx.x / warp_lanes] = mine;
        __syncthreads();
        if (threadIdx.x >= warp_lanes) return mine;
        return over_warp(in_warp < warps ? of_warps[in_warp] : Part());
    }
    /// In a loop that is not unrolled, for it is short of registers.
    template <class Part>
    __device__ static Part over_warp(Part mine)
    {
        struct alignas(alignof(Part)) part_words {
            std::uint32_t word[sizeof(Part) / sizeof(std::uint32_t)];
        };
        COLLPROBE_NO_UNROLL
        for (unsigned above = 1; above < warp_lanes; above *= 2) {
            auto words = quant::bit_cast<part_words>(mine);
            COLLPROBE_UNROLL
            for (std::uint32_t& word : words.word) word = __shfl_down_sync(all_lanes, word, above);
            if (threadIdx.x % warp_lanes + above < warp_lanes) mine.merge(quant::bit_cast<Part>(words));
        }
        return mine;
    }
};

template <class T>
struct block_reduction<quant::encode_reducer<T>> : codec_reduction<quant::encode_reducer<T>, element_errors> {
    using base = codec_reduction<quant::encode_reducer<T>, element_errors>;
    static constexpr unsigned blocks_per_multiprocessor = 3;

    __device__ block_reduction(const quant::encode_reducer<T>& own, typename base::shared& memory)
        : base(own, memory, own.encoder.how, {},
              quant::wire_layout::of(own.encoder.how, own.cut.blocks_per_message()), &own.encoder)
    {
    }
    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::encode_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.encoder.how;
        const block_lanes lane(how.block);
        auto& mine = this->task_of(lane);
        const lane_encoder encoder{
            reducer.encoder, this->memory.constants, lane, mine.task, this->own(), mine.sums};
        this->for_each_block(
            first, count, lane,
            [&](const quant::block_cursor& cursor, std::uint64_t number, bool exists) -> block_task {
                if (!exists) return {};
                const quant::message_slices::place at = cursor.place(reducer.cut);
                return {reducer.messages + at.message * reducer.message_stride, at.block, number, at.element,
                    how.rotate && at.count != 0 ? how.block : at.count, true, 0};
            },
            [&] {
                encoder.encode([&](eight_floats& x, unsigned pass, bool) {
                    // With a rotation the task has more elements than the buffer.
                    const unsigned before = lane.position(pass);
                    const std::uint32_t have
                        = how.rotate && mine.task.exists ? mine.cursor.place(reducer.cut).count : mine.task.count;
                    load_eight(reducer.source + mine.task.element + before, have > before ? have - before : 0,
                        have == how.block, x);
                    if (how.rotate) lane_rotation{lane, this->memory.constants.turn}.apply(x);
                });
            });
        this->write_slot(lane, to, slot, errors_of);
    }
};

/// `element_errors` and the spread of the terms.
struct combined_element_errors : element_errors {
    double term_squares = 0, sum_squares = 0;
    /// Of the block that is under way. Those of the sums are scaled by the square of `factor`.
    double block_term_squares = 0;
    float block_sum_squares = 0, factor = 1;

    __device__ void merge(const combined_element_errors& next)
    {
        element_errors::merge(next);
        term_squares += next.term_squares;
        sum_squares += next.sum_squares;
    }
};

template <class T>
struct block_reduction<quant::combine_reducer<T>>
    : codec_reduction<quant::combine_reducer<T>, combined_element_errors> {
    using base = codec_reduction<quant::combine_reducer<T>, combined_element_errors>;
    static constexpr unsigned blocks_per_multiprocessor = 3;
    /// Terms whose codes are loaded before the first of them is added.
    static constexpr unsigned terms_at_once = 4;

    __device__ block_reduction(const quant::combine_reducer<T>& own, typename base::shared& memory)
        : base(own, memory, own.how, quant::wire_layout::of(own.how, own.cut.blocks_per_message()),
              quant::wire_layout::of(own.encoder.how, own.cut.blocks_per_slice()), &own.encoder)
    {
    }
    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::combine_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.how;
        const block_lanes lane(how.block);
        auto& mine = this->task_of(lane);
        const lane_encoder encoder{
            reducer.encoder, this->memory.constants, lane, mine.task, this->own(), mine.sums};
        const auto load = [&, this](eight_floats& x, unsigned pass, bool again) {
            add_up(x, lane.position(pass), mine.task);
            if (reducer.probed && !again && pass + 1 == lane.passes) note_spread(lane);
            divide(x);
        };
        this->for_each_block(
            first, count, lane,
            [&](const quant::block_cursor& cursor, std::uint64_t number, bool exists) -> block_task {
                if (!exists) return {};
                const quant::message_slices::place at = cursor.place(reducer.cut);
                if (reducer.result != nullptr) return {nullptr, 0, number, at.element, at.count, true, 0};
                return {reducer.codes + cursor.slice(reducer.cut) * reducer.codes_stride, cursor.in_slice(), number,
                    at.element, how.rotate && at.count != 0 ? how.block : at.count, true, 0};
            },
            [&] {
                this->own().block_term_squares = 0;
                this->own().block_sum_squares = 0;
                if (reducer.result == nullptr) return encoder.encode(load);
                COLLPROBE_NO_UNROLL
                for (unsigned pass = 0; pass < lane.passes; ++pass) {
                    const unsigned before = lane.position(pass);
                    eight_floats x;
                    load(x, pass, false);
                    if (how.rotate) lane_rotation{lane, this->memory.constants.turn}.undo(x);
                    if (mine.task.count > before)
                        store_eight(reducer.result + mine.task.element + before, mine.task.count - before,
                            mine.task.count == how.block, x);
                }
            });
        this->write_slot(lane, to, slot, [](const combined_element_errors& elements, const block_sums& sums) {
            return combined_errors{errors_of(elements, sums), elements.term_squares, elements.sum_squares};
        });
    }

private:
    /// The sums of the terms of eight elements; 0 where there is no block.
    __device__ void add_up(eight_floats& x, unsigned at, const block_task& task) const
    {
        const quant::combine_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.how;
        const std::uint32_t terms = task.exists ? reducer.terms : 0;
        COLLPROBE_UNROLL
        for (float& one : x) one = 0;
        const unsigned char* codes_at
            = reducer.messages + task.number * how.code_bytes() + place_of_codes(how, at);
        const unsigned char* scale_at
            = reducer.messages + this->memory.constants.in.scales_at() + task.number * quant::scale_bytes;
        std::uint32_t most = 0; // of the scales, by their bits
        std::uint32_t nans = 0;
        double term_squares = 0;
        COLLPROBE_NO_UNROLL
        for (std::uint32_t begin = 0; begin < terms; begin += terms_at_once) {
            eight_codes packed[terms_at_once] = {};
            float scale[terms_at_once] = {};
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < terms_at_once; ++k) {
                if (begin + k < terms) {
                    load_packed(how, codes_at, packed[k]);
                    scale[k] = quant::read_scale(scale_at, 0);
                }
                codes_at += reducer.message_stride;
                scale_at += reducer.message_stride;
            }
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < terms_at_once; ++k) {
                eight_codes codes;
                eight_floats units;
                unpack(how, packed[k], codes);
                units_of_eight(how, codes, units);
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < lane_elements; ++i) x[i] = product_added(units[i], scale[k], x[i]);
                nans |= nan_bits_of(how, packed[k]);
                most = quant::magnitude_bits(scale[k]) > most ? quant::magnitude_bits(scale[k]) : most;
                if (reducer.probed) {
                    const double by = quant::exact_double(scale[k]);
                    term_squares += squares_of_codes(how, codes, units) * by * by;
                }
            }
        }
        if (nans != 0 || !quant::is_plain_scale(how, quant::bit_cast<float>(most))) add_carefully(x, at, task.number, term_squares);
        if (!reducer.probed) return;
        const float factor = quant::combine_reducer<T>::range_factor(most);
        float squares = 0;
        COLLPROBE_UNROLL
        for (const float one : x) {
            const float scaled = one * factor;
            squares += scaled * scaled;
        }
        auto& mine = this->own();
        mine.block_term_squares += term_squares;
        mine.block_sum_squares += squares;
        mine.factor = factor;
    }
    /// Blocks with terms that are not finite say nothing of the spread.
    __device__ void note_spread(const block_lanes& lane) const
    {
        auto& mine = this->own();
        if (lane.any(!is_finite(mine.block_sum_squares))) return;
        const double back = 1 / quant::exact_double(mine.factor);
        const double energy = this->memory.constants.energy;
        mine.term_squares += mine.block_term_squares * energy;
        mine.sum_squares += static_cast<double>(mine.block_sum_squares) * back * back * energy;
    }
    /// The product of a code and a scale is exact, so this rounds as a product and a sum do.
    __device__ static float product_added(float a, float b, float sum)
    {
        float result;
        asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(sum));
        return result;
    }
    __device__ static double squares_of_codes(
        const quant::codec& how, const eight_codes& codes, const eight_floats& units)
    {
        if (is_integer(how.format)) {
            const int low = __dp4a(static_cast<int>(codes[0]), static_cast<int>(codes[0]), 0);
            return static_cast<double>(__dp4a(static_cast<int>(codes[1]), static_cast<int>(codes[1]), low));
        }
        float squares = 0;
        COLLPROBE_UNROLL
        for (const float one : units) squares += one * one;
        return static_cast<double>(squares);
    }
    /// The same where a code stands for NaN, or may reach beyond the largest element.
    __device__ void add_carefully(eight_floats& x, unsigned at, std::uint64_t block, double& term_squares) const
    {
        const quant::codec& how = this->reducer.how;
        COLLPROBE_UNROLL
        for (float& one : x) one = 0;
        term_squares = 0;
        COLLPROBE_NO_UNROLL
        for (std::uint32_t term = 0; term < this->reducer.terms; ++term) {
            const unsigned char* const message = this->reducer.messages + term * this->reducer.message_stride;
            eight_codes codes;
            load_packed(how, message + block * how.code_bytes() + place_of_codes(how, at), codes);
            unpack(how, codes, codes);
            eight_floats elements;
            decode_eight(
                how, quant::read_block_scale(this->memory.constants.in, message, block), false, codes, elements);
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < lane_elements; ++i) {
                x[i] = quant::rounded_sum(x[i], elements[i]);
                term_squares += quant::exact_double(elements[i]) * quant::exact_double(elements[i]);
            }
        }
    }
    __device__ void divide(eight_floats& x) const
    {
        const std::uint32_t divisor = this->reducer.divisor;
        if (divisor == 1) return;
        if ((divisor & (divisor - 1)) == 0) { // exact, but for subnormal results, which round the same
            const float inverse = quant::rounded_quotient(1.0f, static_cast<float>(divisor));
            COLLPROBE_UNROLL
            for (float& one : x) one = quant::rounded_product(one, inverse);
            return;
        }
        COLLPROBE_UNROLL
        for (float& one : x) one = quant::rounded_quotient(one, static_cast<float>(divisor));
    }
};

struct nonfinite_elements {
    std::uint32_t count = 0;

    __device__ void merge(const nonfinite_elements& next) { count += next.count; }
};

template <class T>
struct block_reduction<quant::decode_reducer<T>> : codec_reduction<quant::decode_reducer<T>, nonfinite_elements> {
    using base = codec_reduction<quant::decode_reducer<T>, nonfinite_elements>;
    static constexpr unsigned blocks_per_multiprocessor = 4;

    __device__ block_reduction(const quant::decode_reducer<T>& own, typename base::shared& memory)
        : base(own, memory, own.how, quant::wire_layout::of(own.how, own.cut.blocks_per_message()), {}, nullptr)
    {
    }
    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::decode_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.how;
        const block_lanes lane(how.block);
        const block_task& task = this->task_of(lane).task;
        this->for_each_block(
            first, count, lane,
            [&, this](const quant::block_cursor& cursor, std::uint64_t, bool exists) -> block_task {
                if (!exists) return {};
                const quant::message_slices::place at = cursor.place(reducer.cut);
                const unsigned char* const message = reducer.messages + at.message * reducer.message_stride;
                return {nullptr, at.block, at.message, at.element, at.count, true,
                    quant::read_block_scale(this->memory.constants.in, message, at.block)};
            },
            [&, this] {
                const unsigned char* const message = reducer.messages + task.number * reducer.message_stride;
                const float scale = task.scale;
                const bool plain = quant::is_plain_scale(how, scale);
                COLLPROBE_NO_UNROLL
                for (unsigned pass = 0; pass < lane.passes; ++pass) {
                    const unsigned before = lane.position(pass);
                    eight_codes packed = {};
                    if (task.exists)
                        load_packed(
                            how, message + task.block * how.code_bytes() + place_of_codes(how, before), packed);
                    eight_codes codes;
                    unpack(how, packed, codes);
                    eight_floats x;
                    decode_eight(how, scale, plain && nan_bits_of(how, packed) == 0, codes, x);
                    if (how.rotate) {
                        lane_rotation{lane, this->memory.constants.turn}.undo(x);
                        COLLPROBE_UNROLL
                        for (float& one : x) one = quant::clamped(one, quant::largest_float_of<T>);
                    }
                    if (task.count <= before) continue;
                    std::uint32_t nonfinite = 0;
                    COLLPROBE_UNROLL
                    for (unsigned i = 0; i < lane_elements; ++i)
                        nonfinite += before + i < task.count && !is_finite(x[i]) ? 1 : 0;
                    this->own().count += nonfinite;
                    store_eight(
                        reducer.result + task.element + before, task.count - before, task.count == how.block, x);
                }
            });
        this->write_slot(lane, to, slot, [](const nonfinite_elements& elements, const block_sums&) {
            return std::uint64_t{elements.count};
        });
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
