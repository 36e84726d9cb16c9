// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a summary has of the ranks: keys and sums.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include <collprobe/step/detail/summary.hpp>

#include "bench/summary_simulation.hpp"

namespace collprobe::testing::step_summary_test {
namespace {

using namespace collprobe::detail;

constexpr int last_rank = most_summary_ranks - 1;

} // namespace

TEST_CASE("a key orders as its value does and gives it back to 32 bits")
{
    std::mt19937_64 random(3);
    std::vector<double> values{0.0, -0.0, 0x1p-1074, -0x1p-1074, 0x1p-1022, 1.7976931348623157e308, -1.7976931348623157e308};
    while (values.size() < 4000) {
        const double value = bit_cast<double>(random());
        if (is_finite(value)) values.push_back(value);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        const int rank = static_cast<int>(random() % static_cast<unsigned>(most_summary_ranks));
        const std::uint64_t key = extremum_key(values[i], rank);
        CHECK(key != 0);
        CHECK(extremum_rank(key) == rank);
        const double back = extremum_value(key);
        CHECK(std::fabs(back) <= std::fabs(values[i])); // cut off towards zero
        CHECK(std::fabs(values[i]) - std::fabs(back) <= std::ldexp(std::fabs(values[i]), -32) + 0x1p-1042); // or a subnormal's
        const double other = values[(i * 7 + 1) % values.size()];
        // Apart by more than the cut-off bits: the value decides, whatever the ranks.
        if (std::fabs(other - values[i]) > std::ldexp(std::fabs(other) + std::fabs(values[i]), -31) + 0x1p-1040)
            CHECK((extremum_key(other, static_cast<int>(i)) < key) == (other < values[i]));
    }
    CHECK(extremum_key(not_a_number(), 3) == 0);
    CHECK(extremum_key(infinity(), 3) == 0);
    CHECK(extremum_key(-infinity(), 3) == 0);
}

TEST_CASE("equal values give the lowest rank up to a million of them")
{
    for (const double value : {1.5, -1.5, 0.0}) {
        CHECK(extremum_key(value, 0) > extremum_key(value, 1));
        CHECK(extremum_key(value, 65535) > extremum_key(value, 65536));
        CHECK(extremum_key(value, last_rank - 1) > extremum_key(value, last_rank));
        CHECK(extremum_rank(extremum_key(value, last_rank)) == last_rank);
        CHECK(extremum_rank(extremum_key(value, 100000)) == 100000);
    }
    CHECK(count_key(0, 5) == 0);
    CHECK(count_key(2, 9) > count_key(1, 0));
    CHECK(count_key(2, 3) > count_key(2, 4));
    CHECK(key_count(count_key(7, last_rank)) == 7);
    CHECK(extremum_rank(count_key(7, last_rank)) == last_rank);
    CHECK(key_count(count_key(~std::uint64_t{0}, 65536)) == (std::uint64_t{1} << 44) - 1);
    CHECK(extremum_rank(count_key(~std::uint64_t{0}, 65536)) == 65536);
}

TEST_CASE("a hundred thousand ranks are summed up as one table of them is")
{
    const int ranks = 100000;
    const std::uint64_t buckets = 2;
    summary_simulation::combined_step combined(ranks, buckets);
    step_judge judge(ranks, {}, report_mode::summary);
    summary_simulation::rank_values values{0, std::vector<double>(buckets), {}, 42};
    for (std::uint64_t step = 0; step < 3; ++step) {
        std::vector<double> losses;
        std::vector<double> norms;
        combined.begin();
        for (int rank = 0; rank < ranks; ++rank) {
            summary_simulation::make_up(step, rank, values);
            values.nonfinite.clear();
            if (step == 2 && rank == 99998) values.nonfinite = {0, 5};
            if (step == 2 && rank == 70000) values.nonfinite = {0, 3};
            values.result_digest = step == 1 && rank == 80000 ? 43 : 42;
            if (step == 0 && rank == 77777) values.loss = 9;
            if (step == 2) values.told_norm = rank == 0 ? 3 : 4; // both are wrong
            losses.push_back(values.loss);
            norms.push_back(values.norms[1]);
            combined.pack(summary_simulation::message_of(step, values), rank);
            combined.combine();
        }
        step_record record;
        combined.judge(judge, ranks, record);
        CHECK(record.step == step);
        CHECK(record.ranks == ranks);

        // By the two-pass formula over the table.
        const auto moments = [](const std::vector<double>& all) {
            double mean = 0;
            for (const double x : all) mean += x / static_cast<double>(all.size());
            double squares = 0;
            for (const double x : all) squares += (x - mean) * (x - mean);
            return std::pair{mean, std::sqrt(squares / static_cast<double>(all.size()))};
        };
        CHECK(record.loss.mean == doctest::Approx(moments(losses).first).epsilon(1e-12));
        CHECK(record.loss.std == doctest::Approx(moments(losses).second).epsilon(1e-9));
        CHECK(record.loss.finite == ranks);
        CHECK(record.loss.maximum_rank == std::max_element(losses.begin(), losses.end()) - losses.begin());
        CHECK(record.loss.minimum_rank == std::min_element(losses.begin(), losses.end()) - losses.begin());
        CHECK(record.calls[1].gradient_norm.std == doctest::Approx(moments(norms).second).epsilon(1e-9));
        CHECK(record.calls[1].gradient_norm.maximum_rank == std::max_element(norms.begin(), norms.end()) - norms.begin());
        CHECK(record.calls[1].gradient_norm.maximum
            == doctest::Approx(*std::max_element(norms.begin(), norms.end())).epsilon(0x1p-32));
        if (step == 0) {
            CHECK(record.loss.maximum_rank == 77777);
            CHECK(record.findings.empty());
        } else if (step == 1) {
            REQUIRE(record.findings.size() == 2); // both buckets have the digest
            CHECK(record.findings[0].what == finding_kind::result_differs);
            CHECK_FALSE(record.calls[0].results_agree);
        } else {
            REQUIRE(record.findings.size() == 2);
            CHECK(record.findings[1].what == finding_kind::norm_differs);
            CHECK_FALSE(record.findings[1].is_named());
            CHECK(record.findings[0].what == finding_kind::non_finite);
            CHECK(record.findings[0].rank() == 99998);
            CHECK(record.findings[0].statistic == 5);
            CHECK(record.calls[1].nonfinite == 8);
        }
    }
}

TEST_CASE("without totals of the ranks, NaN that most of them have in two steps is told without a rank")
{
    const int ranks = 20000;
    summary_simulation::combined_step combined(ranks, 2);
    step_judge judge(ranks, {}, report_mode::summary);
    summary_simulation::rank_values values{0, std::vector<double>(2), {}, 42};
    const int having[] = {5000, 12000, 20000, 9000, 12000};
    for (std::uint64_t step = 0; step < std::size(having); ++step) {
        combined.begin();
        for (int rank = 0; rank < ranks; ++rank) {
            summary_simulation::make_up(step, rank, values);
            values.nonfinite.clear();
            if (rank < having[step]) values.nonfinite = {6, 7};
            combined.pack(summary_simulation::message_of(step, values), rank);
            combined.combine();
        }
        step_record record;
        combined.judge(judge, ranks, record);
        CAPTURE(step);
        if (step == 2) { // also in the step before
            REQUIRE(record.findings.size() == 1);
            CHECK_FALSE(record.findings[0].is_named());
            CHECK(record.findings[0].number.since == 1);
            CHECK(record.findings[0].statistic == ranks);
        } else {
            REQUIRE(record.findings.size() == 2); // a call each
            CHECK(record.findings[1].rank() == 0);
        }
        CHECK(record.findings[0].what == finding_kind::non_finite);
    }
}

} // namespace collprobe::testing::step_summary_test
