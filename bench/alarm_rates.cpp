// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Measures how often healthy steps alarm, against what is stated, and prints a markdown table: see
/// bench/results/alarms.md.
///
///     alarm_rates [--steps N] [--seed N] [--ranks n,n,...] [--scatter NAME]
///
/// A step has a loss, a cosine and the norms of four buckets per rank. Levels are common to all ranks and move from
/// step to step as in training: a loss that decays, norms that fall from their start, both with correlated fluctuations;
/// each rank keeps a level of its own (1 %). About that the ranks scatter as
///     realistic   losses gamma (12 %), squared norms gamma (norms 9 %), cosines normal in Fisher's z
///     t5          Student's t of 5 degrees, of the same width
///     lognormal   sigma 0.5, losses and norms; cosines as t5
/// Every value goes the way it goes in the library: `near_gaussian_*`, `fisher_z`, `outlier_detector`, `alarms`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
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
          learning(ranks, {.suspects_per_step = p}),
          trusting(ranks, {.suspects_per_step = p, .learn = false})
    {
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

} // namespace

int main(int argc, char** argv)
{
    long steps = 100000;
    std::uint64_t seed = 20260601;
    std::vector<int> sizes{4, 8, 16, 64, 1024};
    std::string only;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--steps" && i + 1 < argc) {
            steps = std::atol(argv[++i]);
        } else if (option == "--seed" && i + 1 < argc) {
            seed = std::strtoull(argv[++i], nullptr, 10);
        } else if (option == "--scatter" && i + 1 < argc) {
            only = argv[++i];
        } else if (option == "--ranks" && i + 1 < argc) {
            sizes.clear();
            for (const char* text = argv[++i]; text != nullptr; text = std::strchr(text, ',')) {
                if (*text == ',') ++text;
                sizes.push_back(std::max(2, std::atoi(text)));
            }
        } else {
            std::fprintf(stderr, "usage: alarm_rates [--steps N] [--seed N] [--ranks n,n,...] [--scatter NAME]\n");
            return 2;
        }
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
                    each->learning.options().suspects_per_step, static_cast<double>(each->suspicious) / n,
                    each->learning.false_alarms_per_step() * n, each->learned, each->trusted);
            }
            std::fflush(stdout);
        }
    }
    return 0;
}
