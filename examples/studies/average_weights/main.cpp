// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// With which weight did each rank enter the average, and what does a wrong one cost? Trains a small network on
// handwritten digits with batches of unequal size, once with the right average and once for each mistake that trainers
// are known for, and names the mistake from what goes into the average and what the optimiser gets.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/table.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
#include "../digits/progress.hpp"
#include "train.hpp"

namespace {

using namespace average_weights;

options parse_options(const std::vector<std::string>& arguments)
{
    trainer::command_line line(
        "average_weights: with which weight did each rank enter the average?\n\n"
        "Trains a small network on handwritten digits with 8 ranks. In each step one rank has 28 samples of the digits\n"
        "5 to 9, the others 4 each of the digits 0 to 4. Their gradients, means over the rank's samples, are averaged\n"
        "by the numbers of samples, or with one of five mistakes.",
        "0, 1 if the run failed\nor a form was named wrongly, 2 if the command line is wrong.");
    options result;
    line.number("--steps", result.steps, 1, 1'000'000, "optimiser steps of each run");
    line.numbers("--seeds", result.seeds, 0, ~std::uint64_t{0}, "a run with each; loss and accuracy are their means");
    line.number("--every", result.every, 1, 1'000'000, "the probe looks at each step of so many");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write each step of each run, one a line");
    line.parse(arguments);
    return result;
}

/// The runs of a mistake, one for each seed.
struct outcome {
    mistake what;
    double loss = 0;
    double accuracy = 0;
    std::size_t looked_at = 0; ///< steps
    std::size_t named = 0; ///< of these, with the right form
    std::size_t unknown = 0; ///< of these, without a form
    std::string described = {}; ///< the last step with a form
};

outcome summarise(mistake what, const std::vector<run_result>& runs)
{
    outcome all{what};
    for (const run_result& run : runs) {
        all.loss += run.loss / static_cast<double>(runs.size());
        all.accuracy += run.accuracy / static_cast<double>(runs.size());
        all.looked_at += run.found.size();
        for (const collprobe::call_weights& each : run.found) {
            all.named += each.how == form_of(what) ? 1 : 0;
            all.unknown += each.how == collprobe::averaging::unknown ? 1 : 0;
            if (each.how == collprobe::averaging::unknown) continue;
            all.described = collprobe::report::describe(0, collprobe::call_site::named("gradient"), each);
        }
    }
    return all;
}

std::string fixed(const char* format, double value)
{
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

std::string table(const std::vector<outcome>& all)
{
    collprobe::report::text_table rows;
    rows.row("mistake").cell("form of the weights").cell("named so").cell("not named").cell("test loss").cell("accuracy");
    for (const outcome& each : all) {
        rows.row(name(each.what)).cell(collprobe::name(form_of(each.what)));
        rows.cell(std::to_string(each.named) + " of " + std::to_string(each.looked_at)).cell(std::to_string(each.unknown));
        rows.cell(fixed("%.4f", each.loss)).cell(fixed("%.2f %%", 100 * each.accuracy));
    }
    std::string text = rows.text() + "\nIn the last step that has a form:\n";
    for (const outcome& each : all) text += each.described + '\n';
    return text;
}

int run(const options& given)
{
    const trainer::split_dataset data = trainer::split(trainer::read_digits(given.data));
    const kinds samples(data.train);
    run_reports reports(given.files, true); // before anything that takes long
    std::printf("Training 64-64-64-10 on %zu digits (%zu more to test): %llu steps of %d ranks, %zu samples on one and %zu on"
                " the others.\n\n", data.train.size(), data.test.size(), static_cast<unsigned long long>(given.steps), ranks,
        long_batch, short_batch);
    std::fflush(stdout);
    std::vector<outcome> all;
    trainer::progress shown(std::size(all_mistakes) * given.seeds.size() * given.steps);
    for (const mistake what : all_mistakes) {
        std::vector<run_result> runs;
        for (const std::uint64_t seed : given.seeds) {
            run_result of_rank_0;
            reports.begin(std::string(name(what)) + ", seed " + std::to_string(seed), ranks);
            collprobe::local::run(ranks, [&](collprobe::local::communicator& world) {
                const bool first = world.rank() == 0;
                const auto take = [&](const collprobe::step_record& record) {
                    if (first) reports.put(record);
                };
                run_result result = train(given, data, samples, what, seed, world, take, [&] {
                    if (first) shown.advance(name(what));
                });
                if (first) of_rank_0 = std::move(result);
            });
            reports.end();
            runs.push_back(std::move(of_rank_0));
        }
        all.push_back(summarise(what, runs));
    }
    shown.clear();
    std::fputs(table(all).c_str(), stdout);
    for (const outcome& each : all) {
        if (each.named + each.unknown == each.looked_at) continue;
        std::fprintf(stderr, "average_weights: '%s' was named otherwise\n", name(each.what));
        return 1;
    }
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run(parse_options(std::vector<std::string>(argv + 1, argv + argc)));
    } catch (const std::exception& problem) {
        return trainer::explain("average_weights", problem);
    }
}
