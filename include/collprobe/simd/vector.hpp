// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

/// What the host kernels need of the processor, without <immintrin.h>: that header alone costs an
/// including file more time than all of collprobe.
///
/// COLLPROBE_X86_SIMD tells whether the AVX2 and AVX-512 instances of the kernels are compiled. nvcc's
/// front end does not know the vector extensions they are written in, so its host code takes the
/// portable path, which gives the same bits.
#if defined(__x86_64__) && !defined(__CUDACC__) && (defined(__GNUC__) || defined(__clang__))
#define COLLPROBE_X86_SIMD 1
#else
#define COLLPROBE_X86_SIMD 0
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

#if COLLPROBE_X86_SIMD
template <class Element, int bytes>
struct vector_of {
    typedef Element type __attribute__((vector_size(bytes)));
};
template <class Element, int bytes>
using vector = typename vector_of<Element, bytes>::type;
#endif

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

/// Whether this machine can run a path. `__builtin_cpu_supports` is a load and a test: no cache needed.
inline bool supports([[maybe_unused]] isa path) noexcept
{
#if COLLPROBE_X86_SIMD
    // clang 14 cannot be asked for F16C; every processor with AVX2 has it.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (path == isa::avx2) return avx2;
    if (path == isa::avx512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return path == isa::portable;
}

inline isa best_isa() noexcept
{
    return supports(isa::avx512) ? isa::avx512 : supports(isa::avx2) ? isa::avx2 : isa::portable;
}

} // namespace collprobe::detail
