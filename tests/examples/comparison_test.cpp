// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "../../examples/studies/silent_inconsistency/comparison.hpp"
#include "report/sample.hpp"
#include "support/checks.hpp"

using namespace trainer;
using collprobe::testing::contains;

namespace {

/// A run whose loss dispersion is `level` times a slowly moving random course of its own.
run_history made_up_run(std::size_t steps, double level, std::uint64_t seed)
{
    run_history history;
    random_stream random(seed);
    double course = 0;
    for (std::size_t step = 0; step < steps; ++step) {
        course = 0.7 * course + random.normal();
        collprobe::step_record record;
        record.step = step;
        record.loss.std = level * std::exp(0.5 * course);
        history.add(record);
    }
    return history;
}

} // namespace

TEST_CASE("runs that differ by chance alone are within the margin")
{
    int told_apart = 0;
    for (std::uint64_t trial = 0; trial < 200; ++trial) {
        const difference found
            = compare(metric::loss_std, made_up_run(300, 1, 2 * trial), made_up_run(300, 1, 2 * trial + 1));
        told_apart += found.rises() || found.falls() ? 1 : 0;
    }
    CHECK(told_apart <= 2); // four standard errors; a few more than 1 in 16,000 since they are estimates
}

TEST_CASE("a run at four times the level is told apart, in the right direction")
{
    for (std::uint64_t trial = 0; trial < 20; ++trial) {
        const run_history low = made_up_run(300, 1, 2 * trial);
        const run_history high = made_up_run(300, 4, 2 * trial + 1);
        CHECK(compare(metric::loss_std, low, high).rises());
        CHECK(compare(metric::loss_std, high, low).falls());
    }
}

TEST_CASE("equal runs, no steps and undefined metrics tell nothing apart")
{
    const run_history run = made_up_run(100, 1, 1);
    const difference same = compare(metric::loss_std, run, run);
    CHECK(same.share == 0.5);
    CHECK_FALSE(same.rises());
    const difference undefined = compare(metric::norm_std, run, run);
    CHECK_FALSE(undefined.rises());
    CHECK_FALSE(undefined.falls());
    CHECK_FALSE(compare(metric::loss_std, run_history(), run_history()).rises());
}

TEST_CASE("a few steps are not enough to be sure")
{
    const difference found = compare(metric::loss_std, made_up_run(8, 1, 1), made_up_run(8, 10, 2));
    CHECK(found.share > 0.9);
    CHECK_FALSE(found.rises());
}

TEST_CASE("the median is the middle of the sorted values that are defined")
{
    const double undefined = collprobe::detail::not_a_number();
    const double infinite = collprobe::detail::infinity();
    CHECK(collprobe::is_nan(median({})));
    CHECK(collprobe::is_nan(median({undefined})));
    CHECK(median({infinite, 1, undefined, 2}) == 2);
    CHECK(median({infinite, infinite, 1}) == infinite);
    CHECK(median({-infinite, 1}) == -infinite);
    CHECK(collprobe::is_nan(median({-infinite, infinite})));
    CHECK(median({-3, -1, -2}) == -2);
    CHECK(median({3, undefined, 1}) == 2);
    CHECK(median({1e307, 1.5e307}) == doctest::Approx(1.25e307));
}

TEST_CASE("table and line of runs have the medians of their steps, which one wild step does not move")
{
    run_history strict("strict");
    run_history mild("mild");
    for (std::uint64_t step = 0; step < 5; ++step) {
        strict.add(sample_step(step, step == 0 ? 1e9 : static_cast<double>(step)));
        collprobe::step_record unequal = sample_step(step, 1);
        unequal.loss_weighted.mean = 9.2;
        mild.add(unequal);
    }
    const std::string table = comparison_table({strict.summarize(), mild.summarize()}).text();
    const auto row = [&table](const std::string& label) { // without its spaces
        const std::size_t at = table.find('\n' + label) + 1 + label.size();
        std::string cells = table.substr(at, table.find('\n', at) - at);
        std::erase(cells, ' ');
        return cells;
    };
    CHECK(table.rfind("median over steps ", 0) == 0);
    CHECK(row("loss, mean of ranks") == "3.11.1");
    CHECK(row("loss, mean of tokens") == "-9.2");
    CHECK(row("noise scale, in batches of a rank") == "--");
    CHECK(row("steps with findings") == "0of50of5");
    CHECK_FALSE(contains(comparison_table({strict.summarize()}).text(), "tokens"));
    const std::string line = json_line(mild.summarize(), 0.5);
    CHECK(contains(line, "\"kind\":\"summary\",\"run\":\"mild\",\"steps\":5,\"ranks\":3,\"loss\":{\"mean\":1.1,"
                         "\"mean_of_tokens\":9.2,\"std\":0.3333333333333333,"));
    CHECK(contains(line, "\"predicted\":\"nan\",\"leave_one_out\":[0.5,\"nan\",-0.5]},\"noise_scale\":\"nan\",\"findings\":[],"
                         "\"suspicious_steps\":0,\"verdict\":\"Nothing was found in 5 steps of 3 ranks.\",\"test_accuracy\":0.5}\n"));
    const std::string none = json_line(run_history("none").summarize(), 0);
    CHECK(contains(none, "\"loss\":{\"mean\":\"nan\","));
}

TEST_CASE("the list of findings names the steps and is bounded")
{
    run_history history;
    for (std::uint64_t step = 10; step < 13; ++step) {
        collprobe::step_record record = sample_step(step);
        record.findings = {{.ranks = {3}, .call = 1, .what = collprobe::finding_kind::stale}};
        for (int rank = 0; rank < 30 && step == 11; ++rank)
            record.findings.push_back({.ranks = {rank}, .call = 9, .what = collprobe::finding_kind::stale});
        history.add(record);
    }
    const std::string text = finding_list(history.summarize(), 5);
    CHECK(contains(text,
        "step 10: bucket 1: rank 3 sent the same data as in the last such call (stale) (and 2 more steps, up to step 12)\n"));
    CHECK(contains(text, "... and 26 more\n"));
    CHECK(contains(json_line(history.summarize(), 0), "\"first_step\":10,\"last_step\":12,\"steps\":3}"));
    history.add(collprobe::finding{.ranks = {1}, .what = collprobe::finding_kind::stale, .action = collprobe::advice::skip});
    CHECK(contains(history.summarize().found.verdict(), "drop the step's update"));
}
