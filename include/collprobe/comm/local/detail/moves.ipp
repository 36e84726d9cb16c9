// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/local/detail/moves.hpp>

namespace collprobe::inline COLLPROBE_ABI::local::detail {

COLLPROBE_INLINE void move_all_gather(const group_state& state, int rank)
{
    const std::uint64_t bytes = state.meet.posted(rank).what.bytes();
    if (bytes == 0) return; // no arithmetic on a null pointer
    for (int from = 0; from < state.meet.size(); ++from) {
        copy(sent<std::byte>(state, from), received<std::byte>(state, rank) + static_cast<std::uint64_t>(from) * bytes,
            bytes);
    }
}

COLLPROBE_INLINE void move_all_to_all(const group_state& state, int rank)
{
    const std::uint64_t bytes = state.meet.posted(rank).what.bytes();
    if (bytes == 0) return;
    for (int from = 0; from < state.meet.size(); ++from) {
        copy(sent<std::byte>(state, from) + static_cast<std::uint64_t>(rank) * bytes,
            received<std::byte>(state, rank) + static_cast<std::uint64_t>(from) * bytes, bytes);
    }
}

COLLPROBE_INLINE void move_broadcast(const group_state& state, int rank)
{
    const collprobe::detail::call_description& what = state.meet.posted(rank).what;
    copy(sent<std::byte>(state, what.root), received<std::byte>(state, rank), what.bytes());
}

} // namespace collprobe::local::detail
