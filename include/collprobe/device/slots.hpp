// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

/// How a reduction on a GPU is cut into parts.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Threads of a block, and the bytes that a block takes in at once: 16 for each thread. Those bytes are a round, half
/// a period of the digest.
inline constexpr unsigned block_threads = 256;
inline constexpr unsigned round_bytes = 16 * block_threads;

/// The cut of a buffer into slots. A block reduces one slot at a time and leaves one partial result of it.
struct slot_plan {
    std::uint64_t length; ///< elements of a slot; the last may be shorter
    std::uint64_t slots;
};

/// Whether a block can count the elements of a slot: kernels count in 32 bits. False from about 2^44 elements of a
/// buffer on.
constexpr bool has_countable_slots(const slot_plan& plan) noexcept { return plan.length <= 0xffffffffu; }

/// Cuts `count` elements into at most 4096 slots of an even number of rounds. The cut depends on the count alone, so
/// neither the GPU nor the number of blocks changes the order of additions.
///
/// A small buffer has many slots, so that every multiprocessor gets one. From 128 KiB on, the work done once for each
/// slot (a block reduction of some 200 instructions a thread) costs a few percent of reading the slot. The length of
/// a long slot is a multiple of four rounds, because a thread has four in flight together.
/// Precondition: `element_bytes` is a power of two of at most `round_bytes`.
COLLPROBE_HD constexpr slot_plan plan_slots(std::uint64_t count, std::uint64_t element_bytes) noexcept
{
    constexpr std::uint64_t most_slots = 4096;
    constexpr std::uint64_t shortest = 2 * round_bytes;
    constexpr std::uint64_t good = 32 * round_bytes;
    // In units of rounds, so that no count overflows.
    const std::uint64_t per_round = round_bytes / element_bytes;
    const std::uint64_t rounds = count / per_round + (count % per_round != 0 ? 1 : 0);
    const std::uint64_t spread = (rounds + 1023) / 1024;
    std::uint64_t length = spread < shortest / round_bytes ? shortest / round_bytes
        : spread > good / round_bytes                      ? good / round_bytes
                                                            : spread;
    const std::uint64_t least = (rounds + most_slots - 1) / most_slots;
    if (length < least) length = least;
    if (length > 2) length = (length + 3) / 4 * 4;
    return {length * per_round, (rounds + length - 1) / length};
}

} // namespace collprobe::detail
