// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// What a step's judge costs each rank's host, without any communication: time a step, and the bytes that it holds. See
/// bench/results/alarms.md.
///
///     judge_bench [--steps N]
///
/// "totals" are those of a summary: one entry a rank, whatever the calls.
///
/// The messages are made up: gradients whose norms scatter by 1 %, times, results that agree. Times are processor times of
/// one thread, the median of the steps; the first 70 steps, in which the evidence learns most, do not count.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <collprobe/step/detail/judge.hpp>

#include "cpu_timing.hpp"

namespace {

using namespace collprobe;

std::size_t held = 0; // bytes that `new` has given and nobody has given back

void* take(std::size_t bytes, std::size_t alignment)
{
    const std::size_t all = (bytes + 2 * alignment - 1) / alignment * alignment;
    void* const begin = std::aligned_alloc(alignment, all); // the size stands before what is given
    if (begin == nullptr) throw std::bad_alloc();
    std::memcpy(begin, &bytes, sizeof(bytes));
    held += bytes;
    return static_cast<char*>(begin) + alignment;
}

void give_back(void* given, std::size_t alignment) noexcept
{
    if (given == nullptr) return;
    void* const begin = static_cast<char*>(given) - alignment;
    std::size_t bytes = 0;
    std::memcpy(&bytes, begin, sizeof(bytes));
    held -= bytes;
    std::free(begin);
}

constexpr std::size_t usual = alignof(std::max_align_t);

} // namespace

void* operator new(std::size_t bytes) { return take(bytes, usual); }
void* operator new(std::size_t bytes, std::align_val_t to) { return take(bytes, static_cast<std::size_t>(to)); }
void operator delete(void* given) noexcept { give_back(given, usual); }
void operator delete(void* given, std::size_t) noexcept { give_back(given, usual); }
void operator delete(void* given, std::align_val_t to) noexcept { give_back(given, static_cast<std::size_t>(to)); }
void operator delete(void* given, std::size_t, std::align_val_t to) noexcept
{
    give_back(given, static_cast<std::size_t>(to));
}

namespace {

detail::step_judge judge_of(int ranks, bool evidence, report_mode mode)
{
    return detail::step_judge(ranks, {.false_alarms_per_run = evidence ? 0.01 : 0}, mode, true);
}

/// The messages of a step, as an all-gather leaves them.
class messages {
public:
    messages(int ranks, std::size_t calls)
        : ranks_(ranks), calls_(calls), words_(static_cast<std::size_t>(ranks) * layout_.bytes(calls) / 8)
    {
    }
    detail::gathered_step next()
    {
        for (int r = 0; r < ranks_; ++r) {
            unsigned char* const own = bytes() + static_cast<std::size_t>(r) * layout_.bytes(calls_);
            const detail::step_header header{steps_, 2 + 0.02 * uniform(), 1, detail::not_given(), 0, 0, static_cast<std::uint32_t>(steps_ + 1)};
            std::memcpy(own, &header, sizeof(header));
            for (std::size_t c = 0; c < calls_; ++c) {
                detail::call_entry entry{};
                entry.input.count = 1 << 20;
                entry.input.digest = random_();
                entry.input.sum_of_squares = 100 * (1 + 0.02 * uniform());
                entry.result.digest = 17 + c + 1000 * steps_;
                entry.result.sum_of_squares = 30;
                entry.result.dot = 30 * (1 + 0.001 * uniform()) / ranks_;
                layout_.entry(own, c) = entry;
                const auto entered = static_cast<std::uint32_t>(1000 * steps_ + 10 * c);
                layout_.times_of(own, c) = {entered + static_cast<std::uint32_t>(random_() % 4), entered + 6};
            }
        }
        ++steps_;
        return {bytes(), ranks_, calls_, layout_};
    }

private:
    unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words_.data()); }
    double uniform() { return std::uniform_real_distribution<double>(-1, 1)(random_); }

    int ranks_;
    std::size_t calls_;
    detail::message_layout layout_{.times = true};
    std::vector<std::uint64_t> words_;
    std::mt19937_64 random_{1};
    std::uint64_t steps_ = 0;
};

struct cost {
    double seconds = 0; // a step
    double bytes = 0;
};

cost cost_of(int ranks, std::size_t calls, int steps, bool evidence, report_mode mode)
{
    messages made(ranks, calls);
    const std::vector<detail::probed_call> of(calls,
        {.count = 1 << 20, .has_input = true, .has_result = true, .result_count = 1 << 20});
    const std::size_t before = held;
    detail::step_judge judge = judge_of(ranks, evidence, mode);
    cost result;
    std::vector<double> times;
    {
        step_record record; // the caller's, not the judge's
        constexpr int warm_up = 70;
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
    result.bytes = static_cast<double>(held - before - times.capacity() * sizeof(double));
    result.seconds = bench::median(times);
    return result;
}

} // namespace

int main(int argc, char** argv)
{
    const int steps = argc == 3 && std::strcmp(argv[1], "--steps") == 0 ? std::atoi(argv[2]) : 30;
    if (argc != 1 && (argc != 3 || steps < 1)) {
        std::fprintf(stderr, "usage: judge_bench [--steps N]\n");
        return 2;
    }
    std::printf("| ranks x calls | evidence | ms a step | ns a rank and call | bytes a rank and call | MB |\n|---|---|---|---|---|---|\n");
    struct size {
        int ranks;
        std::size_t calls; // 0: totals
    };
    for (const size of : {size{8, 76}, size{64, 76}, size{1000, 76}, size{1000, 300}, size{1024, 0}, size{16384, 0}}) {
        for (const bool evidence : {true, false}) {
            const bool are_totals = of.calls == 0;
            const std::size_t calls = are_totals ? 1 : of.calls;
            const cost found
                = cost_of(of.ranks, calls, steps, evidence, are_totals ? report_mode::summary : report_mode::gather);
            const double each = of.ranks * static_cast<double>(calls);
            std::printf("| %d x %s | %s | %.3g | %.0f | %.0f | %.3g |\n", of.ranks,
                are_totals ? "totals" : std::to_string(calls).c_str(), evidence ? "yes" : "no",
                1e3 * found.seconds, 1e9 * found.seconds / each, found.bytes / each, 1e-6 * found.bytes);
            std::fflush(stdout);
        }
    }
    return 0;
}
