// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/wait.hpp>

/// Memory that enqueued work uses: the order of that work, and the time at which the memory may be freed.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether work on streams of this kind can be captured in a graph.
template <class StreamRef>
concept can_capture = requires(StreamRef stream, call_site where) { stream.capturing(where); };

/// Runs `enqueue`, and then records `done` on the stream, also if `enqueue` throws: the buffers must outlive the work
/// that it has enqueued until then.
template <class Event, class StreamRef, class Enqueue>
void enqueue_marked(Event& done, StreamRef stream, const Enqueue& enqueue)
{
    try {
        enqueue();
    } catch (...) {
        try {
            done.record(stream);
        } catch (...) { // keep the first error, which tells more
        }
        throw;
    }
    done.record(stream);
}

/// Waits for the work in front of `done`, which uses memory. Never throws. Returns false if work is left at the
/// deadline.
template <class Event>
bool finished_by(deadline until, const Event& done) noexcept
{
    if (!done.recorded()) return true;
    try {
        done.synchronize(until.remaining_ms());
        return true;
    } catch (...) { // the time is over, or the work failed
    }
    try {
        return done.query();
    } catch (...) {
        return true; // failed work no longer uses the memory either
    }
}

/// The order of calls that use the same memory, on one stream or on several.
template <class Device>
struct ordered_use {
    typename Device::event done; ///< the end of the last call: no later work uses the memory
    typename Device::event done_in_capture; ///< the last one of `capture`, a point of its graph
    unsigned long long capture = 0;

    /// Makes `stream` wait for the last call. Returns the event that must mark the end of this call. Calls of one
    /// capture use one event and calls outside of captures use another, because neither kind can wait for the other.
    template <class StreamRef>
    typename Device::event& wait_for_last(StreamRef stream, call_site where)
    {
        if constexpr (can_capture<StreamRef>) {
            if (stream.capturing(where)) {
                const unsigned long long number = stream.capture_number(where);
                if (number != capture) done_in_capture = {};
                capture = number;
                if (done_in_capture.recorded()) stream.wait(done_in_capture, where);
                return done_in_capture;
            }
        }
        if (done.recorded()) stream.wait(done, where);
        return done;
    }
};

/// Memory that may be leaked on purpose.
struct leakable {
    leakable* leaked_before = nullptr;
};

/// Leaks `used`, because a device may write there until the process ends and no call can stop the device. All leaked
/// memory stays reachable, so that a leak checker does not report it.
inline void leak(leakable& used) noexcept
{
    static std::atomic<leakable*> last{nullptr};
    used.leaked_before = last.exchange(&used);
}

/// The error of an object that was moved from. The object does not know its caller.
[[noreturn]] inline void fail_moved_from()
{
    throw error(status::invalid_argument, "the object was moved from: it can only be destroyed or assigned to",
        {.where = {}});
}

/// Owns a `Memory`, at an address that stays, while work on streams uses it. The destructor waits for that work, at
/// most the time-out, and leaks the memory if work is left then. `Memory` provides the wait: `bool
/// finished_by(deadline) const noexcept`. A handle that was moved from is empty: access throws `invalid_argument`.
template <class Memory>
class in_flight {
public:
    /// Empty.
    in_flight() = default;
    /// Allocates. `timeout_ms`: a negative number means for ever.
    template <class... Arguments>
    explicit in_flight(std::int64_t timeout_ms, Arguments&&... arguments)
        : held_(new held{{}, Memory(std::forward<Arguments>(arguments)...)}), timeout_ms_(timeout_ms)
    {
    }
    in_flight(in_flight&& other) noexcept
        : held_(std::exchange(other.held_, nullptr)), timeout_ms_(other.timeout_ms_)
    {
    }
    /// Gives up the memory that it held, as the destructor does.
    in_flight& operator=(in_flight&& other) noexcept
    {
        in_flight taken(std::move(other));
        std::swap(held_, taken.held_);
        std::swap(timeout_ms_, taken.timeout_ms_);
        return *this;
    }
    ~in_flight()
    {
        if (held_ == nullptr) return;
        if (held_->memory.finished_by(deadline::in_ms(timeout_ms_))) delete held_;
        else leak(*held_);
    }

    /// Leaks the memory now, without waiting.
    void leak_now() noexcept
    {
        if (held_ != nullptr) leak(*std::exchange(held_, nullptr));
    }

    explicit operator bool() const noexcept { return held_ != nullptr; }
    Memory& operator*() const
    {
        if (held_ == nullptr) fail_moved_from();
        return held_->memory;
    }
    Memory* operator->() const { return &**this; }

private:
    struct held : leakable {
        Memory memory;
    };
    held* held_ = nullptr;
    std::int64_t timeout_ms_ = -1;
};

/// Move assignment for an object of several parts that must be destroyed in the order of its destructor: the memory
/// first, then the communicator whose work uses the memory.
template <class T>
T& replace(T& target, T&& other) noexcept
{
    static_assert(std::is_nothrow_move_constructible_v<T>);
    if (&target == &other) return target;
    target.~T();
    return *::new (static_cast<void*>(&target)) T(std::move(other));
}

} // namespace collprobe::detail
