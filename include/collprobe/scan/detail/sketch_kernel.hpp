// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The places in a word of signs of vector `k` of sixteen elements.
template <int k>
[[gnu::always_inline]] inline words64 sign_places() noexcept
{
    words64 result;
    for (int lane = 0; lane < width / 8; ++lane) result[lane] = static_cast<std::uint64_t>(k * (width / 8) + lane);
    return result;
}

/// Vector `k` of sixteen elements, in their order (`load_doubles` has another order for bfloat16).
template <int k, class T>
[[gnu::always_inline]] inline doubles doubles_in_order(const T* from) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        constexpr int group = k / 2; // of eight elements
        return doubles_of_eight<k % 2>(reinterpret_cast<floats>(ints_of_shorts(from + 8 * group) << 16));
    } else {
        return load_doubles<k>(from);
    }
}

/// Adds vector `k` of sixteen elements, signed, and its squares.
template <int k, class T>
[[gnu::always_inline]] inline void add_vector(const T* from, words64 signs, doubles* sums, doubles* energies) noexcept
{
    const doubles x = doubles_in_order<k>(from);
    // The squares of the other types are exact, fused or not.
    if constexpr (std::is_same_v<T, double>) energies[k] = hidden(energies[k] + hidden(x * x));
    else energies[k] = hidden(energies[k] + x * x);
    const words64 sign = (signs << (63 - sign_places<k>())) & 0x8000000000000000u;
    sums[k] = hidden(sums[k] + reinterpret_cast<doubles>(reinterpret_cast<words64>(x) ^ sign));
}
template <int k, class T>
[[gnu::always_inline]] inline void add_vector(const T* from, words64 signs, words64* sums) noexcept
{
    constexpr int lanes = width / 8;
    using wide = vector<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>, width>;
    const auto x = reinterpret_cast<words64>(
        __builtin_convertvector(load<vector<T, lanes * int{sizeof(T)}>>(from + k * lanes), wide));
    const words64 minus = words64{} - ((signs >> sign_places<k>()) & 1);
    sums[k] += (x ^ minus) - minus;
}

/// Loads and stores sixteen bins. They stay in registers while rows are added to them.
template <class V, int n>
[[gnu::always_inline]] inline void load_bins(V (&bins)[n], const void* from) noexcept
{
    for (int k = 0; k < n; ++k) {
        V next = load<V>(static_cast<const unsigned char*>(from) + k * width);
        next = hidden(next); // without this g++ copies half vectors through memory
        bins[k] = next;
    }
}
template <class V, int n>
[[gnu::always_inline]] inline void store_bins(const V (&bins)[n], void* to) noexcept
{
    typedef V unaligned __attribute__((aligned(8), may_alias));
    for (int k = 0; k < n; ++k) static_cast<unaligned*>(to)[k] = bins[k];
}

/// Adds sixteen columns of some rows.
template <class T, class... Bins>
[[gnu::always_inline]] inline void add_columns(const T* from, std::uint64_t stride, int rows,
    const std::uint64_t* words, unsigned shift, Bins&... bins) noexcept
{
    constexpr int ahead = 512; // bytes of a row, found by measurement
    for (int row = 0; row < rows; ++row, from += stride) {
        __builtin_prefetch(reinterpret_cast<const unsigned char*>(from) + ahead);
        const words64 signs = words64{} + (words[row] >> shift);
        add_vector<0>(from, signs, bins...);
        add_vector<1>(from, signs, bins...);
        add_vector<2>(from, signs, bins...);
        add_vector<3>(from, signs, bins...);
    }
}

/// Adds 64 columns of some rows to their sums and, of floating point, their energies.
template <class T>
inline void add_word_of_columns(const T* from, std::uint64_t stride, int rows, const std::uint64_t* words,
    double* sums, double* energies) noexcept
{
    for (unsigned c = 0; c < 64; c += 16) {
        doubles s[128 / width];
        doubles e[128 / width];
        load_bins(s, sums + c);
        load_bins(e, energies + c);
        add_columns(from + c, stride, rows, words, c, s, e);
        store_bins(s, sums + c);
        store_bins(e, energies + c);
    }
}
template <class T>
inline void add_word_of_columns(
    const T* from, std::uint64_t stride, int rows, const std::uint64_t* words, std::uint64_t* sums) noexcept
{
    for (unsigned c = 0; c < 64; c += 16) {
        words64 s[128 / width];
        load_bins(s, sums + c);
        add_columns(from + c, stride, rows, words, c, s);
        store_bins(s, sums + c);
    }
}

/// The same for 8 bits. Sums of up to 128 rows fit in shorts; there are fewer.
template <class T>
    requires(sizeof(T) == 1)
inline void add_word_of_columns(
    const T* from, std::uint64_t stride, int rows, const std::uint64_t* words, std::uint64_t* sums) noexcept
{
    constexpr int ahead = 256; // bytes of a row, found by measurement
    // Multiplied by these, bit i of lane i becomes the highest.
    using patterns = vector<std::uint16_t, 32>;
    constexpr patterns to_highest
        = {0x8000, 0x4000, 0x2000, 0x1000, 0x800, 0x400, 0x200, 0x100, 0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1};
    constexpr int lanes = width / 8;
    shorts totals[4] = {};
    for (int r = 0; r < rows; ++r, from += stride) {
        __builtin_prefetch(from + ahead);
        COLLPROBE_UNROLL_VECTORS
        for (int k = 0; k < 4; ++k) {
            const auto signs = load<std::uint16_t>(reinterpret_cast<const unsigned char*>(words + r) + 2 * k);
            const shorts minus = reinterpret_cast<shorts>((patterns{} + signs) * to_highest) >> 15;
            totals[k] += (widened<shorts>(load<vector<T, 16>>(from + 16 * k)) ^ minus) - minus;
        }
    }
    std::int16_t all[64];
    __builtin_memcpy(all, totals, sizeof all);
    for (int c = 0; c < 64; c += lanes) {
        words64 bins[1];
        load_bins(bins, sums + c);
        bins[0] += reinterpret_cast<words64>(__builtin_convertvector(
            load<vector<std::int16_t, 2 * lanes>>(all + c), vector<std::int64_t, width>));
        store_bins(bins, sums + c);
    }
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
