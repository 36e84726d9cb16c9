// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/detail/reduce_in_order.hpp>

/// One rank's share of the data movement of a collective, between `enter` and `leave` of the rendezvous.
namespace collprobe::inline COLLPROBE_ABI::local::detail {

template <class T>
const T* sent(const group_state& state, int rank) noexcept
{
    return static_cast<const T*>(state.meet.posted(rank).send);
}
template <class T>
T* received(const group_state& state, int rank) noexcept
{
    return static_cast<T*>(state.meet.posted(rank).receive);
}
template <class T>
void copy(const T* source, T* destination, std::uint64_t count) noexcept
{
    if (count == 0 || source == destination) return;
    std::memcpy(destination, source, static_cast<std::size_t>(count * sizeof(T)));
}

/// The elements, and the bytes, that the ranks have agreed on: those of a part, if a buffer has parts.
inline std::uint64_t count_of(const group_state& state, int rank) noexcept
{
    return collprobe::detail::agreed_count(state.meet.posted(rank), state.meet.size());
}
inline std::uint64_t bytes_of(const group_state& state, int rank) noexcept
{
    return count_of(state, rank) * state.meet.posted(rank).element_bytes();
}

/// A run of the elements of a collective.
struct element_run {
    std::uint64_t first;
    std::uint64_t count;
};
/// The run of `count` elements that `rank` owns. The runs of all ranks differ by at most one element in length.
constexpr element_run own_run(std::uint64_t count, int ranks, int rank) noexcept
{
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto own = static_cast<std::uint64_t>(rank);
    const std::uint64_t share = count / n;
    const std::uint64_t extra = count % n;
    return {own * share + (own < extra ? own : extra), share + (own < extra ? 1 : 0)};
}

// Only the owner of a run of elements touches it, in the inputs and outputs of all ranks. So the ranks share the
// work, need no scratch memory, and may reduce in place.
template <class T>
void move_all_reduce(const group_state& state, int rank)
{
    const int n = state.meet.size();
    const std::uint64_t count = count_of(state, rank);
    const element_run own = own_run(count, n, rank);
    reduce_in_order<T>(state.order, state.meet.posted(rank).operation, n, count, own.first,
        own.first + own.count, [&](int source) { return sent<T>(state, source); },
        [&](const T* values, std::uint64_t at, int length) {
            for (int to = 0; to < n; ++to) {
                copy(values, received<T>(state, to) + at, static_cast<std::uint64_t>(length));
            }
        });
}
template <class T>
void move_reduce_scatter(const group_state& state, int rank)
{
    const std::uint64_t count = count_of(state, rank);
    const std::uint64_t offset = static_cast<std::uint64_t>(rank) * count;
    T* const receive = received<T>(state, rank);
    reduce_part_in_order<T>(state.order, state.meet.posted(rank).operation, state.meet.size(), rank, count,
        [&](int source) { return sent<T>(state, source) + offset; },
        [&](const T* values, std::uint64_t at, int length) {
            copy(values, receive + at, static_cast<std::uint64_t>(length));
        });
}

// Calls without a reduction move bytes.
inline void move_all_gather(const group_state& state, int rank)
{
    const std::uint64_t bytes = bytes_of(state, rank);
    if (bytes == 0) return; // no arithmetic on a null pointer
    for (int from = 0; from < state.meet.size(); ++from) {
        copy(sent<std::byte>(state, from), received<std::byte>(state, rank) + static_cast<std::uint64_t>(from) * bytes,
            bytes);
    }
}

inline void move_all_to_all(const group_state& state, int rank)
{
    const std::uint64_t bytes = bytes_of(state, rank);
    if (bytes == 0) return;
    for (int from = 0; from < state.meet.size(); ++from) {
        copy(sent<std::byte>(state, from) + static_cast<std::uint64_t>(rank) * bytes,
            received<std::byte>(state, rank) + static_cast<std::uint64_t>(from) * bytes, bytes);
    }
}

inline void move_broadcast(const group_state& state, int rank)
{
    const int root = state.meet.posted(rank).root;
    copy(sent<std::byte>(state, root), received<std::byte>(state, rank), bytes_of(state, rank));
}

/// The function of these that does `call`; null if the call moves no data.
template <class T>
constexpr auto mover_of(collective call) noexcept -> void (*)(const group_state&, int)
{
    switch (call) {
    case collective::all_reduce: return &move_all_reduce<T>;
    case collective::reduce_scatter: return &move_reduce_scatter<T>;
    case collective::all_gather: return &move_all_gather;
    case collective::all_to_all: return &move_all_to_all;
    case collective::broadcast: return &move_broadcast;
    case collective::barrier:
    case collective::split: break;
    }
    return nullptr;
}

} // namespace collprobe::local::detail
