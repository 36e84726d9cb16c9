// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// n ranks that compute together. A communicator is a handle that is cheap to move. One host thread at a time uses
/// it. All ranks make the same calls in the same order. The last argument of each call is the caller's line, for
/// messages.
/// Shapes: counts are elements and equal on all ranks.
/// Stream behaviour: every collective is enqueued on its stream argument and returns. The result is there when the
/// stream has passed the collective; the buffers must not change until then.
template <class C>
concept communicator = requires(const C& comm) {
    typename C::device;
    typename C::device::stream_ref;
    { comm.rank() } noexcept -> std::same_as<int>; ///< 0 <= rank < size
    { comm.size() } noexcept -> std::same_as<int>;
};

/// The type by which a communicator takes its stream.
template <class C>
using stream_ref_of = typename C::device::stream_ref;

/// `all_reduce(send, receive, operation, stream)`: element i of `receive` becomes the reduction of
/// element i of every rank's `send`. `send.count() == receive.count()`; in place if both are the same.
template <class C, class T>
concept has_all_reduce = communicator<C> && element<T>
    && requires(C& comm, view<const T> send, view<T> receive, stream_ref_of<C> stream) {
           comm.all_reduce(send, receive, reduction::sum, stream, call_site{});
       };

/// `reduce_scatter(send, receive, operation, stream)`: rank r gets part r of the reduction.
/// `send.count() == size * receive.count()`; in place if `receive` is part r of `send`.
template <class C, class T>
concept has_reduce_scatter = communicator<C> && element<T>
    && requires(C& comm, view<const T> send, view<T> receive, stream_ref_of<C> stream) {
           comm.reduce_scatter(send, receive, reduction::sum, stream, call_site{});
       };

/// `all_gather(send, receive, stream)`: part r of every rank's `receive` becomes rank r's `send`.
/// `receive.count() == size * send.count()`; in place if `send` is part r of `receive`.
template <class C, class T>
concept has_all_gather = communicator<C> && element<T>
    && requires(C& comm, view<const T> send, view<T> receive, stream_ref_of<C> stream) {
           comm.all_gather(send, receive, stream, call_site{});
       };

/// `all_to_all(send, receive, stream)`: part s of rank r's `receive` becomes part r of rank s's
/// `send`. `send.count() == receive.count()`, a multiple of `size`; never in place.
template <class C, class T>
concept has_all_to_all = communicator<C> && element<T>
    && requires(C& comm, view<const T> send, view<T> receive, stream_ref_of<C> stream) {
           comm.all_to_all(send, receive, stream, call_site{});
       };

/// `broadcast(send, receive, root, stream)`: every rank's `receive` becomes the root's `send`, which
/// only the root reads; in place if both are the same. `receive.count()` is equal on all ranks.
template <class C, class T>
concept has_broadcast = communicator<C> && element<T>
    && requires(C& comm, view<const T> send, view<T> receive, int root, stream_ref_of<C> stream) {
           comm.broadcast(send, receive, root, stream, call_site{});
       };

/// `barrier(stream)`: work behind it on any rank's stream runs after work before it on every rank's stream.
template <class C>
concept has_barrier
    = communicator<C> && requires(C& comm, stream_ref_of<C> stream) { comm.barrier(stream, call_site{}); };

/// `split(color, key)`: a new communicator of the ranks with the same `color` (>= 0), ranked by `key`,
/// then by old rank; empty for `no_color`. Collective over host threads: it blocks until all ranks call.
template <class C>
concept has_split = communicator<C> && requires(C& comm, int color, int key) {
    requires communicator<std::remove_cvref_t<decltype(*comm.split(color, key, call_site{}))>>;
};

/// A communicator with every collective, for elements of type T.
template <class C, class T>
concept full_communicator = has_all_reduce<C, T> && has_reduce_scatter<C, T> && has_all_gather<C, T>
    && has_all_to_all<C, T> && has_broadcast<C, T> && has_barrier<C> && has_split<C>;

} // namespace collprobe
