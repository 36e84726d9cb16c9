// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

/// Which code computes: portable, or by vectors of 32 bytes. Both give the same bits.
///
/// A kernel by vectors stands between COLLPROBE_BEGIN_VECTORS and COLLPROBE_END_VECTORS, in namespace `vectors`; it
/// computes with simd/vector.hpp. On x86-64 it is compiled for AVX2, FMA and F16C, and called only where the processor
/// has them; on ARM64 the same source is NEON. COLLPROBE_ON_ISA calls it. The front end of nvcc does not know the
/// compilers' vector extensions, so its host code takes the portable path.
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(__CUDACC__) && (defined(__GNUC__) || defined(__clang__))
#define COLLPROBE_VECTORS 1
/// The value of `call` by vectors, if `path` says so; else `portable`.
#define COLLPROBE_ON_ISA(path, portable, ...) (path == isa::vectors ? vectors::__VA_ARGS__ : portable)
#else
#define COLLPROBE_VECTORS 0
#define COLLPROBE_ON_ISA(path, portable, ...) (static_cast<void>(path), portable)
#endif

#if !COLLPROBE_VECTORS || !defined(__x86_64__)
#define COLLPROBE_BEGIN_VECTORS
#define COLLPROBE_END_VECTORS
#elif defined(__clang__)
#define COLLPROBE_BEGIN_VECTORS \
    _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define COLLPROBE_END_VECTORS _Pragma("clang attribute pop")
#else
#define COLLPROBE_BEGIN_VECTORS _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define COLLPROBE_END_VECTORS _Pragma("GCC pop_options")
#endif

#if defined(__clang__)
#define COLLPROBE_UNROLL_VECTORS _Pragma("unroll")
#else
#define COLLPROBE_UNROLL_VECTORS _Pragma("GCC unroll 8")
#endif

/// A function that is compiled for AVX2 with all functions that it calls, for loops that the compiler vectorises. It
/// does not use FMA, which would round differently, so its bits are those of the portable function.
#if COLLPROBE_VECTORS && defined(__x86_64__)
#define COLLPROBE_COMPILED_FOR_AVX2 __attribute__((noinline, flatten, target("avx2")))
#include <cpuid.h>
#else
#define COLLPROBE_COMPILED_FOR_AVX2
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

enum class isa : std::uint8_t { portable, vectors };

constexpr const char* name(isa path) noexcept
{
    if (path == isa::portable) return "portable";
#if defined(__aarch64__)
    return "neon";
#else
    return "avx2";
#endif
}

/// The fastest path that this machine can run.
#if COLLPROBE_VECTORS && defined(__x86_64__)
/// It asks the processor, and whether the system saves the registers. By CPUID itself: `__builtin_cpu_supports` reads a
/// table that zig's runtime library never fills.
inline isa newest_isa() noexcept
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned fma = 1u << 12, saves_registers = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5, ymm = 0x6;
    constexpr unsigned needed = fma | saves_registers | f16c;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & needed) != needed) return isa::portable;
    unsigned saved = 0, high = 0;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & ymm) != ymm || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return isa::portable;
    return (ebx & avx2) != 0 ? isa::vectors : isa::portable;
}
inline isa best_isa() noexcept
{
    static const isa newest = newest_isa();
    return newest;
}
#else
constexpr isa best_isa() noexcept { return COLLPROBE_VECTORS != 0 ? isa::vectors : isa::portable; }
#endif

/// Whether this machine can run a path.
inline bool supports(isa path) noexcept { return path <= best_isa(); }

/// Calls `work`, compiled for AVX2 if the processor has it: for loops over numbers, which the compiler vectorises.
template <class Work>
COLLPROBE_COMPILED_FOR_AVX2 void on_avx2(const Work& work) noexcept
{
    work();
}
template <class Work>
void vectorised(const Work& work) noexcept
{
    if (supports(isa::vectors)) on_avx2(work);
    else work();
}

} // namespace collprobe::detail
