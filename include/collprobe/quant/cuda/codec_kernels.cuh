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

/// Encodes blocks, each by some lanes of a warp, which call it together.
struct lane_encoder {
    const quant::block_encoder& of;
    const codec_constants& constants;
    const block_lanes& lane;
    const block_task& to;
    quantisation_errors& into; ///< of lane 0 of the block

    /// `load(x, pass, again)` gets the lane's elements of a pass. If there are several, it is called twice for each.
    template <class Load>
    __device__ void encode(Load load) const
    {
        const quant::codec& how = of.how;
        const unsigned passes = lane.passes;
        eight_floats x;
        std::uint32_t rare = 0; // bit i: element i is not finite, and replaced by 0
        std::uint32_t largest = 0;
        quant::encoded_block made;
        COLLPROBE_NO_UNROLL
        for (unsigned turn = 0; turn < 2 * passes; ++turn) {
            const unsigned pass = turn < passes ? turn : turn - passes;
            const unsigned at = lane.position(pass);
            const unsigned count = to.count > at ? to.count - at : 0;
            if (turn == 0 || passes > 1) {
                load(x, pass, turn >= passes);
                if (of.residual != nullptr) add_residual(at, count, x);
                rare = replace_rare(x, largest, turn < passes);
                if (turn < passes) made.nonfinite += __popc(rare);
            }
            if (turn < passes) {
                if (turn + 1 < passes) continue;
                largest = lane.over_block(largest, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
                made.largest = quant::bit_cast<float>(largest);
                made.by = quant::scale_of(how, made.largest);
                continue;
            }
            std::uint32_t random[4] = {};
            if (how.rounding == code_rounding::stochastic)
                draw_eight(of.noise, constants.key, to.element + at, random);
            eight_codes codes;
            encode_eight(how, x, made.by.inverse, random, codes);
            if (of.probed) add_errors(x, codes, made.by.inverse, count, rare, made.errors);
            if (of.residual != nullptr) keep_residual(at, count, x, made.by.scale, codes);
            if (rare != 0) mark_rare(codes, rare);
            if (to.exists)
                store_codes(how, to.message + to.block * how.code_bytes() + place_of_codes(how, at), codes);
        }
        if (__any_sync(all_lanes, made.nonfinite != 0)) made.nonfinite = lane.sum(made.nonfinite);
        if (of.probed) sum_errors(made.errors);
        if (!to.exists || lane.rank != 0) return;
        quant::write_block_scale(constants.out, to.message, to.block, made.by.scale);
        if (of.probed) {
            quant::add_block(into, made, to.count, to.element, constants.energy);
        } else {
            into.count += to.count;
            into.nonfinite += made.nonfinite;
        }
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

    /// Takes in the lane's elements.
    __device__ void add_errors(const eight_floats& x, const eight_codes& codes, float inverse, unsigned count,
        std::uint32_t rare, quant::block_errors& errors) const
    {
        eight_floats units;
        units_of_eight(of.how, codes, units);
        std::uint32_t least = ~0u;
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i) {
            const float value = quant::rounded_product(x[i], inverse);
            const float error = units[i] - value;
            errors.squares += value * value;
            errors.error_squares += error * error;
            errors.error_sum += error;
            const std::uint32_t magnitude = quant::magnitude_bits(x[i]);
            least = magnitude < least ? magnitude : least;
        }
        // Neither what is beyond the block's end nor what is not finite counts as zero.
        const unsigned others = (count < lane_elements ? lane_elements - count : 0) + __popc(rare);
        errors.zero_codes += __popc(zero_bytes(codes[0])) + __popc(zero_bytes(codes[1])) - others;
        if (least != 0) return;
        std::uint32_t zeros = 0;
        COLLPROBE_UNROLL
        for (const float one : x) zeros += quant::magnitude_bits(one) == 0 ? 1 : 0;
        errors.zeros += zeros - others;
    }
    /// Over the lanes of the block.
    __device__ void sum_errors(quant::block_errors& errors) const
    {
        errors.squares = lane.sum(errors.squares);
        errors.error_squares = lane.sum(errors.error_squares);
        errors.error_sum = lane.sum(errors.error_sum);
        const std::uint32_t both = lane.sum(errors.zeros << 16 | errors.zero_codes);
        errors.zeros = both >> 16;
        errors.zero_codes = both & 0xffff;
    }
};

/// What the three have in common. The count of the reduction is that of blocks; the warps of a thread block take those
/// of a slot in turn.
template <class Reducer>
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
        partial found; ///< by lane 0 of the block, in the slot
    };
    struct shared {
        partial partials[warps];
        alignas(8) unsigned char tasks[most_blocks][sizeof(shared_task) + 8]; ///< in different banks
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

    /// `make(cursor, number, exists)` makes the task of a block, and `body()` does it, for each block of this lane.
    template <class Make, class Body>
    __device__ void for_each_block(
        std::uint64_t first, std::uint32_t count, const block_lanes& lane, Make make, Body body) const
    {
        const unsigned stride = warps * lane.blocks();
        const std::uint32_t begin = threadIdx.x / warp_lanes * lane.blocks();
        shared_task& mine = task_of(lane);
        if (lane.rank == 0) mine.found = {};
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
    __device__ void write_slot(const block_lanes& lane, partial_results to, unsigned slot) const
    {
        __syncthreads();
        if (threadIdx.x < warp_lanes) {
            partial all;
            COLLPROBE_NO_UNROLL
            for (unsigned k = threadIdx.x; k < warps * lane.blocks(); k += warp_lanes)
                all.merge(reinterpret_cast<const shared_task*>(memory.tasks[k])->found);
            all = over_warp(all);
            if (threadIdx.x == 0) to.write(slot, all.value);
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
        mine = over_warp(mine);
        if (threadIdx.x % warp_lanes == 0) memory.partials[threadIdx.x / warp_lanes] = mine;
        __syncthreads();
        if (threadIdx.x >= warp_lanes) return;
        mine = over_warp(threadIdx.x < warps ? memory.partials[threadIdx.x] : partial());
        if (threadIdx.x == 0) *result = reducer.finish(mine.value);
    }

private:
    /// Merges a value of each lane, in a fixed order. Lane 0 gets the result.
    __device__ static partial over_warp(partial mine)
    {
        struct alignas(alignof(partial)) part_words {
            std::uint32_t word[sizeof(partial) / sizeof(std::uint32_t)];
        };
        COLLPROBE_NO_UNROLL // for it is short of registers
        for (unsigned above = 1; above < warp_lanes; above *= 2) {
            auto words = quant::bit_cast<part_words>(mine);
            COLLPROBE_UNROLL
            for (std::uint32_t& word : words.word) word = __shfl_down_sync(all_lanes, word, above);
            if (threadIdx.x % warp_lanes + above < warp_lanes) mine.merge(quant::bit_cast<partial>(words));
        }
        return mine;
    }
};

template <class T>
struct block_reduction<quant::encode_reducer<T>> : codec_reduction<quant::encode_reducer<T>> {
    using base = codec_reduction<quant::encode_reducer<T>>;
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
        const lane_encoder encoder{reducer.encoder, this->memory.constants, lane, mine.task, mine.found.value};
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
        this->write_slot(lane, to, slot);
    }
};

template <class T>
struct block_reduction<quant::combine_reducer<T>> : codec_reduction<quant::combine_reducer<T>> {
    using base = codec_reduction<quant::combine_reducer<T>>;
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
        const lane_encoder encoder{reducer.encoder, this->memory.constants, lane, mine.task, mine.found.value.errors};
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
                float factor = 1; // of all passes
                float squares = 0, sum_squares = 0; // times the square of the factor
                const auto load = [&, this](eight_floats& x, unsigned pass, bool again) {
                    const float of_terms = add_up(x, lane.position(pass), mine.task, factor);
                    if (reducer.probed && !again) {
                        squares += of_terms;
                        sum_squares += squares_of(x, factor);
                    }
                    divide(x);
                };
                if (reducer.result == nullptr) encoder.encode(load);
                else write_elements(lane, mine.task, load);
                if (!reducer.probed) return;
                squares = lane.sum(squares);
                sum_squares = lane.sum(sum_squares);
                if (lane.rank != 0) return;
                reducer.note_spread(squares, sum_squares, factor, this->memory.constants.energy, mine.found.value);
            });
        this->write_slot(lane, to, slot);
    }

private:
    template <class Load>
    __device__ void write_elements(const block_lanes& lane, const block_task& task, const Load& load) const
    {
        COLLPROBE_NO_UNROLL
        for (unsigned pass = 0; pass < lane.passes; ++pass) {
            const unsigned before = lane.position(pass);
            eight_floats x;
            load(x, pass, false);
            if (this->reducer.how.rotate) lane_rotation{lane, this->memory.constants.turn}.undo(x);
            if (task.count > before)
                store_eight(this->reducer.result + task.element + before, task.count - before,
                    task.count == this->reducer.how.block, x);
        }
    }
    /// The sums of the terms of eight elements; 0 where there is no block. Returns the squares of the terms, times the
    /// square of `factor`, which it sets, if they are asked for.
    __device__ float add_up(eight_floats& x, unsigned at, const block_task& task, float& factor) const
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
        float squares = 0;
        factor = reducer.range_factor(0);
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
                most = quant::magnitude_bits(scale[k]) > most ? quant::magnitude_bits(scale[k]) : most;
                codes_at += reducer.message_stride;
                scale_at += reducer.message_stride;
            }
            if (reducer.probed && reducer.range_factor(most) < factor) {
                const float less = reducer.range_factor(most) * reducer.inverse_of(factor);
                squares *= less * less;
                factor = reducer.range_factor(most);
            }
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < terms_at_once; ++k) {
                eight_floats units;
                units_of_packed(how, packed[k], units);
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < lane_elements; ++i) x[i] = product_added(units[i], scale[k], x[i]);
                nans |= nan_bits_of(how, packed[k]);
                const float scaled = scale[k] * factor;
                if (reducer.probed) squares += squares_of(units, 1) * scaled * scaled;
            }
        }
        if (nans != 0 || !quant::is_plain_scale(how, quant::bit_cast<float>(most)))
            return add_carefully(x, at, task.number, factor);
        return squares;
    }
    __device__ static float squares_of(const eight_floats& x, float factor)
    {
        float squares = 0;
        COLLPROBE_UNROLL
        for (const float one : x) {
            const float scaled = one * factor;
            squares += scaled * scaled;
        }
        return squares;
    }
    /// The product of a code and a scale is exact, so this rounds as a product and a sum do.
    __device__ static float product_added(float a, float b, float sum)
    {
        float result;
        asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(sum));
        return result;
    }
    /// The sums where a code stands for NaN, or may reach beyond the largest element. Returns the squares of the terms.
    __device__ float add_carefully(eight_floats& x, unsigned at, std::uint64_t block, float factor) const
    {
        const quant::codec& how = this->reducer.how;
        COLLPROBE_UNROLL
        for (float& one : x) one = 0;
        float squares = 0;
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
            for (unsigned i = 0; i < lane_elements; ++i) x[i] = quant::rounded_sum(x[i], elements[i]);
            squares += squares_of(elements, factor);
        }
        return squares;
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

template <class T>
struct block_reduction<quant::decode_reducer<T>> : codec_reduction<quant::decode_reducer<T>> {
    using base = codec_reduction<quant::decode_reducer<T>>;
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
        auto& mine = this->task_of(lane);
        const block_task& task = mine.task;
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
                std::uint32_t nonfinite = 0;
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
                    COLLPROBE_UNROLL
                    for (unsigned i = 0; i < lane_elements; ++i)
                        nonfinite += before + i < task.count && !is_finite(x[i]) ? 1 : 0;
                    store_eight(
                        reducer.result + task.element + before, task.count - before, task.count == how.block, x);
                }
                if (!__any_sync(all_lanes, nonfinite != 0)) return;
                nonfinite = lane.sum(nonfinite);
                if (lane.rank == 0) mine.found.value += nonfinite;
            });
        this->write_slot(lane, to, slot);
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
