// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A copy fills a rank's shard of the parameters on one stream, an all-gather reads it on another. Without an event
// between the two the losses become NaN or wrong, and nothing says so, but a checker of stream order. One guarded call
// gives the losses that a waiting host gives.

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "../digits/dataset.hpp"
#include "../digits/output_file.hpp"
#include "../digits/progress.hpp"
#include "options.hpp"
#include "report.hpp"
#include "train.hpp"

namespace {

using namespace guarded_all_gather;

int run(const options& given)
{
    const trainer::split_dataset data = trainer::split(trainer::read_digits(given.data));
    std::optional<trainer::output_file> jsonl; // before anything that takes long
    if (!given.jsonl.empty()) jsonl.emplace(given.jsonl);
    std::printf("Training 64-32-10 on %zu digits: %d ranks, %llu steps, seed %llu, delay seed %llu.\n\n",
        data.train.size(), given.ranks, static_cast<unsigned long long>(given.steps),
        static_cast<unsigned long long>(given.seed), static_cast<unsigned long long>(given.delay_seed));
    std::fflush(stdout);

    std::vector<run_result> runs;
    trainer::progress shown(given.modes.size() * given.steps);
    for (const mode how : given.modes) {
        runs.push_back(train(given, data.train, how, [&] { shown.advance(name(how)); }));
        if (jsonl) jsonl->write(json_line(runs.back()));
    }
    shown.clear();
    if (jsonl) jsonl->close();
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
