// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

#include "options.hpp"
#include "train.hpp"

namespace quantised_training {

using collprobe::quantisation_verdict;

/// What the program says of a run. Numbers of steps are medians over them.
struct run_result {
    run_plan plan;
    double accuracy = 0;
    double sqnr_db = 0; ///< of the ranks' roundings
    double aggregate_db = 0; ///< of the average, by the probe's sketches; of fp32 the exact one
    double exact_db = 0; ///< of the average
    double noise_ratio = 0;
    double coherence = 0; ///< of the roundings, in the average
    /// The gravest that holds in a tenth of the steps. Damage and hidden NaN are facts: one step is enough.
    quantisation_verdict verdict = quantisation_verdict::unknown;
    std::uint64_t flagged = 0; ///< steps with a verdict graver than `visible`
    std::uint64_t first_flagged = 0; ///< the first of them, if there are any
    std::uint64_t wire_bytes = 0; ///< that a rank sends in a step
    double bytes_ratio = 1; ///< to what a ring sends of floats
    bool agree = true; ///< whether all ranks end with the same weights, bit for bit
    std::vector<std::pair<std::uint64_t, double>> curve;
    std::vector<double> noise_ratios = {}; ///< by step
};

inline double median(std::vector<double> values)
{
    if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
    const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    // NaN, of steps that tell nothing, last.
    std::nth_element(values.begin(), place, values.end(),
        [](double a, double b) { return collprobe::is_nan(b) ? !collprobe::is_nan(a) : a < b; });
    return *place;
}

inline bool is_flagged(quantisation_verdict verdict)
{
    return verdict != quantisation_verdict::unknown && verdict < quantisation_verdict::visible;
}

inline quantisation_verdict verdict_of(const std::vector<step_figures>& steps)
{
    for (int each = 1; each <= static_cast<int>(quantisation_verdict::negligible); ++each) {
        const auto verdict = static_cast<quantisation_verdict>(each);
        const auto having = static_cast<std::size_t>(std::count_if(
            steps.begin(), steps.end(), [&](const step_figures& of) { return of.said.verdict == verdict; }));
        const bool fact = verdict <= quantisation_verdict::non_finite_hidden;
        if (having > 0 && (fact || 10 * having >= steps.size())) return verdict;
    }
    return quantisation_verdict::unknown;
}

inline run_result summarise(const run_plan& plan, const std::vector<rank_result>& all, const options& given)
{
    run_result result{.plan = plan, .accuracy = all[0].accuracy, .curve = all[0].curve};
    std::vector<double> sqnr;
    std::vector<double> aggregate;
    std::vector<double> exact;
    std::vector<double> coherence;
    for (const step_figures& step : all[0].steps) {
        sqnr.push_back(step.said.sqnr_db);
        aggregate.push_back(plan.how == scheme::fp32 ? step.exact_db : step.said.aggregate_sqnr_db);
        exact.push_back(step.exact_db);
        coherence.push_back(step.said.coherence);
        result.noise_ratios.push_back(step.said.noise_ratio);
        if (is_flagged(step.said.verdict)) {
            if (result.flagged++ == 0) result.first_flagged = static_cast<std::uint64_t>(&step - all[0].steps.data());
        }
    }
    result.sqnr_db = median(sqnr);
    result.aggregate_db = median(aggregate);
    result.exact_db = median(exact);
    result.coherence = median(coherence);
    result.noise_ratio = median(result.noise_ratios);
    result.verdict = verdict_of(all[0].steps);
    const std::size_t weights = all[0].weights.size();
    for (const rank_result& each : all) {
        result.agree = result.agree && std::memcmp(each.weights.data(), all[0].weights.data(), 4 * weights) == 0;
    }
    result.wire_bytes = std::uint64_t{ranks - 1} * weights / ranks * 8;
    if (plan.how != scheme::fp32 && given.steps > 0) {
        const collprobe::quantised_outcome& did = all[0].steps[0].said.outcome;
        result.wire_bytes = did.bytes_sent;
        result.bytes_ratio = static_cast<double>(did.bytes_sent) / static_cast<double>(did.bytes_plain);
    }
    return result;
}

/// One object and a newline.
inline std::string json_line(const run_result& run)
{
    const run_plan& plan = run.plan;
    const bool coded = plan.how != scheme::fp32;
    const char* feedback = plan.roundings == variant::feedback ? "all" : "none";
    std::string line;
    collprobe::report::detail::json_writer json(line);
    json.open('{').key("schema").integer(collprobe::report::json_schema).key("kind").text("summary");
    json.key("format").text(name(plan.how)).key("block").integer(plan.block);
    json.key("rounding").text(!coded ? "none" : plan.roundings == variant::stochastic ? "stochastic" : "nearest");
    json.key("feedback").text(feedback).key("rotate").boolean(plan.roundings == variant::rotate);
    json.key("defects").text(name_of_defects(plan.defects)).key("seed").integer(plan.seed);
    json.key("test_accuracy").number(run.accuracy).key("sqnr_db").number(run.sqnr_db);
    json.key("aggregate_sqnr_db").number(run.aggregate_db).key("exact_sqnr_db").number(run.exact_db);
    json.key("coherence").number(run.coherence).key("noise_ratio").number(run.noise_ratio);
    json.key("verdict").text(name(run.verdict)).key("flagged_steps").integer(run.flagged);
    json.key("first_flagged").index(run.flagged == 0 ? -1 : static_cast<int>(run.first_flagged));
    json.key("wire_bytes").integer(run.wire_bytes).key("bytes_ratio").number(run.bytes_ratio);
    json.key("weights_agree").boolean(run.agree).close('}');
    return line + '\n';
}

inline std::string formatted(const char* format, double value)
{
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

/// The runs of a row, one for each seed.
inline std::vector<run_result> row_of(const std::vector<run_result>& runs, const run_plan& like)
{
    std::vector<run_result> found;
    std::copy_if(runs.begin(), runs.end(), std::back_inserter(found),
        [&](const run_result& run) { return run.plan.label() == like.label(); });
    return found;
}
template <class Value>
double median_of(const std::vector<run_result>& runs, Value value)
{
    std::vector<double> values;
    std::transform(runs.begin(), runs.end(), std::back_inserter(values), value);
    return median(values);
}
inline double median_accuracy(const std::vector<run_result>& runs)
{
    return 100 * median_of(runs, [](const run_result& run) { return run.accuracy; });
}
/// The gravest of the runs' verdicts.
inline quantisation_verdict gravest(const std::vector<run_result>& runs)
{
    auto found = quantisation_verdict::unknown;
    for (const run_result& run : runs) {
        if (found == quantisation_verdict::unknown || run.verdict < found) found = run.verdict;
    }
    return found;
}

/// A row for each plan: medians over the seeds.
inline std::string table(const std::vector<run_result>& runs, const options& given)
{
    const auto number = [](double value, const char* format) {
        return collprobe::is_nan(value) ? std::string("-") : formatted(format, value);
    };
    collprobe::report::text_table rows;
    rows.row("format, block, roundings").cell("accuracy, %").cell("roundings, dB").cell("average, dB");
    rows.cell("exact, dB").cell("coherence").cell("noise ratio").cell("verdict").cell("flagged from").cell("bytes, %");
    for (const run_plan& plan : plans_of(given, given.seeds.front())) {
        const std::vector<run_result> row = row_of(runs, plan);
        const double noise = median_of(row, [](const run_result& run) { return run.noise_ratio; });
        rows.row(plan.label()).cell(formatted("%.2f", median_accuracy(row)));
        rows.cell(number(median_of(row, [](const run_result& run) { return run.sqnr_db; }), "%.1f"));
        rows.cell(number(median_of(row, [](const run_result& run) { return run.aggregate_db; }), "%.1f"));
        rows.cell(number(median_of(row, [](const run_result& run) { return run.exact_db; }), "%.1f"));
        rows.cell(number(median_of(row, [](const run_result& run) { return run.coherence; }), "%.2g"));
        rows.cell(number(noise, "%.2g")).cell(plan.how == scheme::fp32 ? "-" : name(gravest(row)));
        std::uint64_t first = given.steps;
        for (const run_result& run : row) {
            if (run.flagged != 0) first = std::min(first, run.first_flagged);
        }
        rows.cell(first == given.steps ? "-" : "step " + std::to_string(first));
        rows.cell(formatted("%.1f", 100 * row.front().bytes_ratio));
    }
    return rows.text();
}

/// What was flagged although accuracy does not show it.
inline std::string conclusion(const std::vector<run_result>& runs, const options& given, double image)
{
    const std::vector<run_result> exact = row_of(runs, {});
    if (exact.empty()) return "";
    const double wanted = median_accuracy(exact);
    std::string hidden;
    for (const run_plan& plan : plans_of(given, given.seeds.front())) {
        const std::vector<run_result> row = row_of(runs, plan);
        const bool flagged
            = std::all_of(row.begin(), row.end(), [](const run_result& run) { return is_flagged(run.verdict); });
        if (flagged && median_accuracy(row) > wanted - 1.5 * image) {
            hidden += "\n  " + plan.label() + ": " + name(gravest(row));
        }
    }
    return hidden.empty() ? "" : "Flagged, and within one test image of fp32 or better:" + hidden + "\n";
}

} // namespace quantised_training
