// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/config.hpp>
#include <collprobe/detail/gradual_underflow.hpp>

namespace collprobe::detail {

/// Keeps the compiler from seeing through: what was computed before is in memory, rounded, and is read
/// from there afterwards. Without it `-ffast-math` may reassociate a sum across ranks, and any build
/// that has fused multiply-add may fuse a scaling with the addition behind it.
inline void settle(void* memory) noexcept { asm volatile("" : : "r"(memory) : "memory"); }

} // namespace collprobe::detail
