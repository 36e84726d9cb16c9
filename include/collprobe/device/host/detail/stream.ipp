// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <collprobe/core/error.hpp>
#include <collprobe/device/host/stream.hpp>

namespace collprobe::inline COLLPROBE_ABI::host {

namespace detail {

COLLPROBE_INLINE void stream_state::serve() noexcept
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

COLLPROBE_INLINE bool stream_state::wait(std::uint64_t number, deadline until) noexcept
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

COLLPROBE_INLINE std::exception_ptr stream_state::error_before(std::uint64_t number) noexcept
{
    if (!failed_.load(std::memory_order_acquire)) return nullptr;
    const collprobe::detail::lock_guard lock(error_guard_);
    return failed_at_ <= number ? error_ : nullptr;
}

COLLPROBE_INLINE std::exception_ptr stream_state::take_error_before(std::uint64_t number) noexcept
{
    if (!failed_.load(std::memory_order_acquire)) return nullptr;
    const collprobe::detail::lock_guard lock(error_guard_);
    if (failed_at_ > number) return nullptr;
    failed_.store(false, std::memory_order_relaxed);
    return std::exchange(error_, nullptr);
}

COLLPROBE_INLINE void stream_state::run(collprobe::detail::task& next, std::uint64_t number) noexcept
{
    if (std::exception_ptr earlier = error_before(number)) {
        next.cancel(earlier);
        return;
    }
    try {
        next.run();
    } catch (...) {
        const collprobe::detail::lock_guard lock(error_guard_);
        error_ = std::current_exception();
        failed_at_ = number;
        failed_.store(true, std::memory_order_release);
    }
}

COLLPROBE_INLINE void stream_state::wake_waiters() noexcept
{
    // A thread that waits for a later task, or that comes between the two writes, finds another number of wakes and
    // announces itself again.
    awaited_.exchange(nobody, std::memory_order_release);
    wakes_.fetch_add(1, std::memory_order_release);
    collprobe::detail::wake_all(wakes_);
}

COLLPROBE_INLINE void stream_state::announce(std::uint64_t number) noexcept
{
    std::uint64_t earliest = awaited_.load(std::memory_order_acquire);
    while (
        number < earliest && !awaited_.compare_exchange_weak(earliest, number, std::memory_order_acquire)) {}
}

COLLPROBE_INLINE void synchronize(
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

COLLPROBE_INLINE void stream_ref::synchronize(std::int64_t timeout_ms, call_site where) const
{
    state("synchronize", where);
    const order_hooks::point here = order_hooks::now(*this);
    const std::uint64_t last = state_->queue.pushed();
    detail::synchronize(*state_, last, "work on the stream", timeout_ms, where);
    order_hooks::reached(here);
    if (const std::exception_ptr failure = state_->take_error_before(last)) std::rethrow_exception(failure);
}

COLLPROBE_INLINE bool stream_ref::query() const noexcept
{
    if (state_ == nullptr) return true; // moved from: it has no work
    const order_hooks::point here = order_hooks::now(*this);
    const bool done = state_->is_done(state_->queue.pushed());
    order_hooks::reached(here, done);
    return done;
}

COLLPROBE_INLINE detail::stream_state& stream_ref::state(const char* call, call_site where) const
{
    if (state_ != nullptr) return *state_;
    collprobe::detail::refuse(call, "the stream was moved from", where);
}

COLLPROBE_INLINE stream::stream()
    : state_(collprobe::detail::make_ref<detail::stream_state>()),
      worker_([state = state_.get()] { state->serve(); })
{
}

COLLPROBE_INLINE stream::stream(std::nullptr_t) : state_(collprobe::detail::make_ref<detail::stream_state>())
{
    state_->is_at_once = true;
}

COLLPROBE_INLINE stream::~stream()
{
    if (!state_) return;
    const order_hooks::point last = order_hooks::now(get());
    if (!state_->is_at_once) state_->queue.push([](collprobe::detail::task& slot) { slot.make_stop(); });
    worker_.join();
    order_hooks::reached(last);
    order_hooks::stream_ended(get());
}

COLLPROBE_INLINE void event::record(stream_ref on)
{
    detail::stream_state& state = on.state("record");
    stream_ = detail::ref<detail::stream_state>(&state);
    number_ = state.queue.pushed();
    order_hooks::record(order_, on);
}

COLLPROBE_INLINE bool event::query(call_site where) const
{
    require_recorded("query", where);
    if (!stream_->is_done(number_)) return false;
    order_hooks::reached(order_);
    if (const std::exception_ptr failure = stream_->error_before(number_)) std::rethrow_exception(failure);
    return true;
}

COLLPROBE_INLINE void event::synchronize(std::int64_t timeout_ms, call_site where) const
{
    require_recorded("synchronize", where);
    detail::synchronize(*stream_, number_, "the work captured by the event", timeout_ms, where);
    order_hooks::reached(order_);
    if (const std::exception_ptr failure = stream_->error_before(number_)) std::rethrow_exception(failure);
}

COLLPROBE_INLINE void event::require_recorded(const char* call, call_site where) const
{
    if (recorded()) return;
    collprobe::detail::refuse(call, "the event was never recorded, so there is nothing to wait for", where);
}

COLLPROBE_INLINE void stream_ref::wait(const event& awaited, call_site where) const
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

} // namespace collprobe::inline COLLPROBE_ABI::host
