// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A copy fills a rank's shard of the parameters on one stream, an all-gather reads it on another. Without an event
// between the two the losses become NaN or wrong, and nothing says so, but a checker of stream order. One guarded call
// gives the losses that a waiting host gives.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../../report_files.hpp"
#include "../digits/dataset.hpp"
#include "../digits/progress.hpp"
#include "options.hpp"
#include "report.hpp"
#include "train.hpp"

namespace {

using namespace guarded_all_gather;

int run(const options& given)
{
    const trainer::split_dataset data = trainer::split(trainer::read_digits(given.data));
    run_reports reports(given.files, given.modes.size() > 1); // before anything that takes long
    std::printf("Training 64-32-10 on %zu digits: %d ranks, %llu steps, seed %llu, delay seed %llu.\n\n",
        data.train.size(), given.ranks, static_cast<unsigned long long>(given.steps),
        static_cast<unsigned long long>(given.seed), static_cast<unsigned long long>(given.delay_seed));
    std::fflush(stdout);

    std::vector<run_result> runs;
    trainer::progress shown(given.modes.size() * given.steps);
    for (const mode how : given.modes) {
        reports.begin(name(how), given.ranks);
        runs.push_back(train(given, data.train, how, [&](const collprobe::step_record& record) { reports.put(record); },
            [&] { shown.advance(name(how)); }));
        reports.end();
        reports.line(json_line(runs.back()));
    }
    shown.clear();
    std::fputs((table(runs) + "\n").c_str(), stdout);
    if (const std::string problem = complaint(runs); !problem.empty()) {
        std::fprintf(stderr, "guarded_all_gather: %s\n", problem.c_str());
        return 1;
    }
    std::fputs(conclusion(runs).c_str(), stdout);
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const options given = parse_options(std::vector<std::string>(argv + 1, argv + argc));
        return run(given);
    } catch (const std::exception& problem) {
        return trainer::explain("guarded_all_gather", problem);
    }
}
