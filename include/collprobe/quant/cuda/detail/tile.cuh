// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/quant/detail/code.hpp>
#include <collprobe/quant/detail/hadamard.hpp>
#include <collprobe/quant/detail/wire.hpp>

/// How the lanes of a warp share blocks of elements. A warp takes in tiles of 1024 elements, 32 a lane:
/// several blocks of up to 512 elements, a block, or a part of a longer one.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

namespace quant = collprobe::detail;

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned lane_elements = 32;
inline constexpr unsigned tile_elements = warp_lanes * lane_elements;
inline constexpr unsigned all_lanes = ~0u;

/// Some lanes beside each other share a block's part of a tile.
struct tile_lane {
    unsigned lanes; ///< of a block
    unsigned rank; ///< of this lane, among those
    unsigned block; ///< of this lane, in the tile

    __device__ explicit tile_lane(std::uint32_t block_elements)
        : lanes((block_elements < tile_elements ? block_elements : tile_elements) / lane_elements),
          rank(threadIdx.x % warp_lanes & (lanes - 1)),
          block(threadIdx.x % warp_lanes / lanes)
    {
    }
    /// The same, of which the compiler knows nothing: it would keep what depends on it in registers, from
    /// tile to tile.
    __device__ tile_lane again() const
    {
        tile_lane same = *this;
        asm volatile("" : "+r"(same.lanes), "+r"(same.rank), "+r"(same.block));
        return same;
    }
    __device__ unsigned elements() const { return lanes * lane_elements; } ///< of a block in a tile
    __device__ unsigned blocks() const { return warp_lanes / lanes; } ///< of a tile
    __device__ static unsigned tiles(std::uint32_t block_elements) ///< of a block
    {
        return block_elements <= tile_elements ? 1 : block_elements / tile_elements;
    }

    /// Where piece number `piece` of the lane begins in the block. The lanes' pieces of `piece_elements`
    /// alternate, so that a warp reads memory without gaps.
    template <unsigned piece_elements>
    __device__ unsigned position(unsigned piece) const
    {
        return (piece * lanes + rank) * piece_elements;
    }
    /// How many of the lane's elements are among the block's first `count`.
    template <unsigned piece_elements>
    __device__ unsigned elements_below(unsigned count) const
    {
        if (count >= elements()) return lane_elements;
        unsigned sum = 0;
        COLLPROBE_UNROLL
        for (unsigned piece = 0; piece < lane_elements / piece_elements; ++piece) {
            const unsigned at = position<piece_elements>(piece);
            const unsigned here = count > at ? count - at : 0;
            sum += here < piece_elements ? here : piece_elements;
        }
        return sum;
    }

    /// Merges a value of each lane of a block; all of them get the result, which does not depend on the lane.
    template <class T, class Merge>
    __device__ T over_block(T mine, Merge merge) const
    {
        COLLPROBE_NO_UNROLL
        for (unsigned step = 1; step < lanes; step *= 2)
            mine = merge(mine, __shfl_xor_sync(all_lanes, mine, step));
        return mine;
    }
    __device__ float sum(float mine) const
    {
        return over_block(mine, [](float a, float b) { return a + b; });
    }
    __device__ std::uint32_t least(std::uint32_t mine) const
    {
        return over_block(mine, [](std::uint32_t a, std::uint32_t b) { return a < b ? a : b; });
    }
    __device__ quant::block_range range(quant::block_range mine) const
    {
        mine.extreme
            = over_block(mine.extreme, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
        mine.least = over_block(mine.least, [](std::int32_t a, std::int32_t b) { return a < b ? a : b; });
        mine.greatest
            = over_block(mine.greatest, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
        mine.nonfinite = over_block(mine.nonfinite, [](std::uint32_t a, std::uint32_t b) { return a + b; });
        return mine;
    }
};

/// A loop over elements in registers, which is not unrolled: `n` elements are at the front, and move to the
/// end. After a turn through all of them each is where it was.
template <unsigned n>
__device__ void move_to_end(float (&x)[lane_elements], const float (&front)[n])
{
    COLLPROBE_UNROLL
    for (unsigned k = 0; k + n < lane_elements; ++k) x[k] = x[k + n];
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < n; ++i) x[lane_elements - n + i] = front[i];
}

template <class T>
__device__ float to_float(T value)
{
    if constexpr (std::is_same_v<T, float16>) return quant::float_of_half_bits(value.bits);
    else return static_cast<float>(value);
}

/// Loads the first `count` of a block's elements, in pieces of sixteen bytes; the others are 0.
template <class T, unsigned piece_elements = 16 / sizeof(T)>
__device__ void load_tile(const tile_lane& lane, const T* from, unsigned count, float (&x)[lane_elements])
{
    constexpr unsigned pieces = lane_elements / piece_elements;
    if (count >= lane.elements() && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        std::uint32_t words[pieces][4];
        COLLPROBE_UNROLL
        for (unsigned piece = 0; piece < pieces; ++piece)
            quant::load_constant_16(words[piece],
                reinterpret_cast<const unsigned char*>(from + lane.position<piece_elements>(piece)));
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < lane_elements; ++k) {
            const unsigned at = k % piece_elements;
            using bits_type = typename element_traits<T>::bits_type;
            const std::uint32_t word = words[k / piece_elements][at * sizeof(T) / 4];
            x[k] = to_float(quant::bit_cast<T>(static_cast<bits_type>(word >> (at * sizeof(T) % 4 * 8))));
        }
        return;
    }
    COLLPROBE_NO_UNROLL
    for (unsigned piece = 0; piece < pieces; ++piece) {
        const unsigned at = lane.position<piece_elements>(piece);
        float next[piece_elements];
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < piece_elements; ++i)
            next[i] = at + i < count ? to_float(from[at + i]) : 0.0f;
        move_to_end(x, next);
    }
}

/// Stores the first `count` of a block's elements.
template <unsigned piece_elements, class T>
__device__ void store_tile(const tile_lane& lane, T* to, unsigned count, float (&x)[lane_elements])
{
    constexpr unsigned pieces = lane_elements / piece_elements;
    constexpr unsigned of_word = 4 / sizeof(T);
    if (count >= lane.elements() && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < lane_elements; k += 4 * of_word) {
            std::uint32_t words[4] = {};
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4 * of_word; ++i)
                words[i / of_word] |= std::uint32_t{to_bits(T(x[k + i]))} << (i % of_word * sizeof(T) * 8);
            T* const piece = to + lane.position<piece_elements>(k / piece_elements) + k % piece_elements;
            quant::store_16(reinterpret_cast<unsigned char*>(piece), words);
        }
        return;
    }
    COLLPROBE_NO_UNROLL
    for (unsigned piece = 0; piece < pieces; ++piece) {
        const unsigned at = lane.position<piece_elements>(piece);
        float next[piece_elements];
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < piece_elements; ++i) {
            next[i] = x[i];
            if (at + i < count) to[at + i] = T(next[i]);
        }
        move_to_end(x, next);
    }
}

/// What a block of threads computes once, and keeps in shared memory rather than in registers.
struct block_constants {
    quant::wire_layout in; ///< of the messages that are read
    quant::wire_layout out; ///< of those that are written
    quant::rotation turn;
    double energy; ///< of the rotation, if there is one
    std::uint64_t key; ///< of random bits
};

/// `rotation` of the runs of a tile: the same sums in the same order.
template <unsigned piece_elements>
struct tile_rotation {
    tile_lane lane;
    const quant::rotation& turn;

    __device__ void apply(float (&x)[lane_elements]) const
    {
        scale<true>(x, turn.factor());
        transform(x);
    }
    __device__ void undo(float (&x)[lane_elements]) const
    {
        transform(x);
        scale<false>(x, turn.factor_back());
    }

private:
    static constexpr unsigned pieces = lane_elements / piece_elements;

    template <bool signs_first>
    __device__ void scale(float (&x)[lane_elements], float factor) const
    {
        COLLPROBE_UNROLL
        for (unsigned piece = 0; piece < pieces; ++piece) {
            // Elements of a piece stand in one word of the signs.
            const unsigned at = lane.position<piece_elements>(piece) & (turn.length - 1);
            const auto signs
                = static_cast<std::uint32_t>((at < 64 ? turn.signs[0] : turn.signs[1]) >> at % 64);
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < piece_elements; ++i) {
                float& one = x[piece * piece_elements + i];
                const std::uint32_t sign = signs << (31 - i) & 0x80000000u;
                if (signs_first) one = flipped(one, sign);
                one = quant::rounded_product(one, factor);
                if (!signs_first) one = flipped(one, sign);
            }
        }
    }
    __device__ static float flipped(float one, std::uint32_t sign)
    {
        return quant::bit_cast<float>(quant::bit_cast<std::uint32_t>(one) ^ sign);
    }
    __device__ static void butterfly(float& a, float& b)
    {
        const float sum = quant::rounded_sum(a, b);
        b = quant::rounded_difference(a, b);
        a = sum;
    }
    /// The bits of an element's place are, from the lowest on: its place in the piece, the lane, the piece.
    __device__ void transform(float (&x)[lane_elements]) const
    {
        COLLPROBE_UNROLL
        for (unsigned half = 1; half < piece_elements; half *= 2) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < lane_elements; ++k)
                if ((k & half) == 0) butterfly(x[k], x[k + half]);
        }
        unsigned half = piece_elements;
        COLLPROBE_NO_UNROLL
        for (unsigned step = 1; step < lane.lanes && half < turn.length; step *= 2, half *= 2) {
            const bool is_second = (lane.rank & step) != 0;
            COLLPROBE_UNROLL
            for (float& one : x) {
                const float other = __shfl_xor_sync(all_lanes, one, step);
                one = is_second ? quant::rounded_difference(other, one) : quant::rounded_sum(one, other);
            }
        }
        COLLPROBE_UNROLL
        for (unsigned step = piece_elements; step < lane_elements; step *= 2, half *= 2) {
            if (half >= turn.length) break;
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < lane_elements; ++k)
                if ((k & step) == 0) butterfly(x[k], x[k + step]);
        }
    }
};

/// The codes of a tile on their way between registers, where a lane has those of its pieces, and global
/// memory, which is accessed by sixteen bytes beside each other. Behind each block is room, so that lanes of
/// several blocks use different banks.
struct tile_codes {
    static constexpr unsigned most_bytes = tile_elements + warp_lanes * 16;
    struct alignas(16) sixteen {
        std::uint32_t word[4];
    };

    unsigned char* memory; ///< of the warp, `most_bytes`
    unsigned bits; ///< of a code

    __device__ unsigned block_bytes(const tile_lane& lane) const
    {
        return lane.lanes * (lane_elements / 8) * bits;
    }

    /// Where the codes of elements from `at` on stand: those of a piece, or a part of it.
    template <unsigned piece_elements>
    __device__ unsigned char* codes(const tile_lane& lane, unsigned at) const
    {
        return memory + lane.block * (block_bytes(lane) + room<piece_elements>(lane)) + at * bits / 8;
    }
    /// Writes the codes of the tile. `to`: where those of this lane's block go, a multiple of 16; null for no
    /// block.
    template <unsigned piece_elements>
    __device__ void store(const tile_lane& lane, unsigned char* to) const
    {
        __syncwarp();
        for_each_sixteen<piece_elements>(lane, to, [](unsigned char* global, sixteen& shared) {
            if (global != nullptr) quant::store_16(global, shared.word);
        });
        __syncwarp();
    }
    /// Reads them; zeros for no block.
    template <unsigned piece_elements>
    __device__ void load(const tile_lane& lane, const unsigned char* from) const
    {
        __syncwarp();
        for_each_sixteen<piece_elements>(lane, from, [](const unsigned char* global, sixteen& shared) {
            if (global != nullptr) quant::load_constant_16(shared.word, global);
            else shared = {};
        });
        __syncwarp();
    }

private:
    template <unsigned piece_elements>
    __device__ unsigned room(const tile_lane& lane) const
    {
        const unsigned row = lane.lanes * piece_elements * bits / 8;
        return row < 16 ? 16 : row;
    }
    template <unsigned piece_elements, class Pointer, class Body>
    __device__ void for_each_sixteen(const tile_lane& lane, Pointer global, Body body) const
    {
        const unsigned of_block = block_bytes(lane);
        const unsigned shift = quant::log2_of_power(of_block);
        for (unsigned at = threadIdx.x % warp_lanes * 16; at < tile_elements / 8 * bits;
             at += warp_lanes * 16) {
            const unsigned block = at >> shift;
            const auto begin = reinterpret_cast<Pointer>(
                __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(global), block * lane.lanes));
            body(begin == nullptr ? nullptr : begin + (at - block * of_block),
                *reinterpret_cast<sixteen*>(memory + at + block * room<piece_elements>(lane)));
        }
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
