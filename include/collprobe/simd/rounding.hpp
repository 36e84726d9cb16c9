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

/// `name(a, b)` for float and double, by the operator or by the instruction of PTX.
#if defined(__CUDA_ARCH__)
#define COLLPROBE_ROUNDED_OPERATION(name, sign, instruction) \
    COLLPROBE_HD inline float name(float a, float b) noexcept \
    { \
        float result; \
        asm(instruction ".rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b)); \
        return result; \
    } \
    COLLPROBE_HD inline double name(double a, double b) noexcept \
    { \
        double result; \
        asm(instruction ".rn.f64 %0, %1, %2;" : "=d"(result) : "d"(a), "d"(b)); \
        return result; \
    }
#else
#define COLLPROBE_ROUNDED_OPERATION(name, sign, instruction) \
    COLLPROBE_HD inline float name(float a, float b) noexcept { COLLPROBE_ROUNDED(a sign b); } \
    COLLPROBE_HD inline double name(double a, double b) noexcept { COLLPROBE_ROUNDED(a sign b); }
#endif
COLLPROBE_ROUNDED_OPERATION(rounded_sum, +, "add")
COLLPROBE_ROUNDED_OPERATION(rounded_difference, -, "sub")
COLLPROBE_ROUNDED_OPERATION(rounded_product, *, "mul")

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

#undef COLLPROBE_ROUNDED_OPERATION
#undef COLLPROBE_ROUNDED

} // namespace collprobe::detail
