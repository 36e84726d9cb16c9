// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/config.hpp>
#include <collprobe/detail/gradual_underflow.hpp>

/// Arithmetic that rounds once per operation, whatever the flags of the build. On the CPU that takes
/// two things around it: `gradual_underflow` while it runs, and `settle` behind each result. In device
/// code the instruction is named: `-fmad`, `-ftz` and `--use_fast_math` change what the compiler makes
/// of `+` and `*` (and of CUDA's intrinsics), but not what is written in PTX.
namespace collprobe::detail {

/// Keeps the compiler from seeing through: what was computed before is in memory, rounded, and is read
/// from there afterwards. Without it `-ffast-math` may reassociate a sum across ranks, and any build
/// that has fused multiply-add may fuse a scaling with the addition behind it.
COLLPROBE_HD inline void settle([[maybe_unused]] void* memory) noexcept
{
#if !defined(__CUDA_ARCH__)
    asm volatile("" : : "r"(memory) : "memory");
#endif
}

COLLPROBE_HD inline float rounded_sum(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return a + b;
#endif
}

COLLPROBE_HD inline double rounded_sum(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double sum;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(sum) : "d"(a), "d"(b));
    return sum;
#else
    return a + b;
#endif
}

COLLPROBE_HD inline float rounded_product(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#else
    return a * b;
#endif
}

COLLPROBE_HD inline double rounded_product(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double product;
    asm("mul.rn.f64 %0, %1, %2;" : "=d"(product) : "d"(a), "d"(b));
    return product;
#else
    return a * b;
#endif
}

/// The same number in double, subnormal numbers included.
COLLPROBE_HD inline double widened(float value) noexcept
{
#if defined(__CUDA_ARCH__)
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
    return wide;
#else
    return value;
#endif
}

} // namespace collprobe::detail
