// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/detail/moves.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/sum/combine.hpp>

/// One rank's share of the data movement of a collective, as work of a device. The rank enqueues it between `enter`
/// and `leave` of the rendezvous. The shares are those of comm/local/detail/moves.hpp, and the bits those of its linear
/// order.
namespace collprobe::inline COLLPROBE_ABI::local::detail {

/// The largest number of ranks for a kernel: their addresses are arguments of its launch, and all arguments of a
/// launch together may take 4 KiB.
inline constexpr int max_device_ranks = 64;

/// Combines element `first + index` of all ranks' `send` in the order of the ranks, and writes the result to all
/// `receive`. No other thread touches these elements, and all are read before one is written. So any of the buffers
/// may be the same as another.
template <element T>
struct element_reduction {
    const T* send[max_device_ranks];
    T* receive[max_device_ranks];
    std::uint64_t first;
    int ranks;
    int receivers;
    reduction operation;
    T scale; ///< the factor of each value in a floating-point average

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::uint64_t at = first + index;
        T partial = prepared(0, at);
        for (int rank = 1; rank < ranks; ++rank) {
            partial = collprobe::detail::combine(operation, partial, prepared(rank, at));
            collprobe::detail::compiler_barrier(&partial);
        }
        const T result = completed(partial);
        for (int to = 0; to < receivers; ++to) receive[to][at] = result;
    }

private:
    COLLPROBE_HD T prepared(int rank, std::uint64_t at) const
    {
        T value = send[rank][at];
        collprobe::detail::compiler_barrier(&value);
        if constexpr (floating_element<T>) {
            if (operation == reduction::average) {
                value = collprobe::detail::multiply(value, scale);
                collprobe::detail::compiler_barrier(&value);
            }
        }
        return value;
    }
    COLLPROBE_HD T completed(T value) const
    {
        if constexpr (!floating_element<T>) {
            if (operation == reduction::average) return collprobe::detail::truncated_quotient(value, ranks);
        }
        return value;
    }
};

/// The reduction of all ranks' arguments: the part that all collectives share.
template <element T>
element_reduction<T> posted_reduction(const group_state& state, int rank)
{
    element_reduction<T> body{};
    body.ranks = state.meet.size();
    body.operation = state.meet.posted(rank).operation;
    if constexpr (floating_element<T>) body.scale = collprobe::detail::average_scale<T>(body.ranks);
    return body;
}

template <class Device, class T>
void enqueue_all_reduce(const group_state& state, int rank, typename Device::stream_ref on)
{
    element_reduction<T> body = posted_reduction<T>(state, rank);
    for (int each = 0; each < body.ranks; ++each) {
        body.send[each] = sent<T>(state, each);
        body.receive[each] = received<T>(state, each);
    }
    body.receivers = body.ranks;
    const element_run own = own_run(count_of(state, rank), body.ranks, rank);
    if (own.count == 0) return;
    body.first = own.first;
    Device::for_each(on, own.count, body);
}

template <class Device, class T>
void enqueue_reduce_scatter(const group_state& state, int rank, typename Device::stream_ref on)
{
    const std::uint64_t count = count_of(state, rank);
    if (count == 0) return;
    element_reduction<T> body = posted_reduction<T>(state, rank);
    for (int each = 0; each < body.ranks; ++each) {
        body.send[each] = sent<T>(state, each) + static_cast<std::uint64_t>(rank) * count;
    }
    body.receive[0] = received<T>(state, rank);
    body.receivers = 1;
    Device::for_each(on, count, body);
}

/// Copies bytes, unless source and destination are the same.
template <class Device>
void enqueue_copy(typename Device::stream_ref on, const std::byte* source, std::byte* destination, std::uint64_t bytes,
    call_site where)
{
    if (bytes == 0 || source == destination) return;
    Device::copy(on, view<const std::byte>(source, bytes), view<std::byte>(destination, bytes), where);
}

/// Puts rank `rank`'s share of the call that it has posted on its stream. Does nothing for a barrier.
template <class Device, class T>
void enqueue_move(const group_state& state, int rank, typename Device::stream_ref on, call_site where)
{
    const collective_call& call = state.meet.posted(rank);
    const std::uint64_t bytes = bytes_of(state, rank);
    switch (call.what) {
    case collective::all_reduce: enqueue_all_reduce<Device, T>(state, rank, on); return;
    case collective::reduce_scatter: enqueue_reduce_scatter<Device, T>(state, rank, on); return;
    case collective::broadcast:
        enqueue_copy<Device>(on, sent<std::byte>(state, call.root), received<std::byte>(state, rank), bytes, where);
        return;
    case collective::all_gather:
    case collective::all_to_all: {
        if (bytes == 0) return;
        // An all-to-all copies part `rank` of each send, a gather the whole send.
        const std::uint64_t part = call.what == collective::all_to_all ? static_cast<std::uint64_t>(rank) : 0;
        for (int from = 0; from < state.meet.size(); ++from) {
            enqueue_copy<Device>(on, sent<std::byte>(state, from) + part * bytes,
                received<std::byte>(state, rank) + static_cast<std::uint64_t>(from) * bytes, bytes, where);
        }
        return;
    }
    case collective::barrier:
    case collective::split: return;
    }
}

} // namespace collprobe::local::detail
