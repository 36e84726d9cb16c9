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
#include <collprobe/core/error.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/wait.hpp>

/// Where the ranks of one process meet: who called what, who is missing, who failed. Nothing here
/// touches the data of a collective.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Why a communicator can no longer be used.
struct board_failure {
    status code = status::peer_failure;
    std::string message;
    std::vector<int> culprits;
};

/// A place where all ranks meet, again and again. One round: every rank `arrive`s; the last one
/// resolves the round and opens the gate for all, or closes it for ever; whoever passed calls `leave`,
/// which returns when all have. A gate that opened lets all ranks through, even if it is closed a
/// moment later: so nobody returns from a round while another still reads its memory.
class meeting {
public:
    explicit meeting(int ranks) : ranks_(ranks), rounds_(static_cast<std::size_t>(ranks)) {}

    /// Returns whether the gate opened. `resolve()` runs on the last rank to arrive, while the others
    /// wait; it may close the meeting. `give_up(missing)` runs on a rank that has waited too long for
    /// the ranks `missing`, which closes the meeting.
    /// Preconditions: a rank that is in round k has left round k - 1; neither callable throws.
    template <class Resolve, class GiveUp>
    bool arrive(int rank, std::uint64_t round, std::int64_t timeout_ms, Resolve resolve, GiveUp give_up)
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
            // The last rank may have come meanwhile and let the others through: then this one goes
            // with them, for they will wait for it.
            return (gate_.fetch_or(closed, std::memory_order_acq_rel) & ~closed) != waiting;
        }
    }

    /// Waits for all ranks that passed, which is all: none of them blocks between the two calls.
    void leave(std::uint64_t round) noexcept
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

    /// Lets nobody through any more and wakes those who wait.
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
    fixed_array<std::atomic<std::uint64_t>> rounds_; // per rank: the round it came to last, plus 1
    alignas(64) std::atomic<int> arrived_{0};
    std::atomic<std::uint32_t> gate_{0}; // twice the rounds that were opened, modulo 2^32, and `closed`
    alignas(64) std::atomic<int> left_{0};
    std::atomic<std::uint32_t> over_{0}; // the rounds that all ranks have left, modulo 2^32
};

/// What one rank brings to a collective. The addresses are for those who move the data.
struct posting {
    call_description what;
    const void* send = nullptr;
    void* receive = nullptr;
};

/// The shared state of a communicator whose ranks live in one process, without the data movement.
///
/// Ranks number their collectives when they are called (`next_call`) and meet later, in call order,
/// where the work runs (`enter`, `leave`). Host calls that block (`split`) meet on a second, separate
/// meeting. The first failure wins, is kept for ever and is what all ranks are told.
class board {
public:
    board(int ranks, std::string name, std::int64_t timeout_ms)
        : name_(std::move(name)),
          timeout_ms_(timeout_ms),
          ranks_(static_cast<std::size_t>(ranks)),
          work_(ranks),
          host_(ranks)
    {
    }
    board(const board&) = delete;
    board& operator=(const board&) = delete;
    ~board() { delete failure_.load(std::memory_order_acquire); }

    int size() const noexcept { return static_cast<int>(ranks_.size()); }
    const std::string& name() const noexcept { return name_; }
    std::int64_t timeout_ms() const noexcept { return timeout_ms_; }

    /// The number of the collective that `rank` calls now, from 0.
    std::uint64_t next_call(int rank) noexcept
    {
        return at(rank).calls.fetch_add(1, std::memory_order_relaxed);
    }

    /// Waits for the rank's own turn and for all ranks, and checks that all called the same.
    /// Returns when the data may be moved; then `leave` must follow, and nothing may block before it.
    /// \throws error if the ranks disagree, one is missing too long or the board has failed.
    void enter(int rank, std::uint64_t call, const posting& own, call_site where)
    {
        await_turn(rank, call, own.what.call, where);
        at(rank).posted = own;
        meet(work_, rank, call, own.what.call, where, [&] { check_agreement(call); });
    }
    void leave(int rank, std::uint64_t call) noexcept
    {
        work_.leave(call);
        std::atomic<std::uint32_t>& turn = at(rank).turn;
        std::uint32_t seen = turn.load(std::memory_order_relaxed);
        while (!turn.compare_exchange_weak(
            seen, (seen & ~awaited) + one_turn, std::memory_order_release, std::memory_order_relaxed)) {
        }
        if ((seen & awaited) != 0) wake_all(turn);
    }
    /// What `rank` brought to the collective that the caller has entered.
    const posting& posted(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)].posted; }

    /// The same for a host call, which must be the rank's `call`-th; `resolve()` runs on the last rank.
    template <class Resolve>
    void enter_on_host(int rank, std::uint64_t call, collective what, call_site where, Resolve resolve)
    {
        meet(host_, rank, call, what, where, resolve);
    }
    void leave_on_host(std::uint64_t call) noexcept { host_.leave(call); }

    /// Makes the communicator unusable on all ranks. Returns false if it already was.
    bool fail(board_failure cause) noexcept
    {
        board_failure* const record = new board_failure(std::move(cause));
        board_failure* none = nullptr;
        if (!failure_.compare_exchange_strong(none, record, std::memory_order_acq_rel)) {
            delete record;
            return false;
        }
        work_.close();
        host_.close();
        for (rank_state& rank : ranks_) {
            rank.turn.fetch_or(hopeless, std::memory_order_release);
            wake_all(rank.turn);
        }
        return true;
    }
    /// What failed, or null. It lives as long as the board.
    const board_failure* failure() const noexcept { return failure_.load(std::memory_order_acquire); }

    /// \throws error the failure, as `rank` reports it from a call; returns if there is none.
    void require_usable(int rank, collective call, call_site where) const
    {
        if (const board_failure* const cause = failure()) {
            throw error(cause->code, cause->message, origin(rank, call, where), cause->culprits);
        }
    }
    error_origin origin(int rank, collective call, call_site where) const
    {
        return {.call = collprobe::name(call),
            .rank = rank,
            .size = size(),
            .communicator = name_,
            .where = where};
    }

private:
    // Bits of rank_state::turn below the count of finished calls.
    static constexpr std::uint32_t awaited = 1;
    static constexpr std::uint32_t hopeless = 2;
    static constexpr std::uint32_t one_turn = 4;

    struct alignas(64) rank_state {
        std::atomic<std::uint64_t> calls{0};
        std::atomic<std::uint32_t> turn{0};
        posting posted;
    };
    rank_state& at(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }

    /// The collectives of a communicator run one after the other even if their streams differ: work
    /// that came to its rank's later call first waits here for the earlier one.
    void await_turn(int rank, std::uint64_t call, collective what, call_site where)
    {
        std::atomic<std::uint32_t>& turn = at(rank).turn;
        const std::uint32_t wanted = static_cast<std::uint32_t>(call) * one_turn;
        std::uint32_t seen = turn.load(std::memory_order_acquire);
        if ((seen & ~(awaited | hopeless)) == wanted) return;
        const deadline until = deadline::in_ms(timeout_ms_);
        for (; (seen & ~(awaited | hopeless)) != wanted; seen = turn.load(std::memory_order_acquire)) {
            if ((seen & hopeless) != 0) require_usable(rank, what, where);
            if (until.passed()) {
                fail({status::timeout,
                    list_ranks({rank}) + " reached " + describe_call(what, call)
                        + ", but an earlier call of the same rank, on another stream, did not finish within "
                        + std::to_string(timeout_ms_) + " ms",
                    {rank}});
                require_usable(rank, what, where);
            }
            if ((seen & awaited) == 0
                && !turn.compare_exchange_strong(seen, seen | awaited, std::memory_order_relaxed)) {
                continue;
            }
            wait_while(turn, seen | awaited, until);
        }
    }

    void check_agreement(std::uint64_t call)
    {
        disagreement found = compare_calls(
            size(), [&](int rank) -> const call_description& { return posted(rank).what; });
        if (found.culprits.empty()) return;
        fail({status::mismatch,
            "the ranks disagree in call " + std::to_string(call) + " of the communicator: " + found.message,
            std::move(found.culprits)});
    }

    template <class Resolve>
    void meet(meeting& place, int rank, std::uint64_t call, collective what, call_site where, Resolve resolve)
    {
        const auto decide = [&]() noexcept {
            try {
                resolve();
            } catch (const std::exception& cause) {
                fail({status::device_failure,
                    describe_call(what, call) + " could not be prepared: " + cause.what(), {rank}});
            }
        };
        const auto give_up = [&](std::vector<int> missing) {
            const std::string who = list_ranks(missing);
            fail({status::timeout,
                who + " did not arrive at " + describe_call(what, call) + " within "
                    + std::to_string(timeout_ms_) + " ms",
                std::move(missing)});
        };
        if (!place.arrive(rank, call, timeout_ms_, decide, give_up)) require_usable(rank, what, where);
    }

    static std::string describe_call(collective what, std::uint64_t call)
    {
        return std::string(collprobe::name(what)) + " (call " + std::to_string(call)
            + (what == collective::split ? " of split)" : " of the communicator)");
    }

    std::string name_;
    std::int64_t timeout_ms_;
    fixed_array<rank_state> ranks_;
    meeting work_;
    meeting host_;
    std::atomic<board_failure*> failure_{nullptr};
};

} // namespace collprobe::detail
