// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/group.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/device/host/device.hpp>

#include "device_moves.hpp"

/// Ranks as threads of one process whose collectives run on one device that they share, which NCCL refuses. Made for
/// tests and small experiments, not for speed. The bits are those of
/// `local` on the CPU in the order of the ranks, except that a NaN result may have another sign and payload.
/// Preconditions: every rank has a host thread of its own (NCCL asks the same of ranks that are threads).
/// Stream behaviour: a call blocks its thread until the peers have called; it never waits for the device. A
/// collective reads no buffer before the earlier work on the peers' streams is done. Later work on a rank's stream
/// runs after all ranks are done with that rank's buffers.
/// Errors are those of `local` (comm/local/communicator.hpp), with these differences:
/// - The call itself throws `mismatch`, `timeout` and `peer_failure`, on all ranks, and enqueues nothing then. The
///   time of `options::timeout_ms` starts at a rank's call. The device's time has no limit.
/// - If the device refuses work on one rank, that rank's call throws the device's error and the others throw
///   `peer_failure`. The contents of the buffers are undefined then.
/// - Work that fails on one rank's stream fails all ranks' streams. On CUDA it fails all work of the process on the
///   device. On the CPU the peers get its exception (`peer_failure` if its own rank has got it); nothing is written.
/// - `unsupported`: the stream is being captured. CUDA cannot join captures that belong to different threads.
namespace collprobe::inline COLLPROBE_ABI::local {

namespace detail {

/// A kind of device of which a machine may have several, such as `cuda::device`.
template <class Device>
concept has_ordinals = requires(int ordinal, call_site where) {
    { Device::current_ordinal(where) } -> std::same_as<int>;
    Device::make_current(ordinal, where);
    Device::scope_of(ordinal, where); ///< a guard: makes `ordinal` current while it lives
};

/// Streams that run callables of the host. The communicator sees a failure on such a stream.
template <class Stream>
concept runs_callables = requires(const Stream& on) { on.enqueue([] {}); };

/// The state that the ranks of a device communicator share beyond the rendezvous.
template <class Device>
class device_group_state : public group_state {
public:
    /// One rank's side of the events. Only the rank's own thread writes it; a rank that reads it has met the owner
    /// since.
    struct alignas(64) rank_state {
        typename Device::event ready; ///< behind the stream's work before the collective
        typename Device::event done; ///< behind the rank's share of the collective
        bool enqueued = true; ///< whether the share of the last collective is on the stream
        int ordinal = 0; ///< the rank's device
    };

    template <class... Arguments>
    explicit device_group_state(Arguments&&... arguments)
        : group_state(std::forward<Arguments>(arguments)...), ranks_(static_cast<std::size_t>(meet.size()))
    {
    }
    rank_state& at(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }

    /// Says that work on the stream of `rank` failed in front of collective `call`.
    void lose(int rank, std::uint64_t call, collective what, const std::exception_ptr& cause) noexcept
    {
        could_not_take_part(rank, what, cause);
        std::uint64_t first = lost_from_.load(std::memory_order_relaxed);
        while (call < first && !lost_from_.compare_exchange_weak(first, call, std::memory_order_release)) {
        }
    }
    /// Whether a rank was lost in `call` or before. A rank that has waited for all ranks to be ready in `call` gets
    /// the same answer as the others, because a lost rank says so in front of its `ready`.
    bool lost(std::uint64_t call) const noexcept
    {
        return lost_from_.load(std::memory_order_acquire) <= call;
    }

private:
    std::vector<rank_state> ranks_;
    std::atomic<std::uint64_t> lost_from_{UINT64_MAX};
};

} // namespace detail

/// One rank's handle of a group on `Device`, a full communicator. Cheap to copy and to move. Copies are the same
/// rank. One host thread uses it at a time.
///
/// The device is the one that was current when the group gave out the handle; streams and buffers belong to that
/// device. Calls of ranks on different devices are `unsupported`: ranks with a GPU each have NCCL. Arithmetic and call
/// order over streams are as in `local::communicator`.
///
/// Cost of a call, besides moving the data: two meetings of the host threads, two event records and 2n - 1 waits. An
/// all-reduce or reduce-scatter is one kernel a rank. An all-gather or all-to-all is n copies a rank.
template <class Device>
class device_communicator
    : public detail::basic_communicator<device_communicator<Device>, Device, detail::device_group_state<Device>> {
    using base = detail::basic_communicator<device_communicator, Device, detail::device_group_state<Device>>;

public:
    using typename base::stream_ref;
    static constexpr int max_ranks = detail::max_device_ranks;
    static constexpr reduction_order last_order = reduction_order::linear;

    /// Makes the rank's device current for the calling thread while the result lives.
    [[nodiscard]] auto device_scope([[maybe_unused]] call_site where = call_site::current()) const
    {
        if constexpr (detail::has_ordinals<Device>) return Device::scope_of(ordinal_, where);
        else return base::device_scope();
    }

private:
    template <class>
    friend class detail::basic_group;
    friend base;
    using state_type = detail::device_group_state<Device>;
    using mover = void (*)(const detail::group_state&, int rank, stream_ref on, call_site where);
    using rank_state = typename state_type::rank_state;
    using typename base::state_ref;
    using base::rank_;
    using base::state_;

    device_communicator(state_ref state, int rank) : base(std::move(state), rank)
    {
        if constexpr (detail::has_ordinals<Device>) ordinal_ = Device::current_ordinal();
    }

    /// A task in front of `ready`, on streams that run callables. Its cancellation shows that earlier work failed.
    struct presence {
        state_ref state;
        int rank;
        std::uint64_t call;
        collective what;

        void operator()() const noexcept {}
        void cancel(const std::exception_ptr& cause) const noexcept { state->lose(rank, call, what, cause); }
    };
    /// A task behind all ranks' `ready`: either all ranks do the move, or none does.
    struct gate {
        state_ref state;
        int rank;
        std::uint64_t call;
        collective what;
        call_site where;

        void operator()() const
        {
            if (state->lost(call)) state->meet.require_usable(rank, what, where);
        }
    };

    // Every rank has two events, which it records in each collective. A wait refers to the latest record at the time
    // of the host's call. So no rank may record again before its peers have called `wait`.
    // - The peers wait for `ready` between `enter` and `leave`. The rank records it next in its next call, behind its
    //   `leave`, which all ranks have reached by then.
    // - The peers wait for `done` behind `leave`. The rank records it next behind the `enter` of its next call. All
    //   ranks have come there, and so have called their waits.
    template <class T>
    static mover mover_of(collective) noexcept
    {
        return &detail::enqueue_move<Device, T>;
    }
    void enqueue(stream_ref on, const collective_call& made, mover move) const
    {
        const collective what = made.what;
        const call_site where = made.where;
        [[maybe_unused]] const auto scope = or_fail([&, this] { return device_scope(where); });
        collprobe::detail::rendezvous& meet = state_->meet;
        rank_state& mine = state_->at(rank_);
        const std::uint64_t call = meet.next_call(rank_);
        or_fail([&, this] {
            // Collectives run in call order, on any streams. This rank is ready for this collective when its share of
            // the last one is done, and no rank moves data before all ranks are ready. On one and the same stream
            // this holds without a wait. But a new stream cannot be told from an earlier one that had the same
            // handle.
            if (mine.done.recorded()) on.wait(mine.done, where);
            if constexpr (detail::runs_callables<stream_ref>) on.enqueue(presence{state_, rank_, call, what});
            record(mine.ready, on, where);
            mine.ordinal = ordinal_;
        });
        meet.enter(rank_, call, made);

        // From here to `leave` no exception may pass, because the peers count on this rank to leave.
        std::exception_ptr failure;
        const auto attempt = [&](auto&& work) noexcept {
            try {
                work();
            } catch (...) {
                if (!failure) failure = std::current_exception();
            }
        };
        attempt([&, this] {
            require_one_device(where);
            for_peers([&](rank_state& peer) { on.wait(peer.ready, where); });
            if constexpr (detail::runs_callables<stream_ref>) {
                on.enqueue(gate{state_, rank_, call, what, where});
            }
            move(*state_, rank_, on, where);
        });
        attempt([&] { record(mine.done, on, where); });
        mine.enqueued = !failure;
        if (failure) state_->could_not_enqueue(rank_, collprobe::detail::message_of(failure));
        meet.leave(rank_, call);

        bool all_enqueued = true;
        attempt([&, this] {
            for_peers([&](rank_state& peer) {
                all_enqueued = all_enqueued && peer.enqueued;
                if (what != collective::barrier && peer.done.recorded()) on.wait(peer.done, where);
            });
        });
        if (failure) {
            if (mine.enqueued) state_->could_not_enqueue(rank_, collprobe::detail::message_of(failure));
            std::rethrow_exception(failure);
        }
        if (!all_enqueued) meet.require_usable(rank_, what, where);
    }

    /// Does `work` in front of the meeting. A rank that fails there must say so; else its peers wait for it.
    template <class Work>
    auto or_fail(const Work& work) const
    {
        try {
            return work();
        } catch (const std::exception& cause) {
            state_->could_not_enqueue(rank_, cause.what());
            throw;
        }
    }
    void require_fit([[maybe_unused]] stream_ref on, const collprobe::detail::caller<device_communicator>& who) const
    {
        if constexpr (detail::has_ordinals<Device>) {
            const int ordinal = or_fail([&] { return on.device(who.where()); });
            if (ordinal != ordinal_) {
                who.refuse("the stream is of device " + std::to_string(ordinal) + ", the rank is on device "
                    + std::to_string(ordinal_));
            }
        }
        if constexpr (requires { on.capturing(who.where()); }) {
            if (or_fail([&] { return on.capturing(who.where()); })) {
                who.refuse(
                    "the stream is being captured: the ranks' captures cannot be joined, because each belongs to a "
                    "thread of its own",
                    status::unsupported);
            }
        }
    }
    void require_one_device([[maybe_unused]] call_site where) const
    {
        for (int peer = 0; peer < this->size(); ++peer) {
            const int theirs = state_->at(peer).ordinal;
            if (theirs == ordinal_) continue;
            throw error(status::unsupported,
                "rank " + std::to_string(peer) + " is on device " + std::to_string(theirs) + ", this rank on device "
                    + std::to_string(ordinal_) + ": ranks share one device here",
                {.call = "device_communicator", .rank = rank_, .size = this->size(), .where = where});
        }
    }
    template <class Body>
    void for_peers(Body body) const
    {
        for (int peer = 0; peer < this->size(); ++peer) {
            if (peer != rank_) body(state_->at(peer));
        }
    }
    static void record(typename Device::event& event, stream_ref on, [[maybe_unused]] call_site where)
    {
        if constexpr (requires { event.record(on, where); }) event.record(on, where);
        else event.record(on);
    }

    int ordinal_ = 0;
};

/// n ranks of one process that share a communicator on `Device`, at most 64: `basic_group` has the rest.
template <class Device>
using device_group = detail::basic_group<device_communicator<Device>>;

/// `run` (comm/local/run.hpp) for ranks on `Device`: calls `fn(device_communicator<Device>&)` once for each rank,
/// each on a thread of its own, on the caller's device.
/// \throws error as `device_group` does; the exceptions of `fn`.
template <class Device, class Fn>
void run_on(int ranks, const options& settings, Fn&& fn, call_site where = call_site::current())
{
    [[maybe_unused]] int ordinal = 0;
    if constexpr (detail::has_ordinals<Device>) ordinal = Device::current_ordinal(where);
    const auto place = [&](int) {
        if constexpr (detail::has_ordinals<Device>) Device::make_current(ordinal, where);
    };
    detail::run_ranks<device_communicator<Device>>(device_group<Device>(ranks, settings, where), place,
        [&fn](device_communicator<Device>& comm) { fn(comm); });
}

static_assert(collprobe::communicator<device_communicator<host::device>>);

} // namespace collprobe::local
