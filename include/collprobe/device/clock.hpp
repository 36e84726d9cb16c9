// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/wait.hpp>

/// Moments on the clock of a device, small enough to travel with each call of a step.
namespace collprobe::inline COLLPROBE_ABI {

/// A moment in ticks of 256 ns, modulo 2^32 (18 minutes). Two stamps of one device tell the time between them; stamps
/// of two devices have nothing to do with each other.
using clock_stamp = std::uint32_t;

/// The nanoseconds from one moment to another of the same device; negative if `to` came first. Precondition: they are
/// less than 9 minutes apart.
COLLPROBE_HD constexpr double nanoseconds_between(clock_stamp from, clock_stamp to) noexcept
{
    return 256.0 * static_cast<std::int32_t>(to - from);
}

/// Where `device::reduce` notes the device's clock, in memory that the device writes; null: not noted.
struct reduction_times {
    clock_stamp* begun = nullptr; ///< when the reduction begins to read
    clock_stamp* done = nullptr; ///< when its result is written
};

namespace detail {

COLLPROBE_HD constexpr clock_stamp stamp_of(std::uint64_t nanoseconds) noexcept
{
    return static_cast<clock_stamp>(nanoseconds >> 8);
}
/// The clock of the host.
inline clock_stamp host_stamp() noexcept
{
    return stamp_of(static_cast<std::uint64_t>(deadline::now_ns()));
}

/// Calls `reduce()` on the host and notes its times.
template <class Reduce>
void note_times(const reduction_times& times, const Reduce& reduce)
{
    if (times.begun != nullptr) *times.begun = host_stamp();
    reduce();
    if (times.done != nullptr) *times.done = host_stamp();
}

} // namespace detail
} // namespace collprobe
