// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstring>
#include <string>

#include "tests/support/ptx/program.hpp"

/// The state of a warp, and its registers.
namespace ptx {

struct block;

struct warp {
    /// Lanes at the same instruction.
    struct group {
        u32 pc = 0;
        u32 mask = 0;
        bool waits = false; ///< for other lanes of the warp
    };

    block* in = nullptr;
    u32 number = 0;
    u32 live = 0; ///< lanes that have not ended
    std::vector<group> groups; ///< that can go on, or wait for lanes of this warp
    std::vector<group> at_barrier;
    u8* registers = nullptr;
    u64 local = 0; ///< local memory of lane 0
    u64 local_bytes = 0; ///< of a lane
    memory_range known; ///< the device memory that was used last
    u32 syncs = 0; ///< `bar.warp.sync` so far
};

template <class T>
T* values(warp& w, slot at)
{
    return reinterpret_cast<T*>(w.registers + at);
}

/// Calls `body(lane)` for the lanes of a mask. The compiler makes vector code of the case of all lanes.
template <class Body>
[[gnu::always_inline]] inline void each_lane(u32 mask, Body body)
{
    if (mask == ~u32{0}) {
#ifndef __clang__
#pragma GCC ivdep
#endif
        for (int lane = 0; lane < 32; ++lane) body(lane);
    } else {
        for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
    }
}

/// The lanes for which a predicate is true.
inline u32 lanes_of(const warp& w, slot predicate)
{
    u32 mask = 0;
    for (int quarter = 0; quarter < 4; ++quarter) {
        u64 bytes;
        std::memcpy(&bytes, w.registers + predicate + 8 * quarter, 8);
        mask |= static_cast<u32>(((bytes & 0x0101010101010101u) * 0x0102040810204080u) >> 56)
            << (8 * quarter);
    }
    return mask;
}

/// Throws the fault with kernel, block, warp, lane, line and text.
[[noreturn]] void fail(const warp&, const instruction&, int lane, const std::string& why);

} // namespace ptx
