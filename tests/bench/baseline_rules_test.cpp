// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "bench/baseline_rules.hpp"

namespace collprobe::testing::baseline_rules_test {
namespace {

using baseline::rule_input;
using baseline::rule_verdict;
using row = std::vector<double>;

/// A step of `ranks` ranks whose norms are given by rank and bucket.
rule_input local(int ranks, const row& norms)
{
    rule_input step;
    step.ranks = ranks;
    step.buckets = static_cast<int>(norms.size()) / ranks;
    step.local_norms = norms;
    return step;
}
rule_input reduced(const row& norms, double loss = 1)
{
    rule_input step;
    step.ranks = static_cast<int>(norms.size());
    step.reduced_norms = norms;
    step.loss = loss;
    return step;
}

} // namespace

TEST_CASE("megatron alarms from ten times the largest of the first hundred samples on")
{
    baseline::megatron rule(2);
    for (int i = 0; i < 100; ++i) {
        const row norms{i == 40 ? 3.0 : 1.0, i == 7 ? 1e9 : 2.0}; // whatever comes among the samples is normal
        CHECK_FALSE(rule.judge(local(2, norms)).alarmed);
    }
    CHECK_FALSE(rule.judge(local(2, {29.9, 1e9})).alarmed);
    const rule_verdict found = rule.judge(local(2, {30, 1e9}));
    CHECK(found.alarmed);
    CHECK(found.rank == 0);
    CHECK(found.named == 1);
    CHECK(rule.judge(local(2, {1, 1e10})).rank == 1);
    CHECK(rule.judge(local(2, {1e3, 1e12})).named == 2);
    CHECK_FALSE(rule.judge(local(2, {29, 2})).alarmed); // nothing was learned since
}

TEST_CASE("megatron has one maximum for all buckets and counts calls")
{
    // Two buckets: the samples last for 50 steps, and the large one hides a thousandfold spike in the small one.
    baseline::megatron rule(1);
    for (int i = 0; i < 50; ++i) CHECK_FALSE(rule.judge(local(1, {1000, 1})).alarmed);
    CHECK_FALSE(rule.judge(local(1, {1000, 1000})).alarmed);
    CHECK(rule.judge(local(1, {1000, 10000})).alarmed);
}

TEST_CASE("megatron alarms at what is not finite, also among the samples")
{
    baseline::megatron rule(3);
    CHECK(rule.judge(local(3, {1, detail::not_a_number(), 1})).rank == 1);
    CHECK(rule.judge(local(3, {1, 1, detail::infinity()})).rank == 2);
    CHECK_FALSE(rule.judge(local(3, {1, 1, 1})).alarmed);
}

TEST_CASE("fairseq compares the reduced norms with that of rank 0 to a millionth")
{
    baseline::fairseq rule;
    CHECK_FALSE(rule.judge(reduced({2, 2, 2})).alarmed);
    CHECK_FALSE(rule.judge(reduced({2, 2 + 1.9e-6, 2 - 1.9e-6})).alarmed);
    const rule_verdict found = rule.judge(reduced({2, 2, 2 + 2.1e-6}));
    CHECK(found.alarmed);
    CHECK(found.rank == -1);
    CHECK(found.named == 0);
    CHECK(rule.judge(reduced({2 + 2.1e-6, 2, 2})).alarmed);
    CHECK(rule.judge(reduced({2, detail::not_a_number(), 2})).alarmed);
    CHECK(rule.judge(reduced({detail::infinity(), detail::infinity()})).alarmed);
    CHECK_FALSE(rule.judge(reduced({0, 0})).alarmed);
    CHECK_FALSE(rule.judge(reduced({0, 9e-13})).alarmed); // the epsilon in the denominator
    CHECK(rule.judge(reduced({0, 1.1e-12})).alarmed);
}

TEST_CASE("llm.c takes the z-score in a window that has the new value in it")
{
    baseline::llm_c::series series;
    for (int i = 0; i < 128; ++i) CHECK(is_nan(series.update(i % 2 == 0 ? 1 : -1)));
    // 127 values of +-1 that sum up to -1, and x: by hand, mean (x - 1) / 128, squares (127 + x^2) / 128.
    const double x = 9;
    const double mean = (x - 1) / 128;
    const double expected = (x - mean) / std::sqrt((127 + x * x) / 128 - mean * mean);
    CHECK(series.update(x) == doctest::Approx(expected));
    // However large, it cannot exceed sqrt(127).
    baseline::llm_c::series flat;
    for (int i = 0; i < 128; ++i) flat.update(0);
    CHECK(flat.update(0) == 0);
    CHECK(flat.update(1e9) == doctest::Approx(std::sqrt(127.0)));
}

TEST_CASE("llm.c skips at a high loss or norm and not at a low one, and a NaN ends it")
{
    baseline::llm_c rule(5);
    const auto noise = [](int i) { return 1 + 0.01 * (i % 5); };
    for (int i = 0; i < 300; ++i) CHECK_FALSE(rule.judge(reduced({noise(i)}, noise(i + 2))).alarmed);
    CHECK_FALSE(rule.judge(reduced({0.1}, 1)).alarmed);
    baseline::llm_c other(5);
    for (int i = 0; i < 300; ++i) other.judge(reduced({noise(i)}, noise(i + 2)));
    const rule_verdict found = other.judge(reduced({1}, 2));
    CHECK(found.alarmed);
    CHECK(found.rank == -1);
    CHECK(other.judge(reduced({100}, 1)).alarmed);
    CHECK_FALSE(other.judge(reduced({1}, detail::not_a_number())).alarmed);
    for (int i = 0; i < 300; ++i) other.judge(reduced({noise(i)}, noise(i)));
    CHECK_FALSE(other.judge(reduced({1}, 1e9)).alarmed);
}

TEST_CASE("ascend counts three strikes of one rank in the window")
{
    baseline::ascend rule(2, 10);
    for (int i = 0; i < 50; ++i) CHECK_FALSE(rule.judge(local(2, {1, 2})).alarmed);
    CHECK_FALSE(rule.judge(local(2, {101, 2})).alarmed); // strike 1, not absorbed
    CHECK_FALSE(rule.judge(local(2, {99, 2})).alarmed); // below 100 times, and absorbed
    // Weights 0.99^i: the mean is now (0.99 (1 - 0.99^50) + 0.01 99) / (1 - 0.99^51) = 3.444.
    CHECK_FALSE(rule.judge(local(2, {345, 2})).alarmed); // strike 2
    CHECK_FALSE(rule.judge(local(2, {1, 201})).alarmed); // another rank's
    const rule_verdict found = rule.judge(local(2, {2e6, 2})); // strike 3
    CHECK(found.alarmed);
    CHECK(found.rank == 0);
    CHECK(found.named == 1);
    // The strikes are those of the last ten steps.
    baseline::ascend slow(1, 10);
    for (int i = 0; i < 50; ++i) slow.judge(local(1, {1}));
    int alarms = 0;
    for (int i = 0; i < 60; ++i) alarms += slow.judge(local(1, {i % 5 == 0 ? 1000.0 : 1.0})).alarmed ? 1 : 0;
    CHECK(alarms == 0); // each third one is ten steps after the first
    baseline::ascend fast(1, 11);
    for (int i = 0; i < 50; ++i) fast.judge(local(1, {1}));
    for (int i = 0; i < 60; ++i) alarms += fast.judge(local(1, {i % 5 == 0 ? 1000.0 : 1.0})).alarmed ? 1 : 0;
    CHECK(alarms == 10);
    baseline::ascend odd(1, 10);
    CHECK_FALSE(odd.judge(local(1, {detail::not_a_number()})).alarmed);
    CHECK_FALSE(odd.judge(local(1, {detail::infinity()})).alarmed);
    CHECK(odd.judge(local(1, {1.1e6})).alarmed);
}

TEST_CASE("altenbernd compares the jump of the update with the mean jump over alpha and the root of the norm's rise")
{
    const auto step = [](const row& sizes, const row& norms) {
        rule_input input = local(static_cast<int>(norms.size()), norms);
        input.update_sizes = sizes;
        return input;
    };
    // Sizes 1.0, 1.1 ... 2.0: mean jump 0.1 over ten. Then a rise of the norm by 4 asks for 0.1 / (0.05 * 2) = 1.
    const auto warmed = [&](bool absolute) {
        baseline::altenbernd rule(1, 10, absolute);
        for (int i = 0; i <= 10; ++i) CHECK_FALSE(rule.judge(step({1 + 0.1 * i}, {1})).alarmed);
        return rule;
    };
    CHECK_FALSE(warmed(false).judge(step({2.99}, {5})).alarmed);
    const rule_verdict found = warmed(false).judge(step({3.01}, {5}));
    CHECK(found.alarmed);
    CHECK(found.rank == 0);
    CHECK_FALSE(warmed(false).judge(step({1000}, {1})).alarmed); // no rise of the norm, nothing seen
    CHECK_FALSE(warmed(false).judge(step({0}, {5})).alarmed);
    CHECK(warmed(true).judge(step({0}, {5})).alarmed); // a jump down, taken by its size
    CHECK(warmed(false).judge(step({2}, {detail::infinity()})).alarmed);

    // Updates that shrink in the warm-up: the mean telescopes to less than zero, and any rising norm alarms.
    baseline::altenbernd shrinking(1, 10);
    for (int i = 0; i <= 10; ++i) shrinking.judge(step({3 - 0.1 * i}, {1}));
    CHECK(shrinking.judge(step({2}, {1.001})).alarmed);
}

TEST_CASE("byterobust sees a fivefold jump once")
{
    baseline::byterobust rule;
    CHECK_FALSE(rule.judge(reduced({1}, 2)).alarmed);
    CHECK_FALSE(rule.judge(reduced({4.9}, 2)).alarmed);
    CHECK_FALSE(rule.judge(reduced({4.9}, 9.9)).alarmed);
    CHECK(rule.judge(reduced({24.6}, 9.9)).alarmed);
    CHECK_FALSE(rule.judge(reduced({24.6}, 9.9)).alarmed);
    CHECK(rule.judge(reduced({24.6}, 50)).alarmed);
    CHECK(rule.judge(reduced({24.6}, detail::not_a_number())).alarmed);
    CHECK_FALSE(rule.judge(reduced({24.6}, 50)).alarmed);
}

} // namespace collprobe::testing::baseline_rules_test
