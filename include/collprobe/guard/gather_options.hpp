// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/guard/guarded.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The way of a shard into the all-gather, from the cheapest to the most expensive.
enum class gather_path : std::uint8_t {
    in_place, ///< the source already is its slot of the destination: no copy
    send_source, ///< the source is the send buffer: the all-gather itself moves it
    copy, ///< a copy into the retained shard, or into the slot, on the stream of the all-gather
    convert, ///< one kernel writes the retained shard, or the slot, in the destination's element type
};

/// Options of a gather: what it keeps, and what it requires.
template <class Device, element T>
struct gather_options {
    /// Keeps a copy of this rank's slot beyond the call (a secondary shard); as many elements as a slot.
    guarded<Device, T>* shard = nullptr;
    /// The least generation of a `guarded` source; an older one is stale. 0: no requirement.
    std::uint64_t at_least = 0;
};

namespace detail {

/// A buffer argument of `copy_then_all_gather`: a view, and the history of its memory if there is one.
template <class Device, element T>
class gather_buffer {
    using variable = std::remove_const_t<T>;

public:
    gather_buffer(view<T> memory) noexcept : memory_(memory) {}
    gather_buffer(guarded<Device, variable>& buffer) noexcept : memory_(buffer.memory()), history_(&buffer) {}
    /// Takes a container, or a view of variables where a view of constants is expected.
    template <class Range>
        requires requires(Range&& range) { view<T>(range); }
    gather_buffer(Range&& range) noexcept : memory_(range)
    {
    }

    view<T> memory() const noexcept { return memory_; }
    /// Null if the memory has no history.
    guarded<Device, variable>* history() const noexcept { return history_; }

private:
    view<T> memory_;
    guarded<Device, variable>* history_ = nullptr;
};

template <class Buffer>
struct element_of_buffer {
    using type = typename decltype(view(std::declval<Buffer&>()))::value_type;
};
template <class Device, element T>
struct element_of_buffer<guarded<Device, T>> {
    using type = T;
};
template <class Device, element T>
struct element_of_buffer<gather_buffer<Device, T>> {
    using type = std::remove_const_t<T>;
};

/// The element type of a view, a container, a `guarded` or a `gather_buffer`.
template <class Buffer>
using buffer_element = typename element_of_buffer<std::remove_cvref_t<Buffer>>::type;

} // namespace detail

/// One tensor of a batch.
template <class Device, element T, element Source = T>
struct gather_item {
    using is_gather_item = void;
    using element_type = T;
    using source_type = Source;

    detail::gather_buffer<Device, const Source> source;
    detail::gather_buffer<Device, T> destination;
    gather_options<Device, T> options = {};
};

/// An all-gather under way, for which later work may wait. If all consumers are the gather's own stream, there is no
/// event and the handle refuses to wait.
template <class Device>
class gather_handle {
public:
    using stream_ref = typename Device::stream_ref;

    gather_handle(stream_ref on, typename Device::event done, gather_path path) noexcept
        : on_(on), done_(std::move(done)), path_(path)
    {
    }

    /// The path that was taken; for a batch, that of its last tensor.
    gather_path path() const noexcept { return path_; }
    /// Work enqueued on `consumer` from now on runs behind the all-gather.
    void wait(stream_ref consumer, call_site where = call_site::current()) const
    {
        if (consumer == on_) return;
        consumer.wait(done("wait", where), where);
    }
    /// Whether the gather is done; never blocks. \throws error of the enqueued work; `invalid_argument` in a capture.
    bool query(call_site where = call_site::current()) const { return done("query", where).query(where); }
    /// Blocks the caller until the gather is done; a negative number of milliseconds means without limit.
    /// \throws error `timeout` (a peer may be late or dead), that of the enqueued work; `invalid_argument` in a
    ///   capture.
    void synchronize(std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        done("synchronize", where).synchronize(timeout_ms, where);
    }

private:
    const typename Device::event& done(const char* call, call_site where) const
    {
        if (done_.recorded()) return done_;
        throw error(status::invalid_argument,
            "all consumers of the all-gather are on its own stream, so that nothing was recorded behind it: name no "
            "consumers, {}, to use the handle",
            {.call = call, .where = where});
    }

    stream_ref on_;
    typename Device::event done_;
    gather_path path_;
};

} // namespace collprobe
