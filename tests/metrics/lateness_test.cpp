// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <collprobe/metrics/lateness.hpp>

#include "support/count_allocations.hpp"
#include "support/errors.hpp"

namespace {

using collprobe::call_lateness;
using collprobe::lateness;
using collprobe::lateness_watch;
using collprobe::rank_lateness;
using collprobe::step_lateness;

#if COLLPROBE_TEST_BRIEF
constexpr int reduction = 4;
#else
constexpr int reduction = 1;
#endif

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

enum class shape { gaussian, lognormal, student };

struct noise_source {
    std::mt19937_64 random;
    std::normal_distribution<double> normal;
    std::student_t_distribution<double> student{3};
    shape kind;

    noise_source(std::uint64_t seed, shape s) : random(seed), kind(s) {}
    /// Of scale 1.
    double operator()()
    {
        if (kind == shape::gaussian) return normal(random);
        return kind == shape::lognormal ? std::exp(normal(random)) : student(random);
    }
};

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

TEST_CASE("the rank that waited least came last")
{
    const row in_call = {700, 200, 950, 260};
    const row before = {1000, 1500, 760, 1455};
    const call_lateness call = lateness(in_call, before);
    CHECK(call.present == 4);
    CHECK(call.last == 1);
    CHECK(call.next == 3);
    CHECK(call.spread == 750);
    CHECK(call.transport == 200);
    CHECK(call.gain == 60);
    CHECK(call.gain_before == 45);

    // What its time between the calls explains lies between nothing and all.
    CHECK(lateness(in_call, row{0, 1400, 0, 1455}).gain_before == 0);
    CHECK(lateness(in_call, row{0, 9000, 0, 1455}).gain_before == 60);
    CHECK(undefined(lateness(in_call, row{1, absent, 1, 1}).gain_before));
    CHECK(undefined(lateness(in_call).gain_before));
}

TEST_CASE("absent times are left out, and fewer than two ranks have no order")
{
    const double inf = std::numeric_limits<double>::infinity();
    const call_lateness call = lateness(row{-1, 300, inf, absent, 100, 0x1p53});
    CHECK(call.present == 2);
    CHECK(call.last == 4);
    CHECK(call.next == 1);
    CHECK(call.spread == 200);
    CHECK(call.transport == 100);
    CHECK(call.gain == 200);

    CHECK(lateness(row{0, 0x1p53 - 1}).last == 0);
    CHECK(lateness(row{0, 0x1p53 - 1}).spread == 0x1p53 - 1);
    for (const row& times : {row{}, row{5}, row{absent, 7}, row{absent, absent}, row{-1, inf, 3}}) {
        const call_lateness none = lateness(times);
        CHECK(none.present <= 1);
        CHECK(none.last == -1);
        CHECK(none.next == -1);
        for (const double x : {none.spread, none.transport, none.gain, none.gain_before}) CHECK(undefined(x));
    }
}

TEST_CASE("a rank is absent from a step if one of its calls has no time, or if their sum is none")
{
    lateness_watch watch(4);
    watch.add(row{0x1p52, 10, 20, 500}, row{1, 2, 3, 4});
    watch.add(row{0x1p52, 10, absent, 500}, row{1, absent, 3, 4});
    const step_lateness found = watch.end_step();
    CHECK(found.calls == 2);
    CHECK(found.present == 2);
    CHECK(found.last == 1);
    CHECK(found.behind == 980);
    CHECK(undefined(found.behind_before)); // of the two that are present only rank 3 has one
    for (const int r : {0, 2}) {
        const rank_lateness none = watch.of(r);
        CHECK(none.steps == 0);
        for (const double x :
            {none.latest, none.behind, none.behind_before, none.share_last, none.gain, none.gain_before})
            CHECK(undefined(x));
    }
    CHECK(watch.of(3).latest == -980);
    CHECK(watch.of(3).share_last == 0);
    CHECK(watch.of(1).gain == 10 + 490); // of calls, whoever is present there
    CHECK(undefined(watch.of(1).gain_before));
    watch.add(row{0x1p53 - 2, 1, 2, 3});
    watch.add(row{1, 1, 2, 3});
    CHECK(watch.end_step().present == 4); // 2^53 - 1 is the longest time

    // A step in which nobody else is present leaves the window as it is.
    watch.add(row{absent, 7, -1, 0x1p53});
    const step_lateness alone = watch.end_step();
    CHECK(alone.present == 1);
    CHECK(alone.last == -1);
    CHECK(watch.of(1).steps == 2);
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

TEST_CASE("a call agrees with sorting")
{
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 4000; ++trial) {
        const std::size_t n = 1 + random() % 9;
        row times(n);
        row before(n);
        for (std::size_t r = 0; r < n; ++r) {
            times[r] = random() % 5 == 0 ? absent : static_cast<double>(random() % 8);
            before[r] = random() % 5 == 0 ? absent : static_cast<double>(random() % 8);
        }
        std::vector<std::size_t> order;
        for (std::size_t r = 0; r < n; ++r)
            if (!undefined(times[r])) order.push_back(r);
        const call_lateness call = lateness(times, before, random());
        REQUIRE(call.present == static_cast<int>(order.size()));
        if (order.size() < 2) continue;
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

TEST_CASE("a constant bias of a rank's ends is no lateness where its work begins when its call ends")
{
    std::mt19937_64 random(3);
    const std::size_t n = 5;
    row own_end(n, 0);
    own_end[2] = 70000; // by its place in the ring, say
    own_end[4] = 30000;
    row other_end(n, 0); // of another kind of call
    other_end[0] = 50000;
    timeline ranks(n);
    lateness_watch watch(static_cast<int>(n));
    for (int step = 0; step < 50; ++step) {
        row work_of_step(n, 0);
        for (int k = 0; k < 4; ++k) {
            row work(n);
            for (double& x : work) x = 1000000 + static_cast<double>(random() % 3000);
            if (k == 1) work[3] += 20000;
            for (std::size_t r = 0; r < n; ++r) work_of_step[r] += work[r];
            ranks.call(work, 200000, k % 2 == 1 ? own_end : other_end);
            // A call shows the difference of its bias and that of the call before it; a step shows none.
            const call_lateness call = watch.add(ranks.in_call, ranks.before);
            CHECK(call.gain_before <= call.gain);
        }
        const step_lateness found = watch.end_step();
        if (step == 0) continue; // the call before the first had no bias
        CHECK(found.last == 3);
        CHECK(found.behind == work_of_step[3] - median_of_others(work_of_step, 3));
        CHECK(found.behind_before == found.behind);
    }
    CHECK(watch.of(3).share_last > 48.5 / 50);
    for (const int r : {0, 1, 2, 4}) CHECK(std::fabs(watch.of(r).behind) < 3000);
}

TEST_CASE("lateness that arises inside a call shows in the next one, and is told from work")
{
    const std::size_t n = 4;
    timeline ranks(n);
    const row work(n, 1000000);
    const row even(n, 0);
    row slow_end(n, 0);
    slow_end[1] = 300000;
    ranks.call(work, 200000, slow_end);
    CHECK(lateness(ranks.in_call, ranks.before).last != 1);
    ranks.call(work, 200000, even);
    const call_lateness inside = lateness(ranks.in_call, ranks.before);
    CHECK(inside.last == 1);
    CHECK(inside.gain == 300000);
    CHECK(inside.gain_before == 0);
    row slow_work = work;
    slow_work[2] += 400000;
    ranks.call(slow_work, 200000, even);
    const call_lateness outside = lateness(ranks.in_call, ranks.before);
    CHECK(outside.last == 2);
    CHECK(outside.gain == 400000);
    CHECK(outside.gain_before == 400000);
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

/// Steps of one call in which each rank is late by its delay and a noise.
struct scene {
    noise_source noise;
    row times;
    double scale;

    scene(std::size_t ranks, std::uint64_t seed, shape kind = shape::gaussian, double scale_ns = 20000)
        : noise(seed, kind), times(ranks), scale(scale_ns)
    {
    }
    const row& step(const row& delays)
    {
        for (std::size_t r = 0; r < times.size(); ++r)
            times[r] = 50000000.0 - std::clamp(std::floor(delays[r] + scale * noise()), -2e7, 4e7);
        return times;
    }
};

TEST_CASE("the noise is the deviation of an arrival, and the floor what was asked for or the noise")
{
    for (const std::size_t n : {2u, 3u, 4u, 5u, 8u, 64u}) {
        CAPTURE(n);
        lateness_watch watch(static_cast<int>(n));
        scene arrivals(n, 5 + n);
        row delays(n, 0);
        delays[0] = 5000000; // a late rank is no noise
        step_lateness found;
        double sum = 0;
        for (int s = 0; s < 3000; ++s) {
            watch.add(arrivals.step(delays));
            found = watch.end_step();
            REQUIRE(undefined(found.noise) == (s < 17));
            REQUIRE(undefined(found.floor) == (s < 17));
            if (s >= 200) sum += found.noise;
        }
        CHECK(near(sum / 2800, 20000, 20000 * 0.15));
        CHECK(found.floor == found.noise);
    }
    // Equal times have no noise.
    lateness_watch watch(3, 1234);
    step_lateness found;
    for (int s = 0; s < 18; ++s) {
        watch.add(row{5, 5, 5});
        found = watch.end_step();
    }
    CHECK(found.noise == 0);
    CHECK(found.floor == 1234);
    CHECK_FALSE(found.stands_out);
    watch.add(row{5, 5 + 1234, 5 + 1234});
    CHECK_FALSE(watch.end_step().stands_out);
    watch.add(row{5, 5 + 1235, 5 + 1235});
    CHECK(watch.end_step().stands_out);
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

TEST_CASE("a rank that is always late is last, stands out, and by its delay")
{
    for (const shape kind : {shape::gaussian, shape::lognormal, shape::student}) {
        for (const std::size_t n : {2u, 4u, 8u, 64u}) {
            for (const double delay : {200000.0, 1e6, 1e7}) {
                CAPTURE(n);
                CAPTURE(delay);
                const std::size_t culprit = (n - 1) / 2;
                scene arrivals(n, 7 + n, kind);
                row delays(n, 0);
                delays[culprit] = delay;
                lateness_watch watch(static_cast<int>(n));
                int right = 0;
                const int steps = 600 / reduction;
                for (int s = 0; s < 50 + steps; ++s) {
                    watch.add(arrivals.step(delays));
                    const step_lateness found = watch.end_step();
                    if (s < 50) continue;
                    right += found.last == static_cast<int>(culprit) && found.stands_out ? 1 : 0;
                }
                if (kind == shape::gaussian) CHECK(right >= 0.97 * steps);
                CHECK(near(watch.of(static_cast<int>(culprit)).behind, delay, 0.1 * delay));
                // The others are behind by their noise, but for the other one of two.
                if (n == 2) continue;
                for (std::size_t r = 0; r < n; ++r)
                    if (r != culprit) CHECK(std::fabs(watch.of(static_cast<int>(r)).behind) < 20000);
            }
        }
    }
}

TEST_CASE("another late rank in each step is named for the step, and none is behind over time")
{
    for (const std::size_t n : {4u, 8u, 64u}) {
        scene arrivals(n, 8 + n);
        lateness_watch watch(static_cast<int>(n));
        std::mt19937_64 random(9);
        int right = 0;
        const int steps = 3000 / reduction;
        for (int s = 0; s < steps; ++s) {
            row delays(n, 0);
            const std::size_t culprit = random() % n;
            delays[culprit] = 400000;
            watch.add(arrivals.step(delays));
            const step_lateness found = watch.end_step();
            right += found.last == static_cast<int>(culprit) && (found.stands_out || s < 17) ? 1 : 0;
        }
        CHECK(right >= 0.99 * steps);
        for (std::size_t r = 0; r < n; ++r) CHECK(watch.of(static_cast<int>(r)).behind < 30000);
    }
}

TEST_CASE("ranks that are late together are all behind the median of the others")
{
    scene arrivals(16, 10);
    row delays(16, 0);
    for (const std::size_t r : {4u, 5u, 6u, 7u}) delays[r] = 1000000;
    lateness_watch watch(16);
    for (int s = 0; s < 150; ++s) {
        watch.add(arrivals.step(delays));
        watch.end_step();
    }
    for (std::size_t r = 0; r < 16; ++r) CHECK(near(watch.of(static_cast<int>(r)).behind, delays[r], 20000));
}

TEST_CASE("what was late is forgotten after a window of steps, and not before half of them")
{
    scene arrivals(4, 11);
    row delays(4, 0);
    delays[2] = 1000000;
    lateness_watch watch(4);
    constexpr int window = static_cast<int>(lateness_watch::window);
    for (int s = 0; s < 200; ++s) {
        watch.add(arrivals.step(delays));
        watch.end_step();
    }
    delays[2] = 0;
    for (int s = 1; s <= window; ++s) {
        watch.add(arrivals.step(delays));
        watch.end_step();
        CHECK((watch.of(2).behind > 900000) == (s < window / 2));
        CHECK(watch.of(2).latest < 100000);
        CHECK(watch.of(2).share_last > (window - 0.5 - s) / window);
    }
    CHECK(watch.of(2).share_last < 0.6);
}

TEST_CASE("a permutation of the ranks permutes the answer")
{
    std::mt19937_64 random(13);
    const std::size_t n = 9;
    std::vector<std::size_t> to(n);
    std::iota(to.begin(), to.end(), 0u);
    std::shuffle(to.begin(), to.end(), random);
    scene arrivals(n, 14, shape::student);
    row delays(n, 0);
    delays[3] = 100000;
    lateness_watch watch(static_cast<int>(n));
    lateness_watch permuted(static_cast<int>(n));
    for (int s = 0; s < 200; ++s) {
        row before(n);
        for (double& x : before) x = static_cast<double>(random() % 1000000);
        row times = arrivals.step(delays);
        if (s % 7 == 0) times[random() % n] = absent;
        row times_there(n);
        row before_there(n);
        for (std::size_t r = 0; r < n; ++r) {
            times_there[to[r]] = times[r];
            before_there[to[r]] = before[r];
        }
        const call_lateness call = watch.add(times, before);
        const call_lateness there = permuted.add(times_there, before_there);
        REQUIRE(there.last == static_cast<int>(to[static_cast<std::size_t>(call.last)]));
        REQUIRE(there.next == static_cast<int>(to[static_cast<std::size_t>(call.next)]));
        REQUIRE(same(there.gain_before, call.gain_before));
        const step_lateness step = watch.end_step();
        const step_lateness step_there = permuted.end_step();
        REQUIRE(step_there.last == static_cast<int>(to[static_cast<std::size_t>(step.last)]));
        REQUIRE(same(step_there.behind, step.behind));
        REQUIRE(same(step_there.noise, step.noise));
        for (std::size_t r = 0; r < n; ++r) {
            const rank_lateness one = watch.of(static_cast<int>(r));
            const rank_lateness other = permuted.of(static_cast<int>(to[r]));
            REQUIRE(same(one.behind, other.behind));
            REQUIRE(same(one.behind_before, other.behind_before));
            REQUIRE(same(one.share_last, other.share_last));
            REQUIRE(same(one.gain, other.gain));
        }
    }
}

TEST_CASE("a watch that forgot answers as a new one, and none allocates after its construction")
{
    scene arrivals(6, 15);
    row delays(6, 0);
    delays[5] = 300000;
    const row before(6, 1000);
    lateness_watch used(6);
    const long at_start = allocations;
    for (int s = 0; s < 300; ++s) {
        used.add(arrivals.step(delays), before);
        used.end_step();
    }
    used.add(arrivals.times);
    used.reset();
    CHECK(allocations == at_start);
    lateness_watch fresh(6);
    for (int s = 0; s < 60; ++s) {
        arrivals.step(delays);
        if (s % 3 == 0) arrivals.times[0] = arrivals.times[1] = arrivals.times[5]; // the tie goes the same way
        REQUIRE(used.add(arrivals.times).last == fresh.add(arrivals.times).last);
        const step_lateness one = used.end_step();
        const step_lateness other = fresh.end_step();
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
