// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/metrics/outlier.hpp>

#include "support/count_allocations.hpp"

namespace collprobe::testing::outlier_test {
namespace {

using collprobe::fisher_z;
using collprobe::logarithm_of;
using collprobe::outlier;
using collprobe::outlier_detector;

#if COLLPROBE_TEST_BRIEF
constexpr int reduction = 20;
#else
constexpr int reduction = 1;
#endif

bool near(double value, double expected, double relative)
{
    return collprobe::is_finite(value) && std::fabs(value - expected) <= relative * std::fabs(expected);
}

using row = std::vector<double>;

TEST_CASE("quantiles of the normal and of Student's law")
{
    for (const double p : {0.4, 0.1, 1e-3, 1e-6, 1e-10, 1e-15}) {
        const double x = collprobe::detail::normal_upper_quantile(p);
        CHECK(near(0.5 * std::erfc(x / std::sqrt(2.0)), p, 1e-12));
    }
    for (const double degrees : {31.0, 63.0, 127.0}) {
        const double constant
            = std::exp(std::lgamma((degrees + 1) / 2) - std::lgamma(degrees / 2)) / std::sqrt(degrees * 3.14159265358979);
        const auto tail = [&](double t) { // midpoint rule in 1 / t
            double sum = 0;
            const int cells = 20000;
            for (int i = 0; i < cells; ++i) {
                const double u = (i + 0.5) / cells / t;
                sum += std::pow(1 + 1 / (u * u * degrees), -(degrees + 1) / 2) / (u * u);
            }
            return constant * sum / cells / t;
        };
        for (const double p : {1e-3, 1e-6, 1e-9, 1e-12}) {
            const double t = collprobe::detail::student_upper_quantile(p, degrees);
            CAPTURE(degrees);
            CAPTURE(p);
            CHECK(tail(t * 0.995) > p);
            CHECK(tail(t * 1.001) < p); // the error is to the side of fewer alarms
        }
    }
}

TEST_CASE("the scales of numbers and of cosines")
{
    CHECK(near(logarithm_of(27), std::log(27.0), 1e-15));
    CHECK(logarithm_of(1) == 0);
    CHECK(logarithm_of(0) == -745);
    CHECK(logarithm_of(-0.0) == -745);
    CHECK(near(logarithm_of(1.7e308), std::log(1.7e308), 1e-15));
    CHECK(collprobe::is_nan(logarithm_of(-1)));
    CHECK(collprobe::is_nan(logarithm_of(collprobe::detail::infinity())));
    CHECK(near(fisher_z(0.5), std::atanh(0.5), 1e-14));
    CHECK(fisher_z(1) == fisher_z(1.5));
    CHECK(fisher_z(-1) == -fisher_z(1));
    CHECK(near(fisher_z(1), 0.5 * std::log(2 * 0x1p40), 1e-10));
    CHECK(collprobe::is_nan(fisher_z(collprobe::detail::not_a_number())));
}

TEST_CASE("the quantile of a tail is exceeded with its probability, whatever the sample")
{
    // The mean of `count` excesses is known with an error that the quantile must include.
    std::mt19937_64 random(5);
    std::exponential_distribution<double> excess;
    for (const int count : {4, 8, 96}) {
        for (const double chance : {0.1, 0.01}) {
            const double quantile = collprobe::detail::tail_quantile(chance, count, 0);
            double exceeding = 0;
            const int samples = 200000 / reduction;
            for (int sample = 0; sample < samples; ++sample) {
                double mean = 0;
                for (int i = 0; i < count; ++i) mean += excess(random) / count;
                exceeding += std::exp(-quantile * mean); // of the next excess
            }
            CAPTURE(count);
            CAPTURE(chance);
            CHECK(near(exceeding / samples, chance, 0.02 * std::sqrt(reduction)));
        }
        for (const double shape : {0.0, 0.2, 0.5}) {
            for (const double chance : {0.5, 1e-3, 1e-9}) {
                const double quantile = collprobe::detail::tail_quantile(chance, count, shape);
                CHECK(near(collprobe::detail::tail_chance(quantile, count, shape), chance, 1e-10));
            }
        }
    }
}

/// The same judgements once more, from the definition: whole lists, sorting, no state but the past.
class slow_detector {
public:
    slow_detector(int ranks, int numbers, double rate, int window)
        : n_(ranks), numbers_(numbers), rate_(rate), window_(window), state_(static_cast<std::size_t>(numbers))
    {
    }
    struct verdict {
        int rank;
        int call;
        double distance;
        double limit;
        double seen;
    };
    void add(int number, std::size_t id, const row& values, int call)
    {
        if (series_.size() <= id) series_.resize(id + 1);
        one_series& of = series_[id];
        of.habit.resize(static_cast<std::size_t>(n_));
        row own = values;
        for (std::size_t r = 0; r < own.size(); ++r) own[r] -= of.habit[r];
        row finite;
        for (const double x : own)
            if (collprobe::is_finite(x)) finite.push_back(x);
        if (finite.size() < 3 && !(n_ == 2 && finite.size() == 2)) return;
        const double least = 0x1p-22 * std::max(1.0, std::fabs(middle(finite, true)));
        const double usual = std::max(double(of.usual), least);
        const double scale = std::max((of.exceeded * of.excess + 8 * usual) / (of.exceeded + 8), least);
        const bool settled = of.steps >= 16;
        one_number& watched = state_[static_cast<std::size_t>(number)];
        const double to_name = settled ? 2 * usual + watched.limit * scale : 1e300;
        ++watched.added;
        // A quarter of the rate is for numbers beyond all before, of a law that falls with the square.
        const double share = rate_ / 4 / numbers_ / watched.series;
        const double margin = settled ? std::max(0.7, -std::log(share * (of.steps + 1)) / 2) : 1e300;
        const auto from_all = [range = of.range](double value, double distance) {
            return std::min(std::fabs(distance), distance > 0 ? value - range.second : range.first - value);
        };
        const auto learn = [&of](std::initializer_list<double> all) {
            for (const double value : all)
                of.range = {std::min(of.range.first, value), std::max(of.range.second, value)};
        };
        ++of.steps;
        const double weight = 1.0 / std::min(of.steps, 64);
        double sum = 0;
        double over = 0;
        float overs = 0;
        std::vector<int> named;
        row distances(static_cast<std::size_t>(n_));
        for (int r = 0; r < (n_ == 2 ? 1 : n_); ++r) {
            const std::size_t i = static_cast<std::size_t>(r);
            if (!collprobe::is_finite(values[i])) continue;
            row others;
            for (int q = 0; q < n_; ++q)
                if (q != r && collprobe::is_finite(own[std::size_t(q)])) others.push_back(own[std::size_t(q)]);
            const double distance = distances[i] = own[i] - middle(others, false);
            const double length = std::fabs(distance);
            double past = from_all(values[i], distance);
            if (n_ == 2) past = std::max(past, from_all(values[1], -distance));
            const double beyond = past - std::max(margin, watched.beyond[distance > 0]);
            if (length > to_name || beyond > 0) {
                named.push_back(r);
                sum += length > to_name ? to_name : usual;
            } else {
                learn({values[i], n_ == 2 ? values[1] : values[i]});
                if (settled) watched.beyond[distance > 0] = std::max(watched.beyond[distance > 0], past);
                of.habit[i] += static_cast<float>(weight * distance);
                sum += length;
                if (length > 2 * usual) over += length - 2 * usual, ++overs;
            }
            if (settled) {
                watched.candidates.push_back(
                    {r, call, distance, (length - 2 * usual) / scale, usual, scale, beyond, length - past});
            }
        }
        const double compared = n_ == 2 ? 1.0 : static_cast<double>(finite.size());
        of.usual += static_cast<float>(weight * (sum / compared - of.usual));
        if (settled) {
            watched.compared += compared;
            of.exceeded = std::min(of.exceeded + overs, std::max(128.0F, overs));
            if (overs > 0) of.excess += static_cast<float>((over - overs * of.excess) / of.exceeded);
        }
        if (named.empty()) {
            of.run.clear();
            return;
        }
        const bool same = !of.run.empty() && std::count(named.begin(), named.end(), of.run[0]) > 0;
        if (!same) of.run.assign(1, named[0]);
        else of.run.push_back(of.run[0]);
        if (of.run.size() < 8) return;
        for (const int r : named) of.habit[std::size_t(r)] += static_cast<float>(distances[std::size_t(r)]);
        of.run.clear();
    }
    std::vector<verdict> judge(int number)
    {
        one_number& of = state_[static_cast<std::size_t>(number)];
        std::vector<verdict> found;
        of.series = std::max(of.series, of.added);
        of.added = 0;
        if (of.candidates.empty()) return found;
        ++of.steps;
        const double more = of.usually > 0 && of.compared > of.usually ? of.compared / of.usually : 1;
        const double limit = of.limit + of.scale * std::log(more);
        double usual_out = -1e30;
        double strongest_out = -1e30;
        double beyond[2] = {};
        std::size_t strongest = 0;
        std::size_t present = 0;
        for (int r = 0; r < n_; ++r) {
            const auto farthest = [&](double candidate::*measure) {
                const candidate* largest = nullptr;
                for (const candidate& one : of.candidates)
                    if (one.rank == r && (largest == nullptr || one.*measure > largest->*measure)) largest = &one;
                return largest;
            };
            const candidate* const out = farthest(&candidate::out);
            if (out == nullptr) continue;
            ++present;
            const candidate* const past = farthest(&candidate::beyond);
            if (out->out > limit) {
                found.push_back({r, out->call, out->distance, 2 * out->usual + limit * out->scale,
                    std::max(0.0, 2 * out->usual + of.seen * out->scale)});
            } else if (past->beyond > 0) {
                const candidate& of_call = out->out > of.limit ? *out : *past;
                found.push_back({r, of_call.call, of_call.distance,
                    std::fabs(of_call.distance) - past->beyond, std::max(0.0, of_call.seen)});
            } else {
                usual_out = std::max(usual_out, out->out);
                continue;
            }
            if (past->beyond > 0) {
                const candidate& of_call = out->out > of.limit ? *out : *past;
                double& most = beyond[of_call.distance > 0];
                most = std::max(most, std::fabs(of_call.distance) - of_call.seen);
            }
            if (out->out > strongest_out) strongest = found.size() - 1, strongest_out = out->out;
        }
        if (!found.empty()) {
            const int most = present < 8 ? 1 : present < 40 ? static_cast<int>(present / 4) : 10;
            const bool many = static_cast<int>(found.size()) > most;
            if (many) found = {found[strongest]};
            if (in_turn(of.named, found[0].rank, of.steps)) {
                of.learnt.push_back(of.named_out);
                of.learnt.push_back(strongest_out);
                for (const int side : {0, 1}) of.beyond[side] = std::max(of.beyond[side], beyond[side]);
            }
            of.named_out = strongest_out;
            if (n_ == 2 || (many && present > 3)) found[0].rank = -1;
        }
        if (usual_out > -1e30) {
            of.learnt.push_back(usual_out);
            of.usually += (of.compared - of.usually) / static_cast<double>(std::min<std::size_t>(of.learnt.size(), std::size_t(window_)));
        }
        of.candidates.clear();
        of.compared = 0;
        fit(of);
        return found;
    }

private:
    struct candidate {
        int rank;
        int call;
        double distance;
        double out;
        double usual;
        double scale;
        double beyond;
        double seen;
    };
    struct one_series {
        std::pair<double, double> range{1e300, -1e300}; // of values that were learnt
        std::vector<float> habit;
        std::vector<int> run;
        float usual = 0;
        float excess = 0;
        float exceeded = 0;
        int steps = 0;
    };
    struct one_number {
        std::vector<candidate> candidates;
        row learnt;
        std::vector<std::pair<int, int>> named; // ranks and steps that are not learnt
        double named_out = 0;
        double beyond[2] = {}; // by how much numbers were below, or above, all before and the others
        double seen = 0;
        int added = 0;
        int series = 1;
        double usually = 0;
        double compared = 0;
        double limit = 1e300;
        double scale = 0;
        int steps = 0;
    };
    /// Adds a rank and step. Whether two ranks were named within a window, or a pair three times; then it begins anew.
    bool in_turn(std::vector<std::pair<int, int>>& named, int rank, int step) const
    {
        if (!named.empty() && step - named.back().second > window_) named.clear();
        named.push_back({rank, step});
        const bool ends = n_ == 2 ? named.size() == 3 : named.front().first != rank;
        if (ends) named.clear();
        return ends;
    }
    static double middle(row values, bool upper)
    {
        std::sort(values.begin(), values.end());
        const std::size_t half = values.size() / 2;
        return values.size() % 2 == 1 || upper ? values[half] : 0.5 * values[half - 1] + 0.5 * values[half];
    }
    void fit(one_number& of) const
    {
        row recent(of.learnt.end() - std::ptrdiff_t(std::min<std::size_t>(of.learnt.size(), std::size_t(window_))), of.learnt.end());
        if (recent.size() < 16) return;
        std::sort(recent.rbegin(), recent.rend());
        const std::size_t count = recent.size() / 4;
        const double k = static_cast<double>(count);
        double mean = 0;
        double squares = 0;
        for (std::size_t i = 0; i < count; ++i) {
            mean += (recent[i] - recent[count]) / k;
            squares += (recent[i] - recent[count]) * (recent[i] - recent[count]) / k;
        }
        const double variance = squares - mean * mean;
        const double shape = std::clamp(0.5 * (1 - mean * mean / variance) - 0.5 / std::sqrt(k), 0.0, 0.5);
        const double chance = 0.75 * rate_ / numbers_ / ((k + 1) / (static_cast<double>(recent.size()) + 1));
        const double exponential = k * (std::pow(chance, -1 / k) - 1);
        of.scale = mean * (1 - shape) + 1e-6;
        const double tail = shape > 0 ? std::expm1(shape * exponential) / shape : exponential;
        of.seen = recent[0];
        of.limit = std::max({4.0, recent[0], recent[count] + of.scale * tail});
    }

    int n_;
    int numbers_;
    double rate_;
    int window_;
    std::vector<one_number> state_;
    std::vector<one_series> series_;
};

TEST_CASE("verdicts are those of the definition, with absent ranks, growing steps and faults")
{
    std::mt19937_64 random(3);
    long found = 0;
    for (const int n : {2, 3, 4, 7, 8, 40}) {
        outlier_detector detector(n, 2, 0.02);
        slow_detector slow(n, 2, 0.02, 384);
        std::student_t_distribution<double> heavy(3);
        row values(static_cast<std::size_t>(n));
        for (int step = 0; step < 2400 / (reduction > 1 ? 2 : 1); ++step) {
            const std::size_t calls = 1 + std::size_t(step / 100) % 5;
            detector.resize(std::max(detector.series(), 1 + calls));
            detector.begin_step(std::uint64_t(step));
            for (std::size_t id = 0; id <= calls; ++id) {
                for (std::size_t r = 0; r < values.size(); ++r)
                    values[r] = 3 + std::sin(0.1 * step) + 0.02 * heavy(random) + 0.1 * std::sin(double(r + id));
                if (random() % 20 == 0) values[random() % values.size()] += 0.5;
                if (random() % 400 == 0) values[random() % values.size()] += random() % 2 == 0 ? 3 : -3;
                if (step % 200 > 150) values[0] += 0.7; // a new level
                if (step % 400 > 380)
                    for (std::size_t r = 0; r < values.size() / 2; ++r) values[r] -= 1; // too many
                if (random() % 10 == 0) values[random() % values.size()] = collprobe::detail::not_a_number();
                const int number = id == 0 ? 0 : 1;
                detector.add(std::size_t(number), id, values, static_cast<int>(id) - 1);
                slow.add(number, id, values, static_cast<int>(id) - 1);
            }
            for (const int number : {0, 1}) {
                const auto verdicts = detector.judge(std::size_t(number));
                const auto expected = slow.judge(number);
                CAPTURE(n);
                CAPTURE(step);
                REQUIRE(verdicts.size() == expected.size());
                for (std::size_t i = 0; i < expected.size(); ++i) {
                    ++found;
                    REQUIRE(verdicts[i].rank == expected[i].rank);
                    REQUIRE(verdicts[i].call == expected[i].call);
                    REQUIRE(near(verdicts[i].distance, expected[i].distance, 1e-5));
                    REQUIRE(near(verdicts[i].limit, expected[i].limit, 1e-4));
                    REQUIRE(std::fabs(verdicts[i].seen - expected[i].seen) <= 1e-4 * (1 + expected[i].seen));
                }
            }
        }
    }
    CHECK(found > 100 / (reduction > 1 ? 2 : 1));
}

/// Numbers of one kind over a run.
struct source {
    std::mt19937_64 random;
    double (*noise)(std::mt19937_64&);
    double habit = 0; // of rank r: habit * sin(r)
    row operator()(int n)
    {
        std::normal_distribution<double> common(0, 0.1);
        const double level = 2 + common(random);
        row values(static_cast<std::size_t>(n));
        for (int r = 0; r < n; ++r) values[std::size_t(r)] = level + habit * std::sin(double(r)) + 0.02 * noise(random);
        return values;
    }
};
double gaussian(std::mt19937_64& random) { return std::normal_distribution<double>()(random); }
double student_3(std::mt19937_64& random) { return std::student_t_distribution<double>(3)(random); }

std::vector<outlier> judge(outlier_detector& detector, const row& values)
{
    detector.resize(1);
    detector.add(0, 0, values);
    const auto found = detector.judge(0);
    return {found.begin(), found.end()};
}
bool names_only(const std::vector<outlier>& found, int rank) { return found.size() == 1 && found[0].rank == rank; }

TEST_CASE("a rank that jumps by a fifth in 2 % of noise is named, whatever its habit")
{
    for (const double habit : {0.0, 0.1}) {
        for (const int n : {3, 4, 8, 32}) {
            int named = 0;
            int wrong = 0, barely = 0;
            constexpr int trials = 40;
            for (int trial = 0; trial < trials; ++trial) {
                source numbers{std::mt19937_64(unsigned(trial)), gaussian, habit};
                outlier_detector detector(n, 1);
                for (int step = 0; step < 300; ++step) wrong += judge(detector, numbers(n)).empty() ? 0 : 1;
                row values = numbers(n);
                const int rank = trial % n;
                const auto so_far = [&](double value) {
                    row changed = values;
                    changed[std::size_t(rank)] = value;
                    outlier_detector again = detector;
                    return judge(again, changed);
                };
                const std::vector<outlier> alarm = so_far(values[std::size_t(rank)] + std::log(5));
                REQUIRE(names_only(alarm, rank));
                CHECK(alarm[0].false_alarms_per_step <= 1e-7); // as `alarms` asks of a number
                for (const outlier& one : so_far(alarm[0].expected + 2 * alarm[0].seen)) {
                    CHECK(one.false_alarms_per_step == 1e-4); // not four times as far as all that was seen
                    ++barely;
                }
                values[std::size_t(rank)] += std::log(1.2);
                const std::vector<outlier> found = judge(detector, values);
                named += names_only(found, rank) ? 1 : 0;
                if (!names_only(found, rank)) continue;
                CHECK(found[0].distance > found[0].limit);
                CHECK(near(found[0].distance, std::log(1.2), 0.6));
                CHECK(near(found[0].expected, values[std::size_t(rank)] - found[0].distance, 1e-6));
                CHECK(found[0].seen < 0.2);
                CHECK(found[0].steps > 200);
                CHECK_FALSE(found[0].is_new_level);
            }
            CAPTURE(habit);
            CAPTURE(n);
            CHECK(named >= trials * 9 / 10);
            CHECK(barely >= trials / 2);
            CHECK(wrong <= 3); // of 12,000 steps
        }
    }
}

TEST_CASE("equal numbers, rounding, zeros and extreme numbers name nobody without a reason")
{
    outlier_detector detector(4, 1);
    std::mt19937_64 random(8);
    for (int step = 0; step < 200; ++step) {
        const double level = std::ldexp(1.0, int(random() % 600) - 300);
        row values(4, logarithm_of(level));
        for (double& x : values) x += 1e-15 * double(random() % 3); // roundings
        CHECK(judge(detector, values).empty());
        CHECK(judge(detector, row(4, -745)).empty());
    }
    CHECK(names_only(judge(detector, {0.5, 0.5, 0.500001 + 1e-3, 0.5}), 2));
    CHECK(names_only(judge(detector, {0.5, -745, 0.5, 0.5}), 1));
    row huge(4, 1e308);
    huge[1] = -1e308; // on the scale of losses of any sign
    const std::vector<outlier> found = judge(detector, huge);
    CHECK(found.size() == 1);
    for (const outlier& one : found) CHECK(one.rank == 1);
}

/// Loss, and norm and largest magnitude of each bucket, by rank, of a run of real training in which nothing is wrong.
struct recorded_run {
    std::uint32_t steps = 0;
    std::uint32_t ranks = 0;
    std::uint32_t columns = 0;
    std::vector<std::int16_t> logarithms; // times 2048; by step, rank and column

    explicit recorded_run(const std::string& name)
    {
        const std::string path = std::string(COLLPROBE_HEALTHY_RUNS) + "/" + name;
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
        REQUIRE(file != nullptr);
        std::uint32_t sizes[3];
        REQUIRE(std::fread(sizes, sizeof sizes, 1, file.get()) == 1);
        steps = sizes[0], ranks = sizes[1], columns = sizes[2];
        logarithms.resize(std::size_t(steps) * ranks * columns);
        REQUIRE(std::fread(logarithms.data(), 2, logarithms.size(), file.get()) == logarithms.size());
    }
    double at(std::uint32_t step, int rank, std::uint32_t column) const
    {
        return logarithms[(std::size_t(step) * ranks + std::size_t(rank)) * columns + column] / 2048.0;
    }
    /// Logarithm of the norm of a rank's whole gradient.
    double norm(std::uint32_t step, int rank) const
    {
        double squares = 0;
        for (std::uint32_t column = 1; column < columns; column += 2) squares += std::exp(2 * at(step, rank, column));
        return 0.5 * std::log(squares);
    }
    /// Judges a step as a probe does; adds `shift` to the numbers of buckets of `who`. Whom it names.
    std::vector<outlier> judge(outlier_detector& detector, std::uint32_t step, int who = -1, double shift = 0) const
    {
        const std::uint32_t buckets = (columns - 1) / 2;
        detector.resize(2 + 2 * buckets);
        row values(ranks);
        row squares(ranks);
        std::vector<outlier> all;
        const auto take = [&](std::size_t number) {
            for (const outlier& one : detector.judge(number)) all.push_back(one);
        };
        for (std::uint32_t r = 0; r < ranks; ++r) values[r] = at(step, int(r), 0);
        detector.add(0, 0, values);
        take(0);
        for (std::uint32_t column = 1; column < columns; ++column) {
            for (std::uint32_t r = 0; r < ranks; ++r) {
                values[r] = at(step, int(r), column) + (int(r) == who ? shift : 0);
                if (column % 2 == 1) squares[r] += std::exp(2 * values[r]);
            }
            detector.add(column % 2 == 1 ? 2 : 3, 1 + column, values, int(column - 1) / 2);
        }
        take(2), take(3);
        for (std::uint32_t r = 0; r < ranks; ++r) values[r] = 0.5 * std::log(squares[r]);
        detector.add(1, 1, values);
        take(1);
        return all;
    }
};

TEST_CASE("in real healthy training findings are no more frequent than twice what is stated, and there is no alarm")
{
    for (const char* const name : {"gpt_b2.bin", "lstm_b4.bin", "digits_b32.bin"}) {
        const recorded_run run(name);
        for (const double rate : {1e-4, 1e-3, 1e-2}) {
            outlier_detector detector(int(run.ranks), 5, rate);
            double found = 0;
            int alarms = 0;
            for (std::uint32_t step = 0; step < run.steps; ++step) {
                const std::vector<outlier> now = run.judge(detector, step);
                found += now.empty() ? 0 : 1;
                for (const outlier& one : now) alarms += one.false_alarms_per_step <= 1e-7 ? 1 : 0;
            }
            CAPTURE(name);
            CAPTURE(rate);
            CHECK(found <= 2 * rate * run.steps);
            CHECK(alarms == 0);
        }
    }
}

TEST_CASE("in real training a gradient that is ten times as large is named")
{
    const recorded_run run("gpt_b2.bin");
    outlier_detector detector(int(run.ranks), 5);
    int named = 0;
    int faults = 0;
    for (std::uint32_t step = 0; step < run.steps; ++step) {
        if (step > 300 && step % 20 == 19) {
            outlier_detector again = detector;
            const int who = int(step / 20 % run.ranks);
            const std::vector<outlier> found = run.judge(again, step, who, std::log(10));
            ++faults;
            named += std::any_of(found.begin(), found.end(), [who](const outlier& one) { return one.rank == who; });
        }
        run.judge(detector, step);
    }
    CHECK(faults == 42);
    CHECK(named >= 38);
}

TEST_CASE("a gradient a hundred times beyond all that any rank had in the run is named, whatever tail was learnt")
{
    // Gradients of the same step differ tenfold in the LSTM, and a hundredfold where digits are learnt by heart.
    for (const std::string name : {"gpt_b2.bin", "lstm_b4.bin", "digits_b32.bin"}) {
        const recorded_run run(name);
        outlier_detector detector(int(run.ranks), 5);
        double largest = -100;
        double smallest = 100;
        for (std::uint32_t step = 0; step < run.steps; ++step) {
            const bool is_tried = step == 20 || step == 50 || step == 150 || step == 999;
            for (int who = 0; is_tried && who < int(run.ranks); ++who) {
                for (const double end : {largest + std::log(101), smallest - std::log(101)}) {
                    outlier_detector again = detector;
                    const std::vector<outlier> found = run.judge(again, step, who, end - run.norm(step, who));
                    CAPTURE(name);
                    CAPTURE(step);
                    CAPTURE(end);
                    CHECK(!found.empty());
                    for (const outlier& one : found) CHECK(one.rank == who);
                }
            }
            for (int r = 0; r < int(run.ranks); ++r) {
                largest = std::max(largest, run.norm(step, r));
                smallest = std::min(smallest, run.norm(step, r));
            }
            run.judge(detector, step);
        }
    }
}

TEST_CASE("a saved state goes on bit for bit, and that of others is refused")
{
    source numbers{std::mt19937_64(12), student_3};
    outlier_detector detector(8, 2, 0.01);
    for (int step = 0; step < 300; ++step) {
        std::vector<std::uint64_t> words;
        detector.save(words);
        outlier_detector other(8, 2, 0.01);
        REQUIRE(other.restore(words));
        row values = numbers(8);
        if (step > 290) values[1] += 3;
        const std::vector<outlier> a = judge(detector, values);
        const std::vector<outlier> b = judge(other, values);
        REQUIRE(a.size() == b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            CHECK(a[i].rank == b[i].rank);
            CHECK(collprobe::to_bits(a[i].distance) == collprobe::to_bits(b[i].distance));
            CHECK(collprobe::to_bits(a[i].limit) == collprobe::to_bits(b[i].limit));
            CHECK(collprobe::to_bits(a[i].false_alarms_per_step) == collprobe::to_bits(b[i].false_alarms_per_step));
        }
    }
    std::vector<std::uint64_t> words;
    detector.save(words);
    std::vector<std::uint64_t> again;
    for (outlier_detector other : {outlier_detector(7, 2), outlier_detector(8, 1)}) CHECK_FALSE(other.restore(words));
    words.pop_back();
    CHECK_FALSE(detector.restore(words));
    words.assign(4, ~std::uint64_t{0});
    CHECK_FALSE(detector.restore(words));
    detector.save(again);
    detector.reset();
    CHECK(judge(detector, numbers(8)).empty());
}

TEST_CASE("a series that is forgotten begins anew, and the others go on")
{
    source numbers{std::mt19937_64(13), gaussian};
    outlier_detector detector(8, 1);
    detector.resize(2);
    for (int step = 0; step < 200; ++step) {
        for (const std::size_t series : {0u, 1u}) detector.add(0, series, numbers(8), static_cast<int>(series));
        detector.judge(0);
    }
    detector.forget(1);
    for (int step = 0; step < 16; ++step) {
        row values = numbers(8);
        values[2] += 5;
        detector.add(0, 0, numbers(8), 0);
        detector.add(0, 1, values, 1);
        CHECK(detector.judge(0).size() == 0);
    }
    row values = numbers(8);
    values[2] += 5;
    detector.add(0, 0, values, 0);
    const auto found = detector.judge(0);
    REQUIRE(found.size() == 1);
    CHECK(found[0].rank == 2);
}

TEST_CASE("judging allocates nothing")
{
    source numbers{std::mt19937_64(14), gaussian};
    outlier_detector detector(8, 1);
    detector.resize(1);
    std::vector<row> steps;
    for (int step = 0; step < 500; ++step) {
        steps.push_back(numbers(8));
        if (step % 50 > 40) steps.back()[3] += 1;
    }
    const long before = allocations;
    std::size_t found = 0;
    for (const row& values : steps) {
        detector.add(0, 0, {const_cast<double*>(values.data()), values.size()});
        found += detector.judge(0).size();
    }
    CHECK(allocations == before);
    CHECK(found > 50);
}

TEST_CASE("wrong arguments are refused")
{
    CHECK_THROWS_AS(outlier_detector(0, 1), collprobe::error);
    CHECK_THROWS_AS(outlier_detector(1, 0), collprobe::error);
    for (const double rate : {0.0, 1.0, -1.0, collprobe::detail::not_a_number()})
        CHECK_THROWS_AS(outlier_detector(2, 1, rate), collprobe::error);
}

} // namespace

} // namespace collprobe::testing::outlier_test
