// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
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
#include <collprobe/simd/gradual_underflow.hpp>

/// Streams and events of the CPU, with CUDA's meaning. A stream is a FIFO, and a thread of its own does the work. So
/// a missing event is a real race here, which a test can provoke and ThreadSanitizer reports.
namespace collprobe::inline COLLPROBE_ABI::host {

class event;

namespace detail {

using collprobe::detail::deadline;
using collprobe::detail::ref;

/// The state that a stream and the events recorded on it share. It outlives the stream while an event refers to it.
class stream_state : public collprobe::detail::ref_counted {
public:
    collprobe::detail::task_queue queue;
    std::atomic<std::uint64_t> synchronizations{0};
    const std::uint64_t id = next_id();
    bool is_at_once = false; ///< no thread serves it: `enqueue` runs the task

    /// The stream that the calling thread serves, if any. A wait for that stream on that thread would never end.
    static const stream_state*& served_here() noexcept
    {
        static thread_local const stream_state* served = nullptr;
        return served;
    }

    /// Runs on the stream's thread until the stop task.
    void serve() noexcept;

    /// Whether task `number` and all tasks before it are done. True acquires their effects; false acquires nothing.
    bool is_done(std::uint64_t number) const noexcept
    {
        return completed_.load(std::memory_order_relaxed) >= number
            && completed_.load(std::memory_order_acquire) >= number;
    }

    /// Blocks the calling thread until task `number` is done; false if the deadline passed first.
    bool wait(std::uint64_t number, deadline until) noexcept;

    /// The error that a task up to `number` left, if no call has reported it yet.
    std::exception_ptr error_before(std::uint64_t number) noexcept;
    /// The same, and forgets the error: tasks pushed from now on run again.
    std::exception_ptr take_error_before(std::uint64_t number) noexcept;

private:
    static constexpr std::uint64_t nobody = UINT64_MAX;

    static std::uint64_t next_id() noexcept
    {
        static std::atomic<std::uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
    }

    void run(collprobe::detail::task& next, std::uint64_t number) noexcept;

    /// The stream's side. It adds nothing, but it is a write. So either this write sees the number that a waiter has
    /// announced, or the waiter reads this write and sees the finished tasks. It acquires nothing, so the stream is
    /// not ordered after a waiter.
    std::uint64_t earliest_awaited() noexcept { return awaited_.fetch_or(0, std::memory_order_release); }
    void wake_waiters() noexcept;
    /// A waiter's side: the stream will wake the waiter when task `number` is done.
    void announce(std::uint64_t number) noexcept;

    std::atomic<std::uint64_t> completed_{0};
    // A task number not beyond the first one that a thread waits for. The stream wakes no thread before that task.
    std::atomic<std::uint64_t> awaited_{nobody};
    std::atomic<std::uint32_t> wakes_{0};
    std::atomic<bool> failed_{false};
    collprobe::detail::mutex error_guard_;
    std::exception_ptr error_;
    std::uint64_t failed_at_ = 0;
};

/// On the calling thread. The body is not inlined: see `gradual_underflow`.
template <class Task>
void run_at_once(Task& task)
{
    const collprobe::detail::gradual_underflow as_ieee_has_it;
    [&]() __attribute__((noinline)) { task(); }();
}

/// Blocks the calling host thread until task `number` of `state` is done.
void synchronize(
    stream_state& state, std::uint64_t number, const char* what, std::int64_t timeout_ms, call_site where);

} // namespace detail

/// A borrowed stream. Copy it freely; it must not outlive the `stream`. Any thread may use it.
///
/// Work runs in the order enqueued, on the stream's own thread, and with subnormal numbers, which `-ffast-math` drops
/// elsewhere. If a task throws, the exception becomes the stream's error. Then the later tasks are cancelled (except
/// waits), a stream that waits for a later event fails too, and `synchronize` throws the error once. After that the
/// stream is usable again.
class stream_ref {
public:
    /// Appends `task` (a callable without arguments) and returns at once. `task` may have a member `cancel(const
    /// std::exception_ptr&) noexcept`, which the stream calls instead of the task if earlier work failed.
    /// On `stream::at_once` it runs the task before it returns, and throws what the task throws.
    /// Cost: captures up to 240 bytes are stored in place; larger ones allocate.
    template <class Task>
    void enqueue(Task&& task) const
    {
        detail::stream_state& to = state("enqueue");
        if (to.is_at_once) detail::run_at_once(task);
        else to.queue.push([&](collprobe::detail::task& slot) { slot.emplace(std::forward<Task>(task)); });
    }

    /// Work enqueued from now on runs after the work that `awaited` captured. No host synchronisation.
    /// \throws error `invalid_argument` if the event was never recorded (CUDA would silently not wait).
    void wait(const event& awaited, call_site where = call_site::current()) const;

    /// Blocks the caller until all work enqueued before the call is done; throws the stream's error.
    void synchronize(call_site where = call_site::current()) const { synchronize(-1, where); }
    /// The same with a deadline; a negative number of milliseconds means none.
    /// \throws error `timeout` if work is left then.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const;
    /// Whether all work enqueued so far is done. Never blocks, never throws, and does not report errors.
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

/// An owned stream. The destructor finishes the work enqueued before it, and drops an error that no call has
/// reported.
class stream {
public:
    stream();
    /// A stream without a thread: the calling thread does the work before the call that enqueues it returns. A wait for
    /// an event blocks that thread. One thread at a time.
    static stream at_once() { return stream(nullptr); }
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
    explicit stream(std::nullptr_t);

    detail::ref<detail::stream_state> state_;
    collprobe::detail::thread worker_; ///< none at once
};

/// A point in a stream. A record captures the work enqueued so far and replaces the earlier record. It does not
/// affect streams and threads that already wait.
/// Cost: a record needs no task and no system call.
class event {
public:
    event() noexcept = default;

    /// Captures the work enqueued on `on` before this call.
    void record(stream_ref on);
    bool recorded() const noexcept { return static_cast<bool>(stream_); }

    /// Whether the captured work is done. Never blocks.
    /// \throws error `invalid_argument` if the event was never recorded; the error that the captured work left, if no
    ///   other call has reported it yet.
    bool query(call_site where = call_site::current()) const;
    /// Blocks the caller until the captured work is done; throws the error that it left, if any.
    void synchronize(call_site where = call_site::current()) const { synchronize(-1, where); }
    /// The same with a deadline; a negative number of milliseconds means none.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const;

private:
    friend class stream_ref;
    void require_recorded(const char* call, call_site where) const;

    detail::ref<detail::stream_state> stream_;
    std::uint64_t number_ = 0;
    [[no_unique_address]] order_hooks::point order_;
};

} // namespace collprobe::host

#if COLLPROBE_DEFINITIONS
#include <collprobe/device/host/detail/stream.ipp>
#endif
