// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <thread>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/held_clock.hpp"

namespace collprobe::testing {

namespace {

constexpr std::int64_t second = 1'000'000'000;

/// What a held clock shows, and how often threads asked. The processes that are forked share it.
struct dial {
    std::atomic<std::int64_t> now_ns{0}; ///< 0: the clock runs
    std::atomic<std::int64_t> held_at_ns{0};
    std::atomic<unsigned> holds{0}; ///< how many have been
    std::array<std::atomic<int>, held_clock::most_callers> questions{};
};

std::atomic<dial*> held{nullptr}; // from the first hold on

struct caller {
    unsigned hold = 0; ///< the hold that `who` is of
    int who = 0;
    std::int64_t ahead_ns = 0;
};
thread_local caller this_caller;

int ask_system(clockid_t which, timespec* time) noexcept
{
    return static_cast<int>(syscall(SYS_clock_gettime, which, time));
}

std::int64_t real_ns() noexcept
{
    timespec now{};
    ask_system(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * second + now.tv_nsec;
}

void require_patience(std::int64_t since_ns)
{
    if (real_ns() - since_ns < 120 * second) return;
    std::fputs("a test has held the clock for 120 s\n", stderr);
    std::abort();
}

dial& of_this_process()
{
    dial* known = held.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    void* const page = mmap(nullptr, sizeof(dial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    known = new (page) dial;
    held.store(known, std::memory_order_release);
    return *known;
}

int questions_of(int who) { return of_this_process().questions[static_cast<std::size_t>(who)].load(); }

void await_number(int who, int count)
{
    for (const std::int64_t since = real_ns(); questions_of(who) < count;) {
        require_patience(since);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

} // namespace

held_clock::held_clock()
{
    dial& own = of_this_process();
    for (std::atomic<int>& each : own.questions) each = 0;
    own.holds.fetch_add(1);
    own.held_at_ns = real_ns();
    own.now_ns = own.held_at_ns.load();
}

held_clock::~held_clock() { of_this_process().now_ns = 0; }

void held_clock::advance_ms(std::int64_t milliseconds, const std::vector<int>& waiting) const
{
    for (const int who : waiting) await_number(who, 1);
    of_this_process().now_ns.fetch_add(milliseconds * 1'000'000);
}

void held_clock::i_am(int who) const
{
    this_caller.hold = of_this_process().holds;
    this_caller.who = who;
}

void held_clock::await_questions(int who, int count) const { await_number(who, questions_of(who) + count); }

std::int64_t held_clock::ahead_ns() noexcept { return this_caller.ahead_ns; }

void held_clock::set_ahead_ns(std::int64_t nanoseconds) noexcept { this_caller.ahead_ns = nanoseconds; }

} // namespace collprobe::testing

/// The C library's, for the whole program: of std::chrono, too.
extern "C" int clock_gettime(clockid_t which, timespec* time) noexcept
{
    using namespace collprobe::testing;
    dial* const own = held.load(std::memory_order_acquire);
    const std::int64_t shown = own == nullptr || which != CLOCK_MONOTONIC ? 0 : own->now_ns.load();
    if (shown == 0) return ask_system(which, time);
    require_patience(own->held_at_ns.load());
    const std::int64_t now = shown + this_caller.ahead_ns;
    time->tv_sec = static_cast<time_t>(now / second);
    time->tv_nsec = static_cast<long>(now % second);
    // Behind the look at the clock: who was told of the question may move it.
    if (this_caller.hold == own->holds.load()) ++own->questions[static_cast<std::size_t>(this_caller.who)];
    return 0;
}
