// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/config.hpp>

namespace collprobe::detail {

/// Keeps the compiler from seeing through: what was computed before is in memory, rounded, and is read
/// from there afterwards. Without it `-ffast-math` may reassociate a sum across ranks, and any build
/// that has fused multiply-add may fuse a scaling with the addition behind it.
inline void settle(void* memory) noexcept { asm volatile("" : : "r"(memory) : "memory"); }

/// While it lives the thread computes with subnormal numbers, as IEEE 754 has it. A program linked
/// with `-ffast-math` starts with them flushed to zero, which every thread inherits.
class gradual_underflow {
public:
#if defined(__SSE__)
    gradual_underflow() noexcept : before_(__builtin_ia32_stmxcsr())
    {
        if ((before_ & flush) != 0) __builtin_ia32_ldmxcsr(before_ & ~flush);
    }
    ~gradual_underflow()
    {
        if ((before_ & flush) != 0) __builtin_ia32_ldmxcsr(before_);
    }

private:
    static constexpr unsigned flush = 0x8040; // flush-to-zero, denormals-are-zero
    unsigned before_;
#elif defined(__aarch64__)
    gradual_underflow() noexcept
    {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        if ((before_ & flush) != 0) asm volatile("msr fpcr, %0" : : "r"(before_ & ~flush));
    }
    ~gradual_underflow()
    {
        if ((before_ & flush) != 0) asm volatile("msr fpcr, %0" : : "r"(before_));
    }

private:
    static constexpr std::uint64_t flush = std::uint64_t{1} << 24;
    std::uint64_t before_;
#else
    gradual_underflow() noexcept {}
    ~gradual_underflow() {}

private:
#endif
    gradual_underflow(const gradual_underflow&) = delete;
    gradual_underflow& operator=(const gradual_underflow&) = delete;
};

} // namespace collprobe::detail
