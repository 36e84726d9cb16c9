// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "../../examples/studies/silent_inconsistency/comparison.hpp"

using namespace trainer;
using collprobe::report::metric;
using collprobe::report::run_history;

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
