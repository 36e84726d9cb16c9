// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

/// The records of a run as one number for each metric.
namespace trainer {

/// A number of a step. `name`: of the member in JSON.
struct metric_facts {
    const char* label;
    const char* name;
    double (*of)(const collprobe::step_record&);
};

enum class metric {
    loss_mean, loss_of_tokens, loss_std, loss_std_sample, loss_range, norm_mean, norm_std, norm_cv,
    cosine_mean_pairwise, cosine_pooled, cosine_predicted, noise_scale
};

inline constexpr metric_facts metrics[] = {
    {"loss, mean of ranks", "loss.mean", [](const collprobe::step_record& of) { return of.loss.mean; }},
    {"loss, mean of tokens", "loss.mean_of_tokens", collprobe::report::detail::loss_of_tokens},
    {"loss, std", "loss.std", [](const collprobe::step_record& of) { return of.loss.std; }},
    {"loss, sample std", "loss.std_sample", [](const collprobe::step_record& of) { return of.loss.std_sample; }},
    {"loss, range", "loss.range", [](const collprobe::step_record& of) { return of.loss.range; }},
    {"gradient norm, mean of ranks", "grad_norm.mean",
        [](const collprobe::step_record& of) { return of.gradient_norm.mean; }},
    {"gradient norm, std", "grad_norm.std", [](const collprobe::step_record& of) { return of.gradient_norm.std; }},
    {"gradient norm, std / mean", "grad_norm.cv",
        [](const collprobe::step_record& of) { return of.gradient_norm.cv; }},
    {"cosine, mean over pairs", "cosine.mean_pairwise",
        [](const collprobe::step_record& of) { return of.cosine.mean_pairwise; }},
    {"cosine, pooled", "cosine.pooled", [](const collprobe::step_record& of) { return of.cosine.pooled; }},
    {"cosine, predicted by noise scale", "cosine.predicted",
        [](const collprobe::step_record& of) { return of.cosine.predicted_cosine; }},
    {"noise scale, in batches of a rank", "noise_scale",
        [](const collprobe::step_record& of) { return of.cosine.noise_scale; }},
};
inline constexpr std::size_t metric_count = std::size(metrics);

inline const char* name(metric which) { return metrics[static_cast<std::size_t>(which)].label; }

/// The median of those `values` that are defined (infinity is, NaN is not): the middle value, or the mean of the two in
/// the middle. NaN by bits if no value is defined.
inline double median(std::vector<double> values)
{
    std::erase_if(values, [](double each) { return collprobe::is_nan(each); });
    if (values.empty()) return collprobe::detail::not_a_number();
    std::sort(values.begin(), values.end());
    const double lower = values[(values.size() - 1) / 2];
    const double upper = values[values.size() / 2];
    return lower == upper ? lower : 0.5 * lower + 0.5 * upper;
}

/// A run with one number per metric: the median over its steps. One faulty step, or the very first step, does not move
/// a median.
struct run_summary {
    std::string run; ///< the caller's name for it
    collprobe::report::run_findings found;
    std::vector<double> medians; ///< by `metric`; NaN by bits if no step has the metric
    std::vector<double> leave_one_out; ///< median per rank

    double operator[](metric which) const { return medians[static_cast<std::size_t>(which)]; }
};

/// Collects the records of one run.
class run_history {
public:
    explicit run_history(std::string run = {}) : run_(std::move(run)), series_(metric_count) {}

    /// Adds one finished step. Steps arrive in order.
    void add(const collprobe::step_record& record)
    {
        found_.add(record);
        for (std::size_t which = 0; which < metric_count; ++which) series_[which].push_back(metrics[which].of(record));
        const std::vector<double>& cosines = record.cosine.leave_one_out;
        if (leave_one_out_.size() < cosines.size()) leave_one_out_.resize(cosines.size());
        for (std::size_t rank = 0; rank < cosines.size(); ++rank) leave_one_out_[rank].push_back(cosines[rank]);
    }
    /// Adds an alarm of a step that was added before: the verdict then rests on alarms.
    void add(const collprobe::finding& raised) { found_.add(raised); }

    /// The values of one metric, one per step.
    const std::vector<double>& series(metric which) const { return series_[static_cast<std::size_t>(which)]; }

    run_summary summarize() const
    {
        run_summary result{run_, found_, {}, {}};
        for (const std::vector<double>& each : series_) result.medians.push_back(median(each));
        for (const std::vector<double>& each : leave_one_out_) result.leave_one_out.push_back(median(each));
        return result;
    }

private:
    std::string run_;
    collprobe::report::run_findings found_;
    std::vector<std::vector<double>> series_; ///< by metric
    std::vector<std::vector<double>> leave_one_out_; ///< by rank
};

/// A column per run and a row per metric (medians over the steps), followed by the number of steps with findings.
inline collprobe::report::text_table comparison_table(const std::vector<run_summary>& runs)
{
    collprobe::report::text_table table;
    table.row("median over steps");
    for (const run_summary& run : runs) table.cell(run.run);
    for (std::size_t which = 0; which < metric_count; ++which) {
        const auto each = static_cast<metric>(which);
        const bool is_known = std::any_of(
            runs.begin(), runs.end(), [each](const run_summary& run) { return !collprobe::is_nan(run[each]); });
        if (each == metric::loss_of_tokens && !is_known) continue;
        table.row(name(each));
        for (const run_summary& run : runs) table.cell(collprobe::report::short_number(run[each]));
    }
    table.row("steps with findings");
    for (const run_summary& run : runs) {
        table.cell(std::to_string(run.found.suspicious_steps) + " of " + std::to_string(run.found.steps));
    }
    return table;
}

/// One line per finding of a run, in order of the first step: "step 120: bucket 1: rank 3 ...". At most `limit` lines;
/// one more line counts the rest.
inline std::string finding_list(const run_summary& run, std::size_t limit = 20)
{
    const std::vector<collprobe::report::repeated_finding>& all = run.found.findings;
    std::string text;
    for (const collprobe::report::repeated_finding& found : all) {
        if (limit-- == 0) {
            text += "... and " + std::to_string(all.data() + all.size() - &found) + " more\n";
            break;
        }
        text += "step " + std::to_string(found.first_step) + ": " + collprobe::report::describe(found.first);
        if (found.steps > 1) {
            text += " (and " + collprobe::report::detail::counted(found.steps - 1, "more step") + ", up to step "
                + std::to_string(found.last_step) + ")";
        }
        text += '\n';
    }
    return text;
}

/// A run as a JSON line. `kind` is "summary", `steps` is the number of steps, and the metrics are medians over the
/// steps, under the names that a step has. `findings` has an object per finding, as in a step, with `first_step`,
/// `last_step` and `steps`. `verdict` is the run in one sentence.
inline std::string json_line(const run_summary& summary, double test_accuracy)
{
    std::string line;
    collprobe::report::detail::json_writer json(line);
    collprobe::report::detail::write_head(json, "summary", summary.run);
    json.key("steps").integer(summary.found.steps).key("ranks").index(summary.found.ranks);
    std::string_view open;
    for (const metric_facts& each : metrics) {
        const double value = summary.medians[static_cast<std::size_t>(&each - metrics)];
        const std::string_view name = each.name;
        if (name == "loss.mean_of_tokens" && collprobe::is_nan(value)) continue;
        const std::size_t dot = name.find('.');
        const std::string_view group = name.substr(0, dot == name.npos ? 0 : dot);
        if (open == "cosine" && group.empty()) json.key("leave_one_out").numbers(summary.leave_one_out);
        if (!open.empty() && group != open) json.close('}');
        if (!group.empty() && group != open) json.key(group).open('{');
        json.key(group.empty() ? name : name.substr(dot + 1)).number(value);
        open = group;
    }
    json.key("findings").open('[');
    for (const collprobe::report::repeated_finding& found : summary.found.findings) {
        json.element().open('{').members(found.first).key("first_step").integer(found.first_step);
        json.key("last_step").integer(found.last_step);
        json.key("steps").integer(found.steps).close('}');
    }
    json.close(']').key("suspicious_steps").integer(summary.found.suspicious_steps);
    json.key("verdict").text(summary.found.verdict()).key("test_accuracy").number(test_accuracy).close('}');
    return line + '\n';
}

} // namespace trainer
