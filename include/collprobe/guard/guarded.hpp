// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/guard/detail/access_history.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A buffer with the history of its accesses. Each access waits, by events alone, for earlier conflicting accesses on
/// any stream. So a write waits for readers (a gather of a shard, a reader of a gathered parameter), and the release
/// waits for both. Reads, accesses of disjoint parts, and accesses on one stream do not wait for each other.
///
///     guarded<cuda::device, float> weights(count);
///     weights.write(compute, [&](view<float> data) { adamw<<<..., compute>>>(data.data()); });
///     weights.read(other, [&](view<const float> data) { forward<<<..., other>>>(data.data()); });
///
/// Generation: 0 before the first write, one more after each write; `copy_then_all_gather` passes on its source's.
/// Preconditions: one thread at a time.
/// Stream behaviour: in a capture an access waits for accesses of the same capture; work outside must be done by then.
/// A later access does not wait for captured work. Make the launch of a graph an access:
/// `weights.write(stream, [&](auto) { launch })`.
/// Cost: one event for each access, one wait for each conflicting access on another stream.
template <class Device, element T>
class guarded {
public:
    using device = Device;
    using stream_ref = typename Device::stream_ref;
    using value_type = T;

    /// Allocates memory for `count` elements on the current device, not initialised. The destructor waits at most
    /// `timeout_ms` for work that uses it (a negative number: without limit); memory in use after that is leaked.
    explicit guarded(std::uint64_t count, std::int64_t timeout_ms = 30'000)
        : state_(timeout_ms, typename Device::template buffer<T>(count))
    {
    }
    /// Borrows memory that no work uses now and whose content counts as generation 1. The memory must outlive this
    /// object. The destructor does not wait; `synchronize` waits, and `order_release` makes a stream wait.
    explicit guarded(view<T> borrowed) : state_(-1, borrowed) {}

    /// Legal while work uses the buffer. A moved-from buffer has no memory and refuses accesses.
    guarded(guarded&&) = default;
    guarded& operator=(guarded&&) = default;
    ~guarded() = default;

    std::uint64_t count() const noexcept { return memory().count(); }
    /// The memory itself. The caller orders accesses to it outside `read` and `write`.
    view<T> memory() const noexcept { return state_ ? state_->memory : view<T>(); }
    std::uint64_t generation() const noexcept { return state_ ? state_->generation : 0; }
    /// Sets the generation of the content, for instance after loading a checkpoint; 0 makes the content invalid.
    void set_generation(std::uint64_t generation) noexcept
    {
        if (state_) state_->generation = generation;
    }

    /// Calls `enqueue(data)`, which enqueues on `on` work that reads `data`: the whole buffer or `count` elements
    /// from `first` on. \throws error `invalid_argument` if nothing was ever written, or for a part outside the buffer;
    /// any exception of `enqueue` (the work enqueued by then counts as an access).
    template <class Enqueue>
    void read(stream_ref on, Enqueue&& enqueue, call_site where = call_site::current())
    {
        read(0, count(), on, std::forward<Enqueue>(enqueue), where);
    }
    template <class Enqueue>
    void read(std::uint64_t first, std::uint64_t count, stream_ref on, Enqueue&& enqueue,
        call_site where = call_site::current())
    {
        const view<const T> part = part_of(first, count, "read", where);
        detail::require(
            generation() != 0, "read", "nothing was written to it yet, or it was invalidated, or half written", where);
        access(on, range_of(first, count), detail::access_mode::read, "read", where, [&] { enqueue(part); });
    }

    /// As `read`, for work that writes. The generation grows by one. If `enqueue` throws it becomes 0, because the
    /// buffer may be half written.
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
        const std::uint64_t next = generation() + 1;
        access(on, range_of(first, count), detail::access_mode::write, "write", where, [&] {
            set_generation(0);
            enqueue(part);
        });
        set_generation(next);
    }

    /// Lets `on` wait for all work that uses the buffer, so that a free may be enqueued on it.
    void order_release(stream_ref on, call_site where = call_site::current())
    {
        history("order_release", where)
            .wait_for_conflicts(on, {0, UINT64_MAX}, detail::access_mode::write, "order_release", where);
    }
    /// Blocks the caller until no work uses the buffer. \throws error `timeout`.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        detail::require(static_cast<bool>(state_), "synchronize", moved_from, where);
        if (state_->uses.finished_by(detail::deadline::in_ms(timeout_ms))) return;
        throw error(status::timeout,
            "work still used the buffer after " + std::to_string(timeout_ms) + " ms",
            {.call = "synchronize", .where = where});
    }

    /// For algorithms that order several buffers around one piece of work.
    /// \throws error `invalid_argument` for a moved-from buffer.
    detail::access_history<Device>& history(const char* call, call_site where)
    {
        detail::require(static_cast<bool>(state_), call, moved_from, where);
        return state_->uses;
    }
    static detail::byte_range range_of(std::uint64_t first, std::uint64_t count) noexcept
    {
        return {first * sizeof(T), (first + count) * sizeof(T)};
    }

private:
    struct state {
        explicit state(typename Device::template buffer<T> own)
            : owned(std::move(own)), memory(owned.data(), owned.size())
        {
        }
        explicit state(view<T> borrowed) : memory(borrowed), generation(1) {}
        /// Borrowed memory outlives this object, so the work that uses it does not matter.
        bool finished_by(detail::deadline until) const noexcept { return owned.size() == 0 || uses.finished_by(until); }

        typename Device::template buffer<T> owned;
        view<T> memory;
        std::uint64_t generation = 0;
        detail::access_history<Device> uses;
    };

    static constexpr const char* moved_from = "the guarded buffer was moved from";

    template <class Enqueue>
    void access(stream_ref on, detail::byte_range range, detail::access_mode mode, const char* call, call_site where,
        Enqueue&& enqueue)
    {
        history(call, where).wait_for_conflicts(on, range, mode, call, where);
        typename Device::event done;
        try {
            detail::enqueue_marked(done, on, enqueue);
        } catch (...) {
            if (done.recorded()) state_->uses.add(on, range, mode, done, where);
            throw;
        }
        state_->uses.add(on, range, mode, done, where);
    }
    view<T> part_of(std::uint64_t first, std::uint64_t count, const char* call, call_site where) const
    {
        detail::require(static_cast<bool>(state_), call, moved_from, where);
        detail::require(first <= this->count() && count <= this->count() - first, call,
            "the buffer does not have the part asked for", where);
        return memory().part(first, count);
    }

    detail::in_flight<state> state_;
};

} // namespace collprobe
