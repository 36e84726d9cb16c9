// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A call that steps do not make any more is told, once; patterns of calls are not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>
#include <collprobe/step/checks/missing_calls.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::missing_calls_test {

using detail::probed_call;

namespace {

using calls_of_step = std::vector<probed_call>;

probed_call call_of(const char* name, std::uint64_t count, collective what = collective::all_reduce,
    element_type type = element_type::float32)
{
    probed_call call{.call = what, .type = type, .count = count, .site = call_site::named(name, "train.cpp", "", 0)};
    call.place = detail::place_of(call.site);
    return call;
}
/// A call of a loop: all are on one line.
probed_call unnamed(std::uint64_t count, unsigned line = 88, collective what = collective::all_reduce)
{
    probed_call call{.call = what, .count = count, .site = {"train.cpp", "", line, ""}};
    call.place = detail::place_of(call.site);
    return call;
}

struct told {
    std::vector<std::string> findings;
    std::vector<std::string> notes;
};

class program {
public:
    explicit program(bool with_places = true) : with_places_(with_places) {}

    told make(const calls_of_step& calls, std::uint64_t unseen = 0, bool with_integers = true)
    {
        record_.begin(step_++, 4, report_mode::gather, calls.size());
        roster_.judge({calls.data(), calls.size()}, with_places_, with_integers, unseen, record_);
        told found;
        for (const finding& each : record_.findings) {
            CHECK(each.what == finding_kind::call_missing);
            CHECK(each.rank() == -1);
            CHECK(each.call == -1);
            CHECK(each.exact);
            CHECK(each.number.since == record_.step);
            found.findings.push_back(report::describe(each));
        }
        for (const missing_call& each : record_.missing_calls) found.notes.push_back(report::describe(each));
        return found;
    }
    void forget() { roster_.clear(); }
    /// Steps of a healthy program, by their number: no suspects, and at most so many notes.
    void stay_silent(const std::function<calls_of_step(std::uint64_t)>& calls, std::uint64_t steps = 10'000,
        std::size_t most_notes = 0)
    {
        std::size_t notes = 0;
        for (std::uint64_t s = 0; s < steps / COLLPROBE_TEST_UNLESS_BRIEF(COLLPROBE_TEST_UNLESS_SANITIZED(1, 10), 10); ++s) {
            const told found = make(calls(s));
            CAPTURE(s);
            REQUIRE(found.findings == std::vector<std::string>{});
            notes += found.notes.size();
        }
        CHECK(notes <= most_notes);
    }

private:
    detail::missing_calls_check roster_;
    step_record record_;
    bool with_places_;
    std::uint64_t step_ = 0;
};

const calls_of_step whole{call_of("wte", 4096), call_of("wpe", 1024), call_of("h0", 3000), call_of("h1", 3000)};
const calls_of_step without_wpe{whole[0], whole[2], whole[3]};
const calls_of_step loop{unnamed(4096), unnamed(1024), unnamed(3000), unnamed(3000)};
using texts = std::vector<std::string>;

} // namespace

TEST_CASE("a call that is not made from step 30 on is a suspect of step 30, once")
{
    program of;
    for (int s = 0; s < 30; ++s) CHECK(of.make(whole).findings.empty());
    const told found = of.make(without_wpe);
    CHECK(found.findings
        == texts{"whole step: the ranks left out calls that all steps before had (call_missing): since step 30 without all_reduce 'wpe' (1,024 elements of float), made in all 30 steps before"});
    CHECK(found.notes.empty());
    for (int s = 31; s < 100; ++s) CHECK(of.make(without_wpe).findings.empty());
    program anew;
    for (int s = 0; s < 30; ++s) anew.make(whole);
    anew.forget();
    CHECK(anew.make(without_wpe).findings.empty());
    // It comes back, and goes again: a pattern.
    for (int s = 0; s < 100; ++s) {
        const told later = of.make(s / 10 % 2 == 0 ? whole : without_wpe);
        CHECK(later.findings.empty());
        CHECK(later.notes.empty());
    }
}

TEST_CASE("a call that is not made from step 1 on is a note of step 1")
{
    program of;
    of.make(whole);
    const told found = of.make(without_wpe);
    CHECK(found.findings.empty());
    CHECK(found.notes
        == texts{"since step 1 without all_reduce 'wpe' (1,024 elements of float), made in the step before"});
    for (int s = 2; s < 60; ++s) CHECK(of.make(without_wpe).notes.empty());
    program later;
    for (int s = 0; s < 3; ++s) later.make(whole);
    CHECK(later.make(without_wpe).findings.size() == 1);
}

TEST_CASE("calls without names are told by their line, or by their form alone")
{
    for (const bool with_places : {true, false}) {
        program of(with_places);
        for (int s = 0; s < 30; ++s) of.make(loop);
        const told found = of.make({loop[0], loop[1], loop[3]});
        CHECK(found.findings
            == texts{"whole step: the ranks left out calls that all steps before had (call_missing): since step 30 without all_reduce (3,000 elements of float, train.cpp:88), "
                     "made in all 30 steps before"});
    }
}

TEST_CASE("of calls that only their order tells apart, the one where the sequences part is told")
{
    // As of a preloaded program: the names are indices, which move behind a missing call.
    const std::uint64_t counts[] = {100, 7, 100, 8, 100, 9, 100, 10};
    const char* const names[] = {"#0", "#1", "#2", "#3", "#4", "#5", "#6", "#7"};
    for (std::size_t lost = 0; lost < std::size(counts); ++lost) {
        const auto step = [&](bool all) {
            calls_of_step calls;
            for (std::size_t c = 0; c < std::size(counts); ++c)
                if (all || c != lost) calls.push_back(call_of(names[calls.size()], counts[c]));
            return calls;
        };
        program of(false);
        for (int s = 0; s < 30; ++s) of.make(step(true));
        const told found = of.make(step(false));
        REQUIRE(found.findings.size() == 1);
        CHECK(found.findings[0].find(std::string("without all_reduce '") + names[lost] + "' ("
                  + std::to_string(counts[lost]) + " elements of float)")
            != std::string::npos);
    }
}

TEST_CASE("more than four missing calls are one line that counts them")
{
    calls_of_step many;
    for (std::uint64_t c = 0; c < 20; ++c) many.push_back(call_of("layer", 100 + c));
    program of;
    for (int s = 0; s < 10; ++s) of.make(many);
    const told found = of.make({many.begin() + 7, many.end()});
    CHECK(found.findings
        == texts{"whole step: the ranks left out calls that all steps before had (call_missing): since step 10 without 7 calls, made in all 10 steps before; the largest is all_reduce "
                 "'layer' (106 elements of float)"});
    program other;
    for (int s = 0; s < 10; ++s) other.make(many);
    CHECK(other.make({many.begin() + 4, many.end()}).findings.size() == 4);
}

TEST_CASE("buckets that are built anew are no missing calls, unless they hold less")
{
    const auto with = [](calls_of_step buckets) {
        const calls_of_step others{unnamed(7, 90), unnamed(500, 91), unnamed(50, 92)};
        buckets.insert(buckets.end(), others.begin(), others.end());
        return buckets;
    };
    const calls_of_step first = with({unnamed(100), unnamed(200), unnamed(200)});
    const calls_of_step same = with({unnamed(310), unnamed(190)});
    const calls_of_step less = with({unnamed(310), unnamed(150)});
    program healthy;
    healthy.stay_silent([&](std::uint64_t s) { return s == 0 ? first : same; }, 100);
    program later;
    later.stay_silent([&](std::uint64_t s) { return s < 30 ? first : same; }, 100);
    program of;
    for (int s = 0; s < 30; ++s) of.make(first);
    CHECK(of.make(less).findings
        == texts{"whole step: the ranks left out calls that all steps before had (call_missing): since step 30 the calls of all_reduce have 40 float elements less than in all 30 steps "
                 "before"});
    for (int s = 0; s < 10; ++s) CHECK(of.make(less).findings.empty());
    // After a step in which buckets were built anew, a call is missed as before.
    program rebuilt;
    for (int s = 0; s < 30; ++s) rebuilt.make(s == 0 ? first : same);
    CHECK(rebuilt.make({same[0], same[1], same[3], same[4]}).findings
        == texts{"whole step: the ranks left out calls that all steps before had (call_missing): since step 30 without all_reduce (7 elements of float, train.cpp:90), made in all 30 steps "
                 "before"});
}

TEST_CASE("healthy patterns of calls are silent")
{
    SUBCASE("micro-steps without calls")
    {
        for (std::uint64_t k = 2; k < 9; ++k)
            program().stay_silent([&](std::uint64_t s) { return s % k == k - 1 ? whole : calls_of_step{}; }, 1000);
    }
    SUBCASE("micro-steps with a loss alone")
    {
        const calls_of_step loss{call_of("loss", 1)};
        calls_of_step all = whole;
        all.insert(all.begin(), loss[0]);
        for (const std::uint64_t phase : {0u, 3u})
            program().stay_silent([&](std::uint64_t s) { return s % 4 == phase ? all : loss; });
        // One gradient and one loss: half of the calls, but few of the elements.
        const calls_of_step one{call_of("g", 1000), loss[0]};
        program().stay_silent([&](std::uint64_t s) { return s % 100 < 90 ? one : loss; });
    }
    SUBCASE("a call in every k-th step")
    {
        calls_of_step more = whole;
        more.push_back(call_of("norm", 2000));
        for (std::uint64_t k = 2; k <= 50; ++k) {
            for (const std::uint64_t phase : {std::uint64_t{0}, std::uint64_t{1}, k / 2, k - 1}) {
                program().stay_silent(
                    [&](std::uint64_t s) { return s % k == phase ? more : whole; }, 1000, phase == 0 ? 1 : 0);
            }
        }
        program().stay_silent([&](std::uint64_t s) { return s % 50 == 49 ? more : whole; });
    }
    SUBCASE("two networks in turns, on one line, with more of the one")
    {
        const calls_of_step large{unnamed(1000), unnamed(900), unnamed(800)};
        const calls_of_step small{unnamed(600), unnamed(500)};
        for (const bool with_places : {true, false}) {
            program of(with_places);
            of.stay_silent([&](std::uint64_t s) { return s % 6 == 5 ? small : large; });
        }
    }
    SUBCASE("a first step of its own")
    {
        calls_of_step first = whole;
        first.insert(first.begin(), call_of("weights", 3000, collective::broadcast));
        program().stay_silent([&](std::uint64_t s) { return s == 0 ? first : whole; }, 10'000, 1);
    }
    SUBCASE("counts that change in each step")
    {
        std::mt19937 random(3);
        for (const bool with_places : {true, false}) {
            program of(with_places);
            of.stay_silent([&](std::uint64_t) {
                calls_of_step calls = whole;
                for (int c = 0; c < 4; ++c)
                    calls.insert(calls.begin() + c, unnamed(1 + random() % 500, 90, collective::all_to_all));
                return calls;
            });
        }
    }
    SUBCASE("random subsets")
    {
        for (unsigned seed = 0; seed < 20; ++seed) {
            std::mt19937 random(seed);
            std::vector<std::string> names;
            for (int e = 0; e < 64; ++e) names.push_back("expert" + std::to_string(e));
            program().stay_silent([&](std::uint64_t) {
                calls_of_step calls = whole;
                for (const std::string& name : names)
                    if (random() % 2 == 0) calls.push_back(call_of(name.c_str(), 100));
                return calls;
            }, 500, 200);
        }
    }
    SUBCASE("layers that begin to learn one after the other")
    {
        std::vector<std::string> names;
        for (int e = 0; e < 32; ++e) names.push_back("layer" + std::to_string(e));
        program().stay_silent([&](std::uint64_t s) {
            calls_of_step calls = whole;
            for (std::uint64_t c = 0; c < std::min<std::uint64_t>(s / 100, 32); ++c)
                calls.push_back(call_of(names[c].c_str(), 500));
            return calls;
        });
    }
}

TEST_CASE("a call that came later is missed after as many steps as there were without it")
{
    calls_of_step more = whole;
    more.push_back(call_of("late", 2000));
    for (const int with : {5, 9, 10, 40}) {
        CAPTURE(with);
        program of;
        for (int s = 0; s < 10; ++s) of.make(whole);
        for (int s = 0; s < with; ++s) of.make(more);
        const told found = of.make({more[0], more[1], more[3], more[4]});
        CHECK(found.findings.size() == (with >= 3 ? 1 : 0)); // h0 was always there
        program other;
        for (int s = 0; s < 10; ++s) other.make(whole);
        for (int s = 0; s < with; ++s) other.make(more);
        calls_of_step changed = whole;
        changed.push_back(call_of("x", 1, collective::broadcast)); // no step that is known
        CHECK(other.make(changed).findings.size() == (with >= 10 ? 1 : 0));
    }
}

TEST_CASE("nothing is missed where calls were not looked at")
{
    program of;
    for (int s = 0; s < 30; ++s) of.make(whole);
    CHECK(of.make(without_wpe, 1).findings.empty());
    CHECK(of.make(without_wpe, 1).findings.empty());
    CHECK(of.make(whole).findings.empty());
    CHECK(of.make(without_wpe).findings.size() == 1);
    // Integers count where all of them are seen.
    calls_of_step mixed = whole;
    mixed.push_back(call_of("ids", 2000, collective::all_gather, element_type::int64));
    program integers;
    for (int s = 0; s < 100; ++s) CHECK(integers.make(s % 10 == 0 ? mixed : whole, 0, s % 10 == 0).findings.empty());
    CHECK(integers.make(whole, 0, true).findings.size() == 1);
}

TEST_CASE("programs of random periodic patterns have no suspect once each of their steps has come")
{
    std::mt19937 random(11);
    std::vector<std::string> names;
    for (int e = 0; e < 40; ++e) names.push_back("t" + std::to_string(e));
    std::uint64_t missed = 0;
#if COLLPROBE_TEST_BRIEF
    constexpr int trials = COLLPROBE_TEST_UNLESS_SANITIZED(60, 12);
#else
    constexpr int trials = 300;
#endif
    for (int trial = 0; trial < trials; ++trial) {
        struct pattern {
            probed_call call;
            std::uint64_t every;
            std::uint64_t phase;
            bool leaves_out;
        };
        std::vector<pattern> patterns;
        const std::uint64_t cycle[] = {1, 2, 3, 4, 6, 12};
        for (std::size_t c = 0; c < 4 + random() % 30; ++c) {
            const bool is_named = random() % 2 == 0;
            const std::uint64_t count = 1 + random() % 2000;
            const std::uint64_t every = cycle[random() % 3 == 0 ? random() % 6 : 0];
            patterns.push_back({is_named ? call_of(names[c].c_str(), count) : unnamed(count, 80 + static_cast<unsigned>(random() % 3)), every,
                random() % every, every > 1 && random() % 2 == 0});
        }
        const auto step = [&](std::uint64_t s) {
            calls_of_step calls;
            for (const pattern& each : patterns)
                if ((s % each.every == each.phase) != each.leaves_out) calls.push_back(each.call);
            return calls;
        };
        program of(trial % 2 == 0);
        for (std::uint64_t s = 0; s < 12; ++s) of.make(step(s));
        CAPTURE(trial);
        for (std::uint64_t s = 12; s < 200; ++s) {
            const told found = of.make(step(s));
            REQUIRE(found.findings.empty());
            REQUIRE(found.notes.empty());
        }
        // The wrong twin loses a call that each step has.
        std::size_t lost = 0;
        while (lost < patterns.size() && patterns[lost].every != 1) ++lost;
        if (lost == patterns.size()) continue;
        patterns.erase(patterns.begin() + static_cast<std::ptrdiff_t>(lost));
        bool is_told = false;
        for (std::uint64_t s = 200; s < 212; ++s) {
            const told found = of.make(step(s));
            is_told = is_told || !found.findings.empty() || !found.notes.empty();
        }
        missed += is_told ? 0 : 1;
    }
    MESSAGE(missed << " of " << trials << " lost calls were not told");
    CHECK(missed < 30);
}

TEST_CASE("in both modes, named and unnamed, all ranks tell the call that they do not make any more")
{
    for (const report_mode mode : testing::both_modes) {
        for (const int from : {1, 30}) {
            const bool is_named = (mode == report_mode::gather) == (from == 1);
            const auto records = testing::records_of({3, 40, {.mode = mode, .times = false}}, [&](auto& comm, auto& stream, int s, auto&) {
                static thread_local std::vector<float> g(64);
                const char* const names[] = {"a", "b", "c", "d", "e"};
                for (std::size_t t = 0; t < 5; ++t) {
                    if (t == 2 && s >= from) continue;
                    for (float& x : g) x = static_cast<float>(comm.rank() + 1) + static_cast<float>(s * static_cast<int>(t));
                    const view<float> all = view(g).part(0, 32 + 4 * t);
                    comm.all_reduce(view<const float>(all), all, reduction::sum, stream,
                        is_named ? call_site::named(names[t]) : call_site::current());
                    stream.synchronize();
                }
            });
            for (const step_record& record : records) {
                const bool is_first = record.step == static_cast<std::uint64_t>(from);
                CHECK(testing::told(record) == (is_first && from == 30 ? "call_missing" : ""));
                REQUIRE(record.missing_calls.size() == (is_first && from == 1 ? 1 : 0));
                if (!is_first) continue;
                const finding* const found = from == 30 ? &record.findings[0] : nullptr;
                const call_form& lost = found != nullptr ? found->other : record.missing_calls[0].call;
                CHECK(lost.count == 40);
                CHECK(lost.site.line != 0);
                if (is_named) CHECK(std::string(lost.site.name) == "c");
                if (found != nullptr) CHECK(found->number.steps == 30);
                else CHECK(report::step_table(record).find("note: since step 1 without all_reduce") != std::string::npos);
            }
        }
    }
}

} // namespace collprobe::testing::missing_calls_test
