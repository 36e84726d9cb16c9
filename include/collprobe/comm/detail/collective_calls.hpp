// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The collectives of a communicator that moves the data itself: checks of the arguments, messages to the checker of
/// stream order, and the description that the ranks must agree on. `Self` derives from this and has, private with
/// this class as a friend:
/// - `checked(call, on, where)`: an object with `fail(message)`, which throws and tells the peers, and
///   `places(arguments)`, which fails if memory cannot be used. Throws if the communicator has failed or `on` is
///   unusable;
/// - `mover_of<Call, T>()`: the part of a collective that depends on its element type, such as a function pointer;
/// - `launch(what, arguments, on, where, mover)`: enqueues the collective;
/// - `identity()`: the address of the state that the ranks of this process share, or of this rank's own.
///
/// Stream behaviour: a collective is enqueued on `on`; the buffers must not change until the stream is past it.
/// \throws error `invalid_argument`; the communicator's failure. The communicator documents later failures and costs.
template <class Self, class Device>
class collective_calls {
public:
    using device = Device;
    using stream_ref = typename Device::stream_ref;

    /// Element i of every rank's `receive` becomes the reduction of element i of all ranks' `send`.
    /// Shapes: `send.count() == receive.count()`, equal on all ranks, 0 allowed; `receive` is `send` or disjoint
    /// from it.
    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current()) const
    {
        make<collective::all_reduce, T>(send, receive, operation, -1, on, where);
    }

    /// Rank r's `receive` becomes part r of the reduction of all ranks' `send`.
    /// Shapes: `send.count() == size() * receive.count()`, equal on all ranks, 0 allowed; `receive` is part r of
    /// `send` or disjoint from it.
    template <element T>
    void reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current()) const
    {
        make<collective::reduce_scatter, T>(send, receive, operation, -1, on, where);
    }

    /// Part r of every rank's `receive` becomes rank r's `send`.
    /// Shapes: `receive.count() == size() * send.count()`, equal on all ranks, 0 allowed; `send` is part r of
    /// `receive` or disjoint from it.
    template <element T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current()) const
    {
        make<collective::all_gather, T>(send, receive, reduction::sum, -1, on, where);
    }

    /// Part s of rank r's `receive` becomes part r of rank s's `send`.
    /// Shapes: `send.count() == receive.count()`, a multiple of `size()`, equal on all ranks, 0 allowed; disjoint.
    template <element T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current()) const
    {
        make<collective::all_to_all, T>(send, receive, reduction::sum, -1, on, where);
    }

    /// Every rank's `receive` becomes the `send` of rank `root`; the other ranks' `send` is ignored.
    /// Shapes: `receive.count()` is equal on all ranks and the root's `send.count()`, 0 allowed; on the root `receive`
    /// is `send` or disjoint from it.
    template <element T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref on,
        call_site where = call_site::current()) const
    {
        make<collective::broadcast, T>(send, receive, reduction::sum, root, on, where);
    }

    /// Work behind the barrier on any rank's stream runs after the work before it on every rank's stream.
    void barrier(stream_ref on, call_site where = call_site::current()) const
    {
        start({}, on, where, Self::template mover_of<collective::barrier, std::uint8_t>());
    }

    /// Says that the next calls of this handle are parts of one call of `count` elements of a type; 0 for none. Ranks
    /// that disagree on it get `mismatch` if the communicator compares counts. For adaptors that make several calls of
    /// one.
    void part_of(std::uint64_t count, element_type type) noexcept { whole_ = whole_call(count, type); }

protected:
    whole_call whole_;

private:
    template <collective Call, class T>
    void make(view<const T> send, view<T> receive, reduction operation, int root, stream_ref on, call_site where) const
    {
        start(arguments_of<Call>(send, receive, operation, root), on, where, Self::template mover_of<Call, T>());
    }

    template <class Mover>
    void start(const collective_arguments& with, stream_ref on, call_site where, Mover mover) const
    {
        const Self& self = static_cast<const Self&>(*this);
        const auto check = self.checked(with.call, on, where);
        const int rank = self.rank();
        const int size = self.size();
        if (const std::string flaw = flaw_of_arguments(with, rank, size); !flaw.empty()) check.fail(flaw);
        check.places(with);
        // In a group NCCL may enqueue a call of several ranks later. (It enqueues a call of one rank at once.)
        const bool deferrable = has_group_scope<Self> && size > 1;
        order_hooks::call(on, rank, with, deferrable, where);
        const order_hooks::silent inner_work;
        self.launch({with.call, with.type, with.operation, with.root, agreed_count(with, size), whole_}, with, on,
            where, mover);
    }
};

} // namespace collprobe::detail
