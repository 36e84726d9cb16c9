// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The exact value. A float is widened without flushing subnormal numbers, whatever -ftz says: the flag
/// chooses the instruction that the compiler emits, not the meaning of this one.
template <element T>
COLLPROBE_HD inline double widen(T value) noexcept
{
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, float>) {
        double wide;
        asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
        return wide;
    } else if constexpr (std::is_same_v<T, float16>) {
        float single; // a subnormal half is a normal float
        asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(value.bits));
        return widen(single);
    } else if constexpr (floating_element<T> && sizeof(T) < sizeof(float)) {
        return widen(static_cast<float>(value));
    } else {
        return static_cast<double>(value);
    }
#else
    return static_cast<double>(value);
#endif
}

COLLPROBE_HD inline double multiply_add(double a, double b, double c) noexcept
{
#if defined(__CUDA_ARCH__)
    return __fma_rn(a, b, c);
#else
    return a * b + c;
#endif
}

} // namespace collprobe::detail
