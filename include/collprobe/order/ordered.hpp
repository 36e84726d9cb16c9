// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <collprobe/device/host/stream.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/order/stream_order.hpp>

/// Reports the work that a program enqueues on host streams to the installed checker of stream order; cuda/ordered.hpp
/// has the same for CUDA's streams. With COLLPROBE_STREAM_ORDER=0 nothing is reported.
///
///     ordered::enqueue(compute, {{gradient, bytes}}, {{weights, bytes}}, [=] { adam(weights, gradient); }, "adam");
///
/// Throws any exception of `stream_order::options::on_hazard`.
namespace collprobe::inline COLLPROBE_ABI::ordered {

using order_hooks::if_checked;
using order_hooks::stream_of;

/// Reports work on the stream, and what it reads and writes. Call it before the work is enqueued.
inline void touch(host::stream_ref on, const memory_ranges& reads, const memory_ranges& writes,
    const char* what = "task", call_site where = call_site::current())
{
    if_checked([&](stream_order& to) { to.launch(stream_of(on), reads, writes, what, where); });
}
/// Reports the task as `touch` does, and enqueues it. If the report throws, nothing is enqueued.
template <class Task>
void enqueue(host::stream_ref on, const memory_ranges& reads, const memory_ranges& writes, Task&& task,
    const char* what = "task", call_site where = call_site::current())
{
    touch(on, reads, writes, what, where);
    on.enqueue(std::forward<Task>(task));
}
/// Reports an access by the calling thread.
inline void touch_host(memory_range bytes, memory_access mode, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) { to.touch_host(bytes, mode, "host access", where); });
}
/// Gives a stream a name for messages.
inline void name(host::stream_ref on, const char* text)
{
    if_checked([&](stream_order& to) { to.name(stream_of(on), text); });
}

} // namespace collprobe::ordered
