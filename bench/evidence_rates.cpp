// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Measures the evidence over the run (`exchangeability_watch`), which needs no distribution, and prints markdown tables:
/// see bench/results/alarms.md.
///
///     evidence_rates [--steps N] [--ranks n,n,...]
///
/// Runs of 10,000 steps of ranks that are alike, with the share that names any rank; then how long a rank that is not alike
/// goes unnamed. The numbers are one per rank and step, watched on four sides, about a level and a width that all share:
///     gaussian, t3, t5, lognormal (sigma 1), ties (whole numbers from -4 to 4)
///     level       gaussian; level and width are correlated over 20 steps
///     own memory  gaussian, of each rank's own: x' = 0.5 x + noise. The assumption does not hold here,
///     own level   nor here: a tenth of the variance is a level of each rank's own, correlated over 100 steps

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <collprobe/metrics/exchangeability.hpp>

#include "cpu_timing.hpp"
#include "program.hpp"
#include "random.hpp"

namespace {

using namespace collprobe;

enum class null { gaussian, t3, t5, lognormal, ties, level, own_memory, own_level };
constexpr const char* null_names[] = {"gaussian", "t3", "t5", "lognormal", "ties", "level", "own memory", "own level"};
constexpr std::uint64_t first_seed = 20260601;

/// One number of each rank, step by step; ranks are alike.
class alike_ranks {
public:
    alike_ranks(int ranks, null which, std::uint64_t seed)
        : values(static_cast<std::size_t>(ranks)), which_(which), random_(seed), own_(values.size())
    {
        for (double& x : own_) x = random_.normal();
    }
    void step()
    {
        level_ = 0.95 * level_ + random_.normal();
        for (std::size_t r = 0; r < values.size(); ++r) values[r] = number(own_[r]);
    }
    std::vector<double> values;

private:
    double number(double& own)
    {
        switch (which_) {
        case null::gaussian: break;
        case null::t3: return random_.student(3);
        case null::t5: return random_.student(5);
        case null::lognormal: return std::exp(random_.normal());
        case null::ties: return std::clamp(std::floor(1.5 * random_.normal() + 0.5), -4.0, 4.0);
        case null::level: return level_ + std::exp(0.2 * level_) * random_.normal();
        case null::own_level:
            own = 0.99 * own + std::sqrt(1 - 0.99 * 0.99) * random_.normal();
            return std::sqrt(0.1) * own + std::sqrt(0.9) * random_.normal();
        case null::own_memory: return own = 0.5 * own + std::sqrt(0.75) * random_.normal();
        }
        return random_.normal();
    }

    null which_;
    random_numbers random_;
    std::vector<double> own_;
    double level_ = 0;
};

/// One number, judged step by step.
struct evidence {
    evidence(int ranks, double alpha, const side_shares& shares = {0.5, 0.25, 0.125, 0.125}, double tolerance = 0)
        : watch(ranks, {.false_alarms_per_run = alpha, .tolerance = tolerance})
    {
        watch.add(finding_kind::loss, shares);
    }
    /// Whether a rank was named.
    bool judge(std::uint64_t step, const std::vector<double>& values)
    {
        watch.begin_step(step);
        watch.judge(0, values);
        return watch.named().size() != 0;
    }
    exchangeability_watch watch;
};

void print_false(long steps, const std::vector<int>& sizes)
{
    constexpr std::uint64_t run_steps = 10000;
    const long runs = std::max(1L, steps / static_cast<long>(run_steps));
    std::printf("| numbers | ranks | runs of 10,000 steps | that name a rank, 0.01 stated | 0.1 stated |\n|---|---|---|---|---|\n");
    for (int which = 0; which <= static_cast<int>(null::own_level); ++which) {
        for (const int ranks : sizes) {
            long named[2] = {};
            for (long i = 0; i < runs; ++i) {
                alike_ranks run(ranks, static_cast<null>(which), first_seed + static_cast<std::uint64_t>(1000 * ranks + i));
                evidence both[] = {{ranks, 0.01}, {ranks, 0.1}};
                bool has_named[2] = {};
                for (std::uint64_t step = 0; step < run_steps; ++step) {
                    run.step();
                    for (int k = 0; k < 2; ++k) has_named[k] = both[k].judge(step, run.values) || has_named[k];
                }
                for (int k = 0; k < 2; ++k) named[k] += has_named[k] ? 1 : 0;
            }
            std::printf("| %s | %d | %ld | %ld | %ld |\n", null_names[which], ranks, runs, named[0], named[1]);
            std::fflush(stdout);
        }
    }
}

void print_delays(const std::vector<int>& sizes)
{
    std::printf("\n| numbers | ranks | a rank differs by | tolerance | runs | median steps until named | 90 %% | right rank |\n|---|---|---|---|---|---|---|---|\n");
    struct difference {
        const char* label;
        double shift;
        bool drifts;
        std::uint64_t healthy; // steps before
    };
    const difference differences[] = {{"2 deviations", 2, false, 0}, {"1", 1, false, 0}, {"0.5", 0.5, false, 0},
        {"1, from step 20,000", 1, false, 20000}, {"0.01 a step", 0.01, true, 0}, {"0.01 a step, from step 20,000", 0.01, true, 20000}};
    for (const null which : {null::gaussian, null::t3}) {
        for (const int ranks : sizes) {
            if (ranks > 64) continue;
            for (const difference& each : differences) {
                for (const double tolerance : {0.0, 0.25}) {
                    std::vector<std::uint64_t> delays;
                    int right = 0;
                    constexpr int trials = 100;
                    for (int i = 0; i < trials; ++i) {
                        alike_ranks run(ranks, which, first_seed + 77777 + static_cast<std::uint64_t>(i));
                        evidence watch(ranks, 0.01, {1, 0, 0}, tolerance);
                        for (std::uint64_t step = 0; step < each.healthy; ++step) {
                            run.step();
                            watch.judge(step, run.values);
                        }
                        // A t with 3 degrees has the deviation 1.73.
                        const double unit = which == null::t3 ? 1.7320508 : 1;
                        std::uint64_t step = 0;
                        for (bool named = false; !named && step < 20000; ++step) {
                            run.step();
                            run.values[0] += unit * each.shift * (each.drifts ? static_cast<double>(step) : 1);
                            named = watch.judge(each.healthy + step, run.values);
                            right += named && watch.watch.named()[0].rank == 0 ? 1 : 0;
                        }
                        delays.push_back(step);
                    }
                    std::sort(delays.begin(), delays.end());
                    std::printf("| %s | %d | %s | %.4g | %d | %llu | %llu | %d %% |\n", null_names[static_cast<int>(which)], ranks, each.label, tolerance, trials,
                        static_cast<unsigned long long>(delays[trials / 2]),
                        static_cast<unsigned long long>(delays[trials * 9 / 10]), 100 * right / trials);
                    std::fflush(stdout);
                }
            }
        }
    }
}

} // namespace

int main(int argc, char** argv)
{
    support::command_line line("Rates and delays of the evidence over a run", "0, 2 if the command line is wrong.");
    long steps = 1'000'000;
    std::vector<int> sizes{3, 4, 8, 64, 256, 1024};
    line.number("--steps", steps, 1, 1'000'000'000, "of each cell");
    line.numbers("--ranks", sizes, 2, 100'000, "");
    return bench::run_program("evidence_rates", line, argc, argv, [&] {
        print_false(steps, sizes);
        print_delays(sizes);
    });
}
