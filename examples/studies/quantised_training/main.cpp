// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What do gradients that travel as codes of 8 or 4 bits do to a training run, and what tells before accuracy does?
// Trains a small network on handwritten digits on 2 nodes of 4 ranks, and sets the verdicts of quantisation_probe
// beside the accuracy that each format and each way to round ends with.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>

#include "../../report_files.hpp"
#include "../digits/dataset.hpp"
#include "../digits/progress.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "report.hpp"
#include "train.hpp"

namespace {

using namespace quantised_training;

std::string describe(const options& given, const trainer::split_dataset& data)
{
    const std::string hidden = std::to_string(given.hidden);
    return "Training 64-" + hidden + "-" + hidden + "-10 on " + std::to_string(data.train.size()) + " digits ("
        + std::to_string(data.test.size()) + " more to test): " + std::to_string(given.steps)
        + (given.steps == 1 ? " step, " : " steps, ")
        + std::to_string(nodes) + " nodes of " + std::to_string(ranks_per_node) + " ranks, batch "
        + std::to_string(given.batch)
        + " each, momentum 0.9, the learning rate falls from 0.04 to 0.\nNumbers of steps are medians. deepspeed: its "
          "rules with the named defects; one gradient has a NaN where NaN becomes 0.\n\n";
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
    bool agreed = true;
    trainer::progress shown(plans_of(given, 0).size() * given.seeds.size() * given.steps);
    for (const std::uint64_t seed : given.seeds) {
        for (const run_plan& plan : plans_of(given, seed)) {
            if (!given.dump.empty()) std::filesystem::create_directories(dump_folder(given, plan));
            std::vector<rank_result> all(ranks);
            const std::string what = plan.label();
            reports.begin(what + " seed " + std::to_string(seed), ranks, settings_of(given));
            collprobe::local::run(ranks, [&](collprobe::local::communicator& comm) {
                const bool first = comm.rank() == 0;
                all[static_cast<std::size_t>(comm.rank())] = train(
                    given, data, plan, comm,
                    [&](const collprobe::step_record& record) {
                        if (first) reports.put(record);
                    },
                    [&] {
                        if (first) shown.advance(what.c_str());
                    });
            });
            reports.end();
            runs.push_back(summarise(plan, all, given));
            agreed = agreed && runs.back().agree;
            reports.line(json_line(runs.back()));
        }
    }
    shown.clear();
    std::fputs(table(runs, given).c_str(), stdout);
    std::fputs(conclusion(runs, given, 100 / static_cast<double>(data.test.size())).c_str(), stdout);
    if (plot) {
        plot->append(steps_picture(runs, given).text());
        plot->close();
    }
    if (!agreed) std::fputs("quantised_training: a run left ranks with different weights\n", stderr);
    return agreed ? 0 : 1;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run(parse_options(std::vector<std::string>(argv + 1, argv + argc)));
    } catch (const std::exception& problem) {
        return trainer::explain("quantised_training", problem);
    }
}
