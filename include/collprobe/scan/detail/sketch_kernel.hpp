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

/// The sums and energies of `n` vectors of bins. They stay in registers while rows are added to them.
template <class V, unsigned n>
struct bins_of {
    V sum[n] = {};
    V energy[n] = {};

    [[gnu::always_inline]] bins_of() noexcept {}
    /// Adds x with the signs whose bits in `minus` are those of its lanes.
    template <class Sign>
    [[gnu::always_inline]] void add(unsigned k, V x, V square, Sign minus) noexcept
    {
        energy[k] = hidden(energy[k] + square);
        sum[k] = hidden(sum[k] + reinterpret_cast<V>(reinterpret_cast<Sign>(x) ^ minus));
    }
};

/// Adds 64 columns of some rows to their bins.
template <class T>
inline bool add_columns(const T* from, std::uint64_t stride, std::uint64_t rows, const std::uint64_t* words,
    double* sums, double* energies) noexcept
{
    constexpr int ahead = 512; // bytes of a row, by measurement
    if constexpr (sizeof(T) >= 4) {
        constexpr words64 places[4] = {{63, 62, 61, 60}, {59, 58, 57, 56}, {55, 54, 53, 52}, {51, 50, 49, 48}};
        for (unsigned c = 0; c < 64; c += 16) {
            bins_of<doubles, 4> bins;
            for (unsigned k = 0; k < 4; ++k) {
                bins.sum[k] = hidden(load<doubles>(sums + c + 4 * k));
                bins.energy[k] = hidden(load<doubles>(energies + c + 4 * k));
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
                    bins.add(k, x, squares_are_exact<T> ? x * x : hidden(x * x), minus);
                }
            }
            for (unsigned k = 0; k < 4; ++k) {
                store(sums + c + 4 * k, bins.sum[k]);
                store(energies + c + 4 * k, bins.energy[k]);
            }
        }
        return true;
    } else {
        constexpr words32 places = {31, 30, 29, 28, 27, 26, 25, 24};
        using patterns = vector<typename element_traits<T>::bits_type, 16 * int{sizeof(T)}>;
        bins_of<floats, 2> all[4];
        patterns largest = {};
        for (unsigned c = 0; c < 64; c += 16) {
            bins_of<floats, 2> bins;
            const T* row = from + c;
            for (std::uint64_t r = 0; r < rows; ++r, row += stride) {
                __builtin_prefetch(reinterpret_cast<const unsigned char*>(row) + ahead);
                const auto bits = load<patterns>(row);
                largest = lanewise_maximum(static_cast<patterns>(bits + bits), largest);
                COLLPROBE_UNROLL_VECTORS
                for (unsigned k = 0; k < 2; ++k) {
                    const floats x = load_floats(row + 8 * k);
                    const auto sign = static_cast<std::uint32_t>(words[r] >> (c + 8 * k));
                    const words32 minus = ((words32{} + sign) << places) & 0x80000000u;
                    bins.add(k, x, squares_are_exact<T> ? x * x : hidden(x * x), minus);
                }
            }
            all[c / 16] = bins;
        }
        std::uint64_t most = 0;
        for (unsigned i = 0; i < 16; ++i) most = larger(most, std::uint64_t{largest[i]} / 2);
        if (!is_plain<T>(most)) return false;
        for (unsigned k = 0; k < 8; ++k) {
            const auto add = [&](const floats& from_bins, double* to) __attribute__((always_inline)) {
                store(to, load<doubles>(to) + doubles_of_eight<0>(from_bins));
                store(to + 4, load<doubles>(to + 4) + doubles_of_eight<1>(from_bins));
            };
            add(all[k / 2].sum[k % 2], sums + 8 * k);
            add(all[k / 2].energy[k % 2], energies + 8 * k);
        }
        return true;
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
