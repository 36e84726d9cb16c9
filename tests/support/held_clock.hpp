// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace collprobe::testing {

/// Stops the monotonic clock of this process, and of the processes that it forks meanwhile: for all threads it stands
/// still until the test moves it. So a time-out passes when the test says, however busy the machine is. Naps are as
/// long as ever. A clock that is held for more than 120 s ends the process. One at a time.
class held_clock {
public:
    static constexpr int most_callers = 64;

    held_clock();
    held_clock(const held_clock&) = delete;
    ~held_clock();
    /// Moves the clock, when all of `waiting` have asked for the time. A wait with a deadline begins so: a thread that
    /// has asked waits.
    void advance_ms(std::int64_t milliseconds, const std::vector<int>& waiting = {}) const;

    /// Gives the calling thread the number `who`, below `most_callers`, by which the test knows it.
    void i_am(int who) const;
    /// Waits until that thread has asked for the time so often from now on. One that polls has looked at what is there
    /// between its first question and its second.
    void await_questions(int who, int count) const;

    /// How far the calling thread's own clock, as while a clock is held, is ahead of the clock of the process.
    static std::int64_t ahead_ns() noexcept;
    static void set_ahead_ns(std::int64_t nanoseconds) noexcept;
};

} // namespace collprobe::testing
