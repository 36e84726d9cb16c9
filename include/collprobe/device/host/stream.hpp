// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/serial.hpp>
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
    const std::uint64_t id = collprobe::detail::next_serial<stream_state>();
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
    bool wait(std::uint64_t number, deadline until) noexcept
    {
        while (!is_done(number)) {
            const std::uint32_t seen = wakes_.load(std::memory_order_acquire);
            announce(number);
            if (is_done(number)) break;
            if (until.passed()) return false;
            collprobe::detail::wait_while(wakes_, seen, until);
        }
        return true;
    }

    /// The error that a task up to `number` left, if no call has reported it yet.
    std::exception_ptr error_before(std::uint64_t number) noexcept
    {
        if (!failed_.load(std::memory_order_acquire)) return nullptr;
        const std::lock_guard lock(error_guard_);
        return failed_at_ <= number ? error_ : nullptr;
    }

    /// The same, and forgets the error: tasks pushed from now on run again.
    std::exception_ptr take_error_before(std::uint64_t number) noexcept
    {
        if (!failed_.load(std::memory_order_acquire)) return nullptr;
        const std::lock_guard lock(error_guard_);
        if (failed_at_ > number) return nullptr;
        failed_.store(false, std::memory_order_relaxed);
        return std::exchange(error_, nullptr);
    }

private:
    static constexpr std::uint64_t nobody = UINT64_MAX;

    void run(collprobe::detail::task& next, std::uint64_t number) noexcept;

    /// The stream's side. It adds nothing, but it is a write. So either this write sees the number that a waiter has
    /// announced, or the waiter reads this write and sees the finished tasks. It acquires nothing, so the stream is
    /// not ordered after a waiter.
    std::uint64_t earliest_awaited() noexcept { return awaited_.fetch_or(0, std::memory_order_release); }

    void wake_waiters() noexcept
    {
        // A thread that waits for a later task, or that comes between the two writes, finds another number of wakes and
        // announces itself again.
        awaited_.exchange(nobody, std::memory_order_release);
        wakes_.fetch_add(1, std::memory_order_release);
        collprobe::detail::wake_all(wakes_);
    }

    /// A waiter's side: the stream will wake the waiter when task `number` is done.
    void announce(std::uint64_t number) noexcept
    {
        std::uint64_t earliest = awaited_.load(std::memory_order_acquire);
        while (
            number < earliest && !awaited_.compare_exchange_weak(earliest, number, std::memory_order_acquire)) {}
    }

    std::atomic<std::uint64_t> completed_{0};
    // A task number not beyond the first one that a thread waits for. The stream wakes no thread before that task.
    std::atomic<std::uint64_t> awaited_{nobody};
    std::atomic<std::uint32_t> wakes_{0};
    std::atomic<bool> failed_{false};
    std::mutex error_guard_;
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
inline void synchronize(
    stream_state& state, std::uint64_t number, const char* what, std::int64_t timeout_ms, call_site where)
{
    const error_origin origin{.call = "synchronize", .where = where};
    if (stream_state::served_here() == &state) {
        throw error(status::invalid_argument, "work on a stream must not wait for that stream", origin);
    }
    state.synchronizations.fetch_add(1, std::memory_order_relaxed);
    if (!state.wait(number, deadline::in_ms(timeout_ms))) {
        throw error(status::timeout,
            std::string(what) + " did not finish within " + std::to_string(timeout_ms) + " ms", origin);
    }
}

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
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        state("synchronize", where);
        const order_hooks::point here = order_hooks::now(*this);
        const std::uint64_t last = state_->queue.pushed();
        detail::synchronize(*state_, last, "work on the stream", timeout_ms, where);
        order_hooks::reached(here);
        if (const std::exception_ptr failure = state_->take_error_before(last)) std::rethrow_exception(failure);
    }

    /// Whether all work enqueued so far is done. Never blocks, never throws, and does not report errors.
    bool query() const noexcept
    {
        if (state_ == nullptr) return true; // moved from: it has no work
        const order_hooks::point here = order_hooks::now(*this);
        const bool done = state_->is_done(state_->queue.pushed());
        order_hooks::reached(here, done);
        return done;
    }

    /// A number that no other stream of the process ever has.
    std::uint64_t id(call_site where = call_site::current()) const { return state("id", where).id; }

    /// How often a host thread blocked on this stream or on an event of it: a diagnostic counter.
    std::uint64_t synchronizations() const
    {
        return state("synchronizations").synchronizations.load(std::memory_order_relaxed);
    }

    friend bool operator==(stream_ref, stream_ref) = default;

private:
    friend class stream;
    friend class event;
    explicit stream_ref(detail::stream_state* state) noexcept : state_(state) {}

    detail::stream_state& state(const char* call, call_site where = {}) const
    {
        if (state_ != nullptr) return *state_;
        collprobe::detail::refuse(call, "the stream was moved from", where);
    }

    detail::stream_state* state_;
};

/// An owned stream. The destructor finishes the work enqueued before it, and drops an error that no call has
/// reported. An object that was moved from has no work, and all but its `query` throws `invalid_argument`.
class stream : public stream_ref {
public:
    stream()
        : stream_ref(new detail::stream_state), owned_(state_), worker_([state = state_] { state->serve(); })
    {
    }

    /// A stream without a thread: the calling thread does the work before the call that enqueues it returns. A wait for
    /// an event blocks that thread. One thread at a time.
    static stream at_once() { return stream(nullptr); }
    stream(stream&& other) noexcept
        : stream_ref(std::exchange(other.state_, nullptr)),
          owned_(std::move(other.owned_)),
          worker_(std::move(other.worker_))
    {
    }
    stream& operator=(stream&&) = delete;

    ~stream()
    {
        if (state_ == nullptr) return;
        const order_hooks::point last = order_hooks::now(*this);
        if (!state_->is_at_once) state_->queue.push([](collprobe::detail::task& slot) { slot.make_stop(); });
        worker_.join();
        order_hooks::reached(last);
        order_hooks::stream_ended(*this);
    }

private:
    explicit stream(std::nullptr_t) : stream_ref(new detail::stream_state), owned_(state_)
    {
        state_->is_at_once = true;
    }

    detail::ref<detail::stream_state> owned_;
    collprobe::detail::thread worker_; ///< none at once
};

/// A point in a stream. A record captures the work enqueued so far and replaces the earlier record. It does not
/// affect streams and threads that already wait.
/// Cost: a record needs no task and no system call.
class event {
public:
    event() noexcept = default;

    /// Captures the work enqueued on `on` before this call.
    void record(stream_ref on)
    {
        detail::stream_state& state = on.state("record");
        stream_ = detail::ref<detail::stream_state>(&state);
        number_ = state.queue.pushed();
        order_hooks::record(order_, on);
    }

    bool recorded() const noexcept { return static_cast<bool>(stream_); }

    /// Whether the captured work is done. Never blocks.
    /// \throws error `invalid_argument` if the event was never recorded; the error that the captured work left, if no
    ///   other call has reported it yet.
    bool query(call_site where = call_site::current()) const
    {
        require_recorded("query", where);
        if (!stream_->is_done(number_)) return false;
        order_hooks::reached(order_);
        if (const std::exception_ptr failure = stream_->error_before(number_)) std::rethrow_exception(failure);
        return true;
    }

    /// Blocks the caller until the captured work is done; throws the error that it left, if any.
    void synchronize(call_site where = call_site::current()) const { synchronize(-1, where); }

    /// The same with a deadline; a negative number of milliseconds means none.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        require_recorded("synchronize", where);
        detail::synchronize(*stream_, number_, "the work captured by the event", timeout_ms, where);
        order_hooks::reached(order_);
        if (const std::exception_ptr failure = stream_->error_before(number_)) std::rethrow_exception(failure);
    }

private:
    friend class stream_ref;

    void require_recorded(const char* call, call_site where) const
    {
        if (recorded()) return;
        collprobe::detail::refuse(call, "the event was never recorded, so there is nothing to wait for", where);
    }

    detail::ref<detail::stream_state> stream_;
    std::uint64_t number_ = 0;
    [[no_unique_address]] order_hooks::point order_;
};

namespace detail {

inline void stream_state::serve() noexcept
{
    served_here() = this;
    const collprobe::detail::gradual_underflow as_ieee_has_it; // for all tasks
    for (std::uint64_t number = 1;; ++number) {
        collprobe::detail::task& next = queue.front();
        const bool stop = next.is_stop();
        if (!stop) run(next, number);
        queue.pop();
        completed_.store(number, std::memory_order_release);
        if (earliest_awaited() <= number) wake_waiters();
        if (stop) return;
    }
}

inline void stream_state::run(collprobe::detail::task& next, std::uint64_t number) noexcept
{
    if (std::exception_ptr earlier = error_before(number)) {
        next.cancel(earlier);
        return;
    }
    try {
        next.run();
    } catch (...) {
        const std::lock_guard lock(error_guard_);
        error_ = std::current_exception();
        failed_at_ = number;
        failed_.store(true, std::memory_order_release);
    }
}

} // namespace detail

inline void stream_ref::wait(const event& awaited, call_site where) const
{
    awaited.require_recorded("wait", where);
    if (awaited.stream_.get() == state_) return; // its own earlier work comes first anyway
    order_hooks::wait(*this, awaited.order_, where);
    struct wait_task {
        detail::ref<detail::stream_state> source;
        std::uint64_t number;
        void operator()() const
        {
            source->wait(number, detail::deadline::never());
            if (const std::exception_ptr failure = source->error_before(number))
                std::rethrow_exception(failure);
        }
        /// The awaited work may use memory that is freed when this stream is done, whether it failed or not. So wait
        /// also then.
        void cancel(const std::exception_ptr&) const noexcept
        {
            source->wait(number, detail::deadline::never());
        }
    };
    enqueue(wait_task{awaited.stream_, awaited.number_});
}

} // namespace collprobe::host
