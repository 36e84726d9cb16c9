// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/call_order.hpp>
#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/wait.hpp>

/// The meeting of the ranks of one process: it knows which rank called what, which ranks are missing, and which
/// failed. Nothing here touches the data of a collective.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A place where all ranks meet, again and again. In a round every rank calls `arrive`. The last rank to arrive
/// resolves the round, and opens the gate for all ranks or closes it for ever. A rank that passed the gate calls
/// `leave`, which returns when all ranks have called it. A gate that opened lets all ranks through, even if it is
/// closed a moment later. So no rank returns from a round while another still reads its memory.
class meeting {
public:
    explicit meeting(int ranks) : ranks_(ranks), rounds_(static_cast<std::size_t>(ranks)) {}

    /// Returns whether the gate opened. `resolve()` runs on the last rank to arrive, while the others wait; it may
    /// close the meeting. `give_up(missing)` runs on a rank that has waited too long for the ranks `missing`, and
    /// closes the meeting.
    /// Preconditions: a rank that is in round k has left round k - 1; neither callable throws.
    bool arrive(int rank, std::uint64_t round, std::int64_t timeout_ms, function_ref<void()> resolve,
        function_ref<void(std::vector<int>)> give_up);

    /// Waits for all ranks. All have passed the gate, and none blocks between the two calls.
    void leave(std::uint64_t round) noexcept;

    /// Lets no further rank through, and wakes the ranks that wait.
    void close() noexcept
    {
        gate_.fetch_or(closed, std::memory_order_release);
        wake_all(gate_);
    }

private:
    static constexpr std::uint32_t closed = 1;

    std::vector<int> missing_in(std::uint64_t round) const
    {
        std::vector<int> missing;
        for (int rank = 0; rank < ranks_; ++rank) {
            if (rounds_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed) != round + 1) {
                missing.push_back(rank);
            }
        }
        return missing;
    }

    int ranks_;
    std::vector<std::atomic<std::uint64_t>> rounds_; // for each rank: the last round that it came to, plus 1
    alignas(64) std::atomic<int> arrived_{0};
    std::atomic<std::uint32_t> gate_{0}; // twice the rounds that were opened, modulo 2^32, and `closed`
    alignas(64) std::atomic<int> left_{0};
    std::atomic<std::uint32_t> over_{0}; // the rounds that all ranks have left, modulo 2^32
};

/// The shared state of a communicator whose ranks live in one process, without the data movement.
///
/// A rank numbers a collective when it is called (`next_call`). The ranks meet later, in call order, where the work
/// runs (`enter`, `leave`). Host calls that block (`split`) have a separate meeting. The first failure is kept for
/// ever, and all ranks get it.
class rendezvous {
public:
    rendezvous(int ranks, std::string name, std::int64_t timeout_ms)
        : name_(std::move(name)),
          timeout_ms_(timeout_ms),
          ranks_(static_cast<std::size_t>(ranks)),
          work_(ranks),
          host_(ranks)
    {
    }

    rendezvous(const rendezvous&) = delete;
    rendezvous& operator=(const rendezvous&) = delete;

    int size() const noexcept { return static_cast<int>(ranks_.size()); }
    const std::string& name() const noexcept { return name_; }
    std::int64_t timeout_ms() const noexcept { return timeout_ms_; }

    /// The number of the collective that `rank` calls now, from 0.
    std::uint64_t next_call(int rank) noexcept { return at(rank).order.take(); }

    /// Waits for the rank's own turn and for all ranks, and checks that all made the same call. When it returns, the
    /// data may be moved. Then `leave` must follow, and nothing may block before it.
    /// \throws error if the ranks disagree, a rank is missing too long, or the rendezvous has failed.
    void enter(int rank, std::uint64_t call, const collective_call& own)
    {
        await_turn(rank, call, own.what, own.where);
        at(rank).posted = own;
        meet(work_, rank, call, own.what, own.where, [&, this] { check_agreement(call); });
    }

    void leave(int rank, std::uint64_t call) noexcept
    {
        work_.leave(call);
        at(rank).order.pass();
    }

    /// The call of `rank` in the collective that the caller has entered.
    const collective_call& posted(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)].posted; }

    /// The same for a host call, which must be the rank's `call`-th. `resolve()` runs on the last rank.
    void enter_on_host(
        int rank, std::uint64_t call, collective what, call_site where, function_ref<void()> resolve)
    {
        meet(host_, rank, call, what, where, resolve);
    }

    void leave_on_host(std::uint64_t call) noexcept { host_.leave(call); }

    /// Makes the communicator unusable on all ranks. Returns false if it was unusable before.
    bool fail(failure cause) noexcept
    {
        if (!failure_.set(std::move(cause))) return false;
        work_.close();
        host_.close();
        for (rank_state& rank : ranks_) rank.order.close();
        return true;
    }

    /// \throws error the failure, as `rank` reports it from a call; returns if there is none.
    void require_usable(int rank, collective call, call_site where) const
    {
        failure_.require_none([&, this] { return origin(rank, call, where); });
    }

    error_origin origin(int rank, collective call, call_site where) const
    {
        return {
            .call = collprobe::name(call), .rank = rank, .size = size(), .communicator = name_, .where = where};
    }

private:
    struct alignas(64) rank_state {
        call_order order;
        collective_call posted;
    };
    rank_state& at(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }

    /// Runs the collectives of a communicator one after the other even if their streams differ: work of a rank's
    /// later call waits here for the rank's earlier call.
    void await_turn(int rank, std::uint64_t call, collective what, call_site where);

    void check_agreement(std::uint64_t call)
    {
        call_mismatch found
            = compare_calls(size(), [&](int rank) { return call_description::of(posted(rank), size()); });
        if (found.culprits.empty()) return;
        fail({status::mismatch,
            "the ranks disagree in call " + std::to_string(call) + " of the communicator: " + found.message,
            std::move(found.culprits)});
    }

    void meet(meeting& place, int rank, std::uint64_t call, collective what, call_site where,
        function_ref<void()> resolve);

    static std::string describe_call(collective what, std::uint64_t call)
    {
        return std::string(collprobe::name(what)) + " (call " + std::to_string(call)
            + (what == collective::split ? " of split)" : " of the communicator)");
    }

    std::string name_;
    std::int64_t timeout_ms_;
    std::vector<rank_state> ranks_;
    meeting work_;
    meeting host_;
    first_failure failure_;
};

inline bool meeting::arrive(int rank, std::uint64_t round, std::int64_t timeout_ms,
    function_ref<void()> resolve, function_ref<void(std::vector<int>)> give_up)
{
    if ((gate_.load(std::memory_order_acquire) & closed) != 0) return false;
    rounds_[static_cast<std::size_t>(rank)].store(round + 1, std::memory_order_relaxed);
    const std::uint32_t waiting = static_cast<std::uint32_t>(round) << 1;
    // Acquire and release: the last rank reads what all others have posted.
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
        resolve();
        std::uint32_t seen = waiting;
        if (!gate_.compare_exchange_strong(seen, waiting + 2, std::memory_order_acq_rel)) return false;
        if (ranks_ > 1) wake_all(gate_);
        return true;
    }
    const deadline until = deadline::in_ms(timeout_ms);
    for (;;) {
        const std::uint32_t seen = gate_.load(std::memory_order_acquire);
        if ((seen & ~closed) != waiting) return true;
        if ((seen & closed) != 0) return false;
        if (!until.passed()) {
            wait_while(gate_, seen, until);
            continue;
        }
        std::vector<int> missing = missing_in(round);
        if (missing.empty()) {
            // All are here: the last one is about to decide, however late it is.
            wait_while(gate_, seen, deadline::never());
            continue;
        }
        give_up(std::move(missing));
        // The last rank may have come by now and let the others through. Then this rank goes with them, because they
        // will wait for it.
        return (gate_.fetch_or(closed, std::memory_order_acq_rel) & ~closed) != waiting;
    }
}

inline void meeting::leave(std::uint64_t round) noexcept
{
    const auto present = static_cast<std::uint32_t>(round);
    if (left_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
        arrived_.store(0, std::memory_order_relaxed);
        left_.store(0, std::memory_order_relaxed);
        over_.store(present + 1, std::memory_order_release);
        if (ranks_ > 1) wake_all(over_);
        return;
    }
    while (over_.load(std::memory_order_acquire) == present) {
        wait_while(over_, present, deadline::never());
    }
}

inline void rendezvous::await_turn(int rank, std::uint64_t call, collective what, call_site where)
{
    const call_order::turn turn = at(rank).order.await(call, deadline::in_ms(timeout_ms_));
    if (turn == call_order::turn::own) return;
    if (turn == call_order::turn::late) {
        fail({status::timeout,
            list_ranks({rank}) + " reached " + describe_call(what, call)
                + ", but an earlier call of the same rank, on another stream, did not finish within "
                + std::to_string(timeout_ms_) + " ms",
            {rank}});
    }
    require_usable(rank, what, where);
}

inline void rendezvous::meet(meeting& place, int rank, std::uint64_t call, collective what,
    call_site where, function_ref<void()> resolve)
{
    const auto decide = [&, this]() noexcept {
        try {
            resolve();
        } catch (const std::exception& cause) {
            fail({status::device_failure,
                describe_call(what, call) + " could not be prepared: " + cause.what(), {rank}});
        }
    };
    const auto give_up = [&, this](std::vector<int> missing) {
        const std::string who = list_ranks(missing);
        fail({status::timeout,
            who + " did not arrive at " + describe_call(what, call) + " within " + std::to_string(timeout_ms_)
                + " ms",
            std::move(missing)});
    };
    if (!place.arrive(rank, call, timeout_ms_, decide, give_up)) require_usable(rank, what, where);
}

} // namespace collprobe::detail
