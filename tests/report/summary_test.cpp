// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>

#include <doctest/doctest.h>

#include <collprobe/report/summary.hpp>

#include "sample.hpp"

using namespace collprobe;

TEST_CASE("the median is the middle of the sorted values that are defined")
{
    const double undefined = detail::not_a_number();
    CHECK(is_nan(report::median({})));
    CHECK(is_nan(report::median({undefined})));
    const double infinite = detail::infinity();
    CHECK(report::median({infinite, 1, undefined, 2}) == 2);
    CHECK(to_bits(report::median({infinite, infinite, 1})) == to_bits(infinite));
    CHECK(to_bits(report::median({infinite, 1})) == to_bits(infinite));
    CHECK(to_bits(report::median({-infinite, 1})) == to_bits(-infinite));
    CHECK(is_nan(report::median({-infinite, infinite})));
    CHECK(report::median({-3, -1, -2}) == -2);
    CHECK(report::median({3}) == 3);
    CHECK(report::median({3, undefined, 1}) == 2);
    CHECK(report::median({5, 5, 5, 5}) == 5);
    CHECK(report::median({1e307, 1.5e307}) == doctest::Approx(1.25e307));

    std::mt19937 bits(7);
    for (int trial = 0; trial < 500; ++trial) {
        std::vector<double> values(1 + bits() % 40);
        for (double& value : values) value = static_cast<double>(bits() % 9) - 4;
        std::vector<double> sorted = values;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t n = sorted.size();
        CHECK(report::median(values) == 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]));
    }
}

TEST_CASE("a summary holds the medians of the steps it was given")
{
    report::run_history history("strict");
    for (int step = 0; step < 5; ++step)
        history.add(sample_step(static_cast<std::uint64_t>(step), step == 0 ? 1e9 : step));
    const report::run_summary summary = history.summarize();
    CHECK(summary.run == "strict");
    CHECK(summary.ranks == 3);
    CHECK(summary.steps == 5);
    CHECK(summary[report::metric::loss_mean] == doctest::Approx(3.1)); // not moved by the wild first step
    CHECK(summary[report::metric::norm_mean] == 1e-300);
    CHECK(is_nan(summary[report::metric::noise_scale]));
    REQUIRE(summary.leave_one_out.size() == 3);
    CHECK(summary.leave_one_out[0] == 0.5);
    CHECK(is_nan(summary.leave_one_out[1]));
    CHECK(history.series(report::metric::loss_std).size() == 5);
    CHECK(summary.suspicious_steps == 0);
    CHECK(summary.findings.empty());
}

TEST_CASE("a run without steps has no medians")
{
    const report::run_summary summary = report::run_history("empty").summarize();
    CHECK(summary.steps == 0);
    for (const double value : summary.medians) CHECK(is_nan(value));
}

TEST_CASE("findings join the steps on which one check names one rank and bucket")
{
    report::run_history history;
    for (std::uint64_t step = 0; step < 6; ++step) {
        step_record record = sample_step(step);
        if (step >= 2) record.findings.push_back({.ranks = {1}, .call = 0, .what = finding_kind::stale});
        if (step == 3) record.findings.push_back({.ranks = {2}, .call = 0, .what = finding_kind::stale});
        if (step == 4) record.findings.push_back({.ranks = {1}, .call = 1, .what = finding_kind::stale});
        history.add(record);
    }
    const report::run_summary summary = history.summarize();
    CHECK(summary.suspicious_steps == 4);
    REQUIRE(summary.findings.size() == 3);
    CHECK(summary.findings[0].first.rank() == 1);
    CHECK(summary.findings[0].first_step == 2);
    CHECK(summary.findings[0].last_step == 5);
    CHECK(summary.findings[0].steps == 4);
    CHECK(summary.findings[1].first.rank() == 2);
    CHECK(summary.findings[2].first.call == 1);
}
