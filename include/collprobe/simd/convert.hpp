// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/vector.hpp>

/// Runs of elements of at most 32 bits as floats and back, on the host. Compilers vectorise loops over floats, but make
/// 5 to 10 times as long a code of the conversions as `vector.hpp` does. What is left of a run is the caller's.
#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The leading multiple of 8 elements; returns how many they are.
template <class T>
[[gnu::noinline]] inline int widen_run(const T* from, int count, float* to) noexcept
{
    constexpr int lanes = static_cast<int>(float_lanes);
    int i = 0;
    for (; i + lanes <= count; i += lanes) store(to + i, load_floats(from + i));
    return i;
}
template <class T>
[[gnu::noinline]] inline int round_run(const float* from, int count, T* to) noexcept
{
    constexpr int lanes = static_cast<int>(float_lanes);
    int i = 0;
    for (; i + lanes <= count; i += lanes) store_floats(load<floats>(from + i), to + i);
    return i;
}

/// result[i] = a[i] + b[i], or a[i] * b[i], in float, rounded.
template <bool multiplies, class T>
[[gnu::noinline]] inline int hop_run(const T* a, const T* b, int count, T* result) noexcept
{
    constexpr int lanes = static_cast<int>(float_lanes);
    int i = 0;
    for (; i + lanes <= count; i += lanes) {
        const floats x = load_floats(a + i), y = load_floats(b + i);
        store_floats(multiplies ? x * y : x + y, result + i);
    }
    return i;
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Floating point of 8 or 16 bits: it is stored only, and added as float or double.
template <class T>
concept narrow_floating_element = floating_element<T> && sizeof(T) <= 2;

template <floating_element T>
void widen_run(const T* from, int count, float* to, isa path = best_isa()) noexcept
{
    for (int i = COLLPROBE_ON_ISA(path, 0, widen_run(from, count, to)); i < count; ++i)
        to[i] = static_cast<float>(from[i]);
}

/// Rounds to nearest, ties to even.
template <floating_element T>
void round_run(const float* from, int count, T* to, isa path = best_isa()) noexcept
{
    int i = 0;
    if constexpr (sizeof(T) > 1) i = COLLPROBE_ON_ISA(path, 0, round_run(from, count, to));
    for (; i < count; ++i) to[i] = T(from[i]);
}

/// The same of doubles, rounded once: first to float, to odd. That keeps on which side of a tie a number is, down to
/// the least normal float; where T has smaller numbers than that, they are rounded one by one.
template <int width, narrow_floating_element T>
void round_run(const double (&from)[width], int count, T* to) noexcept
{
    constexpr std::uint64_t below = (std::uint64_t{1} << 29) - 1; // the bits that a float has not
    constexpr std::int64_t least_normal = std::int64_t{1023 - 126} << 52;
    float odd[width];
    std::int64_t any_small = 0;
    for (int i = 0; i < width; ++i) {
        const auto bits = bit_cast<std::uint64_t>(from[i]);
        const auto magnitude = static_cast<std::int64_t>(bits & ~(std::uint64_t{1} << 63));
        any_small |= static_cast<std::int64_t>(magnitude != 0) & static_cast<std::int64_t>(magnitude < least_normal);
        odd[i] = static_cast<float>(
            bit_cast<double>((bits & ~below) | (static_cast<std::uint64_t>((bits & below) != 0) << 29)));
    }
    round_run(odd, count, to);
    if constexpr (element_traits<T>::min_subnormal_exponent < -126) {
        if (any_small == 0) return;
        for (int i = 0; i < count; ++i) to[i] = T(from[i]);
    }
}

} // namespace collprobe::detail
