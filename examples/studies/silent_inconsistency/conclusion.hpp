// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <collprobe/report/table.hpp>

#include "comparison.hpp"

/// From the numbers to a few sentences. Every claim follows from a comparison made here.
namespace trainer {

/// One setting, trained.
struct run_result {
    std::string name;
    run_history history;
    double test_accuracy = 0;
    std::uint64_t skipped_updates = 0;
    bool weights_agree = false;
};

namespace detail {

/// Which way a metric goes when the ranks disagree more.
struct expectation {
    metric which;
    bool rises;
};
inline constexpr expectation expectations[]
    = {{metric::loss_std, true}, {metric::norm_std, true}, {metric::cosine_mean_pairwise, false}};

inline std::string percent(double share) { return collprobe::report::short_number(100 * share) + " %"; }

inline std::string conclude_accuracy(const std::vector<run_result>& runs)
{
    double low = 1;
    double high = 0;
    bool agree = true;
    for (const run_result& run : runs) {
        low = std::min(low, run.test_accuracy);
        high = std::max(high, run.test_accuracy);
        agree = agree && run.weights_agree;
    }
    std::string text = "Test accuracy is " + percent(low);
    if (high > low) text += " to " + percent(high);
    text += agree ? ", and the weights of all ranks are equal bit for bit"
                  : "; THE WEIGHTS OF THE RANKS DIFFER, which no seed explains";
    return text + ":\nneither shows how the ranks were seeded.\n";
}

/// The measured cosine against the one that independent samples would give.
inline std::string conclude_cosine(const run_result& run)
{
    const run_summary summary = run.history.summarize();
    return run.name + " " + collprobe::report::short_number(summary[metric::cosine_mean_pairwise])
        + " (predicted " + collprobe::report::short_number(summary[metric::cosine_predicted]) + ")";
}

/// What the named findings are worth, and what to do about them; empty if there are none.
inline std::string conclude_findings(const std::vector<run_result>& runs)
{
    using collprobe::finding_kind;
    std::size_t exact = 0;
    std::size_t of_numbers = 0;
    std::size_t lasting = 0;
    for (const run_result& run : runs) {
        const run_summary summary = run.history.summarize();
        for (const collprobe::report::repeated_finding& found : summary.found.findings) {
            const finding_kind what = found.first.what;
            ++(is_of_number(what) ? of_numbers : what == finding_kind::unlike ? lasting : exact);
        }
    }
    using collprobe::report::detail::counted;
    std::string text;
    if (exact > 0) {
        text += counted(exact, "finding") + (exact == 1 ? " is" : " are")
            + " exact (NaN, equal or stale bits, differing results), with no false alarms:\n"
              "check the data loader and the device of the ranks named above.\n";
    }
    if (of_numbers > 0) {
        text += counted(of_numbers, "finding") + (of_numbers == 1 ? " is a number" : " are numbers")
            + " of one step (loss, norm, largest element, cosine) that stand out: compute the step\n"
              "again, and blame a device only if the evidence over the run names the rank too.\n";
    }
    if (lasting > 0) {
        text += counted(lasting, "finding") + (lasting == 1 ? " is" : " are")
            + " evidence over the run: a rank is unlike the others, with odds that hold for any\n"
              "distribution. Look what it does differently, its seed and its data first.\n";
    }
    return text;
}

} // namespace detail

/// The comparisons as a table and what they amount to. `runs` in the order strict, mild, significant.
inline std::string conclude(const std::vector<run_result>& runs)
{
    using collprobe::report::short_number;
    std::string text = detail::conclude_accuracy(runs) + detail::conclude_findings(runs);
    if (runs.size() < 2) return text + "One setting alone has nothing to be compared with.\n";
    for (const run_result& run : runs) {
        if (run.history.series(metric::loss_std).size() < steps_to_compare) {
            return text + "Fewer than " + std::to_string(steps_to_compare)
                + " steps are too few to compare settings: give more --steps.\n";
        }
    }
    if (collprobe::is_nan(runs[0].history.summarize()[metric::cosine_mean_pairwise])) {
        return text + "One rank alone has nobody to agree with: give more --ranks.\n";
    }

    collprobe::report::text_table table;
    table.row("median over steps; share of steps with a rise");
    for (const char* const title : {"from", "to", "share", "margin", "verdict"}) table.cell(title);
    std::size_t expected = 0;
    std::size_t other_way = 0;
    std::size_t total = 0;
    std::size_t unclear = 0;
    for (const detail::expectation& metric : detail::expectations) {
        for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
            const difference change = compare(metric.which, runs[i].history, runs[i + 1].history);
            const std::string label
                = std::string(name(metric.which)) + ": " + runs[i].name + " to " + runs[i + 1].name;
            table.row(label)
                .cell(short_number(change.from))
                .cell(short_number(change.to))
                .cell(detail::percent(change.share))
                .cell("50 +- " + detail::percent(change.margin))
                .cell(change.rises() ? "rises" : change.falls() ? "falls" : "within the margin");
            ++total;
            if (metric.rises ? change.rises() : change.falls()) ++expected;
            else if (change.rises() || change.falls()) ++other_way;
            else ++unclear;
        }
    }
    text += "\n" + table.text()
        + "(margin: four standard errors of the share, from a block bootstrap over the steps)\n\n";

    std::string cosines = "Cosine over pairs, and what the noise scale predicts for independent batches "
                          "(smoothed over past steps):\n";
    for (std::size_t i = 0; i < runs.size(); ++i)
        cosines += (i > 0 ? ", " : "") + detail::conclude_cosine(runs[i]);
    cosines += ".\n";

    if (expected == total) {
        text += "The settings CAN be told apart. The less the seeds agree, the more the ranks disagree "
                "before they\n"
                "aggregate: losses and gradient norms spread, and gradients point apart, each by more than "
                "the margin.\n"
                "The average over ranks hides it.\n"
            + cosines
            + "What to do next: log the seed of sampler and dropout on every rank and compare; hand the "
              "digest of the\n"
              "sample ids to the probe, which proves shared samples; and compare a job with its own healthy "
              "runs, not\n"
              "with a threshold from elsewhere, since all these numbers depend on model, batch and data.\n";
    } else if (expected == 0) {
        text += "The settings CANNOT be told apart: nowhere does disagreement grow by more than its margin. "
                "The ranks'\n"
                "batches are as different from each other as any two batches of this sampler, however the "
                "seeds are set.\n";
        if (other_way > 0) {
            text += "(" + std::to_string(other_way) + " of " + std::to_string(total)
                + " changes go the other way: disjoint parts of a small data set are a little less alike "
                  "than\n"
                  "independent draws from it.)\n";
        }
        text += cosines
            + "What to do next: do not put an alarm on dispersion or cosine by themselves. Rely on the exact "
              "checks\n"
              "(digest of sample ids, equal results, NaN), and watch a rank against the others and its own "
              "past.\n";
    } else {
        text += "The settings can be told apart IN PART: " + std::to_string(expected) + " of "
            + std::to_string(total)
            + " changes go the way of growing disagreement by more\nthan their margin";
        if (other_way > 0) text += ", " + std::to_string(other_way) + " the other way";
        if (unclear > 0) text += ", and " + std::to_string(unclear) + " cannot be told from chance";
        text += ".\n" + cosines
            + "What to do next: more --steps narrow the margins; until then take no single number for an "
              "alarm.\n";
    }
    return text;
}

} // namespace trainer
