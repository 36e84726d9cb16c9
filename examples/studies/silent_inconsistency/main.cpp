// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Do the ranks of a data-parallel training run agree before they aggregate? Trains a small network on
// real data with in-process ranks, once per way to seed them, and reports what the probes saw.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/table.hpp>

#include "../digits/dataset.hpp"
#include "../digits/progress.hpp"
#include "conclusion.hpp"
#include "cuda_run.hpp"
#include "options.hpp"
#include "parse_options.hpp"
#include "pilot.hpp"
#include "sampler.hpp"
#include "train.hpp"
#include "trainer.hpp"

namespace {

using namespace trainer;

constexpr std::size_t most_levels = 8;

/// Up to eight pools, each of as many samples as a step takes: with fewer some ranks would see again what others saw.
sampler make_sampler(const options& given, const dataset& train)
{
    if (given.sampler == sampler_kind::iid)
        return sampler(difficulty_buckets(std::vector<double>(train.size()), 1));
    const std::size_t taken = static_cast<std::size_t>(given.ranks) * given.batch;
    std::size_t levels = most_levels;
    while (levels > 1 && train.size() / levels < taken) levels /= 2;
    return sampler(difficulty_buckets(pilot_losses(train), levels));
}

/// Trains one setting where the command line wants it.
run_result train(const job& work, run_reports& reports, progress& shown)
{
    if (work.given.device == device_kind::cuda) return train_on_cuda(work, reports, shown);
    return with_wire_type(work.given.element, [&]<class Wire>(Wire) {
        return train<rank_trainer<Wire, collprobe::local::communicator>>(work, reports, shown,
            [&](auto rank) { collprobe::local::run(work.given.ranks, rank); });
    });
}

std::string counted(std::uint64_t count, const std::string& what)
{
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string describe_job(const options& given, const split_dataset& data, const std::string& gpus)
{
    const std::string hidden = std::to_string(given.hidden);
    return "Training 64-" + hidden + "-" + hidden + "-10 on " + std::to_string(data.train.size())
        + " digits (" + std::to_string(data.test.size()) + " more to test): "
        + counted(static_cast<std::uint64_t>(given.ranks), "rank") + " x batch " + std::to_string(given.batch)
        + ", " + counted(given.steps, "step") + ", " + (given.sampler == sampler_kind::iid ? "iid" : "curriculum") + " sampler, seed "
        + std::to_string(given.seed) + (gpus.empty() ? "" : ", on " + gpus) + ".\nGradients travel as " + name(given.element)
        + ", a bucket per layer: 0 is the output layer, 1 the second hidden one, 2 the first.\n";
}

std::string report(const std::vector<run_result>& runs)
{
    std::vector<run_summary> summaries;
    std::string findings;
    for (const run_result& run : runs) {
        summaries.push_back(run.history.summarize());
        const std::string found = finding_list(summaries.back(), 8);
        if (!found.empty()) findings += "\nFindings in " + run.name + ":\n" + found;
        if (run.skipped_updates > 0) {
            findings += collprobe::report::detail::counted(static_cast<std::uint64_t>(run.skipped_updates), "update")
                + " left out: the averaged gradient was not finite\n";
        }
    }
    collprobe::report::text_table table = comparison_table(summaries);
    table.row("test accuracy");
    for (const run_result& run : runs) table.cell(detail::percent(run.test_accuracy));
    return "\n" + table.text() + findings
        + "\nWhat to conclude\n----------------\n" + conclude(runs);
}

int run(const options& given)
{
    const std::string gpus = given.device == device_kind::cuda ? describe_gpus() : "";
    const split_dataset data = split(read_digits(given.data));
    run_reports reports(given.files, given.settings.size() > 1); // before anything that takes long
    const sampler samples = make_sampler(given, data.train);
    std::fputs(describe_job(given, data, gpus).c_str(), stdout);
    if (std::fflush(stdout) != 0) throw std::runtime_error("the report could not be written to stdout");

    std::vector<run_result> runs;
    {
        progress shown(given.settings.size() * given.steps);
        for (const setting seeds : given.settings) {
            job work{given, data, samples, seeds, given.dump};
            if (!given.dump.empty()) {
                if (given.settings.size() > 1) work.dump_folder /= name(seeds);
                std::filesystem::create_directories(work.dump_folder);
            }
            runs.push_back(train(work, reports, shown));
        }
    }
    std::fputs(report(runs).c_str(), stdout);
    for (const run_result& each : runs) {
        if (!each.weights_agree)
            throw std::runtime_error("the weights of the ranks differ in setting " + each.name);
    }
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const options given = parse_options(std::vector<std::string>(argv + 1, argv + argc));
        return run(given);
    } catch (const std::exception& problem) {
        return explain("silent_inconsistency", problem);
    }
}
