// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/ptx/global_view.hpp"
#include "tests/support/ptx/warp.hpp"

namespace ptx {

/// What is known of a byte of shared memory: who used it since the block's last barrier.
struct shared_byte {
    enum : s16 { nobody = -1, several = -2 };
    u32 epoch = 0; ///< of the other members
    s16 writer = nobody; ///< its warp
    bool atomic = false; ///< written by atomic operations only
    u8 writer_lane = 0;
    u32 written_at = 0; ///< the writer's warp syncs until then
    s16 reader = nobody; ///< warp
    u32 reader_lanes = 0;
    u32 read_at = 0;
};

enum class access : u8 { read, write, atomic };

struct block {
    const kernel* of = nullptr;
    const schedule* how = nullptr;
    dims grid, threads;
    u64 index = 0;
    std::size_t dynamic_bytes = 0;
    const u8* parameters = nullptr;

    std::vector<warp> warps;
    std::vector<u8> register_memory, local_memory, shared_memory;
    std::vector<shared_byte> shared_bytes; ///< if checked
    u8* shared = nullptr;
    u32 shared_size = 0;

    u32 unfinished = 0; ///< threads
    u32 epoch = 0; ///< barriers so far, those of the runs before too
    global_view view; ///< with a seed
    bool yields = false; ///< other blocks shall have a turn now, and
    u64 rests = 0; ///< as many turns as this
    random_numbers random;
    counts sum;

    bool is_random() const { return how->seed != 0; }
};

/// Notes an access of shared memory, and throws `fault` if another thread's access is not ordered with it.
void check_race(warp&, const instruction&, u32 at, unsigned bytes, access, int lane);
enum class progress : u8 { paused, blocked };
/// Runs a warp until no lane can go on, or for `most` instructions.
progress advance(warp&, u64 most);

/// A block of a grid: memory for any of its blocks, then the start of one.
void set_up(block&, const kernel&, dims grid, dims threads, std::size_t dynamic_shared, const u8* parameters,
    const schedule&);
void begin(block&, u64 index);
/// Lets the threads at the barrier go on if all have come; returns whether it did.
bool pass_barriers(block&);
/// Throws `fault`: no thread can go on.
[[noreturn]] void fail_stuck(const block&);

} // namespace ptx
