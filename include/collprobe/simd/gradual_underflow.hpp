// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// While it lives, the calling thread computes with subnormal numbers, as IEEE 754 demands. A program linked with
/// `-ffast-math` starts with subnormal numbers flushed to zero, and every thread inherits that mode. Device code has
/// no such mode: each instruction says it.
///
/// Precondition: floating-point work that needs this is in a function that is not inlined into its scope; else the
/// compiler may move the work out.
class gradual_underflow {
public:
    COLLPROBE_HD gradual_underflow() noexcept : before_(mode())
    {
        if ((before_ & flush) != 0) set_mode(before_ & ~flush);
    }
    COLLPROBE_HD ~gradual_underflow()
    {
        if ((before_ & flush) != 0) set_mode(before_);
    }
    gradual_underflow(const gradual_underflow&) = delete;
    gradual_underflow& operator=(const gradual_underflow&) = delete;

private:
#if defined(__SSE__) && !defined(__CUDA_ARCH__)
    using mode_bits = unsigned;
    static constexpr mode_bits flush = 0x8040; // flush-to-zero, denormals-are-zero
    COLLPROBE_HD static mode_bits mode() noexcept
    {
        mode_bits bits;
        asm volatile("stmxcsr %0" : "=m"(bits));
        return bits;
    }
    COLLPROBE_HD static void set_mode(mode_bits bits) noexcept { asm volatile("ldmxcsr %0" : : "m"(bits)); }
#elif defined(__aarch64__) && !defined(__CUDA_ARCH__)
    using mode_bits = std::uint64_t;
    static constexpr mode_bits flush = mode_bits{1} << 24;
    COLLPROBE_HD static mode_bits mode() noexcept
    {
        mode_bits bits;
        asm volatile("mrs %0, fpcr" : "=r"(bits));
        return bits;
    }
    COLLPROBE_HD static void set_mode(mode_bits bits) noexcept { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#else
    using mode_bits = unsigned;
    static constexpr mode_bits flush = 1;
    COLLPROBE_HD static mode_bits mode() noexcept { return 0; }
    COLLPROBE_HD static void set_mode(mode_bits) noexcept {}
#endif
    mode_bits before_;
};

} // namespace collprobe::detail
