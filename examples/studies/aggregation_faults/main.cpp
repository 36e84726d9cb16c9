// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What becomes of a training run whose all-reduce hands each rank a slightly different gradient, and what repairs
// it? Trains a small network on handwritten digits under faults that are put into its collectives, without and with
// repairs, and sets the result beside what was published.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/comm/local/communicator.hpp>

#include "../../report_files.hpp"
#include "../digits/dataset.hpp"
#include "../digits/progress.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "train.hpp"

namespace {

using namespace aggregation_faults;

std::string describe(const options& given, const trainer::split_dataset& data)
{
    std::string text = "Training 64-64-64-10 on " + std::to_string(data.train.size()) + " digits ("
        + std::to_string(data.test.size()) + " more to test): " + std::to_string(given.steps)
        + " steps, a model on each rank, momentum 0.9, the learning rate falls from 0.04 to 0.\n";
    if (given.fault == fault_model::gaussian) {
        text += "Each rank receives the averaged gradient with its own noise of variance sigma2";
        if (given.burst > 0) {
            text += "; every " + std::to_string(burst_period) + " steps N(0, " + collprobe::report::short_number(given.burst)
                + ") on top";
        }
        text += ".\nAverages travel without noise, as the paper assumes.\n";
    } else {
        text += "Now and then one rank, drawn anew, receives flipped bits: in one element, or in 32 that a warp stores.\n";
    }
    return text + "\n";
}

/// The runs of one number of ranks, one variance and one seed. Those without noise come once for all variances.
std::vector<run_plan> plans_of(const options& given, int ranks, double sigma2, std::uint64_t seed)
{
    std::vector<run_plan> plans;
    for (const method how : given.methods) {
        const run_plan plan{.how = how, .sigma2 = sigma2, .ranks = ranks, .seed = seed};
        if (how != method::periodic) {
            plans.push_back(plan);
            continue;
        }
        for (const std::uint64_t interval : given.intervals) {
            plans.push_back(plan);
            plans.back().interval = interval;
        }
    }
    return plans;
}

std::uint64_t steps_of_all(const options& given)
{
    std::uint64_t runs = 0;
    for (const run_plan& plan : plans_of(given, 1, 0, 0)) {
        const bool once = plan.how == method::clean;
        runs += (once ? 1 : given.sigma2.size()) * given.ranks.size() * given.seeds.size();
    }
    return runs * given.steps;
}

int run(const options& given)
{
    const trainer::split_dataset data = trainer::split(trainer::read_digits(given.data));
    run_reports reports(given.files, true); // before anything that takes long
    std::optional<collprobe::report::line_file> plot;
    if (!given.plot.empty()) plot.emplace(given.plot);
    std::fputs(describe(given, data).c_str(), stdout);
    std::fflush(stdout);

    std::vector<run_result> runs;
    bool kept = true;
    trainer::progress shown(steps_of_all(given));
    const auto train_all = [&](const run_plan& plan) {
        std::vector<rank_result> ranks(static_cast<std::size_t>(plan.ranks));
        const std::string what = label(plan) + ", " + std::to_string(plan.ranks) + " ranks";
        reports.begin(what + ", sigma2 " + collprobe::report::short_number(plan.sigma2) + ", seed "
                + std::to_string(plan.seed), plan.ranks);
        collprobe::alarms watch(plan.ranks);
        collprobe::local::run(plan.ranks, [&](collprobe::local::communicator& comm) {
            const bool first = comm.rank() == 0;
            const auto take = [&](const collprobe::step_record& record) {
                if (!first) return;
                reports.put(record);
                reports.put(watch.judge(record));
            };
            ranks[static_cast<std::size_t>(comm.rank())] = train(given, data, plan, comm, take, [&] {
                if (first) shown.advance(what.c_str());
            });
        });
        reports.end();
        return ranks;
    };
    for (const int ranks : given.ranks) {
        for (const std::uint64_t seed : given.seeds) {
            std::vector<rank_result> clean;
            for (const double sigma2 : given.sigma2) {
                for (const run_plan& plan : plans_of(given, ranks, sigma2, seed)) {
                    const bool again = plan.how == method::clean && !clean.empty();
                    std::vector<rank_result> ended = again ? clean : train_all(plan);
                    if (plan.how == method::clean) clean = ended;
                    runs.push_back(summarise(plan, ended, clean, static_cast<double>(given.steps)));
                    const run_result& last = runs.back();
                    reports.line(json_line(last, given));
                    const bool promised = keeps_promise(last, !clean.empty());
                    if (!promised) {
                        shown.clear();
                        std::fprintf(stderr, "aggregation_faults: %s, %d ranks, seed %llu: the repair did not do what it promises\n",
                            label(plan).c_str(), ranks, static_cast<unsigned long long>(seed));
                    }
                    kept = kept && promised;
                }
            }
        }
    }
    shown.clear();
    if (given.fault == fault_model::bit_flips) {
        std::fputs(flips_table(runs, given).c_str(), stdout);
    } else {
        for (const int ranks : given.ranks) {
            std::fputs((accuracy_table(runs, given, ranks) + "\n" + cost_table(runs, given, ranks) + "\n").c_str(), stdout);
        }
        std::fputs("Paper: ResNet-18 on CIFAR-10 (4 workers), ResNet-50 on CIFAR-100 (32). Another model and other data: "
                   "compare shape and order.\n", stdout);
        std::fputs(paper::times, stdout);
    }
    std::fputs(conclusion(runs).c_str(), stdout);
    if (plot) {
        plot->append(accuracy_plot(runs, given));
        plot->close();
    }
    return kept ? 0 : 1;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const options given = parse_options(std::vector<std::string>(argv + 1, argv + argc));
        return run(given);
    } catch (const std::exception& problem) {
        return trainer::explain("aggregation_faults", problem);
    }
}
