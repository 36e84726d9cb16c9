// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/quant/cuda/detail/tile.cuh>
#include <collprobe/quant/cuda/detail/tile_decoder.cuh>
#include <collprobe/quant/cuda/detail/tile_encoder.cuh>
#include <collprobe/quant/detail/block_cursor.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>

/// The kernels of `encode_reducer`, `combine_reducer` and `decode_reducer`: the same bits as on the host.
/// Elements are read once, except those of blocks above 1024 elements, which are read again, out of a cache,
/// behind their scale. Formats, rules and block sizes are values, not template parameters: a kernel has few
/// branches of its warps on them.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

__device__ inline double energy_of(const quant::codec& how, const quant::rotation& turn)
{
    return how.rotate ? turn.energy() : 1;
}
__device__ inline std::uint64_t key_of(const quant::block_encoder& encoder)
{
    return encoder.how.rounding == code_rounding::stochastic ? encoder.noise.key() : 0;
}
template <class T>
__device__ block_constants constants_of(const quant::encode_reducer<T>& reducer)
{
    const quant::codec& how = reducer.encoder.how;
    const auto turn = quant::rotation::of(how.block, how.seed);
    return {{}, quant::wire_layout::of(how, reducer.cut.blocks_per_message()), turn, energy_of(how, turn),
        key_of(reducer.encoder)};
}
template <class T>
__device__ block_constants constants_of(const quant::combine_reducer<T>& reducer)
{
    const auto turn = quant::rotation::of(reducer.how.block, reducer.how.seed);
    return {quant::wire_layout::of(reducer.how, reducer.cut.blocks_per_message()),
        quant::wire_layout::of(reducer.encoder.how, reducer.cut.blocks_per_slice()), turn,
        energy_of(reducer.encoder.how, turn), key_of(reducer.encoder)};
}
template <class T>
__device__ block_constants constants_of(const quant::decode_reducer<T>& reducer)
{
    return {quant::wire_layout::of(reducer.how, reducer.cut.blocks_per_message()), {},
        quant::rotation::of(reducer.how.block, reducer.how.seed), 1, 0};
}

struct no_sums {};

/// What the three have in common. The count of the reduction is that of blocks; the warps of a thread block
/// take the tiles of a slot in turn.
template <class Reducer, class Sums>
struct block_codec : partials_merge<Reducer> {
    static constexpr unsigned warps = block_threads / warp_lanes;
    static constexpr unsigned blocks_per_multiprocessor = 2;

    struct shared {
        union {
            typename partials_merge<Reducer>::shared merging;
            unsigned char codes[warps][tile_codes::most_bytes];
        };
        Sums sums[block_threads];
        block_constants constants;
    };

    const Reducer& reducer;
    shared& memory;

    __device__ block_codec(const Reducer& own, shared& shared_memory) : reducer(own), memory(shared_memory)
    {
        if (threadIdx.x == 0) memory.constants = constants_of(reducer);
        __syncthreads();
    }

    /// As if an element of a block had one byte. So the shortest slot has a tile for each warp.
    static std::uint64_t element_bytes_of(const Reducer& reducer) { return reducer.cut.block; }

    /// `body(cursor, number, exists)` for each tile of this warp: `number` is that of the lane's block;
    /// `exists` is false behind the last one.
    template <class Body>
    __device__ void for_each_tile(std::uint64_t first, std::uint32_t count, const tile_lane& lane, Body body)
    {
        const unsigned stride = warps * lane.blocks();
        std::uint32_t at = threadIdx.x / warp_lanes * lane.blocks();
        if (at >= count) return;
        quant::block_cursor cursor(reducer.cut, first + at + lane.block);
        for (; at < count; at += stride, cursor.advance(stride))
            body(cursor, first + at + lane.block, at + lane.block < count);
    }
    __device__ unsigned char* warp_memory() const { return memory.codes[threadIdx.x / warp_lanes]; }

    template <class Partial>
    __device__ void write_slot(const Partial& mine, partial_results to, unsigned slot)
    {
        __syncthreads(); // the warps have used the memory
        partials_merge<Reducer>::write_slot(memory.merging, mine, to, slot);
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result)
    {
        partials_merge<Reducer>::combine(reducer, memory.merging, from, slots, result);
    }
};

template <class T>
struct block_reduction<quant::encode_reducer<T>> : block_codec<quant::encode_reducer<T>, lane_sums> {
    using block_codec<quant::encode_reducer<T>, lane_sums>::block_codec;
    static constexpr unsigned piece_elements = 16 / sizeof(T);

    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::encode_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.encoder.how;
        const tile_lane lane(how.block);
        const quant::rotation& turn = this->memory.constants.turn;
        tile_encoder<piece_elements> encoder(
            reducer.encoder, this->memory.constants, lane, this->warp_memory());
        lane_errors mine(this->memory.sums[threadIdx.x]);
        this->for_each_tile(
            first, count, lane, [&](const quant::block_cursor& cursor, std::uint64_t number, bool exists) {
                const quant::message_slices::place at = cursor.place();
                const std::uint32_t have = exists ? at.count : 0;
                encoder.encode({exists ? reducer.messages + at.message * reducer.message_stride : nullptr,
                                   at.block, number, at.element, how.rotate && have != 0 ? how.block : have},
                    mine, [&](float(&x)[lane_elements], unsigned tile) {
                        const unsigned before = tile * tile_elements;
                        load_tile(lane.again(), reducer.source + at.element + before,
                            have > before ? have - before : 0, x);
                        if (how.rotate) tile_rotation<piece_elements>{lane.again(), turn}.apply(x);
                    });
            });
        encoder.finish_slot(mine);
        this->write_slot(this->memory.sums[threadIdx.x].all(), to, slot);
    }
};

template <class T>
struct block_reduction<quant::combine_reducer<T>> : block_codec<quant::combine_reducer<T>, lane_sums> {
    using block_codec<quant::combine_reducer<T>, lane_sums>::block_codec;
    /// The codes of a piece are 16 bytes, for int4 8.
    static constexpr unsigned piece_elements = 16;
    static constexpr unsigned piece_words = piece_elements / 4;
    /// Terms whose codes are loaded before the first of them is added.
    static constexpr unsigned terms_at_once = 4;

    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::combine_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.how;
        const tile_lane lane(how.block);
        const quant::wire_layout& in = this->memory.constants.in;
        const quant::rotation& turn = this->memory.constants.turn;
        tile_encoder<piece_elements> encoder(
            reducer.encoder, this->memory.constants, lane, this->warp_memory());
        lane_errors mine(this->memory.sums[threadIdx.x]);
        combined_errors all; // the errors of the codes are in `mine`
        this->for_each_tile(first, count, lane,
            [&, this](const quant::block_cursor& cursor, std::uint64_t number, bool exists) {
                const quant::message_slices::place at = cursor.place();
                const float factor = reducer.probed ? factor_of(in, number, exists) : 1.0f;
                const unsigned tiles = lane.tiles(how.block);
                float squares = 0;
                float sum_squares = 0;
                unsigned loaded = 0;
                const auto load = [&, this](float(&x)[lane_elements], unsigned tile) {
                    add_up(x, lane.again(), in, number, tile, exists ? at.count : 0, exists, factor, squares);
                    if (reducer.probed) sum_squares += squares_of(x, factor);
                    if (++loaded == tiles && reducer.probed) { // not those that are loaded again
                        const float of_terms = lane.sum(squares);
                        const float of_sums = lane.sum(sum_squares) * reducer.square_of_wide_divisor();
                        if (exists && lane.rank == 0)
                            reducer.note_spread(of_terms, of_sums, factor, all);
                    }
                    divide(x);
                };
                if (reducer.result == nullptr) {
                    const std::uint32_t coded = how.rotate && at.count != 0 ? how.block : at.count;
                    encoder.encode({exists ? reducer.codes + cursor.slice() * reducer.codes_stride : nullptr,
                                       cursor.in_slice(), number, at.element, exists ? coded : 0},
                        mine, load);
                    return;
                }
                COLLPROBE_NO_UNROLL
                for (unsigned tile = 0; tile < tiles; ++tile) {
                    const unsigned before = tile * tile_elements;
                    float x[lane_elements];
                    load(x, tile);
                    if (how.rotate) tile_rotation<piece_elements>{lane.again(), turn}.undo(x);
                    if (exists && at.count > before)
                        store_tile<piece_elements>(
                            lane.again(), reducer.result + at.element + before, at.count - before, x);
                }
            });
        if (reducer.result == nullptr) encoder.finish_slot(mine);
        all.errors = this->memory.sums[threadIdx.x].all();
        this->write_slot(all, to, slot);
    }

private:
    __device__ const unsigned char* message(std::uint32_t term) const
    {
        return this->reducer.messages + term * this->reducer.message_stride;
    }
    __device__ float factor_of(const quant::wire_layout& in, std::uint64_t block, bool exists) const
    {
        std::uint32_t largest = 0;
        COLLPROBE_NO_UNROLL
        for (std::uint32_t term = 0; exists && term < this->reducer.terms; ++term) {
            const float scale = quant::read_block_scale(this->reducer.how, in, message(term), block).scale;
            const std::uint32_t bits = quant::bit_cast<std::uint32_t>(scale) & 0x7fffffffu;
            if (bits < 0x7f800000u && bits > largest) largest = bits;
        }
        return quant::combine_reducer<T>::range_factor(largest);
    }

    /// The sums of the terms of a tile; 0 where there is no block.
    __device__ void add_up(float (&x)[lane_elements], const tile_lane& lane, const quant::wire_layout& in,
        std::uint64_t block, unsigned tile, std::uint32_t count, bool exists, float factor, float& squares) const
    {
        COLLPROBE_NO_UNROLL
        for (unsigned piece = 0; piece < lane_elements / piece_elements; ++piece) {
            const unsigned at = tile * tile_elements + lane.position<piece_elements>(piece);
            float sums[piece_elements];
            if (this->reducer.wide) {
                double wide[piece_elements];
                COLLPROBE_UNROLL
                for (double& sum : wide) sum = quant::bit_cast<double>(std::uint64_t{1} << 63); // -0, as below
                add_terms(wide, in, block, at, count, exists, factor, squares);
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < piece_elements; ++i)
                    sums[i] = quant::nearest_float(this->reducer.divided(wide[i]));
            } else {
                COLLPROBE_UNROLL
                for (float& sum : sums)
                    sum = quant::bit_cast<float>(0x80000000u); // -0: the sum has the first term's sign
                add_terms(sums, in, block, at, count, exists, factor, squares);
            }
            move_to_end(x, sums);
        }
    }
    template <class Sum>
    __device__ void add_terms(Sum (&sums)[piece_elements], const quant::wire_layout& in, std::uint64_t block,
        unsigned at, std::uint32_t count, bool exists, float factor, float& squares) const
    {
        const quant::codec& how = this->reducer.how;
        const bool is_padded = this->reducer.is_padded(count);
        const tile_decoder decoder{how};
        const std::uint32_t terms = exists ? this->reducer.terms : 0;
        const bool as_nibbles = how.format == code_format::int4;
        const std::uint64_t codes = block * how.code_bytes() + (as_nibbles ? at / 2 : at);
        COLLPROBE_NO_UNROLL
        for (std::uint32_t begin = 0; begin < terms; begin += terms_at_once) {
            std::uint32_t words[terms_at_once][piece_words];
            quant::block_scale by[terms_at_once];
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < terms_at_once; ++k) {
                if (begin + k >= terms) continue;
                load_codes(words[k], message(begin + k) + codes, as_nibbles);
                by[k] = quant::read_block_scale(how, in, message(begin + k), block);
            }
            COLLPROBE_NO_UNROLL
            for (unsigned k = 0; k < terms_at_once && begin + k < terms; ++k) {
                float elements[piece_elements];
                decoder.decode(by[0], decoder.is_plain(by[0]), words[0], elements);
                if (is_padded) {
                    COLLPROBE_UNROLL
                    for (unsigned i = 0; i < piece_elements; ++i)
                        if (at + i >= count) elements[i] = 0;
                }
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < piece_elements; ++i) sums[i] = sum_of(sums[i], elements[i]);
                if (this->reducer.probed) squares += squares_of(elements, factor);
                COLLPROBE_UNROLL
                for (unsigned next = 1; next < terms_at_once; ++next) {
                    by[next - 1] = by[next];
                    for (unsigned i = 0; i < piece_words; ++i) words[next - 1][i] = words[next][i];
                }
            }
        }
    }
    __device__ static float sum_of(float sum, float term) { return quant::rounded_sum(sum, term); }
    __device__ static double sum_of(double sum, float term)
    {
        return quant::rounded_sum(sum, quant::exact_double(term));
    }
    __device__ static void load_codes(
        std::uint32_t (&words)[piece_words], const unsigned char* from, bool as_nibbles)
    {
        if (!as_nibbles) return quant::load_constant_16(words, from);
        const uint2 half = __ldg(reinterpret_cast<const uint2*>(from));
        words[0] = half.x;
        words[1] = half.y;
        words[2] = words[3] = 0;
    }

    __device__ void divide(float (&x)[lane_elements]) const
    {
        const std::uint32_t divisor = this->reducer.divisor;
        if (divisor == 1 || this->reducer.wide) return; // or divided already
        if ((divisor & (divisor - 1)) == 0) { // exact, but for subnormal results, which round the same
            const float inverse = quant::rounded_quotient(1.0f, static_cast<float>(divisor));
            COLLPROBE_UNROLL
            for (float& one : x) one = quant::rounded_product(one, inverse);
            return;
        }
        COLLPROBE_NO_UNROLL
        for (unsigned k = 0; k < lane_elements; k += 4) {
            float four[4];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i)
                four[i] = quant::rounded_quotient(x[i], static_cast<float>(divisor));
            move_to_end(x, four);
        }
    }
    template <unsigned n>
    __device__ static float squares_of(const float (&x)[n], float factor)
    {
        float sum = 0;
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < n; ++i) {
            const float scaled = x[i] * factor;
            sum += scaled * scaled;
        }
        return sum;
    }
};

template <class T>
struct block_reduction<quant::decode_reducer<T>> : block_codec<quant::decode_reducer<T>, no_sums> {
    using block_codec<quant::decode_reducer<T>, no_sums>::block_codec;
    static constexpr unsigned piece_elements = 16 / sizeof(T);

    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        const quant::decode_reducer<T>& reducer = this->reducer;
        const quant::codec& how = reducer.how;
        const tile_lane lane(how.block);
        const quant::rotation& turn = this->memory.constants.turn;
        const tile_codes codes{this->warp_memory(), static_cast<unsigned>(bits_of(how.format))};
        const tile_decoder decoder{how};
        std::uint64_t nonfinite = 0;
        const auto decode = [&](const quant::block_cursor& cursor, std::uint64_t, bool exists) {
            const quant::message_slices::place at = cursor.place();
            const unsigned char* const message
                = exists ? reducer.messages + at.message * reducer.message_stride : nullptr;
            quant::block_scale by;
            if (exists) by = quant::read_block_scale(how, this->memory.constants.in, message, at.block);
            const bool plain = decoder.is_plain(by);
            COLLPROBE_NO_UNROLL
            for (unsigned tile = 0; tile < lane.tiles(how.block); ++tile) {
                const unsigned before = tile * tile_elements;
                codes.template load<piece_elements>(
                    lane, exists ? message + at.block * how.code_bytes() + before / 8 * codes.bits : nullptr);
                float x[lane_elements];
                decode_tile(lane.again(), codes, decoder, by, plain, x);
                if (how.rotate) {
                    tile_rotation<piece_elements>{lane.again(), turn}.undo(x);
                    COLLPROBE_UNROLL
                    for (float& one : x) one = quant::clamped(one, quant::largest_float_of<T>);
                }
                if (!exists || at.count <= before) continue;
                nonfinite += count_nonfinite(lane, at.count - before, x);
                store_tile<piece_elements>(
                    lane.again(), reducer.result + at.element + before, at.count - before, x);
            }
        };
        this->for_each_tile(first, count, lane, decode);
        this->write_slot(nonfinite, to, slot);
    }

private:
    __device__ static void decode_tile(const tile_lane& lane, const tile_codes& codes,
        const tile_decoder& decoder, const quant::block_scale& by, bool plain, float (&x)[lane_elements])
    {
        constexpr unsigned words = piece_elements / 4;
        COLLPROBE_NO_UNROLL
        for (unsigned piece = 0; piece < lane_elements / piece_elements; ++piece) {
            const unsigned char* const from
                = codes.template codes<piece_elements>(lane, lane.position<piece_elements>(piece));
            std::uint32_t word[words];
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < words; ++k) {
                if (codes.bits == 8) word[k] = reinterpret_cast<const std::uint32_t*>(from)[k];
                else if (words > 1) word[k] = k == 0 ? *reinterpret_cast<const std::uint32_t*>(from) : 0;
                else word[k] = *reinterpret_cast<const std::uint16_t*>(from);
            }
            float elements[piece_elements];
            decoder.decode(by, plain, word, elements);
            move_to_end(x, elements);
        }
    }
    __device__ static unsigned count_nonfinite(
        const tile_lane& lane, unsigned count, const float (&x)[lane_elements])
    {
        unsigned sum = 0;
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < lane_elements; ++k) {
            const bool counts
                = lane.position<piece_elements>(k / piece_elements) + k % piece_elements < count;
            sum += counts && !is_finite(x[k]) ? 1 : 0;
        }
        return sum;
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
