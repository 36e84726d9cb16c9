// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/quant/detail/code.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/quant/detail/hadamard.hpp>

/// What a lane of a warp does with eight elements beside each other: loads and stores, codes, rotations.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

namespace quant = collprobe::detail;

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned lane_elements = 8;
inline constexpr unsigned all_lanes = ~0u;
using eight_floats = float[lane_elements];
using eight_codes = std::uint32_t[2]; ///< bytes: signed integers, also of int4, or 8-bit floats

/// The lanes that share a block. A warp has several blocks of less than 256 elements, and takes in longer ones in
/// several passes.
struct block_lanes {
    unsigned lanes; ///< of a block
    unsigned passes; ///< over a block
    unsigned rank; ///< of this lane, among those
    unsigned block; ///< of this lane, in the warp

    __device__ explicit block_lanes(std::uint32_t block_elements)
        : lanes(block_elements < warp_lanes * lane_elements ? block_elements / lane_elements : warp_lanes),
          passes(block_elements < warp_lanes * lane_elements ? 1 : block_elements / (warp_lanes * lane_elements)),
          rank(threadIdx.x % warp_lanes & (lanes - 1)),
          block(threadIdx.x % warp_lanes / lanes)
    {
    }
    __device__ unsigned blocks() const { return warp_lanes / lanes; } ///< of a warp
    /// Where the lane's elements begin in the block.
    __device__ unsigned position(unsigned pass) const { return (pass * lanes + rank) * lane_elements; }

    /// Merges a value of each lane of a block; all of them get the result, which does not depend on the lane.
    template <class T, class Merge>
    __device__ T over_block(T mine, Merge merge) const
    {
        COLLPROBE_UNROLL
        for (unsigned step = 1; step < warp_lanes; step *= 2) {
            const T other = __shfl_xor_sync(all_lanes, mine, step);
            mine = step < lanes ? merge(mine, other) : mine;
        }
        return mine;
    }
    template <class T>
    __device__ T sum(T mine) const
    {
        return over_block(mine, [](T a, T b) { return a + b; });
    }
    __device__ bool any(bool mine) const
    {
        const unsigned of_block = ~0u >> (warp_lanes - lanes);
        return (__ballot_sync(all_lanes, mine) >> (block * lanes) & of_block) != 0;
    }
};

template <class T>
__device__ float to_float(T value)
{
    if constexpr (std::is_same_v<T, float16>) return quant::float_of_half_bits(value.bits);
    else return static_cast<float>(value);
}

/// Two lanes beside each other exchange four floats each, so that they access 32 bytes beside each other and not every
/// other 16: the last four of the even lane, and the first four of the odd one.
__device__ inline void swap_with_neighbour(std::uint32_t (&first)[4], std::uint32_t (&last)[4])
{
    const unsigned lane = threadIdx.x % warp_lanes;
    const bool is_odd = (lane & 1) != 0;
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t other
            = __shfl_xor_sync(3u << (lane & ~1u), is_odd ? first[i] : last[i], 1);
        if (is_odd) first[i] = other;
        else last[i] = other;
    }
}

/// Loads the first `count` of a lane's eight elements; the others are 0. `whole`: of the block all elements exist, so
/// that the lane's neighbour has eight, too.
template <class T>
__device__ void load_eight(const T* from, unsigned count, bool whole, eight_floats& x)
{
    constexpr unsigned vectors = sizeof(T) / 2;
    if (whole && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        std::uint32_t words[vectors][4];
        const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
        if constexpr (vectors == 2) {
            const unsigned odd = threadIdx.x & 1; // of the pair's 64 bytes: from 0 and 32 on, or from 16 and 48 on
            quant::load_constant_16(words[0], bytes - 16 * odd);
            quant::load_constant_16(words[1], bytes - 16 * odd + 32);
            swap_with_neighbour(words[0], words[1]);
        } else {
            quant::load_constant_16(words[0], bytes);
        }
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i) {
            using bits_type = typename element_traits<T>::bits_type;
            const std::uint32_t word = words[i * sizeof(T) / 16][i * sizeof(T) / 4 % 4];
            x[i] = to_float(quant::bit_cast<T>(static_cast<bits_type>(word >> (i * sizeof(T) % 4 * 8))));
        }
        return;
    }
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < lane_elements; ++i) x[i] = i < count ? to_float(from[i]) : 0.0f;
}
template <class T>
__device__ void store_eight(T* to, unsigned count, bool whole, const eight_floats& x)
{
    constexpr unsigned of_word = 4 / sizeof(T);
    constexpr unsigned vectors = sizeof(T) / 2;
    if (whole && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        std::uint32_t words[vectors][4] = {};
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i)
            words[i * sizeof(T) / 16][i / of_word % 4]
                |= std::uint32_t{to_bits(T(x[i]))} << (i % of_word * sizeof(T) * 8);
        auto* const bytes = reinterpret_cast<unsigned char*>(to);
        if constexpr (vectors == 2) {
            const unsigned odd = threadIdx.x & 1;
            swap_with_neighbour(words[0], words[1]);
            quant::store_16(bytes - 16 * odd, words[0]);
            quant::store_16(bytes - 16 * odd + 32, words[1]);
        } else {
            quant::store_16(bytes, words[0]);
        }
        return;
    }
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < lane_elements; ++i)
        if (i < count) to[i] = T(x[i]);
}

/// `rotation` of the runs of a block: the same sums in the same order.
struct lane_rotation {
    const block_lanes& lane;
    const quant::rotation& turn;

    __device__ void apply(eight_floats& x) const
    {
        scale<true>(x, turn.factor());
        transform(x);
    }
    __device__ void undo(eight_floats& x) const
    {
        transform(x);
        scale<false>(x, turn.factor_back());
    }

private:
    template <bool signs_first>
    __device__ void scale(eight_floats& x, float factor) const
    {
        const unsigned at = lane.rank * lane_elements & (turn.length - 1); // of any pass
        const auto signs = static_cast<std::uint32_t>((at < 64 ? turn.signs[0] : turn.signs[1]) >> at % 64);
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i) {
            const std::uint32_t sign = signs << (31 - i) & 0x80000000u;
            if (signs_first) x[i] = flipped(x[i], sign);
            x[i] = quant::rounded_product(x[i], factor);
            if (!signs_first) x[i] = flipped(x[i], sign);
        }
    }
    __device__ static float flipped(float one, std::uint32_t sign)
    {
        return quant::bit_cast<float>(to_bits(one) ^ sign);
    }
    __device__ void transform(eight_floats& x) const
    {
        COLLPROBE_UNROLL
        for (unsigned half = 1; half < lane_elements; half *= 2) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < lane_elements; ++k) {
                if ((k & half) != 0) continue;
                const float sum = quant::rounded_sum(x[k], x[k + half]);
                x[k + half] = quant::rounded_difference(x[k], x[k + half]);
                x[k] = sum;
            }
        }
        COLLPROBE_NO_UNROLL
        for (unsigned step = 1; step * lane_elements < turn.length; step *= 2) {
            const bool is_second = (lane.rank & step) != 0;
            COLLPROBE_UNROLL
            for (float& one : x) {
                const float other = __shfl_xor_sync(all_lanes, one, step);
                one = is_second ? quant::rounded_difference(other, one) : quant::rounded_sum(one, other);
            }
        }
    }
};

/// The random bits of eight elements of the buffer, which need not begin at a multiple of eight.
__device__ inline void draw_eight(
    const quant::dither& noise, std::uint64_t key, std::uint64_t element, std::uint32_t (&random)[4])
{
    const quant::philox first = noise.of_eight(key, element / 8);
    const auto offset = static_cast<unsigned>(element % 8);
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 4; ++k) random[k] = first.word[k];
    if (offset == 0) return;
    const quant::philox second = noise.of_eight(key, element / 8 + 1);
    std::uint32_t word[8];
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
        word[k] = first.word[k];
        word[4 + k] = second.word[k];
    }
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 6; ++k) word[k] = (offset & 4) != 0 ? word[k + 2] : word[k];
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 5; ++k) word[k] = (offset & 2) != 0 ? word[k + 1] : word[k];
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 4; ++k) random[k] = __funnelshift_r(word[k], word[k + 1], offset % 2 * 16);
}

inline constexpr std::uint32_t each_byte = 0x01010101u;

/// The high bit of each byte that is 0.
__device__ inline std::uint32_t zero_bytes(std::uint32_t word)
{
    return ~(((word & 0x7f * each_byte) + 0x7f * each_byte) | word | 0x7f * each_byte);
}

/// The nearest e4m3 of four values, whose magnitudes are at most the largest one, but for a rounding.
__device__ inline std::uint32_t nearest_e4m3(const float (&value)[4])
{
    std::uint32_t word = 0;
    if constexpr (quant::has_float8_instruction) {
        std::uint16_t low, high;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(value[1]), "f"(value[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(value[3]), "f"(value[2]));
        word = low | std::uint32_t{high} << 16;
        word ^= zero_bytes(word & 0x7f * each_byte) & word; // zeros have no sign
    } else {
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < 4; ++i) word |= quant::e4m3::code_of(value[i], false, 0) << (8 * i);
    }
    return word;
}

/// The codes of eight finite elements. `random`: of stochastic rounding.
__device__ inline void encode_eight(
    const quant::codec& how, const eight_floats& x, float inverse, const std::uint32_t (&random)[4], eight_codes& codes)
{
    const bool stochastic = how.rounding == code_rounding::stochastic;
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
        float value[4];
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < 4; ++i) value[i] = quant::rounded_product(x[4 * k + i], inverse);
        if (!stochastic && !is_integer(how.format)) {
            codes[k] = nearest_e4m3(value);
            continue;
        }
        std::uint32_t code[4];
        if (!stochastic) { // the last digits of a float whose unit is 1: see `nearest_integer`
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) code[i] = to_bits(quant::rounded_sum(value[i], 12582912.0f));
        } else {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i)
                code[i] = static_cast<std::uint32_t>(
                    quant::code_of(how, value[i], random[2 * k + i / 2] >> (16 * (i % 2)) & 0xffffu));
        }
        codes[k] = __byte_perm(
            __byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
    }
}

/// The integer in a byte plus `offset`, below 256, as a float: as the last digits of a float whose unit is 1.
__device__ inline float unit_of_byte(std::uint32_t word, unsigned byte, float offset)
{
    const std::uint32_t above = __byte_perm(word, 0x4b000000u, 0x7440 | byte);
    return quant::rounded_difference(quant::bit_cast<float>(above), 8388608.0f + offset);
}
/// What codes stand for, in units of their scale. Not for NaN.
__device__ inline void units_of_eight(const quant::codec& how, const eight_codes& codes, eight_floats& units)
{
    if (is_integer(how.format)) {
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < lane_elements; ++i)
            units[i] = unit_of_byte(codes[i / 4] ^ 0x80 * each_byte, i % 4, 128);
        return;
    }
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < lane_elements; ++i) { // the fields move to those of a float; a factor makes the bias right
        const std::uint32_t top = __byte_perm(codes[i / 4], 0, 0x0444 | i % 4 << 12);
        const auto spread = static_cast<std::uint32_t>(static_cast<std::int32_t>(top) >> 4) & 0x87f00000u;
        units[i] = quant::rounded_product(quant::bit_cast<float>(spread), 0x1p120f);
    }
}
/// The same of codes as they are in a message.
__device__ inline void units_of_packed(const quant::codec& how, const eight_codes& packed, eight_floats& units)
{
    if (how.format != code_format::int4) return units_of_eight(how, packed, units);
    const std::uint32_t even = (packed[0] ^ 0x88 * each_byte) & 0x0f * each_byte;
    const std::uint32_t odd = (packed[0] ^ 0x88 * each_byte) >> 4 & 0x0f * each_byte;
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < lane_elements; ++i) units[i] = unit_of_byte(i % 2 == 0 ? even : odd, i / 2, 8);
}

/// Reads eight codes of a message as they are there: eight bytes, or four.
__device__ inline void load_packed(const quant::codec& how, const unsigned char* from, eight_codes& packed)
{
    if (how.format == code_format::int4) {
        packed[0] = __ldg(reinterpret_cast<const std::uint32_t*>(from));
        packed[1] = 0;
        return;
    }
    const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
    packed[0] = both.x;
    packed[1] = both.y;
}
/// Where the codes of the elements from `at` on are in a block.
__device__ inline unsigned place_of_codes(const quant::codec& how, unsigned at)
{
    return how.format == code_format::int4 ? at / 2 : at;
}
__device__ inline void unpack(const quant::codec& how, const eight_codes& packed, eight_codes& codes)
{
    codes[0] = packed[0];
    codes[1] = packed[1];
    if (how.format != code_format::int4) return;
    // Each half byte less 8 and 8 more, as a signed byte.
    const auto widened = [](std::uint32_t nibbles) {
        return (((nibbles & 0x0f * each_byte) ^ 0x88 * each_byte) - 0x08 * each_byte) ^ 0x80 * each_byte;
    };
    const std::uint32_t even = widened(packed[0]);
    const std::uint32_t odd = widened(packed[0] >> 4);
    codes[0] = __byte_perm(even, odd, 0x5140);
    codes[1] = __byte_perm(even, odd, 0x7362);
}

/// Bits that are set if one of the codes stands for NaN. `packed`: as they are in a message.
__device__ inline std::uint32_t nan_bits_of(const quant::codec& how, const eight_codes& packed)
{
    if (how.format == code_format::e4m3) {
        const auto carried = [](std::uint32_t word) { return (word & 0x7f * each_byte) + each_byte; };
        return (carried(packed[0]) | carried(packed[1])) & 0x80 * each_byte;
    }
    if (how.format == code_format::int8)
        return zero_bytes(packed[0] ^ 0x80 * each_byte) | zero_bytes(packed[1] ^ 0x80 * each_byte);
    const std::uint32_t word = packed[0] ^ 0x88 * each_byte; // half bytes that are 0, as in `zero_bytes`
    return ~(((word & 0x77 * each_byte) + 0x77 * each_byte) | word | 0x77 * each_byte);
}
/// The elements of codes, `element_of`. `plain`: none of them is rare.
__device__ inline void decode_eight(
    const quant::codec& how, float scale, bool plain, const eight_codes& codes, eight_floats& x)
{
    units_of_eight(how, codes, x);
    COLLPROBE_UNROLL
    for (float& one : x) one = quant::rounded_product(one, scale);
    if (plain) return;
    COLLPROBE_UNROLL
    for (unsigned i = 0; i < lane_elements; ++i) {
        const std::uint32_t byte = codes[i / 4] >> (i % 4 * 8) & 0xffu;
        const auto code = is_integer(how.format) ? static_cast<signed char>(byte) : static_cast<std::int32_t>(byte);
        x[i] = quant::element_of(how, scale, code);
    }
}

/// Writes eight codes of a block.
__device__ inline void store_codes(const quant::codec& how, unsigned char* to, const eight_codes& codes)
{
    if (how.format != code_format::int4) {
        *reinterpret_cast<uint2*>(to) = make_uint2(codes[0], codes[1]);
        return;
    }
    const auto packed = [](std::uint32_t bytes) {
        bytes &= 0x0f * each_byte;
        return bytes | bytes >> 4;
    };
    *reinterpret_cast<std::uint32_t*>(to) = __byte_perm(packed(codes[0]), packed(codes[1]), 0x6420);
}

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
