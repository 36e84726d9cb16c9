// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/compare.hpp>

#include "support/checks.hpp"

using namespace collprobe;
using namespace collprobe::report;
using testing::contains;

namespace {

constexpr const char* names[] = {"wte", "wpe", "head"};
const double undefined = collprobe::detail::not_a_number();

/// Three all-reduces, whose digests depend on step and bucket alone.
step_record make_step(std::uint64_t step, int ranks = 4)
{
    step_record record;
    record.step = step;
    record.first_call = 3 * step;
    record.ranks = ranks;
    record.loss = {.mean = 2 / (1 + static_cast<double>(step)), .std = 0.25, .range = undefined};
    record.cosine.noise_scale = undefined;
    for (std::uint64_t b = 0; b < 3; ++b) {
        call_record call;
        call.count = call.result_count = 100 * (b + 1);
        call.site = call_site::named(names[b]);
        call.has_result_digest = true;
        call.result_digest = collprobe::detail::mix64(7 * step + b);
        call.result_norm = 1 + static_cast<double>(b);
        call.result_sample = {0.5, -1.25, 3};
        record.calls.push_back(call);
    }
    return record;
}

template <class Change>
run_log make_log(std::uint64_t steps, Change change, int ranks = 4)
{
    run_log log("run");
    for (std::uint64_t step = 0; step < steps; ++step) {
        step_record record = make_step(step, ranks);
        change(record);
        log.add(record, 0);
    }
    return log;
}
run_log make_log(std::uint64_t steps, int ranks = 4)
{
    return make_log(steps, [](step_record&) {}, ranks);
}

finding make_alarm(std::uint64_t step, finding_kind what, int call, std::vector<int> ranks)
{
    finding raised;
    raised.step = step;
    raised.what = what;
    raised.call = call;
    raised.ranks = std::move(ranks);
    raised.site = call_site::named("wte");
    return raised;
}

/// A series of differences of one metric, as two runs.
run_comparison compare_series(const std::vector<double>& differences)
{
    run_log a("a");
    run_log b("b");
    for (std::size_t i = 0; i < differences.size(); ++i) {
        step_record record;
        record.step = i;
        record.ranks = 2;
        record.loss.mean = 3 / std::sqrt(1.0 + static_cast<double>(i));
        a.add(record);
        record.loss.mean += differences[i];
        b.add(record);
    }
    return compare(a, b);
}
metric_verdict verdict_of_series(const std::vector<double>& differences)
{
    return compare_series(differences).metrics[0].verdict;
}

} // namespace

TEST_CASE("equal runs are identical, undefined and infinite numbers included")
{
    const auto odd = [](step_record& record) {
        record.gradient_norm.mean = std::numeric_limits<double>::infinity();
        record.calls[1].result_norm = undefined;
        record.calls[1].result_sample[0] = undefined;
        record.calls[2].count = record.calls[2].result_count = 0;
    };
    const run_comparison same = compare(make_log(20, odd), make_log(20, odd));
    CHECK(same.outcome == comparison_outcome::identical);
    CHECK(same.calls == 60);
    CHECK(same.growth.empty());
    CHECK(verdict(same) == "identical: 20 steps, 60 calls with equal digests, 4 ranks");
    CHECK(contains(json_line(same), R"("outcome":"identical")"));

    // A NaN of other bits is the same number to a reader.
    const auto not_given = [](step_record& record) { record.loss.range = collprobe::detail::not_given(); };
    CHECK(compare(make_log(3), make_log(3, not_given)).outcome == comparison_outcome::identical);
    const auto minus_zero = [](step_record& record) { record.gradient_norm.std = -0.0; };
    const auto zero = [](step_record& record) { record.gradient_norm.std = 0.0; };
    CHECK(compare(make_log(3, zero), make_log(3, minus_zero)).outcome == comparison_outcome::differ);
}

TEST_CASE("each bit of a digest that is flipped is named with its step and call")
{
    std::mt19937 random(3);
    const run_log a = make_log(9);
    for (int trial = 0; trial < 100; ++trial) {
        const std::uint64_t step = random() % 9;
        const std::size_t bucket = random() % 3;
        const int bit = static_cast<int>(random() % 64);
        const run_comparison found = compare(a, make_log(9, [&](step_record& record) {
            if (record.step < step) return;
            // Later ones differ too, as in a run that goes on with other weights.
            for (std::size_t b = record.step == step ? bucket : 0; b < 3; ++b)
                record.calls[b].result_digest ^= std::uint64_t{1} << bit;
        }));
        REQUIRE(found.results_differ);
        CHECK(found.outcome == comparison_outcome::differ);
        CHECK(found.first_difference.step == step);
        CHECK(found.first_difference.bucket == static_cast<int>(bucket));
        CHECK(found.first_difference.sequence == 3 * step + bucket);
        CHECK(found.first_difference.name == names[bucket]);
        CHECK((found.first_difference.digest_a ^ found.first_difference.digest_b) == std::uint64_t{1} << bit);
        CHECK(found.differing == 3 - bucket + 3 * (8 - step));
        CHECK_FALSE(found.structure_differs);
        const std::string text = describe(found);
        CHECK(contains(text, "first in step " + std::to_string(step) + ", bucket " + std::to_string(bucket) + " '"
            + names[bucket] + "', call " + std::to_string(3 * step + bucket) + ", all_reduce of "));
        CHECK_FALSE(contains(text, "identical"));
        CHECK(found.growth.front().step == step);
        CHECK(found.growth.back().step == 8);
    }
}

TEST_CASE("runs of other numbers of ranks are identical if their results are")
{
    const auto other_metrics = [](step_record& record) {
        record.gradient_norm.mean = 5;
        record.loss.std = 0.125;
    };
    const run_comparison same = compare(make_log(5, 8), make_log(5, other_metrics, 16));
    CHECK(same.outcome == comparison_outcome::identical);
    CHECK(contains(verdict(same), "8 and 16 ranks"));
    CHECK(same.metrics[static_cast<std::size_t>(metric::norm_mean)].verdict != metric_verdict::equal);
    // With one number of ranks the same metrics count.
    CHECK(compare(make_log(5, 8), make_log(5, other_metrics, 8)).outcome == comparison_outcome::differ);

    // Half as many ranks have twice as many gradients each.
    const auto leaves = [](std::uint64_t each) {
        return [=](step_record& record) { record.calls[1].count = each * record.calls[1].result_count; };
    };
    CHECK(compare(make_log(5, leaves(2), 8), make_log(5, leaves(1), 16)).outcome == comparison_outcome::identical);

    // Each rank sends its share to an all-gather; a reduce-scatter's digest is by rank.
    const auto shared = [](std::uint64_t count, collective call, std::uint64_t digest) {
        return [=](step_record& record) {
            record.calls[1].call = call;
            const auto ranks = static_cast<std::uint64_t>(record.ranks);
            record.calls[1].count = count;
            record.calls[1].result_count = call == collective::all_gather ? count * ranks : count / ranks;
            record.calls[1].result_digest = digest;
        };
    };
    CHECK(compare(make_log(5, shared(64, collective::all_gather, 1), 8), make_log(5, shared(32, collective::all_gather, 1), 16))
              .outcome == comparison_outcome::identical);
    CHECK(compare(make_log(5, shared(64, collective::all_gather, 1), 8), make_log(5, shared(64, collective::all_gather, 1), 16))
              .structure_differs);
    const run_comparison scattered = compare(
        make_log(5, shared(64, collective::reduce_scatter, 1), 8), make_log(5, shared(64, collective::reduce_scatter, 2), 16));
    CHECK(scattered.outcome == comparison_outcome::identical);
    CHECK(scattered.undecided == 5);
    CHECK(contains(verdict(scattered), "5 other calls without digests that can be compared"));
    CHECK(compare(make_log(5, shared(64, collective::reduce_scatter, 1)), make_log(5, shared(64, collective::reduce_scatter, 2)))
              .results_differ);
}

TEST_CASE("equal results with other findings or other numbers by rank differ")
{
    const auto check = [](auto change) {
        const run_comparison found = compare(make_log(20, 4), make_log(20, [&](step_record& record) {
            if (record.step == 7) change(record);
        }));
        CHECK(found.outcome == comparison_outcome::differ);
        CHECK_FALSE(found.results_differ);
        CHECK(found.steps_with_other_facts == 1);
        CHECK(found.first_other_facts == 7);
        CHECK(contains(verdict(found), "in 1 step, first in step 7"));
        CHECK_FALSE(contains(describe(found), "identical"));
    };
    check([](step_record& r) { r.findings = {{.ranks = {3}, .call = 1, .what = finding_kind::result_differs}}; });
    check([](step_record& r) { r.calls[1].results_agree = false; });
    check([](step_record& r) { r.calls[1].nonfinite = 1; });
    check([](step_record& r) { r.calls[2].result_norm = 9; });
    check([](step_record& r) { r.calls[0].audit.checked = true; });
    check([](step_record& r) { r.losses = {1, 2, 3, 4}; });
    check([](step_record& r) { r.gradient_norms = {1, undefined, 3, 4}; });
    // Who comes late is of time.
    const auto late = [](step_record& r) { r.findings = {{.ranks = {3}, .what = finding_kind::late}}; };
    CHECK(compare(make_log(20, 4), make_log(20, late)).outcome == comparison_outcome::identical);
}

TEST_CASE("without digests nothing is said to be identical")
{
    const auto unread = [](step_record& record) {
        for (call_record& each : record.calls) each.has_result_digest = false;
    };
    const run_comparison none = compare(make_log(4, unread), make_log(4, unread));
    CHECK(none.outcome == comparison_outcome::nothing_to_compare);
    CHECK(contains(verdict(none), "nothing to compare"));
    CHECK_FALSE(contains(describe(none), "identical"));
    CHECK(compare(run_log(), run_log()).outcome == comparison_outcome::nothing_to_compare);

    const auto other_loss = [&](step_record& record) {
        unread(record);
        record.loss.mean += 1e-16 * static_cast<double>(record.step);
    };
    CHECK(compare(make_log(9, unread), make_log(9, other_loss)).outcome == comparison_outcome::differ);
    const run_comparison one = compare(make_log(4), make_log(4, [](step_record& record) {
        record.calls[2].has_result_digest = record.step != 3; // no majority of the ranks
    }));
    CHECK(one.outcome == comparison_outcome::differ);
    CHECK(one.one_sided == 1);
}

TEST_CASE("the first place with other calls is named, and what is other")
{
    const run_log a = make_log(6);
    const auto check = [&](auto change, std::uint64_t step, int bucket, const std::string& words) {
        const run_comparison found = compare(a, make_log(6, [&](step_record& record) {
            if (record.step >= step) change(record);
        }));
        CHECK(found.outcome == comparison_outcome::differ);
        REQUIRE(found.structure_differs);
        CHECK_FALSE(found.results_differ);
        CHECK(found.first_structure.step == step);
        CHECK(found.first_structure.bucket == bucket);
        CHECK(found.structure == words);
        CHECK_FALSE(contains(describe(found), "identical"));
    };
    check([](step_record& r) { r.calls[1].count = r.calls[1].result_count = 7; }, 4, 1, "all_reduce of 200 float in A, all_reduce of 7 float in B");
    check([](step_record& r) { r.calls[0].type = element_type::bfloat16; }, 0, 0,
        "all_reduce of 100 float in A, all_reduce of 100 bfloat16 in B");
    check([](step_record& r) { r.calls[2].call = collective::broadcast; }, 5, 2,
        "all_reduce of 300 float in A, broadcast of 300 float in B");
    check([](step_record& r) { r.calls[2].site = call_site::named("tail"); }, 1, 2, "'head' in A, 'tail' in B");
    check([](step_record& r) { r.calls.pop_back(); }, 2, 2, "3 calls in A, 2 in B");
    check([](step_record& r) { r.calls.push_back(r.calls[0]); }, 3, 3, "3 calls in A, 4 in B");
    check([](step_record& r) { r.unread_calls = 2; }, 3, -1, "0 calls not looked at in A, 2 in B");

    // A call without a name is no other call.
    CHECK(compare(a, make_log(6, [](step_record& r) { r.calls[0].site = {}; })).outcome == comparison_outcome::identical);

    run_log holey("holey");
    for (const std::uint64_t step : {0u, 1u, 4u, 5u, 6u}) holey.add(make_step(step), 0);
    const run_comparison found = compare(a, holey);
    REQUIRE(found.structure_differs);
    CHECK(found.first_structure.step == 2);
    CHECK(found.structure == "only A has this step");
    CHECK((found.steps == 4 && found.steps_only_a == 2 && found.steps_only_b == 1));
    CHECK(holey.missing_steps() == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{2, 3}});
    CHECK(a.missing_steps().empty());

    run_log both("other calls, then a missing step");
    for (const std::uint64_t step : {0u, 1u, 2u, 3u, 5u}) {
        step_record record = make_step(step);
        if (step == 2) record.calls.pop_back();
        both.add(record, 0);
    }
    CHECK(compare(a, both).first_structure.step == 2);
    CHECK(compare(both, a).structure == "2 calls in A, 3 in B");
}

TEST_CASE("distances are those of the sampled elements in their type")
{
    const auto with = [](element_type type, std::vector<double> sample) {
        return make_log(1, [=](step_record& record) {
            record.calls[1].type = type;
            record.calls[1].result_sample = sample;
            record.calls[1].result_digest = to_bits(sample[0]) == to_bits(1.0) ? 1 : 2;
            record.calls[0].result_sample = record.calls[2].result_sample = {};
        });
    };
    const auto distance = [&](element_type type, const std::vector<double>& a, const std::vector<double>& b) {
        const run_comparison found = compare(with(type, a), with(type, b));
        REQUIRE(found.growth.size() == 1);
        return found.growth[0];
    };
    const float up = std::nextafterf(2.0f, 9.0f);
    CHECK(distance(element_type::float32, {1, 5}, {static_cast<double>(up), 5}).max_ulp == (1u << 23) + 1);
    CHECK(distance(element_type::bfloat16, {1, 5}, {2, 5}).max_ulp == 1u << 7);
    CHECK(distance(element_type::float16, {1, 5}, {2, 5}).max_ulp == 1u << 10);
    CHECK(distance(element_type::float64, {1, 5}, {2, 5}).max_ulp == std::uint64_t{1} << 52);
    const double least = 1.401298464324817e-45; // of float; a double holds it as a normal number
    const step_difference small = distance(element_type::float32, {1, -0.0, least}, {1.5, 0.0, -2 * least});
    CHECK(small.max_ulp == 1u << 22);
    CHECK(distance(element_type::float32, {1, least}, {std::nextafterf(1.0f, 2.0f), -2 * least}).max_ulp == 3);
    CHECK(small.max_ulp_bucket == 1);
    CHECK(distance(element_type::float32, {1, 0.0}, {undefined, -0.0}).max_ulp_bucket == -1);
    CHECK(small.basis == difference_basis::samples);
    CHECK(small.elements == 3);

    const double infinite = std::numeric_limits<double>::infinity();
    const step_difference wild = distance(
        element_type::float32, {1, undefined, infinite, undefined, infinite}, {2, undefined, infinite, 1, -infinite});
    CHECK(wild.nonfinite == 2);
    CHECK(wild.elements == 1);
    CHECK(wild.relative == 1);
    CHECK(is_nan(distance(element_type::float32, {1, 0}, {undefined, 0}).cosine_distance));

    // Against sums in long double.
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    for (const double scale : {1.0, 1e-200, 1e200}) {
        std::vector<double> a{1};
        std::vector<double> b{1.5};
        for (int i = 0; i < 50; ++i) {
            a.push_back(normal(random) * scale);
            b.push_back(a.back() * (1 + 1e-6 * normal(random)));
        }
        long double aa = 0, bb = 0, ab = 0, dd = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            const long double x = a[i], y = b[i];
            aa += x * x, bb += y * y, ab += x * y, dd += (y - x) * (y - x);
        }
        const step_difference at = distance(element_type::float64, a, b);
        CHECK(at.relative == doctest::Approx(static_cast<double>(std::sqrt(dd / aa))));
        CHECK(at.cosine_distance == doctest::Approx(static_cast<double>(1 - ab / std::sqrt(aa * bb))).epsilon(1e-4));
    }
}

TEST_CASE("without samples the norms tell the distance, and the steps shown double")
{
    const auto changed = [](double by) {
        return [by](step_record& record) {
            for (call_record& each : record.calls) each.result_sample.clear();
            if (record.step < 3) return;
            record.calls[1].result_digest ^= by > 0 ? 1 : 0;
            record.calls[1].result_norm += by;
            record.loss.mean *= 1 + by;
        };
    };
    const run_comparison found = compare(make_log(100, changed(0)), make_log(100, changed(0.5)));
    std::vector<std::uint64_t> shown;
    for (const step_difference& at : found.growth) {
        shown.push_back(at.step);
        CHECK(at.basis == difference_basis::norms);
        CHECK(at.differing == 1);
        CHECK(at.calls == 3);
        CHECK(at.relative == doctest::Approx(0.5 / std::sqrt(14.0)));
        CHECK(at.relative_loss == doctest::Approx(0.5));
    }
    CHECK(shown == std::vector<std::uint64_t>{3, 4, 5, 7, 11, 19, 35, 67, 99});
    CHECK(contains(describe(found), "* of the results' norms"));
}

TEST_CASE("the limit of a score is that of Student's distribution for 11 metrics")
{
    // 2 × the integral of the density from the limit on, with t = limit + y / (1 - y).
    const double scale = std::tgamma(4.0) / std::tgamma(3.5) / std::sqrt(7 * std::acos(-1.0));
    double tail = 0;
    constexpr int pieces = 20000;
    for (int i = 0; i < pieces; ++i) {
        const double y = (i + 0.5) / pieces;
        const double t = moved_limit + y / (1 - y);
        tail += 2 * scale * std::pow(1 + t * t / 7, -4.0) / ((1 - y) * (1 - y)) / pieces;
    }
    CHECK(11 * tail == doctest::Approx(1e-3).epsilon(1e-3));
}

TEST_CASE("noise moves no metric, whatever its memory, and shifts do")
{
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    const auto series = [&](std::size_t steps, double memory, double shift, bool falls) {
        std::vector<double> all;
        double state = memory < 1 ? normal(random) / std::sqrt(1 - memory * memory) : 0;
        for (std::size_t i = 0; i < steps; ++i) {
            all.push_back((state + shift) / (falls ? std::sqrt(1.0 + static_cast<double>(i)) : 1));
            state = memory * state + normal(random);
        }
        return all;
    };
    for (const double memory : {0.0, 0.5, 0.9, 1.0}) {
        int moved = 0;
        for (int run = 0; run < 60; ++run) {
            moved += verdict_of_series(series(150, memory, 0, run % 2 == 1)) == metric_verdict::moved;
        }
        CHECK(moved <= 1); // expected: 60 × 1e-4
    }
    int moved = 0;
    int unsure = 0;
    for (int run = 0; run < 20; ++run) {
        moved += verdict_of_series(series(400, 0, 0.8, false)) == metric_verdict::moved;
        unsure += verdict_of_series(series(150, 1, 0, false)) == metric_verdict::slow_noise;
    }
    CHECK(moved >= 18);
    CHECK(unsure >= 19);
}

TEST_CASE("a metric's verdict at the edges")
{
    CHECK(verdict_of_series(std::vector<double>(50, 0)) == metric_verdict::equal);
    CHECK(verdict_of_series(std::vector<double>(39, 1)) == metric_verdict::few_steps);
    CHECK(verdict_of_series(std::vector<double>(40, 1)) == metric_verdict::moved); // no noise but rounding
    CHECK(verdict_of_series(std::vector<double>(40, -1)) == metric_verdict::moved);
    CHECK(verdict_of_series(std::vector<double>(40, undefined)) == metric_verdict::one_sided);
    CHECK(verdict_of_series(std::vector<double>(40, std::numeric_limits<double>::infinity())) == metric_verdict::one_sided);
    std::vector<double> once(60, 0);
    once[3] = undefined;
    const metric_difference gap = compare_series(once).metrics[0];
    CHECK(gap.verdict == metric_verdict::within_noise);
    CHECK(gap.one_sided == 1);
    CHECK(gap.steps == 56);
    std::vector<double> later(100, 0);
    later[70] = 1e-3;
    const metric_difference loss = compare_series(later).metrics[0];
    CHECK(loss.first_step == 70);
    CHECK(loss.steps == 30);
    CHECK(loss.verdict == metric_verdict::few_steps);
}

TEST_CASE("alarms that one run alone has are listed, and count unless they are of time")
{
    const auto with = [](std::vector<finding> raised) {
        run_log log = make_log(9);
        for (const finding& each : raised) log.add(each, 0);
        return log;
    };
    const finding both = make_alarm(2, finding_kind::stale, 0, {1});
    const run_log a = with({both, make_alarm(3, finding_kind::non_finite, 1, {0, 2})});
    const run_log b = with({make_alarm(7, finding_kind::result_differs, 2, {3}), make_alarm(5, finding_kind::result_differs, 2, {3}), both});
    const run_comparison found = compare(a, b);
    CHECK(found.outcome == comparison_outcome::differ);
    REQUIRE(found.new_alarms.size() == 1);
    CHECK(found.new_alarms[0].what == finding_kind::result_differs);
    CHECK(found.new_alarms[0].steps == std::vector<std::uint64_t>{5, 7});
    REQUIRE(found.gone_alarms.size() == 1);
    CHECK(contains(describe(found), "alarm only in B: step 5 and 1 more step, bucket 2 'wte': result_differs: rank 3\n"));
    CHECK(contains(describe(found), "alarm only in A: step 3, bucket 1 'wte': non_finite: ranks 0 and 2\n"));

    const auto of_value = [](const char* value) {
        finding raised = make_alarm(3, finding_kind::value_differs, -1, {2});
        raised.site = call_site::named(value);
        return raised;
    };
    const std::string values = describe(compare(with({of_value("lr")}), with({of_value("lr"), of_value("seed")})));
    CHECK(contains(values, "alarm only in B: step 3, 'seed': value_differs: rank 2\n"));
    CHECK(!contains(values, "'lr'"));
    finding missing = make_alarm(3, finding_kind::call_missing, -1, {});
    missing.site = {};
    missing.other.site.name = "wte";
    const std::string without = describe(compare(with({}), with({missing})));
    CHECK(contains(without, "alarm only in B: step 3, 'wte': call_missing: the ranks\n"));

    const run_comparison late = compare(with({}), with({make_alarm(3, finding_kind::late, -1, {2})}));
    CHECK(late.outcome == comparison_outcome::identical);
    CHECK(late.new_alarms.size() == 1);
}

TEST_CASE("the records of several ranks are one run, and a rank that disagrees is named")
{
    run_log merged("run");
    for (const std::uint64_t step : {0u, 1u, 3u}) merged.add(make_step(step), 0);
    CHECK(merged.missing_steps().size() == 1);
    for (const std::uint64_t step : {1u, 2u, 3u, 4u}) merged.add(make_step(step), 5);
    CHECK(merged.missing_steps().empty());
    CHECK(merged.disagreement_count() == 0);
    CHECK(compare(make_log(5), merged).outcome == comparison_outcome::identical);
    CHECK(merged.writers().size() == 2);

    step_record other = make_step(2);
    other.calls[1].result_digest ^= 1;
    merged.add(other, 3);
    REQUIRE(merged.disagreements().size() == 1);
    CHECK(merged.disagreements()[0].step == 2);
    CHECK(merged.disagreements()[0].writer == 3);
    CHECK(merged.disagreements()[0].other == 5);
    CHECK(compare(make_log(5), merged).outcome == comparison_outcome::differ);
}

TEST_CASE("a run that went back to a step counts from there on anew")
{
    const auto changed = [](std::uint64_t step) {
        step_record record = make_step(step);
        record.calls[0].result_digest ^= 1;
        return record;
    };
    run_log log("run");
    for (std::uint64_t step = 0; step < 8; ++step) log.add(step < 5 ? make_step(step) : changed(step), 0);
    for (std::uint64_t step = 5; step < 7; ++step) log.add(make_step(step), 0);
    CHECK(log.restarts() == std::vector<std::uint64_t>{5});
    CHECK(log.steps().size() == 7);
    // Another rank's file has both parts too.
    for (std::uint64_t step = 0; step < 8; ++step) log.add(step < 5 ? make_step(step) : changed(step), 1);
    for (std::uint64_t step = 5; step < 7; ++step) log.add(make_step(step), 1);
    CHECK(log.disagreement_count() == 0);
    CHECK(log.steps().size() == 7);
    CHECK(compare(make_log(7), log).outcome == comparison_outcome::identical);
}
