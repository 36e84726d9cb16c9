// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class V, class Sign>
[[gnu::always_inline]] inline V with_signs(V x, Sign minus) noexcept
{
    return reinterpret_cast<V>(reinterpret_cast<Sign>(x) ^ minus);
}

/// Adds sixteen floats to doubles in memory; `pairs`: first those of even place, then those of odd place.
template <bool pairs>
[[gnu::always_inline]] inline void add_to_memory(floats a, floats b, double* to) noexcept
{
    floats in_order[2] = {a, b};
    if constexpr (pairs) {
        in_order[0] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        in_order[1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    COLLPROBE_UNROLL_VECTORS
    for (unsigned k = 0; k < 2; ++k, to += 8) {
        store(to, load<doubles>(to) + doubles_of_eight<0>(in_order[k]));
        store(to + 4, load<doubles>(to + 4) + doubles_of_eight<1>(in_order[k]));
    }
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
        constexpr words64 places[4] = {{63, 62, 61, 60}, {59, 58, 57, 56}, {55, 54, 53, 52}, {51, 50, 49, 48}};
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
                const words64 signs = words64{} + (words[r] >> c);
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 4; ++k) {
                    doubles x;
                    if constexpr (sizeof(T) == 8) x = load<doubles>(row + 4 * k);
                    else x = widened<doubles>(load<vector<float, 16>>(row + 4 * k));
                    const words64 minus = (signs << places[k]) & 0x8000000000000000u;
                    energy[k] = hidden(energy[k] + (products_are_exact<T> ? x * x : hidden(x * x)));
                    sum[k] = hidden(sum[k] + with_signs(x, minus));
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
        // Bits of bfloat16 in a word are a pair's: even elements come first, then odd ones.
        constexpr bool pairs = std::is_same_v<T, bfloat16>;
        constexpr words32 even = {31, 29, 27, 25, 23, 21, 19, 17}, odd = {30, 28, 26, 24, 22, 20, 18, 16};
        constexpr words32 first = {31, 30, 29, 28, 27, 26, 25, 24}, second = {23, 22, 21, 20, 19, 18, 17, 16};
        constexpr words32 places[2] = {pairs ? even : first, pairs ? odd : second};
        floats sum_of[8]; // nothing is added to the bins before it is known that all are plain
        floats energy_of[8];
        ints rare = {};
        for (unsigned c = 0; c < 64; c += 32) {
            floats sum[4] = {};
            floats energy[4] = {};
            const T* row = from + c;
            for (std::uint64_t r = 0; r < rows; ++r, row += stride) {
                __builtin_prefetch(reinterpret_cast<const unsigned char*>(row) + ahead);
                const words32 signs[2] = {words32{} + static_cast<std::uint32_t>(words[r] >> c),
                    words32{} + static_cast<std::uint32_t>(words[r] >> (c + 16))};
                floats x[4];
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 4; ++k) {
                    if constexpr (pairs) {
                        const auto bits = load<words32>(row + 16 * (k / 2));
                        x[k] = reinterpret_cast<floats>(k % 2 == 0 ? bits << 16 : bits & 0xffff0000u);
                    } else {
                        x[k] = load_floats(row + 8 * k);
                    }
                    const words32 minus = (signs[k / 2] << places[k % 2]) & 0x80000000u;
                    energy[k] = fused_multiply_add(x[k], x[k], energy[k]);
                    sum[k] = hidden(sum[k] + with_signs(x[k], minus));
                }
            }
            COLLPROBE_UNROLL_VECTORS
            for (unsigned k = 0; k < 4; ++k) {
                sum_of[c / 8 + k] = sum[k];
                energy_of[c / 8 + k] = energy[k];
                rare |= rare_bins(sum[k], energy[k]);
            }
        }
        if (any_bit(rare)) return false;
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
