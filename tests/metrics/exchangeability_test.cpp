// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <collprobe/metrics/exchangeability.hpp>

#include "support/errors.hpp"

namespace collprobe::testing::exchangeability_test {
namespace {

using collprobe::exchangeability_options;
using collprobe::exchangeability_watch;
using collprobe::finding_kind;
using collprobe::rank_evidence;
using collprobe::rank_side;
using collprobe::side_shares;

#if COLLPROBE_TEST_BRIEF
constexpr int reduction = 4;
#else
constexpr int reduction = 1;
#endif

using row = std::vector<double>;
using source = std::mt19937_64;
constexpr double absent = std::numeric_limits<double>::quiet_NaN();

double normal(source& random) { return std::normal_distribution<double>()(random); }

/// A watch of one number.
exchangeability_watch watch_of(int ranks, const side_shares& shares, exchangeability_options options = {})
{
    exchangeability_watch watch(ranks, std::move(options));
    watch.add(finding_kind::loss, shares);
    return watch;
}

/// Lets `values` fill the ranks' numbers step by step until a rank is named; the step, and the rank.
struct naming {
    std::uint64_t step = 0;
    int rank = -2; ///< nobody
    rank_evidence evidence;
};
naming first_named(exchangeability_watch& watch, std::uint64_t steps, std::uint64_t first,
    const std::function<void(row&, std::uint64_t)>& values)
{
    row now(static_cast<std::size_t>(watch.ranks()));
    for (std::uint64_t step = first; step < first + steps; ++step) {
        values(now, step);
        watch.begin_step(step);
        watch.judge(0, now);
        if (watch.named().size() != 0) return {step, watch.named()[0].rank, watch.named()[0].evidence};
    }
    return {first + steps, -2, {}};
}

/// What the watch may lose against exact arithmetic in a step: what it takes off a pay-out, and roundings.
constexpr double lost_in_a_step = 0x1p-22 + 3 * 0x1p-24;

/// The bets as metrics/exchangeability.md defines them, one step at a time, in long double and by counting.
class reference {
public:
    reference(int ranks, rank_side side)
        : n_(static_cast<std::size_t>(ranks)), side_(side), wealth_(3 * n_, 0.5L), recent_(3 * n_, 1), since_(n_)
    {
    }
    void step(std::uint64_t step, const row& values)
    {
        ++judged_;
        row x = values;
        if (side_ == rank_side::farthest || side_ == rank_side::nearest) {
            for (std::size_t r = 0; r < n_; ++r) {
                row others;
                for (std::size_t s = 0; s < n_; ++s)
                    if (s != r) others.push_back(values[s]);
                std::sort(others.begin(), others.end());
                const std::size_t k = others.size() / 2;
                x[r] = std::fabs(
                    values[r] - (others.size() % 2 == 1 ? others[k] : 0.5 * others[k - 1] + 0.5 * others[k]));
            }
        }
        for (std::size_t r = 0; r < n_; ++r) {
            std::size_t above = 0;
            std::size_t equal = 0;
            for (std::size_t s = 0; s < n_; ++s) {
                above += (side_ == rank_side::smallest || side_ == rank_side::nearest ? x[s] < x[r] : x[s] > x[r]) ? 1u : 0u;
                equal += x[s] == x[r] ? 1u : 0u;
            }
            if (recent_[3 * r] <= 1 && recent_[3 * r + 1] <= 2) since_[r] = step;
            const long double exponents[] = {1.5L, 0.6L, 0.25L};
            for (std::size_t j = 0; j < 3; ++j) {
                long double own = 0;
                long double all = 0;
                for (std::size_t k = 1; k <= n_; ++k) {
                    const long double power = std::pow(static_cast<long double>(k), -exponents[j]);
                    all += power;
                    if (k > above && k <= above + equal) own += power / static_cast<long double>(equal);
                }
                const long double pays = static_cast<long double>(n_) * own / all;
                long double start = 0.5L;
                std::uint64_t octave = 0;
                for (; std::uint64_t{2} << octave <= judged_; ++octave) start /= 2;
                start /= static_cast<long double>((octave + 1) * (octave + 2));
                long double& wealth = wealth_[3 * r + j];
                wealth = (wealth + start) * pays;
                long double& recent = recent_[3 * r + j];
                recent = std::max(recent, 1.0L) * pays;
            }
        }
    }
    long double odds(std::size_t rank) const { return sum(wealth_, rank) / 3 / static_cast<long double>(n_); }
    long double recurrence(std::size_t rank) const { return sum(recent_, rank) / 3 / static_cast<long double>(n_); }
    std::uint64_t since(std::size_t rank) const { return since_[rank]; }

private:
    static long double sum(const std::vector<long double>& of, std::size_t rank)
    {
        return of[3 * rank] + of[3 * rank + 1] + of[3 * rank + 2];
    }
    std::size_t n_;
    rank_side side_;
    std::uint64_t judged_ = 0;
    std::vector<long double> wealth_;
    std::vector<long double> recent_;
    std::vector<std::uint64_t> since_;
};

side_shares only(rank_side side)
{
    return {side == rank_side::largest ? 1.0 : 0.0, side == rank_side::smallest ? 1.0 : 0.0,
        side == rank_side::farthest ? 1.0 : 0.0, side == rank_side::nearest ? 1.0 : 0.0};
}

constexpr rank_side all_sides[] = {rank_side::largest, rank_side::smallest, rank_side::farthest, rank_side::nearest};

TEST_CASE("a rank beside others that are equal is named, and is no memory")
{
    for (const double margin : {0.0, 100.0}) {
        for (const std::size_t rank : {0u, 3u, 7u}) {
            exchangeability_watch watch(8, {.tolerance = 0.25});
            watch.add(finding_kind::late, {0.0625, 0, 0, 0});
            int named = -1;
            for (std::uint64_t step = 0; step < 50; ++step) {
                std::vector<double> values(8);
                values[rank] = 2e6;
                watch.begin_step(step);
                watch.judge(0, values, margin);
                CHECK(watch.silent() == 0);
                if (watch.named().size() == 0) continue;
                CHECK(named == -1);
                named = watch.named()[0].rank;
                CHECK(step < 20);
            }
            CHECK(named == static_cast<int>(rank));
        }
    }
}

} // namespace

TEST_CASE("in each step the pay-outs of all ranks add up to their number, also where many share their places")
{
    source random(17);
    for (const int ranks : {3, 31, 32, 33, 64, 1000}) {
        for (const rank_side side : all_sides) {
            for (const int kind : {0, 1, 2, 3}) {
                row values(static_cast<std::size_t>(ranks));
                for (double& x : values) x = kind == 1 ? std::floor(normal(random)) : normal(random);
                if (kind == 2) values[1] = 1e12;
                for (const double tolerance : {0.0, 0.25}) {
                    exchangeability_watch watch = watch_of(ranks, only(side), {.tolerance = tolerance});
                    watch.begin_step(0);
                    watch.judge(0, values, kind == 3 ? 0.5 : 0);
                    double sum = 0;
                    for (const rank_evidence& each : watch.by_rank()) sum += each.odds;
                    CAPTURE(ranks);
                    CAPTURE(static_cast<int>(side));
                    CAPTURE(kind);
                    CHECK(sum <= 0.75);
                    if (tolerance == 0 && kind != 3) CHECK(sum >= 0.75 * (1 - lost_in_a_step));
                }
            }
        }
    }
}

TEST_CASE("the weights of the starts of bets add up to at most 1")
{
    double sum = 0.5;
    for (std::uint64_t t = 1; t < 1 << 20; ++t) sum += collprobe::detail::weight_of_start(t);
    CHECK(sum < 1);
    CHECK(sum > 0.97);
}

TEST_CASE("odds, recurrence and their beginning are those of the definition, over many steps where ranks have no memory")
{
    source random(1);
    for (const int ranks : {3, 4, 9, 31}) {
        for (const rank_side side : all_sides) {
            for (const bool has_ties : {false, true}) {
                exchangeability_watch watch = watch_of(ranks, only(side), {.false_alarms_per_run = 1e-300, .steps_between_alarms = 1e300});
                reference expected(ranks, side);
                row values(static_cast<std::size_t>(ranks));
                // From the fourth step on the watch might find that ranks keep their places. Steps that undo each other's
                // order leave no correlation, so nothing is subtracted.
                const std::uint64_t steps = ranks == 4 && side == rank_side::largest && !has_ties ? 400 : 3;
                for (std::uint64_t step = 10; step < 10 + steps; ++step) {
                    for (double& x : values) x = step % 2 == 1 ? -x : has_ties ? std::floor(2 * normal(random)) : normal(random);
                    watch.begin_step(step);
                    watch.judge(0, values);
                    expected.step(step, values);
                    const double lost = static_cast<double>(step - 9) * lost_in_a_step;
                    for (std::size_t rank = 0; rank < values.size(); ++rank) {
                        const rank_evidence& found = watch.by_rank()[rank];
                        CHECK(found.odds == doctest::Approx(static_cast<double>(expected.odds(rank))).epsilon(lost));
                        CHECK(found.recurrence == doctest::Approx(static_cast<double>(expected.recurrence(rank))).epsilon(lost));
                        CHECK(found.odds <= static_cast<double>(expected.odds(rank)));
                        CHECK(found.since == expected.since(rank));
                        CHECK(found.side == side);
                    }
                }
            }
        }
    }
}

TEST_CASE("a shifted rank is named first, on each side")
{
    source random(4);
    int wrong = 0;
    for (const int ranks : {3, 4, 8, 64}) {
        for (const rank_side side : all_sides) {
            if (side == rank_side::nearest && ranks < 8) continue; // where two ranks are often equally near
            std::vector<std::uint64_t> delays;
            for (int run = 0; run < 24 / reduction; ++run) {
                exchangeability_watch watch = watch_of(ranks, {0.25, 0.25, 0.25, 0.25});
                const std::size_t bad = static_cast<std::size_t>(run % ranks);
                const naming found = first_named(watch, 2000, 0, [&](row& values, std::uint64_t) {
                    for (double& x : values) x = normal(random);
                    if (side == rank_side::largest) values[bad] += 2;
                    if (side == rank_side::smallest) values[bad] -= 2;
                    if (side == rank_side::farthest) values[bad] *= 8;
                    if (side == rank_side::nearest) values[bad] *= 0.05;
                });
                CAPTURE(ranks);
                CAPTURE(static_cast<int>(side));
                if (found.rank != static_cast<int>(bad)) ++wrong; // a false alarm, of which 1 run in 100 may have one
                else if (side != rank_side::farthest) // of which both sides tell, too
                    CHECK(found.evidence.side != (side == rank_side::largest ? rank_side::smallest : rank_side::largest));
                CHECK(found.evidence.unlike);
                CHECK(found.evidence.odds >= 100);
                CHECK(found.evidence.extreme >= 3);
                CHECK(found.evidence.since <= found.step);
                delays.push_back(found.step + 1);
            }
            std::sort(delays.begin(), delays.end());
            if (ranks > 3) CHECK(delays[delays.size() / 2] <= (side == rank_side::nearest ? 60u : 30u));
        }
    }
    CHECK(wrong <= 4 / reduction);
}

TEST_CASE("a change late in a run, and a slow drift, are named with the step in which they began")
{
    source random(5);
    for (const int ranks : {4, 16}) {
        exchangeability_watch watch = watch_of(ranks, {0.5, 0.5, 0});
        constexpr std::uint64_t onset = 20000 / reduction;
        CHECK(first_named(watch, onset, 0, [&](row& values, std::uint64_t) {
            for (double& x : values) x = normal(random);
        }).rank == -2);
        const naming found = first_named(watch, 500, onset, [&](row& values, std::uint64_t) {
            for (double& x : values) x = normal(random);
            values[2] += 2;
        });
        CHECK(found.rank == 2);
        CHECK(found.step < onset + 60);
        CHECK(found.evidence.since + 30 >= onset);
        CHECK(found.evidence.recurrence > found.evidence.odds);

        exchangeability_watch of_drift = watch_of(ranks, {0.5, 0.5, 0});
        const naming drifted = first_named(of_drift, 2000, 0, [&](row& values, std::uint64_t step) {
            for (double& x : values) x = normal(random);
            values[1] -= 0.01 * static_cast<double>(step);
        });
        CHECK(drifted.rank == 1);
        CHECK(drifted.evidence.side == rank_side::smallest);
        CHECK(drifted.step < 500);
    }
}

TEST_CASE("of one or two ranks none is watched")
{
    source random(6);
    for (const int ranks : {1, 2}) {
        exchangeability_watch watch = watch_of(ranks, {0.5, 0.25, 0.25});
        const naming found = first_named(watch, 300, 0, [&](row& values, std::uint64_t) {
            for (double& x : values) x = normal(random);
            values[0] += 3;
        });
        CHECK(found.rank == -2);
        CHECK(watch.by_rank()[0].odds == 0);
    }
}

TEST_CASE("of two ranks a number with one watched side names the one that is at it, which may come back")
{
    source random(16);
    exchangeability_watch watch = watch_of(2, {.largest = 0.1}, {.tolerance = 0.25});
    const auto shifted_by = [&](double by, std::size_t rank) {
        return [&random, by, rank](row& values, std::uint64_t) {
            values[rank] = by + normal(random);
            values[1 - rank] = -values[rank];
        };
    };
    CHECK(first_named(watch, 500, 0, shifted_by(0, 1)).rank == -2);
    const naming found = first_named(watch, 100, 500, shifted_by(6, 1));
    CHECK(found.rank == 1);
    CHECK(found.evidence.side == rank_side::largest);
    CHECK(found.evidence.since >= 480);
    CHECK(watch.by_rank()[1].unlike);
    for (std::uint64_t step = 700; step < 800; ++step) {
        CHECK(first_named(watch, 1, step, shifted_by(6, 1)).rank == -2);
        CHECK(watch.by_rank()[1].unlike);
    }
    CHECK(first_named(watch, 600, 800, shifted_by(0, 1)).rank == -2);
    CHECK_FALSE(watch.by_rank()[1].unlike);
    CHECK(first_named(watch, 150, 1400, shifted_by(6, 0)).rank == 0);
    CHECK(first_named(watch, 100, 1600, [](row& values, std::uint64_t step) { // by turns, and one is absent
        values = {step % 2 == 0 ? 5.0 : 0, step % 3 == 0 ? absent : step % 2 == 0 ? 0 : 5.0};
    }).rank == -2);
}

TEST_CASE("ranks of different groups are not compared")
{
    source random(7);
    const std::vector<int> groups{9, 9, 9, 9, -4, -4, -4, -4, 0};
    exchangeability_watch watch = watch_of(9, {0.5, 0.25, 0.25}, {.groups = groups});
    const auto by_group = [&](row& values, std::uint64_t) {
        for (std::size_t r = 0; r < 9; ++r) values[r] = normal(random) + 5 * groups[r];
    };
    CHECK(first_named(watch, 500, 0, by_group).rank == -2);
    const naming found = first_named(watch, 500, 500, [&](row& values, std::uint64_t step) {
        by_group(values, step);
        values[6] += 2;
    });
    CHECK(found.rank == 6);
    exchangeability_watch ungrouped = watch_of(5, {0.5, 0.25, 0.25});
    CHECK(first_named(ungrouped, 500, 0, [&](row& values, std::uint64_t step) { // the control
        row all(9);
        by_group(all, step);
        std::copy(all.begin() + 4, all.end(), values.begin());
    }).rank == 4);
}

TEST_CASE("a named rank is told once, the others are compared without it, and it may come back")
{
    source random(8);
    constexpr int ranks = 8;
    exchangeability_watch watch = watch_of(ranks, {0.5, 0.25, 0.25});
    std::vector<int> named;
    const auto run = [&](std::uint64_t from, std::uint64_t to, double of_3, double of_5) {
        row values(ranks);
        for (std::uint64_t step = from; step < to; ++step) {
            for (double& x : values) x = normal(random);
            values[3] += of_3;
            values[5] += of_5;
            watch.begin_step(step);
            watch.judge(0, values);
            for (const auto& each : watch.named()) named.push_back(each.rank);
        }
    };
    run(0, 400, 4, 0);
    CHECK(named == std::vector<int>{3});
    CHECK(watch.by_rank()[3].unlike);
    CHECK(watch.by_rank()[3].odds > 1e6);
    run(400, 600, 4, -3);
    CHECK(named == std::vector<int>{3, 5});
    CHECK(watch.by_rank()[5].side == rank_side::smallest);
    run(600, 1400, 0, -3); // repaired
    CHECK_FALSE(watch.by_rank()[3].unlike);
    CHECK(watch.by_rank()[5].unlike);
    CHECK(named == std::vector<int>{3, 5});
    run(1400, 1600, 4, -3);
    CHECK(named == std::vector<int>{3, 5, 3});
}

TEST_CASE("ranks without a majority are not named one by one, and the finding is told again once there was a majority")
{
    /// `shift` of a step and rank.
    const auto all_named = [](int ranks, std::uint64_t steps, auto shift) {
        source random(16);
        exchangeability_watch watch = watch_of(ranks, {0.5, 0.5, 0});
        std::vector<int> named;
        row values(static_cast<std::size_t>(ranks));
        for (std::uint64_t step = 0; step < steps; ++step) {
            for (std::size_t r = 0; r < values.size(); ++r) values[r] = normal(random) + shift(step, r);
            watch.begin_step(step);
            watch.judge(0, values);
            for (const auto& each : watch.named()) named.push_back(each.rank);
        }
        return named;
    };
    CHECK(all_named(4, 2000, [](std::uint64_t step, std::size_t r) { return r == 0 || (r == 1 && step >= 100) ? 4 : 0; })
        == std::vector<int>{0, -1, -1}); // again after 1000 steps
    // Two kinds of ranks, which keep their places.
    CHECK(all_named(8, 2000, [](std::uint64_t, std::size_t r) { return r < 4 ? 3 : 0; }).empty());
    const std::uint64_t begin[] = {0, 100, 750, 850}, end[] = {300, 300, 1000, 1000};
    CHECK(all_named(4, 1000, [&](std::uint64_t step, std::size_t r) { return step >= begin[r] && step < end[r] ? 4 : 0; })
        == std::vector<int>{0, -1, 2, -1});
}

TEST_CASE("numbers that are absent, infinite, huge or tiny are judged as their order says")
{
    source random(10);
    const double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> scales{1.0, 1.7e308, 1e-300};
#ifndef __FAST_MATH__ // which flushes subnormal numbers to zero
    scales.insert(scales.end(), {5e-324, 1e-310});
#endif
    for (const double scale : scales) {
        exchangeability_watch watch = watch_of(6, {0.5, 0.25, 0.25});
        const naming found = first_named(watch, 300, 0, [&](row& values, std::uint64_t step) {
            for (double& x : values) x = scale * (scale < 1 ? std::floor(50 * std::uniform_real_distribution<double>()(random)) : std::uniform_real_distribution<double>(-1, 0.8)(random));
            values[4] = scale * (scale < 1 ? 60 : 0.9);
            values[step % 3] = step % 2 == 0 ? absent : -infinity;
        });
        CAPTURE(scale);
        CHECK(found.rank == 4);
    }
    exchangeability_watch watch = watch_of(3, {1, 0, 0});
    for (std::uint64_t step = 0; step < 100; ++step) {
        watch.begin_step(step);
        watch.judge(0, row{absent, 1, infinity}); // one is left: nothing to compare
        CHECK(watch.named().size() == 0);
    }
    CHECK(watch.by_rank()[1].odds == 0);
}

TEST_CASE("with a margin a rank must be at a side by more")
{
    source random(11);
    for (const rank_side side : {rank_side::largest, rank_side::smallest, rank_side::farthest}) {
        for (const double margin : {0.5, 2.0}) {
            exchangeability_watch watch = watch_of(5, only(side));
            row now(5);
            bool named = false;
            for (std::uint64_t step = 0; step < 200; ++step) {
                for (double& x : now) x = 0.01 * normal(random);
                now[1] += side == rank_side::smallest ? -1 : 1;
                watch.begin_step(step);
                watch.judge(0, now, margin);
                for (const auto& each : watch.named()) {
                    CHECK(each.rank == 1);
                    named = true;
                }
            }
            CAPTURE(static_cast<int>(side));
            CAPTURE(margin);
            CHECK(named == (margin < 1));
        }
    }
}

TEST_CASE("differences within the tolerance are not named, however long they last")
{
    source random(15);
    for (const double tolerance : {0.0, 0.25}) {
        for (const double shift : {0.2, -0.2, 1.0}) {
            exchangeability_watch watch = watch_of(8, {0.5, 0.25, 0.25}, {.tolerance = tolerance});
            const naming found = first_named(watch, 6000, 0, [&](row& values, std::uint64_t) {
                for (double& x : values) x = 7 * normal(random);
                values[5] += 7 * shift;
            });
            CAPTURE(tolerance);
            CAPTURE(shift);
            CHECK(found.rank == (tolerance == 0 || shift == 1.0 ? 5 : -2));
        }
    }
}

TEST_CASE("ranks that keep their places by chance are seldom named")
{
    // Each rank's numbers depend on its own last one. Without regard to that, almost every such run names a rank.
    source random(12);
    for (const double memory : {0.5, 0.9}) {
        int alarms = 0;
        constexpr int runs = 40 / reduction;
        for (int run = 0; run < runs; ++run) {
            exchangeability_watch watch = watch_of(8, {0.5, 0.25, 0.25});
            row state(8);
            for (double& x : state) x = normal(random);
            const naming found = first_named(watch, 2000, 0, [&](row& values, std::uint64_t) {
                for (double& x : state) x = memory * x + std::sqrt(1 - memory * memory) * normal(random);
                values = state;
            });
            alarms += found.rank != -2 ? 1 : 0;
        }
        CAPTURE(memory);
        CHECK(alarms <= 2 + runs / 10);
    }
}

TEST_CASE("a restored watch of many ranks goes on bit for bit, and a number's state is small; other states are refused")
{
    source random(19);
    constexpr std::size_t ranks = 100;
    exchangeability_options options{.false_alarms_per_run = 1e-6, .tolerance = 0.1, .groups = std::vector<int>(ranks, 7)};
    options.groups[0] = options.groups[1] = options.groups[2] = 3;
    exchangeability_watch whole(ranks, options);
    const std::size_t before = whole.state().size();
    whole.add(finding_kind::gradient_norm, {0.125, 0.125});
    CHECK(8 * (whole.state().size() - before) <= 76 * ranks);
    whole.add(finding_kind::loss, {0.25, 0.25, 0.25});
    row values(ranks);
    std::vector<int> named;
    for (std::uint64_t step = 0; step < 300; ++step) {
        exchangeability_watch restored(ranks, options);
        restored.restore(whole.state());
        CHECK(restored.metrics() == 2);
        for (double& x : values) x = normal(random);
        const row others = values;
        values[step % 50] = absent;
        values[60] += 3;
        values[70] -= step > 150 ? 3 : 0;
        for (exchangeability_watch* each : {&whole, &restored}) {
            each->begin_step(step);
            each->judge(0, values, 0.01, 5);
            each->judge(1, others);
        }
        CHECK(whole.state() == restored.state());
        CHECK(whole.named().size() == restored.named().size());
        for (const auto& each : whole.named()) named.push_back(each.rank);
    }
    CHECK(named == std::vector<int>{60, 70});

    const auto refused = [&](const std::vector<std::uint64_t>& words, const std::string& why) {
        const auto state = whole.state();
        CAPTURE(why);
        CHECK(contains(refusal([&] { whole.restore(words); }), why));
        CHECK(whole.state() == state);
    };
    refused({}, "no such state");
    refused(std::vector<std::uint64_t>(100, 0), "no such state");
    auto damaged = whole.state();
    damaged[damaged.size() / 2] ^= 1;
    refused(damaged, "damaged");
    auto shorter = whole.state();
    shorter.pop_back();
    refused(shorter, "damaged");
    refused(watch_of(ranks + 1, {1, 0, 0}).state(), "another number of ranks");
    refused(watch_of(ranks, {1, 0, 0}).state(), "other groups");
    whole.reset();
    CHECK(whole.metrics() == 0);
}

TEST_CASE("evidence has an upper end, and steps may be any numbers")
{
    exchangeability_watch watch = watch_of(8, {1, 0, 0}, {.false_alarms_per_run = 1e-200, .steps_between_alarms = 1e200});
    source random(20);
    row values(8);
    double most = 0;
    const std::uint64_t first = (std::uint64_t{3} << 32) - 100; // the low half of the step begins again at 0
    for (std::uint64_t step = first; step < first + 2000; ++step) {
        for (double& x : values) x = step % 2 == 0 ? normal(random) : -x; // which leaves no correlation
        values[3] = 9;
        watch.begin_step(step);
        watch.judge(0, values);
        if (step > first + 1500) most = std::max(most, watch.by_rank()[3].odds);
    }
    CHECK(most <= 0x1p97 * 1.001); // the share of one of 8 ranks
    CHECK(watch.by_rank()[3].odds > 0x1p90);
    CHECK(watch.by_rank()[3].since == first);
    CHECK(watch.by_rank()[3].extreme == 2000);
}

TEST_CASE("wrong arguments are refused with their name")
{
    CHECK(contains(refusal([] { exchangeability_watch watch(0); }), "less than 1 rank"));
    CHECK(contains(refusal([] { exchangeability_watch watch(4, {.false_alarms_per_run = 0}); }), "false_alarms_per_run"));
    CHECK(contains(refusal([] { exchangeability_watch watch(4, {.false_alarms_per_run = absent}); }), "false_alarms_per_run"));
    CHECK(contains(refusal([] { exchangeability_watch watch(4, {.steps_between_alarms = 0.5}); }), "steps_between_alarms"));
    CHECK(contains(refusal([] { exchangeability_watch watch(4, {.tolerance = -1}); }), "tolerance"));
    CHECK(contains(refusal([] { exchangeability_watch watch(4, {.groups = {1, 2}}); }), "groups must have an entry for each rank"));
    exchangeability_watch watch = watch_of(4, {1, 0, 0});
    watch.begin_step(0);
    CHECK(contains(refusal([&] { watch.judge(0, row{1, 2, 3}); }), "value for each rank"));
    CHECK(contains(refusal([&] { watch.judge(1, row{1, 2, 3, 4}); }), "not watched"));
}

} // namespace collprobe::testing::exchangeability_test
