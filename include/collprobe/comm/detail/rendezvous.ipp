// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <utility>

#include <collprobe/comm/detail/rendezvous.hpp>
#include <collprobe/detail/wait.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_INLINE bool meeting::arrive(int rank, std::uint64_t round, std::int64_t timeout_ms,
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

COLLPROBE_INLINE void meeting::leave(std::uint64_t round) noexcept
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

COLLPROBE_INLINE void meeting::close() noexcept
{
    gate_.fetch_or(closed, std::memory_order_release);
    wake_all(gate_);
}

COLLPROBE_INLINE std::vector<int> meeting::missing_in(std::uint64_t round) const
{
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_; ++rank) {
        if (rounds_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed) != round + 1) {
            missing.push_back(rank);
        }
    }
    return missing;
}

COLLPROBE_INLINE rendezvous::rendezvous(int ranks, std::string name, std::int64_t timeout_ms)
    : name_(std::move(name)),
      timeout_ms_(timeout_ms),
      ranks_(static_cast<std::size_t>(ranks)),
      work_(ranks),
      host_(ranks)
{
}

COLLPROBE_INLINE void rendezvous::enter(int rank, std::uint64_t call, const posted_call& own, call_site where)
{
    await_turn(rank, call, own.what.call, where);
    at(rank).posted = own;
    meet(work_, rank, call, own.what.call, where, [&, this] { check_agreement(call); });
}

COLLPROBE_INLINE void rendezvous::leave(int rank, std::uint64_t call) noexcept
{
    work_.leave(call);
    at(rank).order.pass();
}

COLLPROBE_INLINE void rendezvous::enter_on_host(
    int rank, std::uint64_t call, collective what, call_site where, function_ref<void()> resolve)
{
    meet(host_, rank, call, what, where, resolve);
}

COLLPROBE_INLINE bool rendezvous::fail(failure cause) noexcept
{
    if (!failure_.set(std::move(cause))) return false;
    work_.close();
    host_.close();
    for (rank_state& rank : ranks_) rank.order.close();
    return true;
}

COLLPROBE_INLINE void rendezvous::require_usable(int rank, collective call, call_site where) const
{
    failure_.require_none([&, this] { return origin(rank, call, where); });
}

COLLPROBE_INLINE error_origin rendezvous::origin(int rank, collective call, call_site where) const
{
    return {
        .call = collprobe::name(call), .rank = rank, .size = size(), .communicator = name_, .where = where};
}

COLLPROBE_INLINE void rendezvous::await_turn(int rank, std::uint64_t call, collective what, call_site where)
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

COLLPROBE_INLINE void rendezvous::check_agreement(std::uint64_t call)
{
    disagreement found
        = compare_calls(size(), [&](int rank) -> const call_description& { return posted(rank).what; });
    if (found.culprits.empty()) return;
    fail({status::mismatch,
        "the ranks disagree in call " + std::to_string(call) + " of the communicator: " + found.message,
        std::move(found.culprits)});
}

COLLPROBE_INLINE void rendezvous::meet(meeting& place, int rank, std::uint64_t call, collective what,
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

COLLPROBE_INLINE std::string rendezvous::describe_call(collective what, std::uint64_t call)
{
    return std::string(collprobe::name(what)) + " (call " + std::to_string(call)
        + (what == collective::split ? " of split)" : " of the communicator)");
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
