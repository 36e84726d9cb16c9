// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

/// The same collective for several tensors, in one NCCL group where the communicator has groups; else one by one.
/// `tensors`: a range of `tensor`, the same on all ranks. No tensor may overlap another.
/// Shapes, stream behaviour and errors: those of the collective for each tensor, and of `nccl::group`. After an error
/// some of the calls may have been made.
namespace collprobe::inline COLLPROBE_ABI {

/// A tensor of a grouped collective.
template <element T>
struct tensor {
    view<const T> send;
    view<T> receive;
    const char* name = ""; ///< for records and alarms; as `call_site::name`
};

namespace detail {

/// Calls `make(tensor, where)` for each; `where` has the tensor's name.
template <communicator Comm, class Tensors, class Make>
void for_each_in_group(Comm& comm, const Tensors& tensors, call_site where, const Make& make)
{
    as_one_group(comm, where, [&] {
        for (const auto& each : tensors) {
            call_site site = where;
            if (*each.name != '\0') site.name = each.name;
            make(each, site);
        }
    });
}

} // namespace detail

template <communicator Comm, class Tensors>
void all_reduce(Comm& comm, const Tensors& tensors, reduction operation, stream_ref_of<Comm> stream,
    call_site where = call_site::current())
{
    detail::for_each_in_group(comm, tensors, where, [&](const auto& each, call_site site) {
        comm.all_reduce(each.send, each.receive, operation, stream, site);
    });
}
template <communicator Comm, class Tensors>
void reduce_scatter(Comm& comm, const Tensors& tensors, reduction operation, stream_ref_of<Comm> stream,
    call_site where = call_site::current())
{
    detail::for_each_in_group(comm, tensors, where, [&](const auto& each, call_site site) {
        comm.reduce_scatter(each.send, each.receive, operation, stream, site);
    });
}
template <communicator Comm, class Tensors>
void all_gather(
    Comm& comm, const Tensors& tensors, stream_ref_of<Comm> stream, call_site where = call_site::current())
{
    detail::for_each_in_group(comm, tensors, where,
        [&](const auto& each, call_site site) { comm.all_gather(each.send, each.receive, stream, site); });
}

} // namespace collprobe
