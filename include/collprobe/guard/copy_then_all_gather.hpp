// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/guard/detail/access_history.hpp>
#include <collprobe/guard/detail/gather_plan.hpp>
#include <collprobe/guard/detail/stream_edges.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/guard/stream_list.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// `plan_of(i)` returns the plan of tensor i, i < `count`.
template <communicator Comm, class PlanOf>
gather_handle<typename Comm::device> run_gathers(Comm& comm, std::size_t count, const PlanOf& plan_of,
    stream_ref_of<Comm> on, const stream_list<stream_ref_of<Comm>>& producers,
    const stream_list<stream_ref_of<Comm>>& consumers, call_site where)
{
    using stream_ref = stream_ref_of<Comm>;
    const caller<Comm> who(comm, "copy_then_all_gather", where);
    who.require_immediate(", or give all tensors to one call");
    bool marks = consumers.empty();
    gather_path path = gather_path::in_place;
    for (std::size_t i = 0; i < count; ++i) {
        const auto plan = plan_of(i);
        marks = marks || plan.has_history();
        path = plan.path();
    }
    for (const stream_ref& consumer : consumers) marks = marks || !(consumer == on);

    const auto scope = comm.device_scope();
    await_producers(who, on, producers);
    for (std::size_t i = 0; i < count; ++i) plan_of(i).order(on);

    typename Comm::device::event done;
    const auto enqueue = [&] {
        for (std::size_t i = 0; i < count; ++i) plan_of(i).prepare(on);
        const auto gather_all = [&] {
            for (std::size_t i = 0; i < count; ++i) plan_of(i).gather(comm, on);
        };
        if (count == 1) return gather_all();
        auto group = comm.group_scope(where);
        gather_all();
        group.end(where);
    };
    const auto note = [&] {
        for (std::size_t i = 0; i < count; ++i) plan_of(i).note(on, done);
    };
    if (!marks) {
        enqueue();
        return {on, std::move(done), path};
    }
    try {
        enqueue_marked(done, on, enqueue);
    } catch (...) {
        if (done.recorded()) note();
        for (std::size_t i = 0; i < count; ++i) plan_of(i).invalidate();
        throw;
    }
    note();
    for (std::size_t i = 0; i < count; ++i) plan_of(i).pass_generation();
    hold_consumers(consumers, on, done, where);
    return {on, std::move(done), path};
}

} // namespace detail

/// Brings this rank's shard into an all-gather and runs it: slot r of every rank's destination becomes rank r's source.
/// Events order it behind the work enqueued so far on `producers` and in front of later work on `consumers`.
/// `source`, `destination`: views, containers or `guarded` buffers. A `guarded` buffer also orders it behind its
/// other accesses on any stream.
/// Shapes: `destination.count()` is a multiple of `size()`, equal on all ranks; the quotient is the size of a slot.
/// `source.count()` may be smaller and unequal; zeros fill the slot. The source begins at its slot, or shares no byte
/// with the destination. Another floating-point type is rounded once, to nearest even.
/// Preconditions: with `{}` the caller orders the producers, or orders the consumers by the handle. A stream that next
/// overwrites a source that is not `guarded` is a consumer. One thread at a time for a communicator and for a buffer.
/// Stream behaviour: everything is enqueued on `on`; the host never waits. In a capture everything becomes part of it.
/// Cost: 2 events for a producer and a consumer; `copy` and `convert` read and write the shard once more.
/// \throws error `invalid_argument`, which names the argument: shapes, overlaps (with both ranges), a stale generation,
///   a producer outside the capture; `unsupported` inside a group; those of the communicator.
///   Only waits are enqueued then.
template <class Source, class Destination, communicator Comm>
gather_handle<typename Comm::device> copy_then_all_gather(Source&& source, Destination&& destination, Comm& comm,
    stream_ref_of<Comm> on, stream_list<stream_ref_of<Comm>> producers, stream_list<stream_ref_of<Comm>> consumers,
    const gather_options<typename Comm::device, detail::buffer_element<Destination>>& options = {},
    call_site where = call_site::current())
{
    using device = typename Comm::device;
    using from = detail::buffer_element<Source>;
    using to = detail::buffer_element<Destination>;
    const gather_item<device, to, from> what{
        detail::gather_buffer<device, const from>(source), detail::gather_buffer<device, to>(destination), options};
    const detail::gather_plan<Comm, to, from> plan(comm, what, on, where);
    return detail::run_gathers(
        comm, 1, [at = &plan](std::size_t) -> const auto& { return *at; }, on, producers, consumers, where);
}

/// As above for many tensors at once: first all copies, then all all-gathers, in one group if the communicator has
/// groups (NCCL: one launch). Memory that one item writes must not be touched by another, which is refused: in a group
/// a shard that is used twice would be overwritten before it is sent.
/// `items`: an array or a container of `gather_item`. Cost on the host, beside the collectives: one comparison for each
/// pair of items.
template <class Items, communicator Comm>
    requires requires(const Items& items) { typename std::remove_cvref_t<decltype(*std::data(items))>::is_gather_item; }
gather_handle<typename Comm::device> copy_then_all_gather(const Items& items, Comm& comm, stream_ref_of<Comm> on,
    stream_list<stream_ref_of<Comm>> producers, stream_list<stream_ref_of<Comm>> consumers,
    call_site where = call_site::current())
{
    using item = std::remove_cvref_t<decltype(*std::data(items))>;
    using plan = detail::gather_plan<Comm, typename item::element_type, typename item::source_type>;
    const item* const first = std::data(items);
    const std::size_t count = std::size(items);
    // Plans are made again rather than stored: they are cheap and this allocates no memory. Each item is checked once.
    const auto plan_of = [&](std::size_t i) { return plan(comm, first[i], on, where, true); };
    for (std::size_t i = 0; i < count; ++i) {
        const plan one(comm, first[i], on, where);
        for (std::size_t j = 0; j < i; ++j) {
            if (one.independent_of(plan_of(j))) continue;
            detail::caller(comm, "copy_then_all_gather", where)
                .fail(status::invalid_argument,
                    "tensors " + std::to_string(j) + " and " + std::to_string(i)
                        + " use the same memory, and one of them writes it");
        }
    }
    return detail::run_gathers(comm, count, plan_of, on, producers, consumers, where);
}

} // namespace collprobe
