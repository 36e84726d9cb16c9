// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "examples/preload/engine/sampler.hpp"

namespace collprobe::testing::sampler_test {

using namespace collprobe_preload;

namespace {

using seconds = std::function<double(int step)>;
seconds always(double time_s)
{
    return [time_s](int) { return time_s; };
}

/// Steps of `calls` calls of `bytes`. What a step and a probe take varies by `noise`.
struct load {
    sampler_options options = {};
    int steps = 2000, calls = 20;
    std::uint64_t bytes = 1 << 20;
    seconds step_s = always(0.1), probe_s = always(100e-6), pause_s = always(0);
    double noise = 0.2;
    step_source source = step_source::period;
    std::uint64_t seed = 1;
    int known_after = 0; ///< steps until the device tells of its probes
};
struct seen_step {
    int chosen;
    std::uint64_t every;
    double predicted_share, probes_s, whole_s;
};

std::vector<seen_step> simulate(const load& of)
{
    std::mt19937_64 random(of.seed);
    std::uniform_real_distribution<double> factor(1 - of.noise, 1 + of.noise);
    sampler choose(of.options);
    sampler_facts facts;
    call_place place;
    place.source = of.source;
    std::vector<seen_step> seen;
    for (int step = 0; step < of.steps; ++step) {
        if (const int told = step - of.known_after - 1; told >= 0) {
            const auto probes = static_cast<std::uint64_t>(seen[static_cast<std::size_t>(told)].chosen);
            facts.probes += probes;
            facts.probe_bytes += probes * of.bytes;
            facts.probe_s += seen[static_cast<std::size_t>(told)].probes_s;
        }
        place.step = static_cast<std::uint64_t>(step);
        choose.step_began(place, facts);
        seen_step now{0, choose.every(), choose.predicted_share(), 0, 0};
        for (int call = 0; call < of.calls; ++call) {
            place.bucket = static_cast<std::uint32_t>(call);
            if (!choose.add(place, 1 + static_cast<std::uint64_t>(call), of.bytes)) continue;
            ++now.chosen;
            now.probes_s += factor(random) * of.probe_s(step);
        }
        REQUIRE(choose.every() == now.every); // it changes at the beginning of a step only
        if (of.source == step_source::period) CHECK((now.chosen == 0 || now.chosen == of.calls));
        now.whole_s = factor(random) * of.step_s(step) + now.probes_s + of.pause_s(step);
        facts.now_s += now.whole_s;
        seen.push_back(now);
    }
    return seen;
}
/// Of the device's time, from a step on.
double share(const std::vector<seen_step>& of, std::size_t from = 0)
{
    double probes_s = 0, whole_s = 0;
    for (; from < of.size(); ++from) {
        probes_s += of[from].probes_s;
        whole_s += of[from].whole_s;
    }
    return probes_s / whole_s;
}
std::set<std::size_t> steps_chosen(const std::vector<seen_step>& of)
{
    std::set<std::size_t> steps;
    for (std::size_t step = 0; step < of.size(); ++step)
        if (of[step].chosen != 0) steps.insert(step);
    return steps;
}

} // namespace

TEST_CASE("the probes keep to the budget, and use more than a third of it")
{
    std::mt19937 random(7);
    for (int trial = 0; trial < 60; ++trial) {
        const double budget = std::uniform_real_distribution<double>(0.001, 0.05)(random);
        const double step_s = std::exp2(std::uniform_real_distribution<double>(-7, 2)(random));
        const int calls = std::uniform_int_distribution<int>(1, 100)(random);
        const double probe_s = step_s / calls * std::exp2(std::uniform_real_distribution<double>(-5, 2)(random)) * 0.1;
        const auto seen = simulate({.options = {.budget = budget}, .steps = 6000, .calls = calls, .bytes = 1 << 24,
            .step_s = always(step_s), .probe_s = always(probe_s), .seed = 3});
        CAPTURE(budget);
        CHECK(share(seen, 3000) <= 1.35 * budget); // the steps and the probes vary by a fifth
        if (seen.back().every > 1) CHECK(share(seen, 3000) >= 0.3 * budget);
    }
}

TEST_CASE("A12: after 2000 steps the share since the start is within the budget, whatever the load")
{
    std::mt19937_64 random(12);
    const auto between = [&random](double low, double high) {
        return std::exp2(std::uniform_real_distribution<double>(std::log2(low), std::log2(high))(random));
    };
    for (int trial = 0; trial < 400; ++trial) {
        const double step_s = between(0.01, 10);
        const int calls = static_cast<int>(between(1, 400));
        const double full_s = step_s * between(0.001, 0.5); // probing all costs up to half of the step's time
        const double speed = between(2e11, 4e12);
        const double bytes = full_s / calls * speed;
        CAPTURE(trial);
        CHECK(share(simulate({.calls = calls, .bytes = static_cast<std::uint64_t>(bytes), .step_s = always(step_s),
                  .probe_s = always(bytes / speed + 8e-6),
                  .pause_s = [&](int step) { return trial % 3 == 0 && step % 100 == 99 ? 30 * step_s : 0; },
                  .source = trial % 2 == 0 ? step_source::period : step_source::calls,
                  .seed = static_cast<std::uint64_t>(trial), .known_after = 1}))
            <= 0.01);
    }
}

TEST_CASE("a long pause is no reason to probe more, and probes that become slower are noticed")
{
    const auto paused = simulate(
        {.steps = 1000, .pause_s = [](int step) { return step == 500 ? 600.0 : 0.0; }, .noise = 0});
    for (std::size_t step = 400; step < 1000; ++step) REQUIRE(paused[step].every == paused[400].every);
    const auto slower = simulate(
        {.steps = 3000, .probe_s = [](int step) { return step < 1500 ? 100e-6 : 500e-6; }, .noise = 0});
    const double full = 20 * 100e-6 / 0.1;
    const auto predicted = [&](std::size_t step) {
        return slower[step].predicted_share * static_cast<double>(slower[step].every);
    };
    CHECK(std::fabs(predicted(1499) - full) < 0.05 * full);
    CHECK(std::fabs(predicted(2000) - 5 * full) < 0.05 * 5 * full);
}

TEST_CASE("a fixed k is kept, and the live channel takes no notice of time")
{
    CHECK(steps_chosen(simulate({.options = {.every = 3}, .steps = 300, .calls = 5})).size() == 100);
    const auto chosen_in = [](double step_s, double probe_s) {
        return steps_chosen(simulate({.options = {.mode = sampling::inband}, .steps = 512, .calls = 5,
            .step_s = always(step_s), .probe_s = always(probe_s)}));
    };
    CHECK(chosen_in(0.01, 1e-3) == chosen_in(9.0, 1e-7));
    CHECK(chosen_in(0.01, 1e-3).size() == 512 / 16);
}

TEST_CASE("k is a power of two, and does not go to and fro")
{
    for (double cost_s = 4e-6; cost_s < 40e-6; cost_s *= 1.15) {
        CAPTURE(cost_s);
        const auto seen = simulate({.steps = 4000, .bytes = 1000000, .step_s = always(0.02), .probe_s = always(cost_s),
            .noise = 0.6, .seed = 9});
        int changes = 0;
        for (std::size_t step = 0; step < seen.size(); ++step) {
            REQUIRE((seen[step].every & (seen[step].every - 1)) == 0);
            if (step > 501) changes += seen[step].every != seen[step - 1].every;
        }
        CHECK(changes <= 16);
    }
}

TEST_CASE("without steps each signature is seen: of a few, of a hundred in turn, of more than can be counted apart")
{
    // k, how many signatures, rounds; how often each is chosen.
    struct row {
        std::uint64_t every, signatures;
        int rounds, least, most;
    };
    for (const row& each : {row{4, 3, 400, 100, 100}, row{4, 100, 40, 10, 10}, row{16, 3000, 800, 25, 100}}) {
        CAPTURE(each.signatures);
        sampler choose({.every = each.every});
        const call_place place; // source: calls
        std::map<std::uint64_t, int> chosen;
        for (int round = 0; round < each.rounds; ++round) {
            for (std::uint64_t i = 0; i < each.signatures; ++i) {
                const std::uint64_t signature = each.signatures == 100 ? i + 1 : i * 0x9e3779b97f4a7c15u + 1;
                chosen[signature] += choose.add(place, signature, 1);
            }
            REQUIRE_FALSE(choose.add(place, 99'999, 1000, false)); // cannot be probed
        }
        for (const auto& [signature, times] : chosen) {
            REQUIRE(times >= each.least);
            REQUIRE(times <= each.most);
        }
    }
}

TEST_CASE("the calls chosen with a larger k are among those chosen with a smaller one, in steps and without")
{
    for (const step_source source : {step_source::period, step_source::tag, step_source::calls}) {
        std::mt19937_64 random(4);
        sampler often({.every = 2});
        sampler seldom({.every = 16});
        int both = 0;
        for (int i = 0; i < 20000; ++i) {
            call_place place;
            place.source = source;
            place.step = static_cast<std::uint64_t>(i) / 10;
            const std::uint64_t signature = random() % (i < 10000 ? 20 : 2000);
            const bool first = often.add(place, signature, 1);
            const bool second = seldom.add(place, signature, 1);
            if (second) REQUIRE(first);
            both += second;
        }
        CHECK(both > 500);
    }
}

TEST_CASE("coverage adds up")
{
    std::mt19937_64 random(13);
    sampler choose;
    sampler_facts facts;
    sampler_coverage wanted;
    for (std::uint64_t step = 0; step < 1000; ++step) {
        call_place place;
        place.step = step;
        place.source = step_source::marked;
        choose.step_began(place, facts);
        const std::uint64_t before = facts.probes;
        const std::uint64_t here = random() % 10;
        for (std::uint64_t i = 0; i < here; ++i) {
            const bool can = random() % 4 != 0;
            ++wanted.calls;
            wanted.probeable += can;
            if (!choose.add(place, i, 1 << 20, can)) continue;
            ++facts.probes;
            facts.probe_s += 1e-4;
            facts.probe_bytes += 1 << 20;
        }
        wanted.steps_chosen += facts.probes != before;
        facts.now_s += 0.01;
    }
    const sampler_coverage seen = choose.covered();
    CHECK(seen.calls == wanted.calls);
    CHECK(seen.probeable == wanted.probeable);
    CHECK(seen.chosen == facts.probes);
    CHECK(seen.steps == 1000);
    CHECK(seen.steps_chosen == wanted.steps_chosen);
    CHECK(seen.every == choose.every());
    CHECK(seen.share_predicted > 0);
    CHECK(seen.share_predicted <= 0.01);
    CHECK(std::fabs(seen.share_measured - facts.probe_s / facts.now_s) < 1e-3);
    CHECK(choose.predicted_share() == seen.share_predicted);
    CHECK(choose.measured_share() == seen.share_measured);
}

TEST_CASE("a clock that stands still, and facts of none, change nothing")
{
    sampler choose;
    call_place place;
    place.source = step_source::period;
    for (int step = 0; step < 100; ++step) {
        place.step = static_cast<std::uint64_t>(step);
        choose.step_began(place, {});
        choose.add(place, 1, 1 << 30);
    }
    CHECK(choose.every() == sampler::usual_every);
    CHECK(choose.covered().share_predicted == 0);
    CHECK(choose.covered().share_measured == 0);
}

} // namespace collprobe::testing::sampler_test
