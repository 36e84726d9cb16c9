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

/// Adds floats to doubles in memory.
[[gnu::always_inline]] inline void add_to_memory(floats x, double* to) noexcept
{
    store(to, load<doubles>(to) + doubles_of_eight<0>(x));
    store(to + 4, load<doubles>(to + 4) + doubles_of_eight<1>(x));
}

/// Adds 64 columns of some rows to their bins. False, and nothing is added, if their squares do not fit in a float.
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
        constexpr words32 places[2] = {{31, 30, 29, 28, 27, 26, 25, 24}, {23, 22, 21, 20, 19, 18, 17, 16}};
        using patterns = vector<typename element_traits<T>::bits_type, 16 * int{sizeof(T)}>;
        // A tile of sums, so that nothing is added to the bins before the largest magnitude is known.
        floats sum_of[8];
        floats energy_of[8];
        patterns largest = {};
        for (unsigned c = 0; c < 64; c += 16) {
            floats sum[2] = {};
            floats energy[2] = {};
            const T* row = from + c;
            for (std::uint64_t r = 0; r < rows; ++r, row += stride) {
                __builtin_prefetch(reinterpret_cast<const unsigned char*>(row) + ahead);
                const auto bits = load<patterns>(row);
                largest = lanewise_maximum(static_cast<patterns>(bits + bits), largest);
                const words32 signs = words32{} + static_cast<std::uint32_t>(words[r] >> c);
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 2; ++k) {
                    const floats x = load_floats(row + 8 * k);
                    const words32 minus = (signs << places[k]) & 0x80000000u;
                    energy[k] = fused_multiply_add(x, x, energy[k]);
                    sum[k] = hidden(sum[k] + with_signs(x, minus));
                }
            }
            for (unsigned k = 0; k < 2; ++k) {
                sum_of[c / 8 + k] = sum[k];
                energy_of[c / 8 + k] = energy[k];
            }
        }
        if (!is_plain<T>(highest_lane(largest) / 2u)) return false;
        for (unsigned k = 0; k < 8; ++k) {
            add_to_memory(sum_of[k], sums + 8 * k);
            add_to_memory(energy_of[k], energies + 8 * k);
        }
        return true;
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
