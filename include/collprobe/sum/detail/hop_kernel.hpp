// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// Sixteen elements as two vectors of floats. Elements of bfloat16 stay in the words that they share, half of which
/// is the float of one: first those of even index, then those of odd index.
template <class T>
[[gnu::always_inline]] inline void widen_16(const T* from, floats (&to)[2]) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        const auto pairs = load<words32>(from);
        to[0] = reinterpret_cast<floats>(pairs << 16);
        to[1] = reinterpret_cast<floats>(pairs & 0xffff0000u);
    } else {
        for (int k = 0; k < 2; ++k) {
            if constexpr (sizeof(T) == 1) to[k] = load_floats(from + 8 * k);
            else to[k] = load_floats(from + 8 * k);
        }
    }
}

template <class T>
[[gnu::always_inline]] inline void narrow_16(const floats (&from)[2], T* to) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        const words32 pairs
            = rounded_to_bfloat16(from[0]) >> 16 | (rounded_to_bfloat16(from[1]) & 0xffff0000u);
        __builtin_memcpy(static_cast<void*>(to), &pairs, sizeof pairs);
    } else if constexpr (sizeof(T) == 1) {
        float values[16];
        __builtin_memcpy(values, from, sizeof values);
        for (int i = 0; i < 16; ++i) to[i] = T(values[i]);
    } else {
        store_floats(from[0], to);
        store_floats(from[1], to + 8);
    }
}

/// result[i] = a[i] + b[i] for the leading groups of sixteen; returns the number of elements.
template <class T>
[[gnu::noinline]] int add_hop(T* result, const T* a, const T* b, int count) noexcept
{
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        floats x[2], y[2];
        widen_16(a + i, x);
        widen_16(b + i, y);
        x[0] += y[0];
        x[1] += y[1];
        narrow_16(x, result + i);
    }
    return i;
}

/// The same for products. That of two halves is exact in a float. That of two bfloat16 has 16 bits; so it is exact
/// from 2^-134 on, and below that is zero when rounded to bfloat16, once or twice. Those of 8 bits are exact. A `step`
/// of 0: the sixteen elements at `b` are the factors of all.
template <class T>
[[gnu::noinline]] int multiply_hop(T* result, const T* a, const T* b, int step, int count) noexcept
{
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        floats x[2], y[2];
        widen_16(a + i, x);
        widen_16(b + i * step, y);
        x[0] *= y[0];
        x[1] *= y[1];
        narrow_16(x, result + i);
    }
    return i;
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
