// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/simd/barrier.hpp>
#include <collprobe/simd/gradual_underflow.hpp> // goes with everything here

/// Arithmetic that rounds once per operation, to the type of the operands, whatever the flags of the build. On the
/// CPU this needs two things. Each result is protected against reassociation and fusing, which `-ffast-math` allows;
/// and `gradual_underflow` lives around the work. Device code names the instruction in PTX. The flags `-fmad`, `-ftz`
/// and `--use_fast_math` change the meaning of `+`, of `*` and of CUDA's intrinsics, but not of PTX.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Like `opaque`, for loops that are to be vectorised: a value goes through integers, and the compiler does not know
/// that these are combined with zero. Does nothing except where g++ may reassociate (see below).
template <class Float>
class hidden {
public:
#if defined(__ASSOCIATIVE_MATH__) && !defined(__CUDACC__)
    hidden() noexcept { asm("" : "+r"(zero_)); }
    Float operator()(Float value) const noexcept
    {
        return __builtin_bit_cast(Float, __builtin_bit_cast(bits_type, value) ^ zero_);
    }

private:
    using bits_type = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;
    bits_type zero_ = 0;
#else
    COLLPROBE_HD hidden() noexcept {}
    COLLPROBE_HD Float operator()(Float value) const noexcept { return value; }
#endif
};

// The code below must hold for a build that may reassociate. clang++ has a pragma. g++ has a barrier, but its
// vectoriser drops it, so a loop that uses its own earlier results takes `hidden`, too. The front end of nvcc knows
// neither, so its host code is opaque.
#if defined(__CUDACC__) && !defined(__clang__)
#define COLLPROBE_ROUNDED(expression) return opaque(expression)
#elif defined(__clang__)
#define COLLPROBE_ROUNDED(expression) \
    _Pragma("clang fp reassociate(off) contract(off)") return (expression)
#else
#define COLLPROBE_ROUNDED(expression) return __builtin_assoc_barrier(expression)
#endif

COLLPROBE_HD inline float rounded_sum(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    COLLPROBE_ROUNDED(a + b);
#endif
}

COLLPROBE_HD inline double rounded_sum(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double sum;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(sum) : "d"(a), "d"(b));
    return sum;
#else
    COLLPROBE_ROUNDED(a + b);
#endif
}

COLLPROBE_HD inline float rounded_difference(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float difference;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));
    return difference;
#else
    COLLPROBE_ROUNDED(a - b);
#endif
}

COLLPROBE_HD inline double rounded_difference(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double difference;
    asm("sub.rn.f64 %0, %1, %2;" : "=d"(difference) : "d"(a), "d"(b));
    return difference;
#else
    COLLPROBE_ROUNDED(a - b);
#endif
}

COLLPROBE_HD inline float rounded_product(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#else
    COLLPROBE_ROUNDED(a * b);
#endif
}

COLLPROBE_HD inline double rounded_product(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double product;
    asm("mul.rn.f64 %0, %1, %2;" : "=d"(product) : "d"(a), "d"(b));
    return product;
#else
    COLLPROBE_ROUNDED(a * b);
#endif
}

/// Protected against `-freciprocal-math` (see `opaque_divisor`). Computed in double, because g++ takes an estimate
/// for several floats at a time. A second rounding does not change a quotient with more than twice the bits.
COLLPROBE_HD inline float rounded_quotient(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
#else
    return static_cast<float>(static_cast<double>(a) / opaque_divisor(static_cast<double>(b)));
#endif
}

COLLPROBE_HD inline double rounded_quotient(double a, double b) noexcept
{
#if defined(__CUDA_ARCH__)
    double quotient;
    asm("div.rn.f64 %0, %1, %2;" : "=d"(quotient) : "d"(a), "d"(b));
    return quotient;
#else
    return a / opaque_divisor(b);
#endif
}

#undef COLLPROBE_ROUNDED

} // namespace collprobe::detail
