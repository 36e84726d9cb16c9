// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Code for the instruction sets of the processor, whatever flags the including file is compiled with:
//
//     #define COLLPROBE_KERNEL <collprobe/scan/detail/digest_kernel.hpp>
//     #include <collprobe/simd/dispatch.hpp>
//
// compiles a kernel file once for each set beyond the baseline, in a namespace of its own. The kernel is one text; only
// the vector's width and the namespace differ, so all instances share their logic and their bits. It computes with
// `simd/vector.hpp`. COLLPROBE_ON_ISA calls an instance.
#if !defined(COLLPROBE_ON_ISA)

#include <cstdint>

#include <collprobe/core/config.hpp>

/// Whether the AVX2 and AVX-512 instances are compiled. The front end of nvcc does not know the vector extensions
/// that they use, so its host code takes the portable path, which gives the same bits.
#if defined(__x86_64__) && !defined(__CUDACC__) && (defined(__GNUC__) || defined(__clang__))
#define COLLPROBE_X86_SIMD 1
/// The value of `call` in the instance of a kernel for `path`; `portable` if there is none.
#define COLLPROBE_ON_ISA(path, portable, ...) \
    (path == isa::avx512 ? avx512::__VA_ARGS__ : path == isa::avx2 ? avx2::__VA_ARGS__ : portable)
/// A function that is compiled for AVX2 with all functions that it calls, for loops that the compiler vectorises. It
/// does not use FMA, which would round differently, so its bits are those of the portable function.
#define COLLPROBE_COMPILED_FOR_AVX2 __attribute__((noinline, flatten, target("avx2")))
#include <cpuid.h>
#else
#define COLLPROBE_X86_SIMD 0
#define COLLPROBE_ON_ISA(path, portable, ...) (portable)
#define COLLPROBE_COMPILED_FOR_AVX2
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

enum class isa : std::uint8_t { portable, avx2, avx512 };

constexpr const char* name(isa path) noexcept
{
    switch (path) {
    case isa::portable: return "portable";
    case isa::avx2: return "avx2";
    case isa::avx512: return "avx512";
    }
    return "unknown";
}

#if COLLPROBE_X86_SIMD
/// The newest path that the processor has, and whose registers the system saves. By CPUID itself:
/// `__builtin_cpu_supports` reads a table that zig's runtime library never fills.
inline isa newest_isa() noexcept
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned fma = 1u << 12, saves_registers = 1u << 27, f16c = 1u << 29;
    constexpr unsigned needed = fma | saves_registers | f16c;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & needed) != needed) return isa::portable;
    unsigned saved = 0, high = 0;
    asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    constexpr unsigned ymm = 0x6, zmm = 0xe6;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return isa::portable;
    constexpr unsigned avx2 = 1u << 5, foundation = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    if ((saved & ymm) != ymm || (ebx & avx2) == 0) return isa::portable;
    constexpr unsigned avx512 = foundation | dq | bw | vl;
    return (saved & zmm) == zmm && (ebx & avx512) == avx512 ? isa::avx512 : isa::avx2;
}
#endif

inline isa best_isa() noexcept
{
#if COLLPROBE_X86_SIMD
    static const isa newest = newest_isa();
    return newest;
#else
    return isa::portable;
#endif
}

/// Whether this machine can run a path.
inline bool supports(isa path) noexcept { return path <= best_isa(); }

} // namespace collprobe::detail

#endif

#if defined(COLLPROBE_KERNEL)
#if COLLPROBE_X86_SIMD

#if defined(__clang__)
#define COLLPROBE_ISA_UNROLL _Pragma("unroll")
#else
#define COLLPROBE_ISA_UNROLL _Pragma("GCC unroll 8")
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define COLLPROBE_ISA_NAMESPACE avx2
#define COLLPROBE_ISA_WIDTH 32
#define COLLPROBE_ISA_REGISTER "x"
#include COLLPROBE_KERNEL
#undef COLLPROBE_ISA_NAMESPACE
#undef COLLPROBE_ISA_WIDTH
#undef COLLPROBE_ISA_REGISTER
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define COLLPROBE_ISA_NAMESPACE avx512
#define COLLPROBE_ISA_WIDTH 64
#define COLLPROBE_ISA_REGISTER "v"
#define COLLPROBE_ISA_AVX512
#include COLLPROBE_KERNEL
#undef COLLPROBE_ISA_NAMESPACE
#undef COLLPROBE_ISA_WIDTH
#undef COLLPROBE_ISA_REGISTER
#undef COLLPROBE_ISA_AVX512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef COLLPROBE_ISA_UNROLL

#endif
#undef COLLPROBE_KERNEL
#endif
