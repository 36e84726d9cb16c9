// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/mutex.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/task_queue.hpp>
#include <collprobe/detail/thread.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/order/hooks.hpp>

/// Streams and events of the CPU, with CUDA's meaning. A stream is a FIFO served by a thread of its
/// own, so a missing event is a real race here: it can be provoked, and ThreadSanitizer reports it.
namespace collprobe::inline COLLPROBE_ABI::host {

class event;

namespace detail {

using collprobe::detail::deadline;
using collprobe::detail::ref;

/// What a stream and the events recorded on it share; outlives the stream while an event refers to it.
class stream_state : public collprobe::detail::ref_counted {
public:
    collprobe::detail::task_queue queue;
    std::atomic<std::uint64_t> synchronizations{0};
    const std::uint64_t id = next_id();

    /// The stream that the calling thread serves, if any: waiting for it there would never end.
    static const stream_state*& served_here() noexcept
    {
        static thread_local const stream_state* served = nullptr;
        return served;
    }

    /// Runs on the stream's thread until the stop task.
    void serve() noexcept;

    /// Whether task `number` and all before it are done. True acquires what they did; false nothing.
    bool is_done(std::uint64_t number) const noexcept
    {
        return completed_.load(std::memory_order_relaxed) >= number
            && completed_.load(std::memory_order_acquire) >= number;
    }

    /// Blocks the calling thread until task `number` is done; false if the deadline passed first.
    bool wait(std::uint64_t number, deadline until) noexcept;

    /// The error that a task up to `number` left, if it has not surfaced yet.
    std::exception_ptr error_before(std::uint64_t number) noexcept;
    /// The same, and forgets it: tasks pushed from now on run again.
    std::exception_ptr take_error_before(std::uint64_t number) noexcept;

private:
    static constexpr std::uint64_t nobody = UINT64_MAX;

    static std::uint64_t next_id() noexcept
    {
        static std::atomic<std::uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
    }

    void run(collprobe::detail::task& next, std::uint64_t number) noexcept;

    /// The stream's side. It changes nothing, but as a write: either this sees what a waiter has announced, or the
    /// waiter reads from this and sees what is done. Nothing is acquired, so the stream is not ordered after a waiter.
    std::uint64_t earliest_awaited() noexcept { return awaited_.fetch_or(0, std::memory_order_release); }
    void wake_waiters() noexcept;
    /// A waiter's side: the stream will wake it when task `number` is done.
    void announce(std::uint64_t number) noexcept;

    std::atomic<std::uint64_t> completed_{0};
    // A task no later than the first that a thread waits for: until then nobody is woken.
    std::atomic<std::uint64_t> awaited_{nobody};
    std::atomic<std::uint32_t> wakes_{0};
    std::atomic<bool> failed_{false};
    collprobe::detail::mutex error_guard_;
    std::exception_ptr error_;
    std::uint64_t failed_at_ = 0;
};

/// Blocks the calling host thread until task `number` of `state` is done.
void synchronize(
    stream_state& state, std::uint64_t number, const char* what, std::int64_t timeout_ms, call_site where);

} // namespace detail

/// A borrowed stream: copy it freely, it must not outlive the `stream`. Any thread may use it.
///
/// Work runs in the order enqueued, on the stream's own thread. When a task throws, the exception
/// becomes the stream's error: tasks behind it are cancelled (but for waits), a stream that waits for an event behind
/// it fails too, and `synchronize` throws it (once; then the stream is usable again).
class stream_ref {
public:
    /// Appends `task` (a callable without arguments) and returns at once. Captures up to 240 bytes
    /// are stored in place; larger ones allocate. `task` may have a member
    /// `cancel(const std::exception_ptr&) noexcept`, called instead of it if earlier work failed.
    template <class Task>
    void enqueue(Task&& task) const
    {
        state("enqueue").queue.push([&](collprobe::detail::task& slot) { slot.emplace(std::forward<Task>(task)); });
    }

    /// Work enqueued from now on runs after what `awaited` captured. No host synchronisation.
    /// \throws error `invalid_argument` if the event was never recorded (CUDA would silently not wait).
    void wait(const event& awaited, call_site where = call_site::current()) const;

    /// Blocks the caller until all work enqueued before the call is done; throws the stream's error.
    void synchronize(call_site where = call_site::current()) const { synchronize(-1, where); }
    /// The same with a deadline; a negative number of milliseconds means none.
    /// \throws error `timeout` if work is left then.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const;
    /// Whether all work enqueued so far is done. Never blocks, never throws; says nothing of errors.
    bool query() const noexcept;

    /// A number that no other stream of the process ever has.
    std::uint64_t id(call_site = call_site::current()) const noexcept { return state_->id; }

    /// How often a host thread blocked on this stream or on an event of it: a diagnostic counter.
    std::uint64_t synchronizations() const noexcept
    {
        return state_->synchronizations.load(std::memory_order_relaxed);
    }

    friend bool operator==(stream_ref, stream_ref) = default;

private:
    friend class stream;
    friend class event;
    explicit stream_ref(detail::stream_state* state) noexcept : state_(state) {}
    detail::stream_state& state(const char* call, call_site where = {}) const;
    detail::stream_state* state_;
};

/// An owned stream. The destructor finishes the work enqueued before it and drops an error that was
/// never asked for.
class stream {
public:
    stream();
    stream(stream&&) = default;
    stream& operator=(stream&&) = delete;
    ~stream();

    operator stream_ref() const noexcept { return stream_ref(state_.get()); }
    stream_ref get() const noexcept { return *this; }
    template <class Task>
    void enqueue(Task&& task) const
    {
        get().enqueue(std::forward<Task>(task));
    }
    void wait(const event& awaited, call_site where = call_site::current()) const { get().wait(awaited, where); }
    void synchronize(call_site where = call_site::current()) const { get().synchronize(where); }
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        get().synchronize(timeout_ms, where);
    }
    bool query() const noexcept { return get().query(); }
    std::uint64_t synchronizations() const noexcept { return get().synchronizations(); }

private:
    detail::ref<detail::stream_state> state_;
    collprobe::detail::thread worker_;
};

/// A point in a stream. Recording captures the work enqueued so far and forgets an earlier record;
/// whoever already waits is not affected by a later one. Recording costs no task and no system call.
class event {
public:
    event() noexcept = default;

    /// Captures the work enqueued on `on` before this call.
    void record(stream_ref on);
    bool recorded() const noexcept { return static_cast<bool>(stream_); }

    /// Whether the captured work is done; never blocks.
    /// \throws error `invalid_argument` if the event was never recorded; the error that the captured
    /// work left, if it has not surfaced elsewhere yet.
    bool query(call_site where = call_site::current()) const;
    /// Blocks the caller until the captured work is done; throws the error that it left, if any.
    void synchronize(call_site where = call_site::current()) const { synchronize(-1, where); }
    /// The same with a deadline; a negative number of milliseconds means none.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const;

private:
    friend class stream_ref;
    void require_recorded(const char* call, call_site where) const;

    detail::ref<detail::stream_state> stream_;
    order_hooks::with_point<std::uint64_t> number_ = 0;
};

} // namespace collprobe::host

#if COLLPROBE_DEFINITIONS
#include <collprobe/device/host/detail/stream.ipp>
#endif
