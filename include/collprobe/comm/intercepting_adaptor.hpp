// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/function_ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Makes an intercepted call with a send buffer: the caller's buffer or another one.
template <class T>
using forward_call = function_ref<void(view<const T>)>;

/// An adaptor that does the same around every collective with data: one function for each element type, for all
/// collectives. `Self` derives from this and has, private with this class as a friend, `around<T>(arguments, send,
/// receive, stream, where, forward)`. That function calls `forward(send)` once, at the point where the collective
/// must be made. All other calls pass as in `adaptor`.
template <class Self, communicator Comm>
class intercepting_adaptor : public adaptor<Comm> {
    using base_type = adaptor<Comm>;

public:
    using base_type::base_type;
    using typename base_type::stream_ref;

    template <element T>
        requires has_all_reduce<Comm, T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref stream,
        call_site where = call_site::current())
    {
        intercept<collective::all_reduce, T>(send, receive, operation, -1, stream, where,
            [&, this](view<const T> sent) { comm_.all_reduce(sent, receive, operation, stream, where); });
    }
    template <element T>
        requires has_reduce_scatter<Comm, T>
    void reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        intercept<collective::reduce_scatter, T>(send, receive, operation, -1, stream, where,
            [&, this](view<const T> sent) { comm_.reduce_scatter(sent, receive, operation, stream, where); });
    }
    template <element T>
        requires has_all_gather<Comm, T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        intercept<collective::all_gather, T>(send, receive, reduction::sum, -1, stream, where,
            [&, this](view<const T> sent) { comm_.all_gather(sent, receive, stream, where); });
    }
    template <element T>
        requires has_all_to_all<Comm, T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref stream,
        call_site where = call_site::current())
    {
        intercept<collective::all_to_all, T>(send, receive, reduction::sum, -1, stream, where,
            [&, this](view<const T> sent) { comm_.all_to_all(sent, receive, stream, where); });
    }
    template <element T>
        requires has_broadcast<Comm, T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref stream,
        call_site where = call_site::current())
    {
        intercept<collective::broadcast, T>(send, receive, reduction::sum, root, stream, where,
            [&, this](view<const T> sent) { comm_.broadcast(sent, receive, root, stream, where); });
    }

protected:
    using base_type::comm_;

private:
    template <collective Call, class T>
    void intercept(view<const T> send, view<T> receive, reduction operation, int root, stream_ref stream,
        call_site where, forward_call<T> forward)
    {
        static_cast<Self&>(*this).template around<T>(arguments_of<Call>(send, receive, operation, root), send, receive,
            stream, where, forward);
    }
};

} // namespace collprobe::detail
