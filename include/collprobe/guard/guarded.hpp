// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/last_use.hpp>
#include <collprobe/guard/detail/access_history.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A buffer that knows what streams still do with it: each access waits, by events alone, for the earlier ones
/// that it must not meet, on whatever streams they are. So it closes the edges that are easily forgotten: the next
/// write against those who still read (a shard under its gather, a gathered parameter under its reader), the free
/// against both.
///
///     guarded<cuda::device, float> weights(count);
///     weights.write(compute, [&](view<float> data) { adamw<<<..., compute>>>(data.data()); });
///     weights.read(other, [&](view<const float> data) { forward<<<..., other>>>(data.data()); });
///
/// An access waits for work enqueued before it, never for what follows; accesses of disjoint parts, and reads, do
/// not wait for each other, nor do those of one stream. Each records one event, and waits once for each
/// earlier access that it meets on another stream.
///
/// The buffer has a generation: 0 while nothing was written, one more after each write; a copy made by
/// `copy_then_all_gather` has that of its source.
///
/// In a capture an access waits for those in the same capture; work outside must be done by then. What was captured
/// is not waited for outside: make the launch of a graph an access, `weights.write(stream, [&](auto) { launch })`.
/// Threads: one at a time.
template <class Device, element T>
class guarded {
public:
    using device = Device;
    using stream_ref = typename Device::stream_ref;
    using value_type = T;

    /// Owns memory for `count` elements on the current device, not initialised. The destructor waits at most
    /// `timeout_ms` for work that uses it (a negative number: for ever); what is in use then is leaked.
    explicit guarded(std::uint64_t count, std::int64_t timeout_ms = 30'000)
        : state_(new state), timeout_ms_(timeout_ms)
    {
        try {
            state_->owned = typename Device::template buffer<T>(count);
        } catch (...) {
            delete state_;
            throw;
        }
        memory_ = view<T>(state_->owned.data(), count);
    }
    /// Borrows memory that no work uses now and whose content counts as generation 1. It must outlive this object;
    /// the destructor does not wait (`synchronize` does, `order_release` lets a stream do so).
    explicit guarded(view<T> borrowed) : state_(new state), memory_(borrowed), generation_(1), timeout_ms_(-1) {}

    guarded(guarded&& other) noexcept
        : state_(std::exchange(other.state_, nullptr)),
          memory_(std::exchange(other.memory_, {})),
          generation_(std::exchange(other.generation_, 0)),
          timeout_ms_(other.timeout_ms_)
    {
    }
    guarded& operator=(guarded&& other) noexcept
    {
        std::swap(state_, other.state_);
        std::swap(memory_, other.memory_);
        std::swap(generation_, other.generation_);
        std::swap(timeout_ms_, other.timeout_ms_);
        return *this;
    }
    ~guarded()
    {
        if (state_ == nullptr) return;
        const bool borrowed = state_->owned.size() == 0;
        if (borrowed || state_->uses.settle(detail::deadline::in_ms(timeout_ms_))) delete state_;
        else detail::give_up(state_);
    }

    std::uint64_t count() const noexcept { return memory_.count(); }
    /// The memory itself: whoever touches it outside `read` and `write` orders that.
    view<T> memory() const noexcept { return memory_; }
    std::uint64_t generation() const noexcept { return generation_; }
    /// Says which generation the content is: after loading a checkpoint, or 0 for nothing of worth.
    void set_generation(std::uint64_t generation) noexcept { generation_ = generation; }

    /// Calls `enqueue(data)`, which enqueues on `on` work that reads `data`, the whole buffer or `count` elements
    /// from `first` on. \throws error `invalid_argument` if nothing was ever written, or for a part that is not
    /// there; what `enqueue` throws (what it has enqueued by then counts).
    template <class Enqueue>
    void read(stream_ref on, Enqueue&& enqueue, call_site where = call_site::current())
    {
        read(0, count(), on, std::forward<Enqueue>(enqueue), where);
    }
    template <class Enqueue>
    void read(std::uint64_t first, std::uint64_t count, stream_ref on, Enqueue&& enqueue,
        call_site where = call_site::current())
    {
        require(generation_ != 0, "read", "nothing was written to it yet, or it was invalidated, or half written", where);
        const view<const T> part = part_of(first, count, "read", where);
        access(on, range_of(first, count), detail::access_mode::read, "read", where, [&] { enqueue(part); });
    }

    /// The same with work that writes. The generation grows by one; it is 0 if `enqueue` throws, for half of it may
    /// be written.
    template <class Enqueue>
    void write(stream_ref on, Enqueue&& enqueue, call_site where = call_site::current())
    {
        write(0, count(), on, std::forward<Enqueue>(enqueue), where);
    }
    template <class Enqueue>
    void write(std::uint64_t first, std::uint64_t count, stream_ref on, Enqueue&& enqueue,
        call_site where = call_site::current())
    {
        const view<T> part = part_of(first, count, "write", where);
        const std::uint64_t next = generation_ + 1;
        access(on, range_of(first, count), detail::access_mode::write, "write", where, [&] {
            generation_ = 0;
            enqueue(part);
        });
        generation_ = next;
    }

    /// Puts `on` behind all work that uses the buffer: a free enqueued there may follow.
    void order_release(stream_ref on, call_site where = call_site::current())
    {
        history("order_release", where).order_all(on, "order_release", where);
    }
    /// Blocks the caller until no work uses the buffer. \throws error `timeout`.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        require(state_ != nullptr, "synchronize", moved_from, where);
        if (state_->uses.settle(detail::deadline::in_ms(timeout_ms))) return;
        throw error(status::timeout,
            "work still used the buffer after " + std::to_string(timeout_ms) + " ms",
            {.call = "synchronize", .communicator = {}, .where = where});
    }

    /// For algorithms that order several buffers around one piece of work.
    /// \throws error `invalid_argument` of a buffer that was moved from.
    detail::access_history<Device>& history(const char* call, call_site where)
    {
        require(state_ != nullptr, call, moved_from, where);
        return state_->uses;
    }
    static detail::byte_range range_of(std::uint64_t first, std::uint64_t count) noexcept
    {
        return {first * sizeof(T), (first + count) * sizeof(T)};
    }

private:
    struct state {
        typename Device::template buffer<T> owned;
        detail::access_history<Device> uses;
        state* given_up_before = nullptr;
    };

    static constexpr const char* moved_from = "the guarded buffer was moved from";

    template <class Enqueue>
    void access(stream_ref on, detail::byte_range range, detail::access_mode mode, const char* call, call_site where,
        Enqueue&& enqueue)
    {
        history(call, where).order(on, range, mode, call, where);
        typename Device::event done;
        try {
            detail::enqueue_marked(done, on, enqueue);
        } catch (...) {
            if (done.recorded()) state_->uses.note(on, range, mode, done, where);
            throw;
        }
        state_->uses.note(on, range, mode, done, where);
    }
    view<T> part_of(std::uint64_t first, std::uint64_t count, const char* call, call_site where) const
    {
        require(first <= memory_.count() && count <= memory_.count() - first, call,
            "the buffer does not have the part asked for", where);
        return memory_.part(first, count);
    }
    static void require(bool condition, const char* call, const char* message, call_site where)
    {
        if (condition) return;
        throw error(status::invalid_argument, message, {.call = call, .communicator = {}, .where = where});
    }

    state* state_;
    view<T> memory_;
    std::uint64_t generation_ = 0;
    std::int64_t timeout_ms_;
};

} // namespace collprobe
