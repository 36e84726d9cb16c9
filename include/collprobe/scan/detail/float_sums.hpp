// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/simd/barrier.hpp>
#include <collprobe/simd/vector.hpp>

/// The lanes in which a tile is added up, portably and by vectors. Each element has its fixed lane, so both give the
/// same bits.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether products of two elements are exact in double, so that they may be fused with the sum that they enter.
template <class T>
inline constexpr bool products_are_exact = !std::is_same_v<T, double>;

/// x * y + sum, rounded once to float, for elements of at most 16 bits: their product is exact in double, and a sum of
/// two floats that is first rounded to double has the same bits.
inline float fused_sum(float x, float y, float sum) noexcept
{
    return static_cast<float>(static_cast<double>(x) * static_cast<double>(y) + static_cast<double>(sum));
}

/// Whether all elements are finite, and their squares can be added up as `norm` does, if the largest magnitude has
/// these bits. Squares of bfloat16 from 2^-60 to 2^60 stay within the range of a float. Far smaller ones beside them do
/// not count.
template <floating_element T>
COLLPROBE_HD constexpr bool is_plain(std::uint64_t largest) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) return largest == 0 || (largest >= 0x2180 && largest <= 0x5d80);
    else return largest < element_traits<T>::smallest_nonfinite;
}

inline double add_lanes(const double (&lane)[8]) noexcept
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// A group of elements, 8 lines of 64 bytes, is added up in float. Two elements of bfloat16 share a word: even elements
/// have one set of lanes, odd ones have the other.
template <floating_element T>
struct float_sums {
    static constexpr std::uint64_t group = 512 / sizeof(T);
    float lane[2][8] = {};

    float& of(std::uint64_t i) noexcept
    {
        if constexpr (std::is_same_v<T, bfloat16>) return lane[i % 2][i / 2 % 8];
        else return lane[i / 8 % 2][i % 8];
    }
    void add(std::uint64_t i, float x) noexcept { of(i) += x; }
    void add_product(std::uint64_t i, float x, float y) noexcept { of(i) = fused_sum(x, y, of(i)); }
    void add_to(double (&sums)[8]) const noexcept
    {
        for (unsigned k = 0; k < 2; ++k)
            for (unsigned i = 0; i < 8; ++i) sums[i] += lane[k][i];
    }
};

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// How an accumulator takes in a tile by vectors, line by line; after 8 lines a group ends.
template <class A, class T>
struct lanes;

/// The vectors of a line: of doubles, or of floats if elements have less than 32 bits. `lane_vectors<T>` of them. Those
/// of e4m3 are divided by `float8_in_halves`, and a NaN among them is a number: the largest magnitude tells of it.
template <class T>
using wide = std::conditional_t<sizeof(T) >= 4, doubles, floats>;
template <class T>
inline constexpr unsigned lane_vectors = 64 / sizeof(T) / (width / sizeof(wide<T>{}[0]));
template <class T>
[[gnu::always_inline]] inline void load_line(const unsigned char* line, wide<T> (&to)[lane_vectors<T>]) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        for (unsigned k = 0; k < 2; ++k) {
            const auto pairs = load<words32>(line + width * k);
            to[2 * k] = reinterpret_cast<floats>(pairs << 16);
            to[2 * k + 1] = reinterpret_cast<floats>(pairs & 0xffff0000u);
        }
    } else if constexpr (sizeof(T) == 1) {
        COLLPROBE_UNROLL_VECTORS
        for (unsigned k = 0; k < 4; ++k) {
            shorts halves = widened<shorts>(load<vector<unsigned char, 16>>(line + 16 * k)) << 8;
            if constexpr (std::is_same_v<T, float8_e4m3>) halves = (halves >> 1) & static_cast<std::int16_t>(0xbfff);
            const halves_of<shorts> eight(halves);
            to[2 * k] = floats_of_half_bits(eight.both[0]);
            to[2 * k + 1] = floats_of_half_bits(eight.both[1]);
        }
    } else {
        COLLPROBE_UNROLL_VECTORS
        for (unsigned k = 0; k < lane_vectors<T>; ++k) {
            const unsigned char* const from = line + 64 / lane_vectors<T> * k;
            if constexpr (sizeof(T) == 8) to[k] = load<doubles>(from);
            else if constexpr (sizeof(T) == 4) to[k] = widened<doubles>(load<vector<float, 16>>(from));
            else to[k] = load_floats(reinterpret_cast<const T*>(from));
        }
    }
}

/// The largest magnitudes, as bits times 2, which drops the sign. (Of doubles once: signed numbers have a comparison.)
template <class T>
struct largest_of_lanes {
    using bits_type = std::conditional_t<sizeof(T) == 8, std::int64_t, typename element_traits<T>::bits_type>;
    using patterns = vector<bits_type, width>;
    patterns most = {};

    [[gnu::always_inline]] largest_of_lanes() noexcept {}
    /// Returns the magnitudes, each times 2.
    [[gnu::always_inline]] patterns add(const unsigned char* from) noexcept
    {
        const auto bits = load<patterns>(from);
        patterns size;
        if constexpr (sizeof(T) == 8) size = bits & 0x7fffffffffffffff;
        else size = bits + bits;
        most = lanewise_maximum(size, most);
        return size;
    }
    [[gnu::always_inline]] auto all() const noexcept
    {
        using bits = typename element_traits<T>::bits_type;
        return static_cast<bits>(static_cast<bits>(highest_lane(most)) / (sizeof(T) == 8 ? 1 : 2));
    }
};

template <class T>
struct sums_of_lanes {
    wide<T> lane[2] = {};
    doubles sum[2] = {}; // of floats

    // Written out, because GCC compiles an implicit constructor for the baseline.
    [[gnu::always_inline]] sums_of_lanes() noexcept {}
    /// Vector `k` of a line.
    [[gnu::always_inline]] void add(unsigned k, wide<T> x) noexcept { lane[k % 2] += x; }
    [[gnu::always_inline]] void add_product(unsigned k, wide<T> x, wide<T> y) noexcept
    {
        if constexpr (sizeof(T) < 4) lane[k % 2] = fused_multiply_add(x, y, lane[k % 2]);
        else lane[k % 2] += products_are_exact<T> ? x * y : hidden(x * y);
    }
    /// `unit`: of what was added.
    [[gnu::always_inline]] void end_group([[maybe_unused]] float unit) noexcept
    {
        if constexpr (sizeof(T) < 4) {
            for (unsigned k = 0; k < 2; ++k) {
                if constexpr (std::is_same_v<T, float8_e4m3>) lane[k] *= unit;
                sum[0] += doubles_of_eight<0>(lane[k]);
                sum[1] += doubles_of_eight<1>(lane[k]);
                lane[k] = floats{};
            }
        }
    }
    [[gnu::always_inline]] void store(double (&to)[8]) const noexcept
    {
        if constexpr (sizeof(T) < 4) __builtin_memcpy(to, sum, sizeof to);
        else __builtin_memcpy(to, lane, sizeof to);
    }
};

/// Adds a tile, or a part of one, to lanes. Returns the number of zero bytes that it added behind the last.
template <class Lanes>
[[gnu::always_inline]] inline std::uint64_t add_lines(
    Lanes& into, const unsigned char* data, std::uint64_t bytes) noexcept
{
    constexpr std::uint64_t ahead = 4096;
    std::uint64_t done = 0;
    for (; done + 512 <= bytes; done += 512) {
        for (unsigned line = 0; line < 512; line += 64) {
            __builtin_prefetch(data + done + line + ahead);
            into.add_line(data + done + line);
        }
        into.end_group();
    }
    for (; done + 64 <= bytes; done += 64) into.add_line(data + done);
    if (done == bytes) return 0;
    unsigned char last[64] = {};
    __builtin_memcpy(last, data + done, bytes - done);
    into.add_last_line(last, bytes - done);
    return 64 - (bytes - done);
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
