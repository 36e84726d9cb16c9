// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "examples/preload/engine/sampler.hpp"

using namespace collprobe_preload;
using collprobe_preload::call_place;
using collprobe_preload::step_source;

namespace {

struct outcome {
    std::set<std::uint64_t> steps; ///< chosen
    double share = 0; ///< of the probes in the last half of the time
    std::uint64_t every = 0;
};

/// Steps of `calls` calls of `bytes`, on a device whose probes take `probe_s` each.
outcome train(sampler_options options, int steps, int calls, std::uint64_t bytes, double step_s,
    double probe_s, unsigned seed = 1)
{
    sampler choose(options);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> noise(0.8, 1.2);
    outcome result;
    double now = 100;
    double probes_s = 0;
    double half_s = 0;
    double half_began = 0;
    sampler_facts facts;
    for (int step = 0; step < steps; ++step) {
        facts.now_s = now;
        facts.probe_s = probes_s;
        call_place place;
        place.step = static_cast<std::uint64_t>(step);
        place.source = step_source::period;
        place.first = true;
        choose.step_began(place, facts);
        int chosen = 0;
        for (int call = 0; call < calls; ++call) {
            place.bucket = static_cast<std::uint32_t>(call);
            place.first = false;
            chosen += choose.add(place, static_cast<std::uint64_t>(call), bytes) ? 1 : 0;
        }
        CHECK((chosen == 0 || chosen == calls));
        if (chosen != 0) result.steps.insert(place.step);
        if (step == steps / 2) {
            half_s = probes_s;
            half_began = now;
        }
        for (int i = 0; i < chosen; ++i) probes_s += probe_s * noise(random);
        facts.probes += static_cast<std::uint64_t>(chosen);
        facts.probe_bytes += static_cast<std::uint64_t>(chosen) * bytes;
        now += step_s * noise(random) + chosen * probe_s;
    }
    result.share = (probes_s - half_s) / (now - half_began);
    result.every = choose.every();
    return result;
}

} // namespace

TEST_CASE("the probes keep to the budget, and use more than a third of it")
{
    std::mt19937 random(7);
    for (int trial = 0; trial < 60; ++trial) {
        const double budget = std::uniform_real_distribution<double>(0.001, 0.05)(random);
        const double step_s = std::exp2(std::uniform_real_distribution<double>(-7, 2)(random));
        const int calls = std::uniform_int_distribution<int>(1, 100)(random);
        const double probe_s
            = step_s / calls * std::exp2(std::uniform_real_distribution<double>(-5, 2)(random)) * 0.1;
        const outcome seen = train({.budget = budget}, 6000, calls, 1 << 24, step_s, probe_s, 3);
        CAPTURE(budget);
        CAPTURE(seen.every);
        CHECK(seen.share <= 1.35 * budget); // the steps and the probes vary by a fifth
        if (seen.every > 1) CHECK(seen.share >= 0.3 * budget);
    }
}

TEST_CASE("ranks that measure other times choose steps of each other")
{
    const outcome fast = train({}, 5000, 10, 1 << 20, 0.01, 2e-6, 1);
    const outcome slow = train({}, 5000, 10, 1 << 20, 0.01, 5e-5, 2);
    CHECK(fast.every < slow.every);
    int common = 0;
    for (const std::uint64_t step : slow.steps) {
        if (step < 1000) continue; // by then both have adapted
        ++common;
        CHECK(fast.steps.count(step) == 1);
    }
    CHECK(common > 10);
}

TEST_CASE("a fixed k is kept, and the live channel takes no notice of time")
{
    CHECK(train({.every = 3}, 300, 5, 1 << 20, 0.01, 1e-3).steps.size() == 100);
    const outcome first = train({.mode = sampling::inband}, 512, 5, 1 << 20, 0.01, 1e-3, 1);
    const outcome second = train({.mode = sampling::inband}, 512, 5, 1 << 20, 9.0, 1e-7, 2);
    CHECK(first.steps == second.steps);
    CHECK(first.steps.size() == 512 / 16);
}

TEST_CASE("without steps each k-th call of a signature is chosen, and none that cannot be probed")
{
    sampler choose({.every = 4});
    call_place place; // source: calls
    std::vector<int> chosen(3);
    for (int i = 0; i < 400; ++i) {
        for (std::uint64_t signature = 0; signature < 3; ++signature) {
            chosen[signature] += choose.add(place, signature * 0x123456789u, 1000) ? 1 : 0;
        }
        CHECK_FALSE(choose.add(place, 99, 1000, false));
    }
    for (const int each : chosen) CHECK(each == 100);
}

TEST_CASE("a step of many calls, seen as blocks of calls, is sampled by the budget too")
{
    // Counts that never come again: each call is the first of its signature.
    for (const bool is_new : {false, true}) {
        CAPTURE(is_new);
        sampler choose({.every = 8});
        call_place place;
        std::uint64_t chosen = 0;
        for (std::uint64_t i = 0; i < 80000; ++i) {
            chosen += choose.add(place, is_new ? i * 0x9e3779b97f4a7c15u : 1 + i % 100, 1000);
        }
        CHECK(chosen <= 80000 / 8 + 100);
        CHECK(chosen >= 80000 / 8 - 200);
    }
}

TEST_CASE("each signature is seen: of a hundred in turn, with a k that divides their number")
{
    sampler choose({.every = 4});
    call_place place;
    std::map<std::uint64_t, int> chosen;
    for (int round = 0; round < 40; ++round) {
        for (std::uint64_t signature = 1; signature <= 100; ++signature) {
            chosen[signature] += choose.add(place, signature, 1000);
        }
    }
    for (const auto& each : chosen) {
        CAPTURE(each.first);
        CHECK(each.second == 10);
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

TEST_CASE("k changes at the beginning of a step only, is a power of two, and does not go to and fro")
{
    std::mt19937_64 random(9);
    std::uniform_real_distribution<double> noise(0.4, 1.6);
    for (double cost_s = 4e-6; cost_s < 40e-6; cost_s *= 1.15) {
        CAPTURE(cost_s);
        sampler choose;
        sampler_facts facts;
        std::uint64_t last = choose.every();
        int changes = 0;
        call_place place;
        place.source = step_source::period;
        for (int step = 0; step < 4000; ++step) {
            place.step = static_cast<std::uint64_t>(step);
            choose.step_began(place, facts);
            const std::uint64_t every = choose.every();
            REQUIRE((every & (every - 1)) == 0);
            if (step > 500) changes += every != last;
            last = every;
            double probes_s = 0;
            for (int call = 0; call < 20; ++call) {
                if (choose.add(place, 5, 1000000)) {
                    ++facts.probes;
                    facts.probe_bytes += 1000000;
                    probes_s += cost_s * noise(random);
                }
                REQUIRE(choose.every() == every);
            }
            facts.probe_s += probes_s;
            facts.now_s += 0.02 * noise(random) + probes_s;
        }
        CHECK(changes <= 16);
    }
}

/// The share of the device's time that probes take in all, after `steps` steps.
double share_after(int steps, double step_s, int calls, std::uint64_t bytes, double true_bytes_per_second,
    double pause_s, step_source source, std::uint64_t seed)
{
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> noise(0.8, 1.2);
    sampler choose;
    sampler_facts facts;
    call_place place;
    place.source = source;
    double ended_s = 0; // probes are known one step late
    std::uint64_t ended = 0;
    for (int step = 0; step < steps; ++step) {
        place.step = static_cast<std::uint64_t>(step);
        choose.step_began(place, facts);
        facts.probe_s = ended_s;
        facts.probes = ended;
        facts.probe_bytes = ended * bytes;
        double probes_s = 0;
        for (int call = 0; call < calls; ++call) {
            if (!choose.add(place, 1 + static_cast<std::uint64_t>(call), bytes)) continue;
            ++ended;
            probes_s += noise(random) * (static_cast<double>(bytes) / true_bytes_per_second + 8e-6);
        }
        ended_s += probes_s;
        facts.now_s += noise(random) * step_s + probes_s + (step % 100 == 99 ? pause_s : 0);
    }
    return ended_s / facts.now_s;
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
        // Probing all costs up to half of the step's time.
        const double full_s = step_s * between(0.001, 0.5);
        const double speed = between(2e11, 4e12);
        const double bytes = full_s / calls * speed;
        const step_source source = trial % 2 == 0 ? step_source::period : step_source::calls;
        const double pause_s = trial % 3 == 0 ? 30 * step_s : 0;
        CAPTURE(trial);
        CAPTURE(step_s);
        CAPTURE(calls);
        CAPTURE(full_s);
        const double share = share_after(2000, step_s, calls, static_cast<std::uint64_t>(bytes), speed,
            pause_s, source, static_cast<std::uint64_t>(trial));
        CHECK(share <= 0.01);
    }
}

TEST_CASE("A12: what the first steps took too much is saved within 100 steps")
{
    for (const double full : {0.1, 0.3, 0.45, 0.6, 0.9}) {
        CAPTURE(full);
        const double bytes = full / 20 * 1e11; // the device is ten times slower than assumed
        for (const step_source source : {step_source::period, step_source::calls}) {
            CHECK(share_after(100, 1, 20, static_cast<std::uint64_t>(bytes), 1e11, 0, source, 3) <= 0.01);
        }
    }
}

/// Steps of 0.1 s with 20 calls, whose probes take `probe_s(step)` each; a step lasts `pause_s(step)` longer.
template <class Probe, class Pause>
std::vector<std::pair<std::uint64_t, double>> chosen_by(int steps, Probe probe_s, Pause pause_s)
{
    sampler choose;
    sampler_facts facts;
    call_place place;
    place.source = step_source::period;
    std::vector<std::pair<std::uint64_t, double>> result;
    for (int step = 0; step < steps; ++step) {
        place.step = static_cast<std::uint64_t>(step);
        choose.step_began(place, facts);
        result.emplace_back(choose.every(), choose.predicted_share());
        for (int call = 0; call < 20; ++call) {
            if (!choose.add(place, 1, 1 << 20)) continue;
            ++facts.probes;
            facts.probe_bytes += 1 << 20;
            facts.probe_s += probe_s(step);
        }
        facts.now_s += 0.1 + pause_s(step);
    }
    return result;
}

TEST_CASE("a long pause is no reason to probe more")
{
    const auto seen = chosen_by(
        1000, [](int) { return 100e-6; }, [](int step) { return step == 500 ? 600.0 : 0.0; });
    for (int step = 400; step < 1000; ++step) {
        CAPTURE(step);
        REQUIRE(seen[static_cast<std::size_t>(step)].first == seen[400].first);
    }
}

TEST_CASE("probes that become slower are noticed")
{
    const auto seen = chosen_by(
        3000, [](int step) { return step < 1500 ? 100e-6 : 500e-6; }, [](int) { return 0.0; });
    const double full = 20 * 100e-6 / 0.1;
    CHECK(std::fabs(seen[1499].second * static_cast<double>(seen[1499].first) - full) < 0.05 * full);
    CHECK(std::fabs(seen[2000].second * static_cast<double>(seen[2000].first) - 5 * full) < 0.05 * 5 * full);
}

TEST_CASE("coverage adds up")
{
    std::mt19937_64 random(13);
    sampler choose;
    sampler_facts facts;
    std::uint64_t calls = 0;
    std::uint64_t probeable = 0;
    std::uint64_t chosen = 0;
    std::set<std::uint64_t> steps_chosen;
    for (std::uint64_t step = 0; step < 1000; ++step) {
        call_place place;
        place.step = step;
        place.source = step_source::marked;
        choose.step_began(place, facts);
        const std::uint64_t here = random() % 10;
        for (std::uint64_t i = 0; i < here; ++i) {
            const bool can = random() % 4 != 0;
            const bool is_chosen = choose.add(place, i, 1 << 20, can);
            ++calls;
            probeable += can;
            chosen += is_chosen;
            if (is_chosen) steps_chosen.insert(step);
            facts.probes += is_chosen;
            facts.probe_s += is_chosen ? 1e-4 : 0;
            facts.probe_bytes += is_chosen ? 1 << 20 : 0;
        }
        facts.now_s += 0.01;
    }
    const sampler_coverage seen = choose.covered();
    CHECK(seen.calls == calls);
    CHECK(seen.probeable == probeable);
    CHECK(seen.chosen == chosen);
    CHECK(seen.steps == 1000);
    CHECK(seen.steps_chosen == steps_chosen.size());
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

TEST_CASE("a slow first step, and pauses, give no more than the budget to the steps that follow")
{
    struct load {
        double first_s;
        int pause_every;
        double pause_s;
    };
    for (const load& each : {load{60, 400, 0}, load{600, 400, 0}, load{0.1, 10, 30}, load{0.1, 4, 3}}) {
        CAPTURE(each.first_s);
        CAPTURE(each.pause_s);
        sampler choose;
        sampler_facts facts;
        double working_s = 0;
        double early_s = 0;
        for (int step = 0; step <= 60; ++step) {
            call_place place;
            place.step = static_cast<std::uint64_t>(step);
            place.source = step_source::period;
            choose.step_began(place, facts);
            double probes_s = 0;
            for (std::uint64_t call = 0; call < 100; ++call) {
                if (!choose.add(place, call, std::uint64_t{1} << 26)) continue;
                probes_s += 1e-4;
                ++facts.probes;
                facts.probe_bytes += std::uint64_t{1} << 26;
            }
            facts.probe_s += probes_s;
            const double step_s = (step == 0 ? each.first_s : 0.1) + probes_s;
            facts.now_s += step_s + (step % each.pause_every == each.pause_every - 1 ? each.pause_s : 0);
            if (step == 0) continue;
            early_s += probes_s;
            working_s += step_s;
        }
        CHECK(early_s <= 0.01 * working_s);
    }
}

TEST_CASE("each signature is seen, also of more than the sampler can count apart")
{
    sampler choose({.every = 16});
    const call_place place;
    std::map<std::uint64_t, int> chosen;
    for (int round = 0; round < 800; ++round) {
        for (std::uint64_t i = 0; i < 3000; ++i) {
            const std::uint64_t signature = i * 0x9e3779b97f4a7c15u + 1;
            chosen[signature] += choose.add(place, signature, 1);
        }
    }
    for (const auto& each : chosen) {
        CAPTURE(each.first);
        REQUIRE(each.second >= 25);
        REQUIRE(each.second <= 100);
    }
}
