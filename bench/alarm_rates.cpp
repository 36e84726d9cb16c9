// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Measures how often healthy steps alarm, against what is stated, and prints a markdown table: see
/// bench/results/alarms.md.
///
///     alarm_rates [--steps N] [--seed N] [--ranks n,n,...] [--scatter NAME] [--evidence]
///
/// A step has a loss, a cosine and the norms of four buckets per rank. Levels are common to all ranks and move from
/// step to step as in training: a loss that decays, norms that fall from their start, both with correlated fluctuations;
/// each rank keeps a level of its own (1 %). About that the ranks scatter as
///     realistic   losses gamma (12 %), squared norms gamma (norms 9 %), cosines normal in Fisher's z
///     t5          Student's t of 5 degrees, of the same width
///     lognormal   sigma 0.5, losses and norms; cosines as t5
/// Every value goes the way it goes in the library: `near_gaussian_*`, `fisher_z`, `outlier_detector`, `alarms`.
///
/// With `--evidence`: the evidence over the run (`exchangeability_watch`), which needs no distribution. Runs of 10,000
/// steps of ranks that are alike, with the share that names any rank; then how long a rank that is not alike goes
/// unnamed. The numbers are one per rank and step, watched on four sides, about a level and a width that all share:
///     gaussian, t3, t5, lognormal (sigma 1), ties (whole numbers from -4 to 4)
///     level       gaussian; level and width are correlated over 20 steps
///     own memory  gaussian, of each rank's own: x' = 0.5 x + noise. The assumption does not hold here,
///     own level   nor here: a tenth of the variance is a level of each rank's own, correlated over 100 steps

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/step/detail/judge.hpp>

#include "random.hpp"

namespace {

using namespace collprobe;

constexpr int buckets = 4;
constexpr int tests = 2 + buckets; // loss, cosine, norms

enum class family { realistic, t5, lognormal };
constexpr const char* name(family which)
{
    return which == family::realistic ? "realistic" : which == family::t5 ? "t5" : "lognormal";
}

/// The ranks' numbers, step by step.
class healthy_run {
public:
    healthy_run(int ranks, family scatter, std::uint64_t seed)
        : scatter_(scatter), random_(seed), own_(static_cast<std::size_t>(ranks))
    {
        for (double& level : own_) level = 1 + 0.01 * random_.normal();
        for (std::vector<double>& test : values) test.resize(own_.size());
    }
    void step()
    {
        const double t = static_cast<double>(steps_++);
        drift_ = 0.9 * drift_ + 0.02 * random_.normal();
        const double loss = 2 + 8 * std::exp(-t / 5000) + drift_;
        for (std::size_t r = 0; r < own_.size(); ++r)
            values[0][r] = near_gaussian_loss(loss * own_[r] * scattered(64, 0.125));
        const double direction = 0.3 + 0.3 * std::exp(-t / 2000) + 0.2 * drift_;
        for (std::size_t r = 0; r < own_.size(); ++r) {
            const double noise = scatter_ == family::realistic ? random_.normal() : random_.student(5) * 0.7746;
            values[1][r] = fisher_z(std::tanh(direction + own_[r] + 0.05 * noise));
        }
        for (std::size_t b = 0; b < buckets; ++b) {
            level_[b] = 0.95 * level_[b] + 0.02 * random_.normal();
            const double norm = (0.1 + static_cast<double>(b)) * (1 + 4 * std::exp(-t / 300)) * std::exp(level_[b]);
            for (std::size_t r = 0; r < own_.size(); ++r)
                values[2 + b][r] = near_gaussian_norm(norm * own_[r] * std::sqrt(std::fabs(scattered(32, 0.177))));
        }
    }

    std::vector<double> values[tests]; ///< as the detector takes them

private:
    double scattered(double shape, double width)
    {
        if (scatter_ == family::realistic) return random_.gamma(shape);
        if (scatter_ == family::t5) return 1 + width * 0.7746 * random_.student(5);
        return std::exp(0.5 * random_.normal());
    }

    family scatter_;
    random_numbers random_;
    std::vector<double> own_;
    double drift_ = 0;
    double level_[buckets] = {};
    std::uint64_t steps_ = 0;
};

/// A detector and the alarms that it feeds: with strikes, with and without learning.
struct watch {
    outlier_detector detector;
    alarms learning;
    alarms trusting;
    step_record record;
    long suspicious = 0;
    long learned = 0;
    long trusted = 0;

    watch(int ranks, double p)
        : detector(ranks, tests, {.false_alarms_per_step = p}),
          learning(ranks),
          trusting(ranks, {.learn = false})
    {
        record.false_alarms_per_step = p;
        record.ranks = ranks;
        record.loss.finite = record.gradient_norm.finite = ranks; // all can be compared
        record.cosine.leave_one_out.assign(static_cast<std::size_t>(ranks), 0);
    }
    void judge(const healthy_run& run)
    {
        ++record.step;
        record.suspects.clear();
        for (int test = 0; test < tests; ++test) {
            const finding what = test == 0 ? finding::loss : test == 1 ? finding::cosine : finding::gradient_norm;
            detail::append_suspects(detector.judge(test, run.values[test]), record.ranks, what, test - 2, record.suspects);
        }
        suspicious += record.suspects.empty() ? 0 : 1;
        learned += learning.judge(record).empty() ? 0 : 1;
        trusted += trusting.judge(record).empty() ? 0 : 1;
    }
};

enum class null { gaussian, t3, t5, lognormal, ties, level, own_memory, own_level };
constexpr null all_nulls[] = {null::gaussian, null::t3, null::t5, null::lognormal, null::ties, null::level,
    null::own_memory, null::own_level};
constexpr const char* name(null which)
{
    constexpr const char* names[] = {"gaussian", "t3", "t5", "lognormal", "ties", "level", "own memory", "own level"};
    return names[static_cast<int>(which)];
}

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

exchangeability_watch watch_of(
    int ranks, double alpha, const side_shares& shares = {0.5, 0.25, 0.125, 0.125}, double tolerance = 0)
{
    exchangeability_watch watch(ranks, {.false_alarms_per_run = alpha, .tolerance = tolerance});
    watch.add(finding::loss, shares);
    return watch;
}

/// Steps until a rank is named, and who: of ranks of which the first differs by `shift`, or by more and more of it.
struct naming {
    std::uint64_t steps;
    int rank;
};
naming name_shifted(exchangeability_watch& watch, alike_ranks& run, std::uint64_t first, double shift, bool drifts)
{
    for (std::uint64_t step = 0; step < 20000; ++step) {
        run.step();
        run.values[0] += drifts ? shift * static_cast<double>(step) : shift;
        watch.begin_step(first + step);
        watch.judge(0, run.values);
        if (watch.named().size() != 0) return {step + 1, watch.named()[0].rank};
    }
    return {20000, -2};
}

void print_evidence(long steps, std::uint64_t seed, const std::vector<int>& sizes, const std::string& only)
{
    constexpr std::uint64_t run_steps = 10000;
    const long runs = std::max(1L, steps / static_cast<long>(run_steps));
    std::printf("| numbers | ranks | runs of 10,000 steps | that name a rank, 0.01 stated | 0.1 stated |\n|---|---|---|---|---|\n");
    for (const null which : all_nulls) {
        if (!only.empty() && only != name(which)) continue;
        for (const int ranks : sizes) {
            long named[2] = {};
            for (long i = 0; i < runs; ++i) {
                alike_ranks run(ranks, which, seed + static_cast<std::uint64_t>(1000 * ranks + i));
                exchangeability_watch strict = watch_of(ranks, 0.01);
                exchangeability_watch loose = watch_of(ranks, 0.1);
                bool has_named[2] = {};
                for (std::uint64_t step = 0; step < run_steps; ++step) {
                    run.step();
                    exchangeability_watch* const both[] = {&strict, &loose};
                    for (int k = 0; k < 2; ++k) {
                        both[k]->begin_step(step);
                        both[k]->judge(0, run.values);
                        has_named[k] = has_named[k] || both[k]->named().size() != 0;
                    }
                }
                for (int k = 0; k < 2; ++k) named[k] += has_named[k] ? 1 : 0;
            }
            std::printf("| %s | %d | %ld | %ld | %ld |\n", name(which), ranks, runs, named[0], named[1]);
            std::fflush(stdout);
        }
    }

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
        if (!only.empty() && only != name(which)) continue;
        for (const int ranks : sizes) {
            if (ranks > 64) continue;
            for (const difference& each : differences) {
                for (const double tolerance : {0.0, 0.25}) {
                    std::vector<std::uint64_t> delays;
                    int right = 0;
                    constexpr int trials = 100;
                    for (int i = 0; i < trials; ++i) {
                        alike_ranks run(ranks, which, seed + 77777 + static_cast<std::uint64_t>(i));
                        exchangeability_watch watch = watch_of(ranks, 0.01, {1, 0, 0}, tolerance);
                        for (std::uint64_t step = 0; step < each.healthy; ++step) {
                            run.step();
                            watch.begin_step(step);
                            watch.judge(0, run.values);
                        }
                        // A t with 3 degrees has the deviation 1.73.
                        const double unit = which == null::t3 ? 1.7320508 : 1;
                        const naming found = name_shifted(watch, run, each.healthy, unit * each.shift, each.drifts);
                        delays.push_back(found.steps);
                        right += found.rank == 0 ? 1 : 0;
                    }
                    std::sort(delays.begin(), delays.end());
                    std::printf("| %s | %d | %s | %.4g | %d | %llu | %llu | %d %% |\n", name(which), ranks, each.label, tolerance, trials,
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
    long steps = 100000;
    bool evidence = false;
    std::uint64_t seed = 20260601;
    std::vector<int> sizes{4, 8, 16, 64, 1024};
    std::string only;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--steps" && i + 1 < argc) {
            steps = std::atol(argv[++i]);
        } else if (option == "--seed" && i + 1 < argc) {
            seed = std::strtoull(argv[++i], nullptr, 10);
        } else if (option == "--evidence") {
            evidence = true;
        } else if (option == "--scatter" && i + 1 < argc) {
            only = argv[++i];
        } else if (option == "--ranks" && i + 1 < argc) {
            sizes.clear();
            for (const char* text = argv[++i]; text != nullptr; text = std::strchr(text, ',')) {
                if (*text == ',') ++text;
                sizes.push_back(std::max(2, std::atoi(text)));
            }
        } else {
            std::fprintf(stderr, "usage: alarm_rates [--steps N] [--seed N] [--ranks n,n,...] [--scatter NAME] [--evidence]\n");
            return 2;
        }
    }

    if (evidence) {
        print_evidence(steps, seed, sizes, only);
        return 0;
    }
    std::printf("| scatter | ranks | p stated | steps with a suspect | alarms stated, at most | alarms | without learning |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const family scatter : {family::realistic, family::t5, family::lognormal}) {
        if (!only.empty() && only != name(scatter)) continue;
        for (const int ranks : sizes) {
            healthy_run run(ranks, scatter, seed + static_cast<std::uint64_t>(ranks));
            watch rare(ranks, 1e-4);
            watch frequent(ranks, 1e-2);
            for (long step = 0; step < steps; ++step) {
                run.step();
                rare.judge(run);
                frequent.judge(run);
            }
            for (const watch* each : {&rare, &frequent}) {
                const double n = static_cast<double>(steps);
                std::printf("| %s | %d | %.0e | %.1e | %.2g | %ld | %ld |\n", name(scatter), ranks,
                    each->record.false_alarms_per_step, static_cast<double>(each->suspicious) / n,
                    each->learning.false_alarms_per_step() * n, each->learned, each->trusted);
            }
            std::fflush(stdout);
        }
    }
    return 0;
}
