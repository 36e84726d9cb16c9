// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <collprobe/metrics/lateness.hpp>

#include "support/count_allocations.hpp"
#include "support/errors.hpp"

namespace collprobe::testing::lateness_test {
namespace {

using collprobe::call_lateness;
using collprobe::lateness;
using collprobe::lateness_watch;
using collprobe::rank_lateness;
using collprobe::step_lateness;

using row = std::vector<double>;

const double absent = collprobe::detail::not_a_number();

bool undefined(double value) { return collprobe::is_nan(value); }

/// Equal numbers, or both undefined.
bool same(double a, double b) { return undefined(a) ? undefined(b) : !undefined(b) && a == b; }

bool near(double value, double expected, double tolerance)
{
    return collprobe::is_finite(value) && std::fabs(value - expected) <= tolerance;
}

/// The same but for a quotient that -ffast-math may round otherwise.
bool alike(double a, double b) { return same(a, b) || near(a, b, 4e-16 * std::fabs(b)); }

double median(row values)
{
    if (values.empty()) return absent;
    std::sort(values.begin(), values.end());
    const std::size_t k = values.size() / 2;
    return values.size() % 2 == 1 ? values[k] : (values[k - 1] + values[k]) / 2;
}

/// The median of the entries but for `r`, without absent ones.
double median_of_others(const row& values, std::size_t r)
{
    row others;
    for (std::size_t s = 0; s < values.size(); ++s)
        if (s != r && !undefined(values[s])) others.push_back(values[s]);
    return median(others);
}

/// Ranks with clocks of one machine: each works, enters a call, and leaves it once all have entered, plus `transport`,
/// plus a time of its own. All numbers are whole, so that sums are exact.
struct timeline {
    row now;
    row in_call;
    row before;

    explicit timeline(std::size_t ranks) : now(ranks), in_call(ranks), before(ranks) {}
    void call(const row& work, double transport, const row& own_end)
    {
        double all_entered = 0;
        for (std::size_t r = 0; r < now.size(); ++r) {
            before[r] = work[r];
            now[r] += work[r];
            all_entered = std::max(all_entered, now[r]);
        }
        for (std::size_t r = 0; r < now.size(); ++r) {
            const double end = all_entered + transport + own_end[r];
            in_call[r] = end - now[r];
            now[r] = end;
        }
    }
    double end() const { return *std::max_element(now.begin(), now.end()); }
};

TEST_CASE("a rank is absent from a step whose times add up to none")
{
    lateness_watch watch(4);
    watch.add(row{0x1p52, 0x1p53 - 2, 20, 500});
    watch.add(row{0x1p52, 1, absent, 500});
    CHECK(watch.end_step().present == 2); // 2^53 - 1 is the longest time
    for (const int r : {0, 2}) {
        const rank_lateness none = watch.of(r);
        CHECK(none.steps == 0);
        for (const double x :
            {none.latest, none.behind, none.behind_before, none.share_last, none.gain, none.gain_before})
            CHECK(undefined(x));
    }
}

TEST_CASE("sizes that differ are refused")
{
    CHECK_THROWS_AS(lateness(row(3), row(2)), collprobe::error);
    lateness_watch watch(3);
    const auto said = [&](const row& times, const row& before) {
        const auto error = collprobe::testing::error_of([&] { watch.add(times, before); });
        return error.has_value() ? std::string(error->what()) : std::string("nothing");
    };
    CHECK(collprobe::testing::contains(
        said(row(2), {}), "lateness_watch::add: invalid argument: 2 times in the call for 3 ranks"));
    CHECK(collprobe::testing::contains(
        said(row(3), row(4)), "lateness: invalid argument: 3 times in the call, but 4 before it"));
    CHECK(watch.end_step().calls == 0);
    CHECK_NOTHROW(watch.add(row(3), row(3)));
    CHECK(watch.end_step().calls == 1);
}

TEST_CASE("options out of range are refused")
{
    const double inf = std::numeric_limits<double>::infinity();
    CHECK_THROWS_AS(lateness_watch(0), collprobe::error);
    for (const double floor : {-1.0, inf, absent}) CHECK_THROWS_AS(lateness_watch(4, floor), collprobe::error);
}

TEST_CASE("only a call that waits for all ranks tells who came late")
{
    using collprobe::collective;
    for (const collective call : {collective::all_reduce, collective::reduce_scatter, collective::all_gather,
             collective::all_to_all, collective::barrier})
        CHECK(collprobe::waits_for_all(call));
    CHECK_FALSE(collprobe::waits_for_all(collective::broadcast));
    CHECK_FALSE(collprobe::waits_for_all(collective::split));
}

TEST_CASE("a call agrees with sorting of the times that are some")
{
    const double none[] = {absent, -1, std::numeric_limits<double>::infinity(), 0x1p53};
    const auto is_time = [](double x) { return x >= 0 && x < 0x1p53; };
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 4000; ++trial) {
        const std::size_t n = 1 + random() % 9;
        row times(n);
        row before(n);
        for (std::size_t r = 0; r < n; ++r) {
            times[r] = random() % 5 == 0 ? none[random() % 4] : random() % 40 == 0 ? 0x1p53 - 1 : static_cast<double>(random() % 8);
            before[r] = random() % 5 == 0 ? absent : static_cast<double>(random() % 8);
        }
        std::vector<std::size_t> order;
        for (std::size_t r = 0; r < n; ++r)
            if (is_time(times[r])) order.push_back(r);
        const call_lateness call = lateness(times, before, random());
        REQUIRE(call.present == static_cast<int>(order.size()));
        if (order.size() < 2) {
            REQUIRE((call.last == -1 && call.next == -1));
            for (const double x : {call.spread, call.transport, call.gain, call.gain_before}) REQUIRE(undefined(x));
            continue;
        }
        REQUIRE(undefined(lateness(times).gain_before));
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
        const std::size_t last = static_cast<std::size_t>(call.last);
        const std::size_t next = static_cast<std::size_t>(call.next);
        REQUIRE(last != next);
        REQUIRE(times[last] == times[order[0]]);
        REQUIRE(times[next] == times[order[1]]);
        REQUIRE(call.transport == times[order[0]]);
        REQUIRE(call.gain == times[order[1]] - times[order[0]]);
        REQUIRE(call.spread == times[order.back()] - times[order[0]]);
        const double longer = before[last] - before[next];
        if (undefined(before[last]) || undefined(before[next])) REQUIRE(undefined(call.gain_before));
        else REQUIRE(call.gain_before == std::clamp(longer, 0.0, call.gain));
    }
}

TEST_CASE("equal times make each of their ranks last equally often")
{
    const row times = {40, 10, 10, 30, 10, 10};
    const int calls = 24000;
    int last[6] = {};
    int next[6] = {};
    int pairs[6][6] = {};
    int successors[6][6] = {};
    int previous = 1;
    for (int serial = 0; serial < calls; ++serial) {
        const call_lateness call = lateness(times, {}, static_cast<std::uint64_t>(serial));
        const call_lateness again = lateness(times, {}, static_cast<std::uint64_t>(serial));
        REQUIRE(call.last == again.last);
        REQUIRE(call.gain == 0);
        ++last[call.last];
        ++next[call.next];
        ++pairs[call.last][call.next];
        ++successors[previous][call.last];
        previous = call.last;
    }
    for (const std::size_t r : {0u, 3u}) CHECK(last[r] + next[r] == 0);
    const double deviation = std::sqrt(calls * 0.25 * 0.75);
    for (const std::size_t r : {1u, 2u, 4u, 5u}) {
        CHECK(near(last[r], calls / 4.0, 4 * deviation));
        CHECK(near(next[r], calls / 4.0, 4 * deviation));
        for (const std::size_t s : {1u, 2u, 4u, 5u}) {
            if (r != s) CHECK(near(pairs[r][s], calls / 12.0, 4 * std::sqrt(calls / 12.0)));
            CHECK(near(successors[r][s], calls / 16.0, 4 * std::sqrt(calls / 16.0)));
        }
    }
}

TEST_CASE("equal sums of a step make each of their ranks last equally often")
{
    lateness_watch watch(3);
    int last[3] = {};
    for (int s = 0; s < 4096; ++s) {
        watch.add(row{10, 20, 300});
        watch.add(row{20, 10, 300});
        const step_lateness found = watch.end_step();
        ++last[found.last];
        REQUIRE(found.behind == 315 - 30); // the median of 30 and 600
    }
    CHECK(last[2] == 0);
    CHECK(near(last[0] / 4096.0, 0.5, 4 * std::sqrt(0.25 / 4096)));
    CHECK(watch.of(0).share_last + watch.of(1).share_last == 1);
    CHECK(watch.of(2).share_last == 0);
    CHECK(watch.of(2).gain == 0);
    CHECK(watch.of(0).gain == 10); // in each step it is last at one call
}

TEST_CASE("the gain is what a step would have saved with the rank as quick as the next")
{
    std::mt19937_64 random(2);
    for (const std::size_t n : {2u, 3u, 8u}) {
        const int calls = 12;
        std::vector<row> work(calls, row(n));
        for (row& one : work)
            for (double& x : one) x = static_cast<double>(random() % 100000);
        const row even(n, 0);
        timeline real(n);
        lateness_watch watch(static_cast<int>(n));
        std::vector<row> with_next(n);
        std::vector<std::vector<row>> quicker(n, work);
        for (int k = 0; k < calls; ++k) {
            real.call(work[static_cast<std::size_t>(k)], 5000, even);
            const call_lateness call = watch.add(real.in_call, real.before);
            CHECK(call.gain_before == call.gain); // nothing but work makes them late here
            quicker[static_cast<std::size_t>(call.last)][static_cast<std::size_t>(k)][static_cast<std::size_t>(call.last)]
                -= call.gain;
        }
        watch.end_step();
        for (std::size_t r = 0; r < n; ++r) {
            timeline other(n);
            for (int k = 0; k < calls; ++k) other.call(quicker[r][static_cast<std::size_t>(k)], 5000, even);
            CHECK(watch.of(static_cast<int>(r)).gain == real.end() - other.end());
            CHECK(watch.of(static_cast<int>(r)).gain_before == real.end() - other.end());
        }
    }
}

/// What a window should hold, recomputed from all steps.
struct history {
    struct step {
        row times;
        row before;
        row gain;
        row gain_before;
        int last;
    };
    std::vector<step> steps;

    rank_lateness of(std::size_t r, std::size_t window) const
    {
        rank_lateness result;
        row behind;
        row behind_before;
        double gain = 0;
        double gain_before = 0;
        int last = 0;
        for (std::size_t i = steps.size() > window ? steps.size() - window : 0; i < steps.size(); ++i) {
            const step& one = steps[i];
            if (undefined(one.times[r])) continue;
            behind.push_back(median_of_others(one.times, r) - one.times[r]);
            row before = one.before;
            for (std::size_t s = 0; s < before.size(); ++s)
                if (undefined(one.times[s])) before[s] = absent;
            const double others = median_of_others(before, r);
            if (!undefined(before[r]) && !undefined(others)) behind_before.push_back(before[r] - others);
            gain += one.gain[r];
            gain_before += one.gain_before[r];
            last += one.last == static_cast<int>(r) ? 1 : 0;
        }
        result.steps = static_cast<int>(behind.size());
        if (behind.empty()) return result;
        const double count = static_cast<double>(behind.size());
        result.behind = median(behind);
        result.share_last = last / count;
        result.gain = gain / count;
        if (!behind_before.empty()) {
            result.behind_before = median(behind_before);
            result.gain_before = gain_before / count;
        }
        return result;
    }
};

TEST_CASE("medians, shares and gains are those of the last window of steps")
{
    std::mt19937_64 random(4);
    for (const std::size_t n : {1u, 2u, 3u, 4u, 7u}) {
        lateness_watch watch(static_cast<int>(n));
        history kept;
        for (int s = 0; s < 400; ++s) {
            history::step one{row(n, 0), row(n, 0), row(n, 0), row(n, 0), -1};
            const int calls = static_cast<int>(random() % 4);
            for (int k = 0; k < calls; ++k) {
                row times(n);
                row before(n);
                for (std::size_t r = 0; r < n; ++r) {
                    times[r] = random() % 20 == 0 ? absent : static_cast<double>(random() % 100000);
                    before[r] = random() % 20 == 0 ? absent : static_cast<double>(random() % 100000);
                }
                const bool told = random() % 10 != 0;
                const call_lateness call = told ? watch.add(times, before) : watch.add(times);
                for (std::size_t r = 0; r < n; ++r) {
                    one.times[r] = undefined(times[r]) ? absent : one.times[r] + times[r];
                    one.before[r] = undefined(before[r]) || !told ? absent : one.before[r] + before[r];
                }
                if (call.last < 0) continue;
                one.gain[static_cast<std::size_t>(call.last)] += call.gain;
                if (!undefined(call.gain_before)) one.gain_before[static_cast<std::size_t>(call.last)] += call.gain_before;
            }
            std::size_t present = 0;
            for (const double x : one.times) present += undefined(x) ? 0u : 1u;
            const step_lateness found = watch.end_step();
            REQUIRE(found.calls == calls);
            REQUIRE(found.present == (calls == 0 ? 0 : static_cast<int>(present)));
            if (calls == 0 || present < 2) {
                REQUIRE(found.last == -1);
                REQUIRE(undefined(found.behind));
                continue;
            }
            const std::size_t last = static_cast<std::size_t>(found.last);
            for (const double x : one.times) REQUIRE((undefined(x) || !(x < one.times[last])));
            REQUIRE(same(found.behind, median_of_others(one.times, last) - one.times[last]));
            row before = one.before;
            for (std::size_t r = 0; r < n; ++r)
                if (undefined(one.times[r])) before[r] = absent;
            const double others = median_of_others(before, last);
            REQUIRE(same(found.behind_before, undefined(before[last]) || undefined(others) ? absent : before[last] - others));
            one.last = found.last;
            kept.steps.push_back(one);
            for (std::size_t r = 0; r < n; ++r)
                REQUIRE(same(watch.of(static_cast<int>(r)).latest, median_of_others(one.times, r) - one.times[r]));
            if (s % 10 != 0) continue;
            for (std::size_t r = 0; r < n; ++r) {
                const rank_lateness expected = kept.of(r, lateness_watch::window);
                const rank_lateness result = watch.of(static_cast<int>(r));
                REQUIRE(result.steps == expected.steps);
                REQUIRE(same(result.behind, expected.behind));
                REQUIRE(same(result.behind_before, expected.behind_before));
                REQUIRE(alike(result.share_last, expected.share_last));
                REQUIRE(alike(result.gain, expected.gain));
                REQUIRE(alike(result.gain_before, expected.gain_before));
            }
        }
    }
}

/// The deviation of an arrival by its definition, from the times of past steps.
double noise_of(const std::vector<row>& steps, std::size_t window)
{
    row of_ranks;
    row of_changes;
    for (std::size_t i = 1; i < steps.size(); ++i) {
        row times;
        row changes;
        for (std::size_t r = 0; r < steps[i].size(); ++r) {
            if (undefined(steps[i][r]) || undefined(steps[i - 1][r])) continue;
            times.push_back(steps[i][r]);
            changes.push_back(steps[i][r] - steps[i - 1][r]);
        }
        const std::size_t n = times.size();
        if (n < 2) continue;
        const auto deviation = [](row values) {
            const double middle = median(values);
            for (double& x : values) x = std::fabs(x - middle);
            return 1.4826 * median(values);
        };
        const double few = n == 2 ? std::sqrt(2.0) : static_cast<double>(n) / (static_cast<double>(n) - 1.25);
        of_changes.push_back(deviation(changes) * few / std::sqrt(2.0));
        of_ranks.push_back(n == 2 ? of_changes.back() : deviation(times) * few);
    }
    if (of_ranks.size() < 16) return absent;
    for (row* each : {&of_ranks, &of_changes})
        if (each->size() > window) each->erase(each->begin(), each->end() - static_cast<std::ptrdiff_t>(window));
    return std::min(median(of_ranks), median(of_changes));
}

TEST_CASE("noise and floor are those of the steps before, of the ranks that are present twice in a row")
{
    std::mt19937_64 random(5);
    for (const std::size_t n : {2u, 3u, 4u, 7u}) {
        for (const double floor : {0.0, 30000.0, 90000.0}) {
            CAPTURE(n);
            lateness_watch watch(static_cast<int>(n), floor);
            std::vector<row> steps;
            int defined = 0;
            int out = 0;
            for (int s = 0; s < 320; ++s) {
                row times(n);
                for (double& x : times) x = random() % 16 == 0 ? absent : static_cast<double>(random() % 100000);
                if (s % 5 == 0 && !undefined(times[0])) times[0] += 900000; // all others are early: no noise
                if (s % 7 == 0 && !undefined(times[n - 1])) times[n - 1] = 0;
                watch.add(times);
                const step_lateness found = watch.end_step();
                const double expected = noise_of(steps, lateness_watch::window);
                if (found.present < 2) {
                    REQUIRE(undefined(found.noise));
                    continue;
                }
                steps.push_back(times);
                REQUIRE(undefined(found.noise) == undefined(expected));
                REQUIRE(undefined(found.floor) == undefined(expected));
                if (undefined(expected)) {
                    REQUIRE_FALSE(found.stands_out);
                    continue;
                }
                ++defined;
                REQUIRE(near(found.noise, expected, 1e-9 * expected));
                REQUIRE(found.floor == std::max(floor, found.noise));
                REQUIRE(found.stands_out == (found.behind > found.floor && found.behind > 3 * found.noise));
                out += found.stands_out ? 1 : 0;
            }
            CHECK(defined > 180);
            CHECK(out < defined);
        }
    }
}

TEST_CASE("a watch that forgot answers as a new one, and none allocates after its construction")
{
    std::mt19937_64 random(15);
    row times(6);
    const row before(6, 1000);
    const auto fill = [&] {
        for (double& x : times) x = static_cast<double>(random() % 1000);
    };
    lateness_watch used(6);
    const long at_start = allocations;
    for (int s = 0; s < 300; ++s) {
        fill();
        used.add(times, before);
        used.end_step();
    }
    used.add(times);
    used.reset();
    CHECK(allocations == at_start);
    lateness_watch fresh(6);
    for (int s = 0; s < 60; ++s) {
        fill();
        if (s % 3 == 0) times[0] = times[1] = times[5]; // the tie goes the same way
        REQUIRE(used.add(times).last == fresh.add(times).last);
        const step_lateness one = used.end_step(), other = fresh.end_step();
        REQUIRE(one.last == other.last);
        REQUIRE(same(one.noise, other.noise));
        REQUIRE(same(one.floor, other.floor));
        for (int r = 0; r < 6; ++r) {
            REQUIRE(same(used.of(r).behind, fresh.of(r).behind));
            REQUIRE(used.of(r).steps == fresh.of(r).steps);
            REQUIRE(same(used.of(r).share_last, fresh.of(r).share_last));
        }
    }
}

} // namespace

} // namespace collprobe::testing::lateness_test
