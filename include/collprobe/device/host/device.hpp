// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/device/host/stream.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// What every device does before a copy: it checks the ranges, and tells the checker of stream order. Returns whether
/// there is anything to copy.
template <class Stream, class T>
bool begin_copy(const Stream& on, view<const T> source, view<T> destination, call_site where)
{
    static_assert(std::is_trivially_copyable_v<T>);
    require(source.count() == destination.count(), "copy", "source and destination differ in count", where);
    require(source.empty() || (source.data() != nullptr && destination.data() != nullptr), "copy",
        "source or destination is null with a count above 0", where);
    require(!overlap(source, destination), "copy", "source and destination overlap", where);
    if (source.empty()) return false;
    order_hooks::access(on, "copy", source, destination, where);
    return true;
}
/// The same before a call that writes alone.
template <class Stream, class T>
bool begin_write(const Stream& on, const char* call, view<T> destination, call_site where)
{
    require(destination.empty() || destination.data() != nullptr, call, "destination is null with a count above 0",
        where);
    if (destination.empty()) return false;
    order_hooks::access(on, call, {}, destination, where);
    return true;
}

} // namespace detail

namespace host {

/// Owned memory for `size()` trivially copyable elements, 64-byte aligned, not initialised. Synchronise before it is
/// freed: freeing memory that queued work still uses is an error, as on any device.
template <class T>
class buffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    buffer() = default;
    explicit buffer(std::uint64_t count)
        : data_(count == 0 ? nullptr
                           : static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{alignment}))),
          count_(count)
    {
        order_hooks::allocated(data_, count_ * sizeof(T));
    }
    buffer(buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0))
    {
    }
    buffer& operator=(buffer&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~buffer()
    {
        order_hooks::released(data_, count_ * sizeof(T), false);
        ::operator delete(data_, std::align_val_t{alignment});
    }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
    T* begin() const noexcept { return data_; }
    T* end() const noexcept { return data_ + count_; }
    T& operator[](std::uint64_t index) const noexcept { return data_[index]; }

private:
    static constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;
    T* data_ = nullptr;
    std::uint64_t count_ = 0;
};

/// The CPU as a device: the operations that an algorithm needs, under the names that every device of the library has.
/// Stream behaviour: every operation is enqueued on a stream and returns at once. None synchronises the host.
struct device {
    using stream = host::stream;
    using stream_ref = host::stream_ref;
    using event = host::event;
    /// Memory that the device computes on.
    template <class T>
    using buffer = host::buffer<T>;
    /// Memory that the device can write. The host can read it once an event says that the write is done.
    template <class T>
    using host_buffer = host::buffer<T>;

    /// Memory for the partial results of `reduce`: the CPU needs none. On any device, make one for each stream that
    /// reduces: a workspace serves one stream at a time.
    struct workspace {};

    static constexpr const char* name = "host";
    /// The best number of bytes of each buffer for one index of a body for `for_each`: enough to amortise a call, and
    /// few enough for the first-level cache.
    static constexpr std::uint64_t body_bytes = 1024;

    /// Whether work on one stream costs messages of another one no time. Here they share the processor's cores.
    static constexpr bool overlaps_messages = false;

    /// Does nothing on the CPU. A GPU must load kernels before work waits for other ranks.
    static void load_kernels() noexcept {}

    /// Copies `source` to `destination`: equal counts, ranges that do not overlap.
    /// \throws error `invalid_argument` otherwise, or if either is null with a count above 0.
    /// Cost: one read and one write.
    template <class T>
    static void copy(stream_ref on, view<const T> source, view<T> destination, call_site where = call_site::current())
    {
        if (!collprobe::detail::begin_copy(on, source, destination, where)) return;
        on.enqueue([source, destination] {
            std::memcpy(destination.data(), source.data(), static_cast<std::size_t>(source.size_bytes()));
        });
    }

    /// Sets every element of `destination` to `value`.
    /// \throws error `invalid_argument` if it is null with a count above 0, or not aligned.
    /// Cost: one write.
    template <class T>
    static void fill(stream_ref on, view<T> destination, std::type_identity_t<T> value,
        call_site where = call_site::current())
    {
        collprobe::detail::require(
            destination.aligned(), "fill", "destination is not aligned for its elements", where);
        if (!collprobe::detail::begin_write(on, "fill", destination, where)) return;
        on.enqueue([destination, value] {
            for (T& element : destination) element = value;
        });
    }

    /// Sets every byte of `destination` to 0.
    /// \throws error `invalid_argument` if it is null with a count above 0.
    /// Cost: one write.
    template <class T>
    static void zero(stream_ref on, view<T> destination, call_site where = call_site::current())
    {
        static_assert(std::is_trivially_copyable_v<T>);
        if (!collprobe::detail::begin_write(on, "zero", destination, where)) return;
        on.enqueue([destination] {
            std::memset(static_cast<void*>(destination.data()), 0, static_cast<std::size_t>(destination.size_bytes()));
        });
    }

    /// Calls `body(index)` for every index below `count`, in no promised order.
    template <class Body>
    static void for_each(stream_ref on, std::uint64_t count, Body body)
    {
        if (count == 0) return;
        on.enqueue([count, body = std::move(body)] {
            for (std::uint64_t index = 0; index < count; ++index) body(index);
        });
    }

    /// The least number of sums for `sum_each`, if the caller can choose.
    static constexpr std::uint64_t parallel_sums = 1;

    /// For every item below `items`: adds up `body.part(item, lane, lanes)` over all lanes in a fixed order, and
    /// calls `body.store(item, sum)` once. There is one lane here, 256 on a GPU.
    template <class Body>
    static void sum_each(stream_ref on, std::uint64_t items, Body body)
    {
        if (items == 0) return;
        on.enqueue([items, body = std::move(body)] {
            for (std::uint64_t item = 0; item < items; ++item) body.store(item, body.part(item, 0, 1));
        });
    }

    /// Reduces `count` elements to `*result` in one pass over the memory that `reducer` reads. Partial results cover
    /// fixed blocks and are merged in a fixed order: the same input gives the same bits.
    /// Precondition: `reducer` is as `detail::reduce_blocks` describes; `workspace` outlives the work.
    template <class Reducer, class Result>
    static void reduce(stream_ref on, Reducer reducer, std::uint64_t count, Result* result, workspace&,
        reduction_times times = {})
    {
        on.enqueue([reducer = std::move(reducer), count, result, times] {
            collprobe::detail::note_times(times,
                [&] { *result = reducer.finish(collprobe::detail::reduce_blocks(reducer, count)); });
        });
    }

    /// As `reduce` of `reducer.part(i, count)` to `results[i]`, for each of `parts`.
    template <class Reducer, class Result>
    static void reduce_parts(
        stream_ref on, Reducer reducer, std::uint64_t parts, std::uint64_t count, Result* results, workspace&)
    {
        on.enqueue([reducer = std::move(reducer), parts, count, results] {
            for (std::uint64_t i = 0; i < parts; ++i) {
                const Reducer own = reducer.part(i, count);
                results[i] = own.finish(collprobe::detail::reduce_blocks(own, count));
            }
        });
    }
};

} // namespace host
} // namespace collprobe
