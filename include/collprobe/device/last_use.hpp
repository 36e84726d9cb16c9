// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/wait.hpp>

/// When memory that enqueued work uses may go.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether work on streams of this kind can be captured in a graph.
template <class StreamRef>
concept can_capture = requires(StreamRef stream, call_site where) { stream.capturing(where); };

/// Runs `enqueue` and marks with `done` how far the stream is then, also if `enqueue` throws: the
/// buffers must outlive what it has enqueued by then.
template <class Event, class StreamRef, class Enqueue>
void enqueue_marked(Event& done, StreamRef stream, const Enqueue& enqueue)
{
    try {
        enqueue();
    } catch (...) {
        try {
            done.record(stream);
        } catch (...) { // the first error tells more
        }
        throw;
    }
    done.record(stream);
}

/// Waits for the end of work that uses buffers which are about to go; never throws. False if work is
/// left at the deadline.
template <class Event>
bool settle(const Event& done, deadline until) noexcept
{
    if (!done.recorded()) return true;
    try {
        done.synchronize(until.is_never() ? -1 : (until.remaining_ns() + 999'999) / 1'000'000);
        return true;
    } catch (...) { // time is over, or the work failed
    }
    try {
        return done.query();
    } catch (...) {
        return true; // failed work no longer uses the buffers either
    }
}

/// Leaks `used` on purpose: a device may write there until the process ends, and there is no way to stop
/// it. It stays reachable by its member `given_up_before`, so that a leak checker tells it from what was
/// forgotten.
template <class Memory>
void give_up(Memory* used) noexcept
{
    static std::atomic<Memory*> last{nullptr};
    used->given_up_before = last.exchange(used);
}

} // namespace collprobe::detail
