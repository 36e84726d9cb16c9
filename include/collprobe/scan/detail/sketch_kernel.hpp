// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/simd/vector.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The number of rows that are added to a bin while it is in a register: as many streams as processors prefetch. Rows
/// of narrow elements are short, and a bin costs as much as they do. Rows come together from a multiple of this number
/// on, so that those that are added in float are always the same.
template <floating_element T>
inline constexpr std::uint64_t sketch_tile = sizeof(T) < 4 ? 32 : 8;

/// Whether a bin's sum in float of some elements, and of their squares, stands for them: the squares neither left the
/// range of a float nor were lost below it.
inline bool is_plain_bin(float sum, float energy) noexcept
{
    const auto size = bit_cast<std::uint32_t>(energy);
    const bool is_zero = (bit_cast<std::uint32_t>(sum) << 1) == 0;
    return size < 0x7f800000 && (is_zero || size >= bit_cast<std::uint32_t>(0x1p-100f));
}

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The factors of four elements by the four bits of their signs: -1 where a bit is set.
struct sign_factors {
    alignas(width) double of_bits[16 * 4] = {};

    constexpr sign_factors() noexcept
    {
        for (unsigned bits = 0; bits < 16; ++bits)
            for (unsigned k = 0; k < 4; ++k) of_bits[4 * bits + k] = (bits >> k & 1) != 0 ? -1 : 1;
    }
};
inline constexpr sign_factors factors_of_signs;

/// Sixteen elements of less than 32 bits with their signs, as floats. `signs`: of the first one on. Those of bfloat16
/// in pairs: first those of even place, then those of odd place.
template <class T>
[[gnu::always_inline]] inline void load_signed(const T* from, const void* signs, floats (&to)[2]) noexcept
{
    using halves = vector<std::uint16_t, width>;
    constexpr halves places = {0x8000, 0x4000, 0x2000, 0x1000, 0x800, 0x400, 0x200, 0x100, 0x80, 0x40, 0x20, 0x10, 8,
        4, 2, 1};
    std::uint16_t sixteen;
    __builtin_memcpy(&sixteen, signs, sizeof sixteen);
    const halves minus = ((halves{} + sixteen) * places) & 0x8000; // a shift for each lane
    if constexpr (std::is_same_v<T, bfloat16>) {
        const auto pairs = reinterpret_cast<words32>(load<halves>(from) ^ minus);
        to[0] = reinterpret_cast<floats>(pairs << 16);
        to[1] = reinterpret_cast<floats>(pairs & 0xffff0000u);
    } else {
        shorts bits;
        if constexpr (sizeof(T) == 2) bits = load<shorts>(from);
        else bits = halves_of_float8<T>(widened<shorts>(load<vector<std::uint8_t, 16>>(from)));
        const halves_of<shorts> eight(bits ^ reinterpret_cast<shorts>(minus));
        for (unsigned k = 0; k < 2; ++k) {
            to[k] = floats_of_half_bits(eight.both[k]);
            if constexpr (sizeof(T) == 1) to[k] *= float8_in_halves<T>;
        }
    }
}

/// Adds sixteen floats to doubles in memory; `pairs`: first those of even place, then those of odd place.
template <bool pairs>
[[gnu::always_inline]] inline void add_to_memory(floats a, floats b, double* to) noexcept
{
    // Of pairs, the lower halves of two vectors come first in memory, then their upper halves.
    constexpr unsigned second = pairs ? 8 : 4;
    constexpr unsigned third = pairs ? 4 : 8;
    if constexpr (pairs) {
        const floats low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
        b = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
        a = low;
    }
    store(to, load<doubles>(to) + doubles_of_eight<0>(a));
    store(to + second, load<doubles>(to + second) + doubles_of_eight<1>(a));
    store(to + third, load<doubles>(to + third) + doubles_of_eight<0>(b));
    store(to + 12, load<doubles>(to + 12) + doubles_of_eight<1>(b));
}

/// The lanes for which `is_plain_bin` is false.
[[gnu::always_inline]] inline ints rare_bins(floats sum, floats energy) noexcept
{
    const auto size = reinterpret_cast<ints>(energy);
    const auto is_sum = (reinterpret_cast<ints>(sum) & 0x7fffffff) != 0;
    return ((size < bit_cast<int>(0x1p-100f)) & is_sum) | (size >= 0x7f800000);
}

/// Adds 64 columns of some rows to their bins. False, and nothing is added, if a bin is not plain.
/// Loops over bins are unrolled, else g++ would keep them in memory.
template <class T>
inline bool add_columns(const T* from, std::uint64_t stride, std::uint64_t rows, const std::uint64_t* words,
    double* sums, double* energies) noexcept
{
    constexpr int ahead = 512; // bytes of a row, by measurement
    if constexpr (sizeof(T) >= 4) {
        // A byte for four signs, where their factors are: of even groups of four, and of odd ones.
        std::uint64_t places[sketch_tile<T>][2];
        for (std::uint64_t r = 0; r < rows; ++r) {
            places[r][0] = words[r] << 2 & 0x3c3c3c3c3c3c3c3c;
            places[r][1] = words[r] >> 2 & 0x3c3c3c3c3c3c3c3c;
        }
        for (unsigned c = 0; c < 64; c += 16) {
            doubles sum[4];
            doubles energy[4];
            COLLPROBE_UNROLL_VECTORS
            for (unsigned k = 0; k < 4; ++k) {
                sum[k] = hidden(load<doubles>(sums + c + 4 * k));
                energy[k] = hidden(load<doubles>(energies + c + 4 * k));
            }
            const T* row = from + c;
            for (std::uint64_t r = 0; r < rows; ++r, row += stride) {
                __builtin_prefetch(reinterpret_cast<const unsigned char*>(row) + ahead);
                const auto* const signs = reinterpret_cast<const unsigned char*>(places[r]) + c / 8;
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 4; ++k) {
                    doubles x;
                    if constexpr (sizeof(T) == 8) x = load<doubles>(row + 4 * k);
                    else x = widened<doubles>(load<vector<float, 16>>(row + 4 * k));
                    energy[k] = hidden(energy[k] + (products_are_exact<T> ? x * x : hidden(x * x)));
                    sum[k] = hidden(sum[k] + x * load<doubles>(factors_of_signs.of_bits + signs[k % 2 * 8 + k / 2]));
                }
            }
            COLLPROBE_UNROLL_VECTORS
            for (unsigned k = 0; k < 4; ++k) {
                store(sums + c + 4 * k, sum[k]);
                store(energies + c + 4 * k, energy[k]);
            }
        }
        return true;
    } else {
        floats sum_of[8]; // nothing is added to the bins before it is known that all are plain
        floats energy_of[8];
        ints least = ints{} + 0x7f800000;
        ints most = {};
        for (unsigned c = 0; c < 64; c += 32) {
            floats sum[4] = {};
            floats energy[4] = {};
            const T* row = from + c;
            for (std::uint64_t r = 0; r < rows; ++r, row += stride) {
                __builtin_prefetch(reinterpret_cast<const unsigned char*>(row) + ahead);
                const auto* const signs = reinterpret_cast<const unsigned char*>(words + r) + c / 8;
                floats x[2];
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 4; ++k) {
                    if (k % 2 == 0) load_signed(row + 8 * k, signs + k, x);
                    energy[k] = fused_multiply_add(x[k % 2], x[k % 2], energy[k]);
                    sum[k] = hidden(sum[k] + x[k % 2]);
                }
            }
            COLLPROBE_UNROLL_VECTORS
            for (unsigned k = 0; k < 4; ++k) {
                sum_of[c / 8 + k] = sum[k];
                energy_of[c / 8 + k] = energy[k];
                least = lanewise_minimum(least, reinterpret_cast<ints>(energy[k]));
                most = lanewise_maximum(most, reinterpret_cast<ints>(energy[k]));
            }
        }
        if (any_bit((least < bit_cast<int>(0x1p-100f)) | (most >= 0x7f800000))) {
            ints rare = {};
            for (unsigned k = 0; k < 8; ++k) rare |= rare_bins(sum_of[k], energy_of[k]);
            if (any_bit(rare)) return false;
        }
        constexpr bool pairs = std::is_same_v<T, bfloat16>;
        COLLPROBE_UNROLL_VECTORS
        for (unsigned k = 0; k < 8; k += 2) {
            add_to_memory<pairs>(sum_of[k], sum_of[k + 1], sums + 8 * k);
            add_to_memory<pairs>(energy_of[k], energy_of[k + 1], energies + 8 * k);
        }
        return true;
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
