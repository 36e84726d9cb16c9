// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

/// Barriers against the optimiser. They order nothing between threads.
namespace collprobe::inline COLLPROBE_ABI::detail {

#if defined(__SSE2__)
#define COLLPROBE_FLOAT_REGISTER "+x"
#elif defined(__aarch64__)
#define COLLPROBE_FLOAT_REGISTER "+w"
#else
#define COLLPROBE_FLOAT_REGISTER "+m"
#endif

/// The same value, hidden from the optimiser. So a product is not fused with the sum that it enters (a fused
/// multiply-add would round differently on each path), and `-ffast-math` does not reassociate across it. Device code
/// gets the value as it is.
/// Cost: no instruction on x86-64 and ARM64.
template <class Float>
COLLPROBE_HD inline Float opaque(Float value) noexcept
{
#if !defined(__CUDA_ARCH__)
    asm("" : COLLPROBE_FLOAT_REGISTER(value));
#endif
    return value;
}

/// The same for a divisor: `volatile` keeps the barrier inside a loop. If the compiler could move it out,
/// `-freciprocal-math` would divide once and multiply by the reciprocal in the loop.
template <class Float>
COLLPROBE_HD inline Float opaque_divisor(Float value) noexcept
{
#if !defined(__CUDA_ARCH__)
    asm volatile("" : COLLPROBE_FLOAT_REGISTER(value));
#endif
    return value;
}

#undef COLLPROBE_FLOAT_REGISTER

/// Makes the compiler write values to memory, rounded, that were computed before, and read them from there
/// afterwards.
COLLPROBE_HD inline void compiler_barrier([[maybe_unused]] void* memory) noexcept
{
#if !defined(__CUDA_ARCH__)
    asm volatile("" : : "r"(memory) : "memory");
#endif
}

} // namespace collprobe::detail
