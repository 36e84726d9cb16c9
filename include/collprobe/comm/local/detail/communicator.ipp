// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include <collprobe/comm/local/communicator.hpp>

namespace collprobe::inline COLLPROBE_ABI::local {

COLLPROBE_INLINE void communicator::task::operator()() const
{
    state->meet.enter(rank, call, own, where);
    if (move != nullptr) move(*state, rank);
    state->meet.leave(rank, call);
}

COLLPROBE_INLINE void communicator::task::cancel(const std::exception_ptr& cause) const noexcept
{
    state->could_not_take_part(rank, own.what.call, cause);
}

COLLPROBE_INLINE void communicator::enqueue(stream_ref on, const posted_call& own, mover move, call_site where) const
{
    const std::uint64_t call = state_->meet.next_call(rank_);
    try {
        on.enqueue(task{state_, rank_, call, own, where, move});
    } catch (const std::exception& cause) {
        // The number is taken, and no task will run with it.
        state_->could_not_enqueue(rank_, cause.what());
        throw;
    }
}

} // namespace collprobe::local
