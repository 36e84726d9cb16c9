// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A communicator that forwards every call to the one it wraps. Derive from it, and replace the calls that must do
/// more. The result satisfies the communicator concept again, so adaptors stack. A call that is not replaced behaves,
/// fails and costs as the wrapped communicator's call.
template <communicator Comm>
class adaptor {
    static_assert(std::is_move_constructible_v<Comm>, "a communicator that cannot be moved cannot be wrapped");

public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// Takes the communicator over. To wrap an owning communicator, pass a `communicator_ref` or move the owner in.
    /// Use braces: `probed comm(reproducible(world));` declares a function.
    explicit adaptor(Comm comm) : comm_(std::move(comm)) {}

    int rank() const noexcept { return comm_.rank(); }
    int size() const noexcept { return comm_.size(); }
    /// How long the wrapped communicator waits for a peer; 30 s if it does not say.
    std::int64_t timeout_ms() const noexcept { return detail::timeout_of(comm_); }
    decltype(auto) name() const
        requires has_name<Comm>
    {
        return comm_.name();
    }
    /// A guard that makes the communicator's device current.
    auto device_scope() const
        requires has_device_scope<Comm>
    {
        return comm_.device_scope();
    }
    bool collectives_enqueue_at_once() const
        requires has_groups<Comm>
    {
        return comm_.collectives_enqueue_at_once();
    }
    template <class T>
    void check_buffer(view<T> buffer, const char* argument, collective call, stream_ref stream,
        call_site where = call_site::current()) const
        requires has_check_buffer<Comm, T>
    {
        comm_.check_buffer(buffer, argument, call, stream, where);
    }
    void part_of(std::uint64_t count, element_type type)
        requires has_part_of<Comm>
    {
        comm_.part_of(count, type);
    }
    void refuse(const error& why, collective call, stream_ref stream) const
        requires has_refuse<Comm>
    {
        comm_.refuse(why, call, stream);
    }
    void check(call_site where = call_site::current()) const
        requires has_check<Comm>
    {
        comm_.check(where);
    }
    void synchronize(stream_ref stream, call_site where = call_site::current()) const
        requires has_synchronize<Comm>
    {
        comm_.synchronize(stream, where);
    }
    void synchronize(stream_ref stream, std::int64_t timeout_ms, call_site where = call_site::current()) const
        requires has_timed_synchronize<Comm>
    {
        comm_.synchronize(stream, timeout_ms, where);
    }
    void abort(const std::string& reason) const
        requires has_abort<Comm>
    {
        comm_.abort(reason);
    }
    quantised_calls& quantisation_calls() noexcept
        requires has_quantisation_calls<Comm>
    {
        return comm_.quantisation_calls();
    }
    void next_step(stream_ref stream, call_site where = call_site::current())
        requires has_next_step<Comm>
    {
        comm_.next_step(stream, where);
    }
    /// The wrapped communicator.
    Comm& base() noexcept { return comm_; }
    const Comm& base() const noexcept { return comm_; }

    template <element T>
        requires has_all_reduce<Comm, T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        comm_.all_reduce(send, receive, operation, stream, where);
    }
    template <element T>
        requires has_reduce_scatter<Comm, T>
    void reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        comm_.reduce_scatter(send, receive, operation, stream, where);
    }
    template <element T>
        requires has_all_gather<Comm, T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        comm_.all_gather(send, receive, stream, where);
    }
    template <element T>
        requires has_all_to_all<Comm, T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        comm_.all_to_all(send, receive, stream, where);
    }
    template <element T>
        requires has_broadcast<Comm, T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref stream,
        call_site where = call_site::current())
    {
        comm_.broadcast(send, receive, root, stream, where);
    }
    void barrier(stream_ref stream, call_site where = call_site::current())
        requires has_barrier<Comm>
    {
        comm_.barrier(stream, where);
    }
    /// A part of the wrapped communicator, not wrapped.
    auto split(int color, int key, call_site where = call_site::current())
        requires has_split<Comm>
    {
        return comm_.split(color, key, where);
    }

protected:
    Comm comm_;
};

template <class Comm>
adaptor(Comm) -> adaptor<Comm>;

} // namespace collprobe
