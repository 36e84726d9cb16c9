// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// What a step's judge costs each rank's host, without any communication: time a step, and the bytes that it holds. See
/// bench/results/alarms.md.
///
///     judge_bench [--steps N]
///
/// "totals" are those of a summary: one entry a rank, whatever the calls.
///
/// Times are processor times of one thread, the median of the steps; the first 70 steps, in which the evidence learns most,
/// do not count.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include <collprobe/step/detail/judge.hpp>

#include "cpu_timing.hpp"
#include "made_up_messages.hpp"
#include "program.hpp"

namespace {

std::size_t held = 0; // bytes that `new` has given and nobody has given back

void* take(std::size_t bytes)
{
    constexpr std::size_t line = 64; // no type here asks for more; the size stands in a line before what is given
    void* const begin = std::aligned_alloc(line, (bytes + 2 * line - 1) / line * line);
    if (begin == nullptr) throw std::bad_alloc();
    *static_cast<std::size_t*>(begin) = bytes;
    held += bytes;
    return static_cast<char*>(begin) + line;
}
void give_back(void* given) noexcept
{
    if (given == nullptr) return;
    void* const begin = static_cast<char*>(given) - 64;
    held -= *static_cast<std::size_t*>(begin);
    std::free(begin);
}

} // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, std::align_val_t) { return take(bytes); }
void operator delete(void* given) noexcept { give_back(given); }
void operator delete(void* given, std::size_t) noexcept { give_back(given); }
void operator delete(void* given, std::align_val_t) noexcept { give_back(given); }
void operator delete(void* given, std::size_t, std::align_val_t) noexcept { give_back(given); }

namespace {

using namespace collprobe;

struct cost {
    double seconds = 0; // a step
    double bytes = 0;
};

cost cost_of(int ranks, std::size_t calls, int steps, bool evidence, report_mode mode)
{
    bench::made_up_messages made(ranks, calls);
    const auto of = made.calls();
    constexpr int warm_up = 70;
    std::vector<double> times;
    times.reserve(static_cast<std::size_t>(steps));
    const std::size_t before = held;
    detail::step_judge judge(ranks, {.false_alarms_per_run = evidence ? 0.01 : 0}, mode, true);
    {
        step_record record; // the caller's, not the judge's
        for (int step = 0; step < warm_up + steps; ++step) {
            const detail::gathered_step gathered = made.next();
            const double seconds = bench::seconds([&] {
                if (mode == report_mode::gather) return judge.judge(gathered, of, {}, {}, record);
                record.begin(gathered.header(0).step, ranks, mode, calls);
                judge.judge_totals(gathered, of[0], {}, record);
            });
            if (step >= warm_up) times.push_back(seconds);
        }
    }
    return {bench::median(times), static_cast<double>(held - before)};
}

void print_costs(int steps)
{
    std::printf("| ranks x calls | evidence | ms a step | ns a rank and call | bytes a rank and call | MB |\n|---|---|---|---|---|---|\n");
    struct size {
        int ranks;
        std::size_t calls; // 0: totals
    };
    for (const size of : {size{8, 76}, size{64, 76}, size{1000, 76}, size{1000, 300}, size{1024, 0}, size{16384, 0}}) {
        for (const bool evidence : {true, false}) {
            const bool are_totals = of.calls == 0;
            const std::size_t calls = are_totals ? 1 : of.calls;
            const cost found = cost_of(of.ranks, calls, steps, evidence, are_totals ? report_mode::summary : report_mode::gather);
            const double each = of.ranks * static_cast<double>(calls);
            std::printf("| %d x %s | %s | %.3g | %.0f | %.0f | %.3g |\n", of.ranks,
                are_totals ? "totals" : std::to_string(calls).c_str(), evidence ? "yes" : "no",
                1e3 * found.seconds, 1e9 * found.seconds / each, found.bytes / each, 1e-6 * found.bytes);
            std::fflush(stdout);
        }
    }
}

} // namespace

int main(int argc, char** argv)
{
    support::command_line line("What a step's judge costs each rank's host", "0, 2 if the command line is wrong.");
    int steps = 30;
    line.number("--steps", steps, 1, 1'000'000, "that are timed");
    return bench::run_program("judge_bench", line, argc, argv, [&] { print_costs(steps); });
}
