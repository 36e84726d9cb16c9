// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A point on the monotonic clock after which a wait gives up.
class deadline {
public:
    static deadline never() noexcept { return deadline(INT64_MAX); }
    /// `milliseconds` from now; a negative number means never.
    static deadline in_ms(std::int64_t milliseconds) noexcept
    {
        constexpr std::int64_t limit = INT64_MAX / 4;
        if (milliseconds < 0 || milliseconds > limit / 1'000'000) return never();
        return deadline(now_ns() + milliseconds * 1'000'000);
    }
    /// Nanoseconds left, 0 once it has passed.
    std::int64_t remaining_ns() const noexcept
    {
        if (is_never()) return INT64_MAX;
        const std::int64_t left = at_ns_ - now_ns();
        return left > 0 ? left : 0;
    }
    /// The same in milliseconds, rounded up; -1 for never.
    std::int64_t remaining_ms() const noexcept { return is_never() ? -1 : (remaining_ns() + 999'999) / 1'000'000; }
    bool is_never() const noexcept { return at_ns_ == INT64_MAX; }
    bool passed() const noexcept { return remaining_ns() == 0; }

    static std::int64_t now_ns() noexcept
    {
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    }

private:
    explicit deadline(std::int64_t at_ns) noexcept : at_ns_(at_ns) {}
    std::int64_t at_ns_;
};

/// Lets another thread run, between two looks at what nothing wakes a thread for. From round 100 on it sleeps: for
/// 20 us, from round 300 on for 200 us.
inline void back_off(unsigned round) noexcept
{
    if (round < 100) {
        sched_yield();
        return;
    }
    const timespec nap{0, round < 300 ? 20'000 : 200'000};
    nanosleep(&nap, nullptr);
}

/// Sleeps while `word` holds `seen`, until it is woken or the deadline passes. It may return early for no reason.
///
/// It does not use `std::atomic::wait`: the `notify` of that reads a waiter count with acquire order. This would give
/// the waking thread a happens-before edge from the sleeping one. A stream would then seem ordered after work that it
/// never waited for. A race detector would miss the very races that this library's host streams exist to show.
inline void wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen, deadline until) noexcept
{
    timespec relative{};
    if (!until.is_never()) {
        const std::int64_t left = until.remaining_ns();
        relative.tv_sec = static_cast<time_t>(left / 1'000'000'000);
        relative.tv_nsec = static_cast<long>(left % 1'000'000'000);
    }
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, until.is_never() ? nullptr : &relative, nullptr, 0);
}

/// Wakes every thread in `wait_while(word, ...)`.
inline void wake_all(const std::atomic<std::uint32_t>& word) noexcept
{
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace collprobe::detail
