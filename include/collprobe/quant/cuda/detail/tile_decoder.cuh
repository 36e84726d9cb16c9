// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/quant/cuda/detail/tile.cuh>
#include <collprobe/quant/detail/code.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// The elements of codes in registers: `element_of`, without branches where no code stands for NaN and none
/// is clamped.
struct tile_decoder {
    const quant::codec& how;

    /// Whether no code of a block reaches beyond the largest element. False for NaN.
    __device__ bool is_plain(const quant::block_scale& by) const
    {
        const float most = how.format == code_format::int8 ? 128
            : how.format == code_format::int4              ? 8
                                                           : largest_code(how.format);
        const std::uint32_t reach
            = quant::bit_cast<std::uint32_t>(quant::rounded_product(by.scale, most)) & 0x7fffffffu;
        return how.rule != scaling::asymmetric && reach <= how.largest;
    }

    /// Decodes `n` codes, which stand in `words` from the lowest bit on.
    template <unsigned n, unsigned n_words>
    __device__ void decode(const quant::block_scale& by, bool plain, const std::uint32_t (&words)[n_words],
        float (&elements)[n]) const
    {
        static_assert(n_words == (n + 3) / 4);
        if (plain && !has_nan(words)) decode_plainly(by.scale, words, elements);
        else decode_carefully(by, words, elements);
    }

private:
    static constexpr std::uint32_t each_byte = 0x01010101u;

    /// Whether a code stands for NaN: a byte or half byte that is 0 behind an exclusive or, or a magnitude.
    template <unsigned n_words>
    __device__ bool has_nan(const std::uint32_t (&words)[n_words]) const
    {
        if (how.rule == scaling::signed_maximum) return false;
        std::uint32_t found = 0;
        if (how.format == code_format::int8) {
            COLLPROBE_UNROLL
            for (const std::uint32_t word : words)
                found |= zero_bytes(word ^ 0x80 * each_byte, 0x7f * each_byte);
        } else if (how.format == code_format::int4) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < (n_words + 1) / 2; ++k)
                found |= zero_bytes(words[k] ^ 0x88 * each_byte, 0x77 * each_byte);
        } else {
            const std::uint32_t up = (0x7f - quant::float8_format::of(how.format).largest) * each_byte;
            COLLPROBE_UNROLL
            for (const std::uint32_t word : words)
                found |= ((word & 0x7f * each_byte) + up) & 0x80 * each_byte;
        }
        return found != 0;
    }
    /// The high bit of each field that is 0. `low`: the other bits.
    __device__ static std::uint32_t zero_bytes(std::uint32_t word, std::uint32_t low)
    {
        return ~(((word & low) + low) | word | low);
    }

    template <unsigned n, unsigned n_words>
    __device__ void decode_plainly(
        float scale, const std::uint32_t (&words)[n_words], float (&elements)[n]) const
    {
        if (how.format == code_format::int8) {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < n; ++i)
                elements[i] = quant::rounded_product(
                    small_integer(words[i / 4] ^ 0x80 * each_byte, i % 4, 128), scale);
        } else if (how.format == code_format::int4) {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < n; ++i) {
                const std::uint32_t nibbles
                    = (words[i / 8] >> (i % 2 * 4) & 0x0f * each_byte) ^ 0x08 * each_byte;
                elements[i] = quant::rounded_product(small_integer(nibbles, i % 8 / 2, 8), scale);
            }
        } else {
            // The exponent's field moves to that of a float, whose bias a factor makes right; exact.
            const bool e4m3 = how.format == code_format::e4m3;
            const unsigned shift = e4m3 ? 4 : 3;
            const std::uint32_t kept = e4m3 ? 0x87f00000u : 0x8fe00000u;
            const float factor = e4m3 ? 0x1p120f : 0x1p112f;
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < n; ++i) {
                const std::uint32_t top = __byte_perm(words[i / 4], 0, 0x0444 | i % 4 << 12);
                const auto spread = static_cast<std::uint32_t>(static_cast<std::int32_t>(top) >> shift);
                elements[i] = quant::rounded_product(
                    quant::rounded_product(quant::bit_cast<float>(spread & kept), factor), scale);
            }
        }
    }
    /// Byte `which` of a word, less `bias`: a float whose unit is 1 gets it as its last digits.
    __device__ static float small_integer(std::uint32_t word, unsigned which, unsigned bias)
    {
        const float above = quant::bit_cast<float>(__byte_perm(word, 0x4b000000u, 0x7440 | which));
        return quant::rounded_difference(above, static_cast<float>(0x800000u + bias));
    }

    template <unsigned n, unsigned n_words>
    __device__ void decode_carefully(
        const quant::block_scale& by, const std::uint32_t (&words)[n_words], float (&elements)[n]) const
    {
        const unsigned bits = static_cast<unsigned>(bits_of(how.format));
        std::uint32_t rest[n_words];
        for (unsigned k = 0; k < n_words; ++k) rest[k] = words[k];
        COLLPROBE_NO_UNROLL
        for (unsigned i = 0; i < n; ++i) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k + 1 < n; ++k) elements[k] = elements[k + 1];
            elements[n - 1]
                = quant::element_of(how, by, quant::code_of_bits(how, rest[0] & ((1u << bits) - 1)));
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n_words; ++k)
                rest[k] = __funnelshift_r(rest[k], k + 1 < n_words ? rest[k + 1] : 0, bits);
        }
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::cuda::detail
