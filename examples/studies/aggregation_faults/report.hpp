// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

#include "options.hpp"
#include "paper.hpp"
#include "train.hpp"

namespace aggregation_faults {

/// What the program says of a run.
struct run_result {
    run_plan plan;
    double accuracy = 0; ///< mean over the ranks' own models
    double drift = 0; ///< root mean square distance of a rank's weights from their mean, over the mean's norm
    bool agree = false; ///< whether all ranks hold the same bits, momentum included
    bool as_clean = false; ///< whether those of all ranks are those of the run without faults
    double seconds_per_step = 0;
    std::uint64_t rounds = 0;
    std::uint64_t bytes = 0;
    std::uint64_t faults = 0; ///< calls hit, over all ranks
    bool without_majority = false;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
{
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
        [](float x, float y) { return collprobe::to_bits(x) == collprobe::to_bits(y); });
}

/// `clean`: what the ranks ended with without faults; of the same plan otherwise.
inline run_result summarise(
    const run_plan& plan, const std::vector<rank_result>& ranks, const std::vector<rank_result>& clean, double steps)
{
    run_result result{.plan = plan, .agree = true, .as_clean = true};
    const auto n = static_cast<double>(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const rank_result& each = ranks[rank];
        result.accuracy += each.accuracy / n;
        result.faults += each.faults;
        result.agree = result.agree && same_bits(each.weights, ranks[0].weights);
        const auto is_clean = [&](const rank_result& of) {
            return same_bits(each.weights, of.weights) && same_bits(each.velocity, of.velocity);
        };
        result.as_clean = result.as_clean && !clean.empty() && is_clean(clean[rank]);
    }
    double apart = 0;
    double norm = 0;
    for (std::size_t i = 0; i < ranks[0].weights.size(); ++i) {
        double mean = 0;
        for (const rank_result& each : ranks) mean += static_cast<double>(each.weights[i]) / n;
        norm += mean * mean;
        for (const rank_result& each : ranks) {
            const double distance = static_cast<double>(each.weights[i]) - mean;
            apart += distance * distance / n;
        }
    }
    result.drift = std::sqrt(apart / norm);
    result.seconds_per_step = ranks[0].seconds / steps;
    result.rounds = ranks[0].rounds;
    result.bytes = ranks[0].bytes;
    result.without_majority = ranks[0].without_majority;
    return result;
}

/// Steps from one repair to the next; 0 where there is none.
inline std::uint64_t interval_of(const run_result& run, std::uint64_t steps)
{
    if (run.plan.how == method::periodic) return run.plan.interval;
    return run.rounds == 0 ? 0 : (steps + run.rounds / 2) / run.rounds;
}

/// One object and a newline.
inline std::string json_line(const run_result& run, const options& given)
{
    std::string line;
    collprobe::report::detail::json_writer json(line);
    json.open('{').key("schema").integer(collprobe::report::json_schema).key("kind").text("summary");
    json.key("fault").text(name(given.fault)).key("method").text(name(run.plan.how));
    json.key("sigma2").number(run.plan.sigma2).key("ranks").integer(static_cast<std::uint64_t>(run.plan.ranks));
    json.key("interval").integer(interval_of(run, given.steps)).key("seed").integer(run.plan.seed);
    json.key("test_accuracy").number(run.accuracy).key("weights_agree").boolean(run.agree);
    json.key("repair_bytes").integer(run.bytes).close('}');
    return line + '\n';
}

/// Averages leave equal weights. A majority leaves all bits of the run without faults.
inline bool keeps_promise(const run_result& run, bool clean_is_known)
{
    if (run.plan.how == method::noised) return true;
    const bool exact = run.plan.how == method::majority && !run.without_majority;
    return run.agree && (!exact || !clean_is_known || run.as_clean);
}

inline std::string label(const run_plan& plan)
{
    if (plan.how != method::periodic) return name(plan.how);
    return "periodic, H = " + std::to_string(plan.interval);
}

inline std::string formatted(const char* format, double value)
{
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

/// The runs of a cell of the table, one for each seed.
inline std::vector<run_result> cell_of(const std::vector<run_result>& runs, const run_plan& like, double sigma2)
{
    std::vector<run_result> found;
    for (const run_result& run : runs) {
        if (run.plan.how == like.how && run.plan.ranks == like.ranks && run.plan.interval == like.interval
            && !(run.plan.sigma2 < sigma2) && !(run.plan.sigma2 > sigma2)) {
            found.push_back(run);
        }
    }
    return found;
}

/// The median over the seeds of something of a cell's runs.
template <class Value>
double median(std::vector<run_result> runs, Value value)
{
    std::sort(runs.begin(), runs.end(), [&](const run_result& a, const run_result& b) { return value(a) < value(b); });
    const std::size_t middle = runs.size() / 2;
    return runs.size() % 2 == 1 ? value(runs[middle]) : 0.5 * (value(runs[middle - 1]) + value(runs[middle]));
}
inline double accuracy_of(const run_result& run) { return 100 * run.accuracy; }

/// The methods in the order of the runs, those of one number of ranks.
inline std::vector<run_plan> rows_of(const std::vector<run_result>& runs, int ranks)
{
    std::vector<run_plan> rows;
    for (const run_result& run : runs) {
        const auto same = [&](const run_plan& other) {
            return other.how == run.plan.how && other.interval == run.plan.interval;
        };
        if (run.plan.ranks == ranks && std::none_of(rows.begin(), rows.end(), same)) rows.push_back(run.plan);
    }
    return rows;
}

/// A column for each variance; the first says what they hold.
inline void headings(collprobe::report::text_table& rows, std::string what, const std::vector<double>& sigma2)
{
    for (const double each : sigma2) {
        rows.cell(what + collprobe::report::short_number(each));
        what.clear();
    }
}

/// Accuracy over sigma^2, and beside it the paper's where it has one.
inline std::string accuracy_table(const std::vector<run_result>& runs, const options& given, int ranks)
{
    collprobe::report::text_table rows;
    rows.row(std::to_string(ranks) + " ranks: test accuracy, %; sigma2 =");
    headings(rows, "", given.sigma2);
    const bool beside = (ranks == 4 || ranks == 32) && !(given.burst > 0);
    if (beside) headings(rows, "paper: ", given.sigma2);
    for (const run_plan& plan : rows_of(runs, ranks)) {
        rows.row(label(plan));
        for (const double sigma2 : given.sigma2) {
            rows.cell(formatted("%.2f", median(cell_of(runs, plan, sigma2), accuracy_of)));
        }
        for (const double sigma2 : given.sigma2) {
            const double theirs = paper::accuracy(ranks, plan.how, plan.interval, sigma2);
            if (beside) rows.cell(theirs < 0 ? "" : formatted("%.1f", theirs));
        }
    }
    return rows.text();
}

/// How far the models are apart in the end, what the repair sent, and what a step took.
inline std::string cost_table(const std::vector<run_result>& runs, const options& given, int ranks)
{
    collprobe::report::text_table rows;
    rows.row(std::to_string(ranks) + " ranks: models apart, %; sigma2 =");
    headings(rows, "", given.sigma2);
    headings(rows, "bytes a step: ", given.sigma2);
    rows.cell("ms a step");
    const auto steps = static_cast<double>(given.steps);
    for (const run_plan& plan : rows_of(runs, ranks)) {
        rows.row(label(plan));
        double milliseconds = 0;
        for (const double sigma2 : given.sigma2) {
            const std::vector<run_result> cell = cell_of(runs, plan, sigma2);
            rows.cell(formatted("%.3g", median(cell, [](const run_result& run) { return 100 * run.drift; })));
            milliseconds += median(cell, [](const run_result& run) { return 1e3 * run.seconds_per_step; });
        }
        for (const double sigma2 : given.sigma2) {
            rows.cell(formatted("%.0f", median(cell_of(runs, plan, sigma2),
                [&](const run_result& run) { return static_cast<double>(run.bytes) / steps; })));
        }
        rows.cell(formatted("%.2f", milliseconds / static_cast<double>(given.sigma2.size())));
    }
    return rows.text();
}

/// A row for each run with bit flips.
inline std::string flips_table(const std::vector<run_result>& runs, const options& given)
{
    collprobe::report::text_table rows;
    rows.row("ranks").cell("seed").cell("method").cell("faults").cell("accuracy, %").cell("models apart, %");
    rows.cell("same bits on all").cell("as clean").cell("repairs").cell("bytes a step").cell("ms a step");
    for (const run_result& run : runs) {
        rows.row(std::to_string(run.plan.ranks)).cell(std::to_string(run.plan.seed)).cell(label(run.plan));
        rows.cell(std::to_string(run.faults)).cell(formatted("%.2f", accuracy_of(run)));
        rows.cell(collprobe::report::short_number(100 * run.drift)).cell(run.agree ? "yes" : "no");
        rows.cell(run.as_clean ? "yes" : "no").cell(std::to_string(run.rounds));
        rows.cell(formatted("%.0f", static_cast<double>(run.bytes) / static_cast<double>(given.steps)));
        rows.cell(formatted("%.2f", 1e3 * run.seconds_per_step));
    }
    return rows.text();
}

/// What the table means for repair by majority.
inline std::string conclusion(const std::vector<run_result>& runs)
{
    std::uint64_t all = 0;
    std::uint64_t without = 0;
    std::uint64_t exact = 0;
    for (const run_result& run : runs) {
        if (run.plan.how != method::majority) continue;
        ++all;
        without += run.without_majority ? 1 : 0;
        exact += run.as_clean ? 1 : 0;
    }
    if (all == 0) return "";
    std::string text = "majority: ";
    if (without > 0) {
        text += "in " + std::to_string(without) + " of " + std::to_string(all)
            + " runs there was none, for too many ranks were hit at once: averaged every "
            + std::to_string(majority_or_average::fallback_interval) + " steps instead. ";
    }
    return text + std::to_string(exact) + " of " + std::to_string(all)
        + " runs ended with the bits of the clean run, weights and momentum, on all ranks.\n";
}

} // namespace aggregation_faults
