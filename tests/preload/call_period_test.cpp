// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/preload/engine/call_period.hpp"

#include "support/count_allocations.hpp"

#include "call_sequences.hpp"

namespace collprobe::testing::call_period_test {
namespace {

using namespace call_sequences;
using collprobe_preload::call_period;
using collprobe_preload::call_place;
using collprobe_preload::call_track;
using collprobe_preload::first_extra_bucket;
using collprobe_preload::step_source;

#if COLLPROBE_TEST_BRIEF
constexpr std::size_t reduction = 10;
#else
constexpr std::size_t reduction = 1;
#endif

using places = std::vector<call_place>;

bool same(const call_place& a, const call_place& b)
{
    return a.step == b.step && a.bucket == b.bucket && a.source == b.source && a.first == b.first && a.extra == b.extra;
}

places follow(call_period& finder, const calls& made)
{
    places result;
    for (const call& each : made) result.push_back(finder.add(each.signature, each.bytes));
    return result;
}
places follow(const calls& made)
{
    call_period finder;
    return follow(finder, made);
}

bool is_found(const call_place& place) { return place.source == step_source::period; }

std::size_t count_of(const places& found, bool (*what)(const call_place&))
{
    return static_cast<std::size_t>(std::count_if(found.begin(), found.end(), what));
}

/// Of each call: the regular calls of its found step; 0: none was found. While steps are followed only longer ones take
/// their place, so a shorter one is broken off.
std::vector<std::size_t> periods_of(const places& found)
{
    std::vector<std::size_t> result(found.size());
    for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
        std::size_t regular = 0;
        for (end = begin; end < found.size() && (end == begin || !found[end].first); ++end)
            regular += is_found(found[end]) && !found[end].extra;
        if (begin > 0 && regular > 0) regular = std::max(regular, result[begin - 1]);
        for (std::size_t i = begin; i < end; ++i) result[i] = regular;
    }
    return result;
}

/// Where the last phase without a lock ended; the number of calls if it has not.
std::size_t locked_from(const places& found)
{
    const std::vector<std::size_t> periods = periods_of(found);
    std::size_t i = found.size();
    while (periods.back() != 0 && i > 0 && periods[i - 1] == periods.back()) --i;
    return i;
}

/// How often a found step began to be followed, after none or another one; and ceased to be.
std::size_t locks_of(const places& found)
{
    const std::vector<std::size_t> periods = periods_of(found);
    std::size_t locks = 0;
    for (std::size_t i = 0; i < found.size(); ++i) locks += periods[i] != 0 && (i == 0 || periods[i] != periods[i - 1]);
    return locks;
}
std::size_t losses_of(const places& found)
{
    std::size_t losses = 0;
    for (std::size_t i = 1; i < found.size(); ++i) losses += is_found(found[i - 1]) && !is_found(found[i]);
    return losses;
}

/// All calls of the steps from `from` on have the numbers of steps that count up by one, and in each step the
/// same buckets. `offset`: where in a step its number changes.
void check_steps(const program& made, const places& found, std::size_t from, std::size_t to, std::size_t offset = 0)
{
    const std::vector<std::size_t> periods = periods_of(found);
    std::vector<std::uint32_t> buckets;
    for (std::size_t s = from; s + 1 < to; ++s) {
        const std::size_t begin = made.steps[s] + offset;
        const std::size_t end = made.steps[s + 1] + offset;
        std::vector<std::uint32_t> here;
        for (std::size_t i = begin; i < end; ++i) {
            CAPTURE(s);
            CAPTURE(i - begin);
            REQUIRE(is_found(found[i]));
            REQUIRE(found[i].first == (i == begin));
            REQUIRE(found[i].step == found[made.steps[from] + offset].step + (s - from));
            REQUIRE(found[i].extra == (found[i].bucket >= first_extra_bucket));
            here.push_back(found[i].bucket);
        }
        std::vector<std::uint32_t> regular;
        for (const std::uint32_t bucket : here) {
            if (bucket < first_extra_bucket) regular.push_back(bucket);
        }
        REQUIRE(regular.size() == periods[begin]);
        for (std::uint32_t b = 0; b < regular.size(); ++b) REQUIRE(regular[b] == b);
        if (s == from) buckets = here;
        else REQUIRE(here == buckets);
    }
}

/// A recorded program with as many equal steps as are asked for, after those that differ.
program steady(const recorded_program& of, std::size_t steps)
{
    program result;
    result.other(of.init);
    for (const calls& each : of.first) result.step(each);
    for (std::size_t s = 0; s < steps; ++s) result.step(of.step);
    return result;
}

/// A data-parallel step of that many gradient buckets, no two of them equal.
calls buckets(std::size_t count, std::uint64_t elements = 6553600)
{
    calls result;
    for (std::size_t i = 0; i < count; ++i) result.push_back(call_of(0, elements + i));
    return result;
}
const call logged = call_of(0, 2);

/// A step of a model whose layers are gathered one by one, and whose gradients are scattered in turn with
/// that.
calls sharded_step(std::size_t layers)
{
    calls result{call_of(2, 500000)};
    append(result, {call_of(2, 100000)}, layers + 2);
    append(result, {call_of(1, 100000), call_of(2, 100000)}, layers > 2 ? layers - 2 : 0);
    append(result, {call_of(1, 100000), call_of(1, 100000), call_of(1, 500000), call_of(0, 1)});
    return result;
}

TEST_CASE("A11: in recorded programs the step is found within four periods, at its first call, and keeps its "
          "buckets")
{
    struct expectation {
        std::uint32_t period;
        std::size_t offset; // of the first call of the found step, where it is not that of the real one
        bool counts = true; // steps from the first on
    };
    const std::map<std::string, expectation> expected = {
        {"ddp", {14, 0}},
        {"ddp_batch_norm", {15, 0}},
        {"fsdp1", {74, 0}},
        {"fsdp2", {74, 0}},
        {"hsdp_shard", {74, 0}},
        {"hsdp_replicate", {25, 0}},
        {"fsdp2_accumulation", {221, 0, false}},
        // The first step, which was another, ended with the same calls as the later ones.
        {"zero1", {14, 5, false}},
        {"tensor_parallel", {50, 0}},
        {"sequence_parallel", {101, 0}},
        {"pipeline_1f1b", {97, 0, false}},
    };
    std::size_t seen = 0;
    for (const recorded_program& each : recorded_programs()) {
        const auto known = expected.find(each.name);
        if (known == expected.end()) continue;
        ++seen;
        CAPTURE(each.name);
        const std::size_t equal = each.first.size();
        const program made = steady(each, 12);
        const places found = follow(made.made);
        const std::size_t lock = locked_from(found);
        REQUIRE(lock < found.size());
        CHECK(periods_of(found)[lock] == known->second.period);
        CHECK(lock <= made.steps[equal + 4]);
        check_steps(made, found, equal + 4, made.steps.size(), known->second.offset);
        // Numbers are the program's own where nothing was taken for a step before.
        for (std::size_t s = equal + 4; known->second.counts && s < made.steps.size(); ++s)
            CHECK(found[made.steps[s]].step == s);
    }
    CHECK(seen == expected.size());
    // Gradients reduced in each micro-batch make the micro-batch the step.
    CHECK(periods_of(follow(steady(recorded("fsdp2_accumulation_with_sync"), 12).made)).back() == 74);
}

TEST_CASE("A11: logging at every k-th step neither ends the lock nor moves a bucket")
{
    for (const std::size_t every : {1u, 2u, 3u, 10u, 50u}) {
        for (const std::size_t count : {3u, 5u, 12u}) {
            for (const std::size_t loggings : {1u, 3u, 20u}) {
                CAPTURE(every);
                CAPTURE(count);
                CAPTURE(loggings);
                program made;
                std::vector<bool> logs;
                for (std::size_t s = 0; s < 200; ++s) {
                    calls step = buckets(count);
                    if (s % every == 0) append(step, {logged}, loggings);
                    made.step(step);
                }
                const places found = follow(made.made);
                std::size_t start = 0;
                while (!is_found(found[made.steps[start]])) ++start;
                // Evidence of 32 bits: with three buckets that is more than four steps.
                CHECK(start <= (count < 5 ? 9u : 4u));
                for (std::size_t s = 10; s < 200; ++s) {
                    for (std::size_t i = 0; i < count; ++i) {
                        const call_place& place = found[made.steps[s] + i];
                        REQUIRE(is_found(place));
                        REQUIRE(place.bucket == i);
                        REQUIRE(place.first == (i == 0));
                        REQUIRE(place.step == found[made.steps[10]].step + (s - 10));
                    }
                    if (s % every != 0 || !found[made.steps[s] + count].extra) continue;
                    for (std::size_t i = 0; i < std::min<std::size_t>(loggings, 16); ++i) {
                        REQUIRE(found[made.steps[s] + count + i].bucket == first_extra_bucket + i);
                    }
                }
            }
        }
    }
}

TEST_CASE("A11: an extra call keeps its number though others come before it, up to a shared last one")
{
    call_period finder;
    const calls step = buckets(6);
    for (int s = 0; s < 10; ++s) follow(finder, step);
    const auto number = [&](const call& each) {
        const call_place place = finder.add(each.signature, each.bytes);
        CHECK(place.extra);
        return place.bucket - first_extra_bucket;
    };
    const call norm = call_of(0, 1);
    CHECK(number(norm) == 0);
    CHECK(number(logged) == 1);
    follow(finder, step);
    CHECK(number(logged) == 1);
    CHECK(number(norm) == 0);
    CHECK(number(norm) == 2);
    follow(finder, step);
    CHECK(number(norm) == 0);
    CHECK(number(norm) == 2);
    std::set<std::uint32_t> seen;
    for (std::uint64_t i = 0; i < 400; ++i) seen.insert(number(call_of(0, 10 + i)));
    CHECK(seen.size() == 253);
    CHECK(*seen.rbegin() == 255);
}

TEST_CASE("A11: evaluation every 100 steps and checkpoints: the lock is lost, found again, and the buckets "
          "are the same")
{
    for (const char* name : {"fsdp1", "fsdp2", "hsdp_shard", "fsdp2_accumulation"}) {
        CAPTURE(name);
        const recorded_program of = recorded(name);
        program made;
        std::vector<std::size_t> after;
        for (std::size_t round = 0; round < 4; ++round) {
            if (round > 0) made.step({of.step.begin() + 1, of.step.end()});
            after.push_back(made.steps.size());
            for (std::size_t s = 0; s < 100; ++s) made.step(of.step);
            for (std::size_t b = 0; b < 20; ++b) made.other(b == 0 ? of.first_batch : of.batch);
            if (round == 2) made.other(calls(60, call_of(2, 3000000))); // a checkpoint
        }
        const places found = follow(made.made);
        CHECK(count_of(found, [](const call_place& place) { return place.first && !is_found(place); }) > 3);
        CHECK(losses_of(found) >= 4);
        for (std::size_t round = 0; round < 4; ++round) {
            const std::size_t from = after[round] + (round == 0 ? 4 : 2);
            check_steps(made, found, from, after[round] + 100);
            // The same calls have the same buckets as before the first evaluation.
            for (std::size_t i = 0; i < of.step.size(); ++i) {
                REQUIRE(found[made.steps[from] + i].bucket == found[made.steps[50] + i].bucket);
            }
        }
    }
    // Evaluation of a data-parallel program makes no large calls.
    program made = steady(recorded("ddp"), 100);
    const std::size_t before = made.steps.size();
    append(made.made, {logged}, 300);
    for (int s = 0; s < 100; ++s) made.step(recorded("ddp").step);
    const places found = follow(made.made);
    CHECK(losses_of(found) == 0);
    check_steps(made, found, before, made.steps.size());
}

TEST_CASE("A11: experts: counts that vary, once or from a few values, are buckets of a step as well")
{
    for (const std::uint64_t values : {1000000u, 8u}) {
        CAPTURE(values);
        std::mt19937_64 random(7);
        program made;
        for (std::size_t s = 0; s < 60; ++s) {
            calls step;
            for (int layer = 0; layer < 12; ++layer) {
                step.push_back(call_of(2, 400000 + 128 * (random() % values), 2, 0));
                step.push_back(call_of(1, 400000 + 128 * (random() % values), 2));
            }
            append(step, buckets(5));
            step.push_back(logged);
            made.step(step);
        }
        const places found = follow(made.made);
        CHECK(locked_from(found) <= made.steps[4]);
        CHECK(periods_of(found).back() == 29);
        check_steps(made, found, 4, made.steps.size());
    }
    // Nothing of a step is the same: no step is found, and none is invented.
    std::mt19937_64 random(8);
    calls made;
    for (int s = 0; s < 100; ++s) {
        const std::uint64_t tokens = 100000 + random() % 100000;
        append(made, {call_of(0, tokens)}, 96);
    }
    call_period finder;
    CHECK(count_of(follow(finder, made), is_found) == 0);
    // Nor where only the kinds of calls repeat.
    made.clear();
    for (int s = 0; s < 100; ++s) {
        for (const unsigned operation : {2u, 1u, 0u, 0u, 3u, 2u, 2u, 0u, 1u, 3u}) {
            made.push_back(call_of(operation, 100000 + random() % 1000000));
        }
    }
    CHECK(count_of(follow(finder, made), is_found) == 0);
}

TEST_CASE("equal layers in a step are no step, however many there are")
{
    std::size_t most_locks = 0;
    for (std::size_t layers = 1; layers <= 126; ++layers) {
        CAPTURE(layers);
        program made;
        for (int s = 0; s < 12; ++s) made.step(sharded_step(layers));
        const places found = follow(made.made);
        // Beyond 96 layers the layers are taken for steps at first, until the third step has ended.
        most_locks = std::max(most_locks, locks_of(found));
        if (layers <= 96) REQUIRE(locks_of(found) == 1);
        check_steps(made, found, 3, made.steps.size());
    }
    CHECK(most_locks <= 3);
}

TEST_CASE("parts in parts: micro-batches of layers in a step are the step where it ends with other large calls")
{
    program made;
    for (int s = 0; s < 10; ++s) {
        calls step;
        append(step, sharded_step(24), 8);
        append(step, buckets(9, 3000000));
        made.step(step);
    }
    check_steps(made, follow(made.made), 3, made.steps.size());
    // After something else it is the whole step that is known again.
    const std::size_t before = made.steps.size();
    made.other(calls(400, call_of(3, 4000000)));
    for (int s = 0; s < 4; ++s)
        made.step({made.made.begin(), made.made.begin() + static_cast<std::ptrdiff_t>(made.steps[1])});
    check_steps(made, follow(made.made), before + 1, made.steps.size());
    // A part that comes 32 times or more is a step.
    program other;
    for (int s = 0; s < 20; ++s) {
        calls cycle;
        append(cycle, buckets(10), 40);
        append(cycle, buckets(30, 3000000));
        other.step(cycle);
    }
    const places parts = follow(other.made);
    CHECK(periods_of(parts)[other.steps[15] + 100] == 10);
    CHECK(losses_of(parts) == 19 + 1);
    // Also where other calls came in between, but too few to end it.
    program mixed;
    for (int s = 0; s < 30; ++s) {
        calls cycle;
        append(cycle, buckets(5), 17);
        append(cycle, buckets(8, 3000000));
        mixed.step(cycle);
    }
    const places patient = follow(mixed.made);
    CHECK(periods_of(patient).back() == 5);
    CHECK(losses_of(patient) == 0);
    CHECK(locks_of(patient) == 1);
    CHECK(count_of(patient, [](const call_place& place) { return place.extra; }) == 30 * 8);
}

TEST_CASE("the smallest and the largest steps are found: one call, thousands of calls, all of them equal in size")
{
    // Calls until the lock; below five calls a step that is more than four steps.
    const std::map<std::size_t, std::size_t> needed = {{1, 192}, {2, 192}, {3, 24}, {4, 20}, {5, 20}, {6, 24}, {7, 21},
        {8, 24}, {9, 27}, {10, 30}, {75, 225}, {300, 900}, {1000, 3000}, {2048, 6144}, {3001, 9003}, {4096, 12288}};
    for (const auto& each : needed) {
        const std::size_t length = each.first;
        const std::size_t until = each.second;
        CAPTURE(length);
        program made;
        for (std::size_t s = 0; s < 8 + 400 / length; ++s) {
            calls step;
            for (std::size_t i = 0; i < length; ++i)
                step.push_back(call_of(0, 1000000, 4, 1, static_cast<unsigned>(i)));
            made.step(step);
        }
        const places found = follow(made.made);
        CHECK(locked_from(found) == until);
        check_steps(made, found, (until + length - 1) / length, made.steps.size());
    }
    // One more call is too much for a step of large calls.
    calls made;
    for (int s = 0; s < 6; ++s) append(made, buckets(4097));
    CHECK_FALSE(is_found(follow(made).back()));
    // Two thousand calls, of which few are large.
    program mixed;
    for (int s = 0; s < 7; ++s) {
        calls step = buckets(3);
        for (std::uint64_t i = 0; i < 2000; ++i) step.push_back(call_of(2, 10 + i));
        mixed.step(step);
    }
    check_steps(mixed, follow(mixed.made), 3, mixed.steps.size());
}

TEST_CASE("a step so long that extra calls push its pattern out of memory is lost, not followed wrongly")
{
    for (const std::size_t length : {4096u, 3900u}) {
        CAPTURE(length);
        program made;
        for (int s = 0; s < 16; ++s) {
            calls step = buckets(length);
            if (s == 8 || s == 9) {
                const calls extra = buckets(240, 4000000);
                step.insert(step.begin() + 1000, extra.begin(), extra.end());
            }
            made.step(step);
        }
        const places found = follow(made.made);
        CHECK(losses_of(found) == 1);
        const std::size_t lost = length == 4096 ? made.steps[9] : made.steps[9] + 1000 + 8189 - 2 * 3900 - 240;
        CHECK(is_found(found[lost - 1]));
        CHECK_FALSE(is_found(found[lost]));
        check_steps(made, found, 11, 16);
    }
}

TEST_CASE("a symbol is not compared with what has taken its place in memory")
{
    // With one extra call in the longest step, that would be the call before.
    program made;
    for (int s = 0; s < 12; ++s) {
        calls step = buckets(4096);
        std::fill(step.begin(), step.begin() + 100, step[0]);
        step.back() = step[0];
        if (s == 8) step.insert(step.begin() + 1000, call_of(3, 4000000));
        made.step(step);
    }
    const places found = follow(made.made);
    CHECK(is_found(found[made.steps[9] - 1]));
    CHECK_FALSE(is_found(found[made.steps[9]]));
    check_steps(made, found, 10, 12);
}

TEST_CASE("random sequences have no step")
{
    for (const std::uint64_t alphabet : {2u, 3u, 4u, 5u, 8u, 16u, 64u, 100000u}) {
        for (const bool skewed : {false, true}) {
            CAPTURE(alphabet);
            CAPTURE(skewed);
            std::mt19937_64 random(alphabet);
            call_period finder;
            constexpr std::size_t count = 2000000 / reduction;
            std::size_t found = 0;
            std::size_t steps = 0;
            for (std::size_t i = 0; i < count; ++i) {
                std::uint64_t symbol = random() % alphabet;
                if (skewed) symbol = std::min(symbol, random() % alphabet);
                const call each = call_of(0, 1000000 + symbol);
                const call_place place = finder.add(each.signature, each.bytes);
                found += is_found(place);
                steps += place.first;
            }
            CHECK(found == 0);
            CHECK(steps == (count + 1023) / 1024);
        }
    }
}

TEST_CASE("steps never count down, and first marks each new number")
{
    std::mt19937_64 random(3);
    for (std::size_t trial = 0; trial < 200 / reduction; ++trial) {
        call_period finder;
        call_place last;
        std::uint64_t number = 0;
        for (int part = 0; part < 12; ++part) {
            calls step;
            const std::size_t length = 1 + random() % 40;
            for (std::size_t i = 0; i < length; ++i)
                step.push_back(call_of(0, random() % 8 == 0 ? 4 : 100000 + random() % 5));
            const std::size_t times = random() % 20;
            for (std::size_t k = 0; k < times; ++k) {
                for (const call& each : step) {
                    const call_place place = finder.add(each.signature, each.bytes);
                    REQUIRE(place.first == (number == 0 || place.step != last.step || place.source != last.source));
                    REQUIRE((number == 0 || place.step >= last.step));
                    REQUIRE((is_found(place) || !place.extra));
                    last = place;
                    ++number;
                }
            }
        }
    }
}

TEST_CASE("counters go past 2^32 and 2^63 calls")
{
    const program made = steady(recorded("fsdp2"), 40);
    const places expected = follow(made.made);
    for (const std::uint64_t before : {(std::uint64_t{1} << 32) - 700, (std::uint64_t{1} << 32) - 1,
             (std::uint64_t{1} << 63) - 701, std::uint64_t{12345}}) {
        CAPTURE(before);
        call_period first(before);
        call_period finder = std::move(first);
        const places found = follow(finder, made.made);
        std::size_t different = 0;
        for (std::size_t i = 0; i < found.size(); ++i) different += !same(found[i], expected[i]);
        CHECK(different == 0);
    }
}

TEST_CASE("told steps come before found ones: tag, mark, then NVTX")
{
    call_period finder;
    const calls step = buckets(6);
    for (int s = 0; s < 10; ++s) follow(finder, step);
    for (std::uint32_t i = 0; i < 6; ++i)
        CHECK(
            same(finder.add(step[i].signature, step[i].bytes, 41), call_place{41, i, step_source::tag, i == 0, false}));
    // A found step went on beneath.
    CHECK(same(follow(finder, step)[0], call_place{11, 0, step_source::period, true, false}));
    finder.mark(7000, step_source::nvtx);
    places found = follow(finder, step);
    CHECK(same(found[0], call_place{7000, 0, step_source::nvtx, true, false}));
    CHECK(same(found[5], call_place{7000, 5, step_source::nvtx, false, false}));
    finder.mark(500);
    finder.mark(7001, step_source::nvtx); // the program marks its steps itself
    found = follow(finder, step);
    CHECK(same(found[0], call_place{500, 0, step_source::marked, true, false}));
    CHECK(same(finder.add(logged.signature, logged.bytes),
        call_place{500, first_extra_bucket, step_source::marked, false, true}));
    // A step that goes on: its buckets do so, too.
    found = follow(finder, step);
    CHECK(same(found[0], call_place{500, 6, step_source::marked, false, false}));
    const call_place tagged = finder.add(step[0].signature, step[0].bytes, 42);
    CHECK(same(tagged, call_place{42, 0, step_source::tag, true, false}));
    CHECK(same(finder.add(step[1].signature, step[1].bytes, 42), call_place{42, 1, step_source::tag, false, false}));
    finder.mark(501);
    found = follow(finder, {step.begin() + 2, step.end()});
    CHECK(same(found[0], call_place{501, 0, step_source::marked, true, false}));

    // Told from the first call, a step is a step whatever its calls are.
    call_period told;
    std::size_t begun = 0;
    std::mt19937_64 random(5);
    for (std::uint64_t s = 0; s < 100; ++s) {
        told.mark(s);
        const std::size_t count = 1 + random() % 30;
        for (std::uint32_t i = 0; i < count; ++i) {
            const call each = call_of(0, 1000000 + random() % 1000);
            const call_place place = told.add(each.signature, each.bytes);
            REQUIRE(place.step == s);
            REQUIRE(place.bucket == i);
            REQUIRE(place.first == (i == 0));
            REQUIRE(place.source == step_source::marked);
            begun += place.first;
        }
    }
    CHECK(begun == 100);
    CHECK(std::string(name(step_source::tag)) + name(step_source::marked) + name(step_source::nvtx)
            + name(step_source::period) + name(step_source::calls)
        == "tagmarkednvtxperiodcalls");
}

TEST_CASE("a signature tells calls apart, and its upper bits do not depend on the count")
{
    std::set<std::uint64_t> seen;
    std::set<std::uint64_t> kinds;
    for (unsigned operation = 0; operation < 9; ++operation) {
        for (unsigned type = 0; type < 12; ++type) {
            for (unsigned reduction_class = 0; reduction_class < 6; ++reduction_class) {
                for (unsigned root = 0; root < 4; ++root) {
                    const auto signature = [&](std::uint64_t count) {
                        return collprobe_preload::call_signature(operation, type, count, reduction_class, root);
                    };
                    for (const std::uint64_t count : {0u, 1u, 2u, 1024u, 1u << 31}) {
                        seen.insert(signature(count));
                        REQUIRE((signature(count) >> 40) == (signature(77) >> 40));
                    }
                    kinds.insert(signature(0) >> 40);
                }
            }
        }
    }
    CHECK(seen.size() == 9 * 12 * 6 * 4 * 5);
    CHECK(kinds.size() >= 9 * 12 * 6 * 4 - 3); // 2592 in 2^24: 0.2 pairs are expected to collide
}

TEST_CASE("nothing is allocated after construction")
{
    const program made = steady(recorded("fsdp2"), 40);
    call_period finder;
    const long before = allocations;
    for (const call& each : made.made) finder.add(each.signature, each.bytes);
    finder.mark(1);
    for (std::uint64_t i = 0; i < 3000; ++i) finder.add(i, i % 7 == 0 ? 4 : 1000000, i / 10);
    CHECK(allocations == before);
}

/// The longest end of the sequence with each period, by comparing all symbols.
class all_runs {
public:
    explicit all_runs(std::size_t longest) : runs_(longest + 1) {}

    void push(std::uint32_t symbol)
    {
        symbols_.push_back(symbol);
        for (std::size_t p = 1; p < runs_.size(); ++p) {
            const bool matches = symbols_.size() > p && symbols_[symbols_.size() - 1 - p] == symbol;
            runs_[p] = matches ? (runs_[p] == 0 ? p + 1 : runs_[p] + 1) : 0;
        }
    }
    std::size_t run(std::size_t period) const { return runs_[period]; }
    std::size_t longest() const { return *std::max_element(runs_.begin(), runs_.end()); }

private:
    std::vector<std::uint32_t> symbols_;
    std::vector<std::size_t> runs_;
};

TEST_CASE("a track follows the period with the longest run, as comparing all symbols finds it")
{
    std::mt19937_64 random(11);
    std::size_t compared = 0;
    for (std::size_t trial = 0; trial < 300 / reduction; ++trial) {
        constexpr std::uint32_t longest = 64;
        call_track track(longest, trial % 3 == 0 ? (std::uint64_t{1} << 32) - 100 : 0);
        all_runs oracle(longest);
        const std::uint64_t alphabet = 2 + random() % 6;
        std::size_t pushed = 0;
        const auto push = [&](std::uint32_t symbol) {
            track.push(symbol);
            oracle.push(symbol);
            ++pushed;
            const std::size_t best = oracle.longest();
            if (track.period() != 0 && track.run() < 2 * longest - 1) {
                REQUIRE(track.run() <= best);
                REQUIRE(track.run() == oracle.run(track.period()));
            }
            // By three periods the one of the longest run is followed.
            for (std::size_t p = 1; p <= longest; ++p) {
                if (oracle.run(p) != best || best < std::max<std::size_t>(3 * p, 8 + p) || best >= 2 * longest - 1)
                    continue;
                ++compared;
                REQUIRE(track.period() == p);
                REQUIRE(track.run() == best);
                break;
            }
            if (track.is_ready()) REQUIRE(track.run() >= 3 * std::uint64_t{track.period()});
        };
        while (pushed < 3000) {
            // Parts within parts, each some times.
            std::vector<std::uint32_t> part;
            const std::size_t length = 1 + random() % 12;
            for (std::size_t i = 0; i < length; ++i) part.push_back(static_cast<std::uint32_t>(random() % alphabet));
            std::vector<std::uint32_t> whole;
            const std::size_t inner = 1 + random() % 4;
            for (std::size_t k = 0; k < inner; ++k) whole.insert(whole.end(), part.begin(), part.end());
            const std::size_t more = random() % 8;
            for (std::size_t i = 0; i < more; ++i) whole.push_back(static_cast<std::uint32_t>(random() % alphabet));
            const std::size_t times = 1 + random() % 6;
            for (std::size_t k = 0; k < times; ++k) {
                for (const std::uint32_t symbol : whole) push(symbol);
            }
        }
    }
    CHECK(compared > 50000 / reduction);
}

} // namespace

} // namespace collprobe::testing::call_period_test
