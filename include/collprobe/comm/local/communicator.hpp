// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/detail/moves.hpp>
#include <collprobe/comm/local/group.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/device/host/device.hpp>

/// Ranks as threads of one process, with real collectives between them, on the CPU.
///
/// Errors. comm/README.md has the rules of all communicators. The ranks meet before each collective, so no rank waits
/// longer than the time-out. These errors are final: every later call on every rank throws the first, and work that
/// waits in a stream fails with it.
/// - `mismatch`, on all ranks: the ranks gave different calls, types, counts, operations or roots. The culprits are
///   the ranks outside the largest group that agrees. If two groups are the largest (always so with two ranks that
///   differ), the error names all ranks.
/// - `timeout`: a rank did not come within `options::timeout_ms`. The culprits are the missing ranks. The time starts
///   when a rank's own stream reaches the collective.
/// - `peer_failure`, on the other ranks: work on a rank's stream failed before a collective.
/// A collective that fails has written nothing. A collective in which all ranks have met always completes.
/// A failed communicator does not fail the communicators that it was split from or that were split from it (NCCL's
/// abort does not either). Only `run` fails them all, because there the rank itself is gone.
namespace collprobe::inline COLLPROBE_ABI::local {

inline constexpr int max_ranks = 256;

/// One rank's handle of a group. Cheap to copy and to move, also while its work is queued. Copies are the same rank.
/// One host thread uses it at a time.
///
/// Arithmetic, the same for every order: each combination rounds to the element type. Integers wrap. An integer
/// average is the wrapped sum divided by n, truncated towards zero. A floating-point average is the sum of the values
/// times 1/n; 1/n and each product are rounded to the element type (NCCL's PreMulSum). min and max prefer a number to
/// a NaN, give NaN if all values are NaN, and order -0 < +0. Subnormal numbers count, also in a program that flushes
/// them elsewhere. All ranks get the same bits.
///
/// Stream behaviour: a collective returns once enqueued. It never blocks or synchronises the calling thread, and it
/// allocates nothing. The collectives of one communicator run one after the other in call order, as NCCL's do: a
/// later call on another stream waits, in that stream, for the earlier one.
/// Cost: the ranks share the work. In an all-reduce each rank reads count / n elements of n buffers and writes as
/// many of n buffers. In a reduce-scatter it reads its part of n buffers and writes the result once. In the other
/// collectives it reads and writes the elements that it receives.
class communicator : public detail::basic_communicator<communicator, host::device, detail::group_state> {
public:
    static constexpr int max_ranks = local::max_ranks;
    static constexpr reduction_order last_order = reduction_order::tree;

private:
    template <class>
    friend class detail::basic_group;
    using base = detail::basic_communicator<communicator, host::device, detail::group_state>;
    friend base;
    using state_type = detail::group_state;
    using mover = void (*)(const detail::group_state&, int rank);

    /// Any stream and any memory of the process will do.
    static void require_fit(stream_ref, const collprobe::detail::caller<communicator>&) noexcept {}

    communicator(state_ref state, int rank) noexcept : base(std::move(state), rank) {}

    /// One rank's part in a collective, in its stream.
    struct task {
        state_ref state;
        int rank;
        std::uint64_t number;
        collective_call call;
        mover move;

        void operator()() const
        {
            state->meet.enter(rank, number, call);
            if (move != nullptr) move(*state, rank);
            state->meet.leave(rank, number);
        }

        void cancel(const std::exception_ptr& cause) const noexcept
        {
            state->could_not_take_part(rank, call.what, cause);
        }
    };

    template <class T>
    static mover mover_of(collective call) noexcept
    {
        return detail::mover_of<T>(call);
    }

    void enqueue(stream_ref on, const collective_call& call, mover move) const
    {
        const std::uint64_t number = state_->meet.next_call(rank_);
        try {
            on.enqueue(task{state_, rank_, number, call, move});
        } catch (const std::exception& cause) {
            // The number is taken, and no task will run with it.
            state_->could_not_enqueue(rank_, cause.what());
            throw;
        }
    }
};

/// n ranks of one process that share a communicator.
using group = detail::basic_group<communicator>;

static_assert(collprobe::communicator<communicator>);

} // namespace collprobe::local

#include <collprobe/comm/local/run.hpp>
