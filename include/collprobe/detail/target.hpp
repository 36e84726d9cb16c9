// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include <collprobe/core/config.hpp>

/// Operations for which a GPU has an instruction of its own, and the same operations for the host. Only this header,
/// core/config.hpp and the headers of simd/ ask which compiler compiles them, or for which device.
#if defined(__CUDA_ARCH__)
/// Stands before a loop of device code: the compiler unrolls it fully, or not at all. Empty for the host, whose
/// compiler warns of unknown pragmas.
#define COLLPROBE_UNROLL _Pragma("unroll")
#define COLLPROBE_NO_UNROLL _Pragma("unroll 1")
/// Before a function that keeps work on the host within the scope of a floating-point mode.
#define COLLPROBE_HOST_NOINLINE
/// The first expression on a GPU, the second on the host.
#define COLLPROBE_BY_TARGET(device, host) device
#else
#define COLLPROBE_BY_TARGET(device, host) host
#define COLLPROBE_UNROLL
#define COLLPROBE_NO_UNROLL
#define COLLPROBE_HOST_NOINLINE __attribute__((noinline))
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether this is compiled for a GPU. For `if constexpr` in templates: the other branch is not compiled.
inline constexpr bool on_device = COLLPROBE_BY_TARGET(true, false);

/// The index of the highest set bit. Precondition: value != 0.
COLLPROBE_HD constexpr int highest_bit(std::uint64_t value) noexcept
{
    return 63 - COLLPROBE_BY_TARGET(__clzll(static_cast<long long>(value)), __builtin_clzll(value));
}

/// The logarithm of a power of two.
COLLPROBE_HD inline unsigned log2_of_power(std::uint64_t power) noexcept
{
    return static_cast<unsigned>(
        COLLPROBE_BY_TARGET(__ffsll(static_cast<long long>(power)) - 1, __builtin_ctzll(power)));
}

COLLPROBE_HD inline std::uint32_t set_bits(std::uint32_t word) noexcept
{
    return static_cast<std::uint32_t>(COLLPROBE_BY_TARGET(__popc(word), __builtin_popcount(word)));
}

/// The larger of the upper halves, and of the lower halves.
COLLPROBE_HD inline std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) noexcept
{
#if defined(__CUDA_ARCH__)
    return __vmaxu2(a, b);
#else
    const std::uint32_t low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff;
    return low | ((a >> 16) > (b >> 16) ? a >> 16 : b >> 16) << 16;
#endif
}

/// Atomic on a GPU, in memory that a block shares.
COLLPROBE_HD inline void add_to(std::uint32_t& sum, std::uint32_t value) noexcept
{
    COLLPROBE_BY_TARGET(atomicAdd(&sum, value), sum += value);
}
COLLPROBE_HD inline void lower_to(std::uint64_t& least, std::uint64_t value) noexcept
{
#if defined(__CUDA_ARCH__)
    atomicMin(reinterpret_cast<unsigned long long*>(&least), static_cast<unsigned long long>(value));
#else
    if (value < least) least = value;
#endif
}

/// Sixteen bytes at an address that is a multiple of 16.
/// Precondition: no thread writes them while the kernel runs.
COLLPROBE_HD inline void load_constant_16(std::uint32_t (&words)[4], const unsigned char* from) noexcept
{
#if defined(__CUDA_ARCH__)
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(__cvta_generic_to_global(from)));
#else
    std::memcpy(words, from, 16);
#endif
}

/// Writes to an address that is a multiple of 16.
COLLPROBE_HD inline void store_16(unsigned char* to, const std::uint32_t (&words)[4]) noexcept
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
        :
        : "l"(__cvta_generic_to_global(to)), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
#else
    std::memcpy(to, words, 16);
#endif
}

/// Copies from an address that is a multiple of 16 to memory of any alignment.
COLLPROBE_HD inline void copy_16(void* to, const void* from) noexcept
{
#if defined(__CUDA_ARCH__)
    const uint4 word = *static_cast<const uint4*>(from);
    memcpy(to, &word, 16);
#else
    std::memcpy(to, from, 16);
#endif
}

/// a * b + c: fused on a GPU.
COLLPROBE_HD inline double multiply_add(double a, double b, double c) noexcept
{
    return COLLPROBE_BY_TARGET(__fma_rn(a, b, c), a * b + c);
}

/// The same in float, for products that are exact. Subnormal numbers count, whatever -ftz says.
COLLPROBE_HD inline float fused_multiply_add(float a, float b, float c) noexcept
{
#if defined(__CUDA_ARCH__)
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
#else
    return a * b + c;
#endif
}

/// Whether this code is for GPUs with an instruction that makes 8-bit floats.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
inline constexpr bool has_float8_instruction = true;
#else
inline constexpr bool has_float8_instruction = false;
#endif

/// The same number, subnormal numbers included. -ftz changes the instruction that the compiler emits, but not the
/// meaning of this instruction.
COLLPROBE_HD inline double exact_double(float value) noexcept
{
#if defined(__CUDA_ARCH__)
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
    return wide;
#else
    return value;
#endif
}

/// 1 / sqrt(x), but for the last digits.
COLLPROBE_HD inline float reciprocal_root(float x) noexcept
{
    return COLLPROBE_BY_TARGET(rsqrtf(x), 1 / __builtin_sqrtf(x));
}

/// The number with this pattern of binary16. For GPUs only. (A subnormal half is a normal float.)
COLLPROBE_HD inline float float_of_half_bits([[maybe_unused]] std::uint16_t bits) noexcept
{
#if defined(__CUDA_ARCH__)
    float single;
    asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(bits));
    return single;
#else
    __builtin_unreachable();
#endif
}

/// The numbers with the patterns of binary16 in the lower and the upper half of a word. For GPUs only.
COLLPROBE_HD inline void floats_of_half_bits(
    [[maybe_unused]] std::uint32_t bits, [[maybe_unused]] float& low, [[maybe_unused]] float& high) noexcept
{
#if defined(__CUDA_ARCH__)
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(low), "=f"(high)
        : "r"(bits));
#else
    __builtin_unreachable();
#endif
}

/// The nearest float, ties to even, subnormal results included.
COLLPROBE_HD inline float nearest_float(double value) noexcept
{
#if defined(__CUDA_ARCH__)
    float nearest;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(nearest) : "d"(value));
    return nearest;
#else
    return static_cast<float>(value);
#endif
}

} // namespace collprobe::detail
