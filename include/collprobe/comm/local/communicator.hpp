// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/calls.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/detail/moves.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/device/host/device.hpp>

/// Ranks as threads of one process, with real collectives between them, on the CPU.
///
/// Errors. Every one is a `collprobe::error`, and the first one is final: from then on every call on
/// every rank throws it, and work that waits in a stream fails with it. Nobody is left waiting.
/// - A bad argument throws `invalid_argument` at the call on that rank; the others get `peer_failure`.
/// - Different calls, types, counts, operations or roots give all ranks `mismatch`. The culprits are
///   the ranks outside the largest group that agrees; where two groups are the largest (always with
///   two ranks that differ) nobody can say who is right, and all ranks are named.
/// - A rank that does not come within `options::timeout_ms` gives `timeout`; the culprits are those
///   who are missing. The time runs from when a rank's own stream has reached the collective.
/// - Work on a rank's stream that fails before a collective gives the others `peer_failure`.
/// A collective that fails has written nothing; one in which all ranks have met always completes.
/// A failed communicator leaves those that it was split from, or that were split from it, as they are
/// (so does NCCL's abort); only `run` fails them all, because there the rank itself is gone.
namespace collprobe::inline COLLPROBE_ABI::local {

inline constexpr int max_ranks = 256;

/// One rank's handle of a group: cheap to copy and to move, also while its work is queued. Copies are
/// the same rank. Used by one host thread at a time.
///
/// Collectives return once enqueued and never block or synchronise the calling thread; they allocate
/// nothing. Those of one communicator run one after the other in call order, even on different
/// streams (NCCL's do, too): on another stream the later call waits, in that stream, for the earlier.
/// All ranks get the same bits.
///
/// Cost: the ranks share the work. Each reads and writes, in elements of n buffers: of an all-reduce count / n; of a
/// reduce-scatter what it receives, written once; of the others what it receives.
///
/// Arithmetic, the same for every order: each combination rounds to the element type. Integers wrap.
/// An integer average is the wrapped sum divided by n, truncated towards zero; a floating-point one is
/// the sum of the values times 1/n, each product and 1/n rounded to the element type (NCCL's
/// PreMulSum). min and max prefer a number to a NaN, give NaN if there is nothing else, and order
/// -0 < +0. Subnormal numbers count, also in a program that flushes them elsewhere.
class communicator : public basic_communicator<communicator, host::device, detail::group_state> {
public:
    static constexpr int max_ranks = local::max_ranks;

private:
    template <class>
    friend class basic_group;
    using base = basic_communicator<communicator, host::device, detail::group_state>;
    friend base;
    friend collprobe::detail::collective_calls<communicator, host::device>;
    using state_type = detail::group_state;
    using mover = void (*)(const detail::group_state&, int rank);

    communicator(state_ref state, int rank) noexcept : base(std::move(state), rank) {}

    /// One rank's part in a collective, in its stream.
    struct task {
        state_ref state;
        int rank;
        std::uint64_t call;
        arguments own;
        call_site where;
        mover move;

        void operator()() const;
        void cancel(const std::exception_ptr& cause) const noexcept;
    };

    template <collective Call, class T>
    static mover mover_of() noexcept
    {
        return detail::mover_of<Call, T>();
    }
    void enqueue(stream_ref on, const arguments& own, mover move, call_site where) const;
};

/// n ranks of one process that share a communicator.
using group = basic_group<communicator>;

static_assert(full_communicator<communicator, float>);

} // namespace collprobe::local

#include <collprobe/comm/local/run.hpp>

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/local/detail/communicator.ipp>
#endif
