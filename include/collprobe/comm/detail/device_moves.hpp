// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/combine.hpp>
#include <collprobe/comm/detail/local_group.hpp>
#include <collprobe/comm/detail/local_moves.hpp>
#include <collprobe/comm/local_order.hpp>
#include <collprobe/config.hpp>
#include <collprobe/detail/gradual_underflow.hpp>
#include <collprobe/element.hpp>
#include <collprobe/error.hpp>
#include <collprobe/record.hpp>
#include <collprobe/view.hpp>

/// One rank's share of the data movement of a collective as work of a device, enqueued between `enter`
/// and `leave` of the board. The shares are those of local_moves.hpp, and so are the bits.
namespace collprobe::local::detail {

/// How many ranks a kernel knows: their addresses travel with its launch, and all arguments of a
/// launch together may take 4 KiB.
inline constexpr int max_device_ranks = 64;

/// Combines element `first + index` of all ranks' `send` in the order of an algorithm, and writes it
/// to all `receive`. Nothing else touches these elements, and all are read before one is written: so
/// any of the buffers may be the same as another.
template <element T>
struct element_reduction {
    const T* send[max_device_ranks];
    T* receive[max_device_ranks];
    std::uint64_t first;
    std::uint64_t boundary; ///< ring: the length of a chunk; tree: how many elements go over tree 0
    int ranks;
    int receivers;
    int start; ///< linear: the rank that comes first; others follow around the ring
    reduction operation;
    reduction_order order;
    T scale; ///< what a floating-point average multiplies each value with

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
#if !defined(__CUDA_ARCH__)
        // Each hop stands between two `settle`s, which the compiler keeps behind this.
        const collprobe::detail::gradual_underflow as_ieee_has_it;
#endif
        const std::uint64_t at = first + index;
        const T result = completed(order == reduction_order::tree
                ? climb<0>(at < boundary ? 0 : 1, tree_root(at < boundary ? 0 : 1, ranks), at)
                : around(order == reduction_order::ring ? ring_start(at / boundary, ranks) : start, at));
        for (int to = 0; to < receivers; ++to) receive[to][at] = result;
    }

private:
    static constexpr int tree_levels = 7; // the root, and 6 levels of a tree of up to 2^6 ranks

    COLLPROBE_HD T prepared(int rank, std::uint64_t at) const
    {
        T value = send[rank][at];
        collprobe::detail::settle(&value);
        if constexpr (floating_element<T>) {
            if (operation == reduction::average) {
                value = collprobe::detail::multiply(value, scale);
                collprobe::detail::settle(&value);
            }
        }
        return value;
    }
    COLLPROBE_HD void hop(T& partial, T value) const
    {
        partial = collprobe::detail::combine(operation, partial, value);
        collprobe::detail::settle(&partial);
    }
    COLLPROBE_HD T completed(T value) const
    {
        if constexpr (!floating_element<T>) {
            if (operation == reduction::average) return collprobe::detail::divide(value, ranks);
        }
        return value;
    }
    COLLPROBE_HD T around(int first_rank, std::uint64_t at) const
    {
        T partial = prepared(first_rank, at);
        for (int distance = 1; distance < ranks; ++distance) {
            const int rank = first_rank + distance;
            hop(partial, prepared(rank < ranks ? rank : rank - ranks, at));
        }
        return partial;
    }
    // A function per level: a recursion would need a stack in memory, on a device too.
    template <int level>
    COLLPROBE_HD T climb(int tree, int rank, std::uint64_t at) const
    {
        T partial = prepared(rank, at);
        if constexpr (level + 1 < tree_levels) {
            const tree_links links = double_tree(tree, rank, ranks);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
            for (int side = 0; side < 2; ++side) {
                const int child = side == 0 ? links.child[0] : links.child[1];
                if (child >= 0) hop(partial, climb<level + 1>(tree, child, at));
            }
        }
        return partial;
    }
};

/// The reduction of all ranks' postings, without what differs between collectives.
template <element T>
element_reduction<T> posted_reduction(const group_state& state, const collprobe::detail::call_description& what)
{
    element_reduction<T> body{};
    body.ranks = state.meet.size();
    body.operation = what.operation;
    body.order = state.order;
    if constexpr (floating_element<T>) body.scale = collprobe::detail::average_scale<T>(body.ranks);
    return body;
}

template <class Device, class T>
void enqueue_all_reduce(const group_state& state, int rank, typename Device::stream_ref on)
{
    const collprobe::detail::call_description& what = state.meet.posted(rank).what;
    element_reduction<T> body = posted_reduction<T>(state, what);
    for (int each = 0; each < body.ranks; ++each) {
        body.send[each] = sent<T>(state, each);
        body.receive[each] = received<T>(state, each);
    }
    body.receivers = body.ranks;
    body.boundary = body.order == reduction_order::tree ? tree_0_count(what.count)
                                                        : ring_chunk(what.count, body.ranks, sizeof(T));
    const element_run own = own_run(what.count, body.ranks, rank);
    body.first = own.first;
    if (own.count != 0) Device::for_each(on, own.count, body);
}

template <class Device, class T>
void enqueue_reduce_scatter(const group_state& state, int rank, typename Device::stream_ref on)
{
    const collprobe::detail::call_description& what = state.meet.posted(rank).what;
    if (what.count == 0) return;
    element_reduction<T> body = posted_reduction<T>(state, what);
    for (int each = 0; each < body.ranks; ++each) {
        body.send[each] = sent<T>(state, each) + static_cast<std::uint64_t>(rank) * what.count;
    }
    body.receive[0] = received<T>(state, rank);
    body.receivers = 1;
    body.start = part_start(body.order, body.ranks, rank);
    body.order = reduction_order::linear;
    Device::for_each(on, what.count, body);
}

/// Copies `count` elements unless they are there already, in place.
template <class Device, class T>
void enqueue_copy(typename Device::stream_ref on, const T* source, T* destination, std::uint64_t count,
    call_site where)
{
    if (count == 0 || source == destination) return;
    Device::template copy<T>(on, view<const T>(source, count), view<T>(destination, count), where);
}

/// Puts rank `rank`'s share of `Call` on its stream. Nothing to do for a barrier.
template <class Device, collective Call, class T>
void enqueue_move(
    const group_state& state, int rank, typename Device::stream_ref on, [[maybe_unused]] call_site where)
{
    [[maybe_unused]] const int n = state.meet.size();
    [[maybe_unused]] const std::uint64_t count = state.meet.posted(rank).what.count;
    if constexpr (Call == collective::all_reduce) {
        enqueue_all_reduce<Device, T>(state, rank, on);
    } else if constexpr (Call == collective::reduce_scatter) {
        enqueue_reduce_scatter<Device, T>(state, rank, on);
    } else if constexpr (Call == collective::broadcast) {
        const T* const source = sent<T>(state, state.meet.posted(rank).what.root);
        enqueue_copy<Device, T>(on, source, received<T>(state, rank), count, where);
    } else if constexpr (Call == collective::all_gather || Call == collective::all_to_all) {
        if (count == 0) return;
        // An all-to-all takes part `rank` of each send, a gather the whole.
        const std::uint64_t part = Call == collective::all_to_all ? static_cast<std::uint64_t>(rank) : 0;
        for (int from = 0; from < n; ++from) {
            enqueue_copy<Device, T>(on, sent<T>(state, from) + part * count,
                received<T>(state, rank) + static_cast<std::uint64_t>(from) * count, count, where);
        }
    } else {
        static_assert(Call == collective::barrier);
    }
}

} // namespace collprobe::local::detail
