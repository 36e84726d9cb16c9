// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <collprobe/detail/wait.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Runs the calls of one rank one after the other, in the order in which they were made, on whatever threads they
/// run. A call takes a number when it is made, awaits its turn where it runs, and passes the turn on. A waiting
/// thread sleeps.
class call_order {
public:
    /// The number of the next call, from 0.
    std::uint64_t take() noexcept { return taken_.fetch_add(1, std::memory_order_relaxed); }

    enum class turn : std::uint8_t { own, closed, late };
    /// Waits until all calls before `call` have passed, the order is closed, or the time is over.
    turn await(std::uint64_t call, deadline until) noexcept
    {
        const std::uint32_t wanted = static_cast<std::uint32_t>(call) * one_turn;
        std::uint32_t seen = turn_.load(std::memory_order_acquire);
        for (; (seen & ~flags) != wanted; seen = turn_.load(std::memory_order_acquire)) {
            if ((seen & closed) != 0) return turn::closed;
            if (until.passed()) return turn::late;
            if ((seen & awaited) == 0
                && !turn_.compare_exchange_strong(seen, seen | awaited, std::memory_order_relaxed)) {
                continue;
            }
            wait_while(turn_, seen | awaited, until);
        }
        return turn::own;
    }
    /// The call whose turn it is has ended.
    void pass() noexcept
    {
        std::uint32_t seen = turn_.load(std::memory_order_relaxed);
        while (!turn_.compare_exchange_weak(
            seen, (seen & ~awaited) + one_turn, std::memory_order_release, std::memory_order_relaxed)) {
        }
        if ((seen & awaited) != 0) wake_all(turn_);
    }
    /// Gives no further turn to a call that has to wait for it.
    void close() noexcept
    {
        turn_.fetch_or(closed, std::memory_order_release);
        wake_all(turn_);
    }

private:
    // Bits below the count of calls that have passed, which is modulo 2^30.
    static constexpr std::uint32_t awaited = 1;
    static constexpr std::uint32_t closed = 2;
    static constexpr std::uint32_t flags = awaited | closed;
    static constexpr std::uint32_t one_turn = 4;

    std::atomic<std::uint64_t> taken_{0};
    std::atomic<std::uint32_t> turn_{0};
};

} // namespace collprobe::detail
