// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <collprobe/metrics/detail/rank_places.hpp>

#include "support/element_types.hpp"

namespace collprobe::testing::rank_places_test {
namespace {

using collprobe::detail::rank_places;
using row = std::vector<double>;
using source = std::mt19937_64;

rank_places places_of(const row& numbers)
{
    rank_places places(numbers.size());
    for (const double x : numbers) places.add(x);
    places.order();
    return places;
}

std::size_t how_many(const row& numbers, const std::function<bool(double)>& are)
{
    return static_cast<std::size_t>(std::count_if(numbers.begin(), numbers.end(), are));
}

struct family {
    std::string name;
    std::function<double(source&)> number;
};
const std::vector<family> families{
    {"normal", [](source& random) { return 3 + 0.01 * std::normal_distribution<double>()(random); }},
    {"cauchy", [](source& random) { return std::cauchy_distribution<double>()(random); }},
    {"whole numbers", [](source& random) { return std::floor(2 * std::normal_distribution<double>()(random)); }},
    {"two values", [](source& random) { return static_cast<double>(random() % 2); }},
    {"equal", [](source&) { return -7.25; }},
    {"huge", [](source& random) { return 0.8e308 * std::uniform_real_distribution<double>(-1, 1)(random); }},
    {"tiny", [](source& random) { return 1e-300 * std::uniform_real_distribution<double>(1, 2)(random); }},
};

/// `range`: of the numbers; negative if some are far from the others, which the range of the buckets may leave out.
void for_all(const std::function<void(const row&, double range)>& check)
{
    source random(1);
    for (const family& each : families) {
        for (const std::size_t n : {1u, 2u, 3u, 8u, 31u, 32u, 33u, 64u, COLLPROBE_TEST_UNLESS_SANITIZED(COLLPROBE_TEST_UNLESS_BRIEF(1000u, 200u), 200u)}) {
            for (const bool has_outlier : {false, true}) {
                row numbers(n);
                for (double& x : numbers) x = each.number(random);
                if (has_outlier) numbers[n / 2] = each.name == "tiny" ? 1 : -0.8e308;
                CAPTURE(each.name);
                CAPTURE(n);
                CAPTURE(has_outlier);
                const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
                check(numbers, has_outlier || each.name == "cauchy" ? -1 : *most - *least);
            }
        }
    }
}

} // namespace

TEST_CASE("places are those of the plain count, and shared in order where there are many")
{
    for_all([](const row& numbers, double) {
        const rank_places places = places_of(numbers);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const std::size_t own = places.bucket(i);
            const std::size_t larger = how_many(numbers, [&](double x) { return x > numbers[i]; });
            const std::size_t equal = how_many(numbers, [&](double x) { return x == numbers[i]; });
            if (numbers.size() < rank_places::sorted_below) {
                CHECK(places.before(own) == larger);
                CHECK(places.in(own) == equal);
            }
            CHECK(places.before(own) <= larger);
            CHECK(places.before(own + 1) >= larger + equal);
            std::size_t before = 0;
            bool is_in_order = true;
            for (std::size_t j = 0; j < numbers.size(); ++j) {
                before += places.bucket(j) < own ? 1u : 0u;
                is_in_order = is_in_order && (numbers[j] > numbers[i] ? places.bucket(j) <= own : places.bucket(j) >= own || numbers[j] == numbers[i]);
            }
            CHECK(is_in_order);
            CHECK(places.before(own) == before);
        }
        CHECK(places.before(places.buckets()) == numbers.size());
    });
}

TEST_CASE("few numbers share a bucket, also beside one that is far from all others")
{
    source random(2);
    for (const std::size_t n : {64u, 1000u}) {
        for (const double outlier : {0.0, 1e3, -1e9, 1e300}) {
            row numbers(n);
            for (double& x : numbers) x = std::normal_distribution<double>()(random);
            numbers[5] += outlier;
            const rank_places places = places_of(numbers);
            std::size_t most = 0;
            for (std::size_t b = 0; b < places.buckets(); ++b) most = std::max(most, places.in(b));
            CAPTURE(outlier);
            CHECK(most <= 2 + n / 50);
            if (outlier != 0) CHECK(places.in(places.bucket(5)) == 1);
        }
    }
}

TEST_CASE("within a margin are all numbers that are, and of many those of two buckets more")
{
    source random(4);
    for_all([&](const row& numbers, double range) {
        const rank_places places = places_of(numbers);
        const bool is_exact = numbers.size() < rank_places::sorted_below;
        const double typical = std::fabs(numbers[0] - numbers[numbers.size() - 1]);
        for (const double margin : {0.0, 0.3 * typical, 2 * typical}) {
            std::size_t last = 1;
            std::size_t first = 1;
            std::size_t other_last = 1;
            for (std::size_t b = 0; b < places.buckets(); ++b) {
                if (places.in(b) == 0) continue;
                last = places.last_within(b, margin, last);
                first = places.first_within(b, margin, first);
                other_last = places.last_within(b, margin, b);
                CHECK(last == other_last);
                for (std::size_t i = 0; i < numbers.size(); ++i) {
                    if (places.bucket(i) != b) continue;
                    const double x = numbers[i];
                    const std::size_t above = how_many(numbers, [&](double y) { return y >= x - margin; });
                    const std::size_t below = how_many(numbers, [&](double y) { return y <= x + margin; });
                    if (is_exact) {
                        CHECK(places.before(last + 1) == above);
                        CHECK(numbers.size() - places.before(first) == below);
                    } else {
                        const double more = margin + 2.01 * (range / rank_places::parts);
                        CHECK(places.before(last + 1) >= above);
                        CHECK(numbers.size() - places.before(first) >= below);
                        if (range < 0) continue;
                        CHECK(places.before(last + 1) <= how_many(numbers, [&](double y) { return 0.5 * y >= 0.5 * x - 0.5 * more; }));
                        CHECK(numbers.size() - places.before(first) <= how_many(numbers, [&](double y) { return 0.5 * y <= 0.5 * x + 0.5 * more; }));
                    }
                }
            }
        }
    });
}

TEST_CASE("a number that is none of them has its own place")
{
    for (const std::size_t n : {5u, 100u}) {
        row numbers(n);
        for (std::size_t i = 0; i < n; ++i) numbers[i] = static_cast<double>(i);
        const rank_places places = places_of(numbers);
        const auto empty_after = [&](double number, std::size_t larger) {
            const std::size_t b = places.bucket_of(number);
            CHECK(places.in(b) == 0);
            CHECK(places.before(b) == larger);
        };
        empty_after(static_cast<double>(n), 0);
        empty_after(1e308, 0);
        empty_after(-0.5, n);
        empty_after(-1e308, n);
        empty_after(2.5, n - 3);
        for (std::size_t i = 0; i < n; ++i) CHECK(places.bucket_of(numbers[i]) == places.bucket(i));
    }
    const rank_places equal = places_of(row(50, 1.5));
    CHECK(equal.in(equal.bucket_of(1.5)) == 50);
    CHECK(equal.before(equal.bucket_of(1.75)) == 0);
    CHECK(equal.in(equal.bucket_of(1.75)) == 0);
    CHECK(equal.before(equal.bucket_of(1.25)) == 50);
}

TEST_CASE("the median distance from the median is that of sorted numbers, or within a bucket")
{
    for_all([](const row& numbers, double range) {
        const std::size_t n = numbers.size();
        double gaps = 0; // between the two middle ones of an even count
        const auto median = [n, &gaps](row of) {
            std::sort(of.begin(), of.end());
            if (n % 2 == 1) return of[n / 2];
            gaps += of[n / 2] - of[n / 2 - 1];
            return 0.5 * of[n / 2 - 1] + 0.5 * of[n / 2];
        };
        const double middle = median(numbers);
        row distances;
        for (const double x : numbers) distances.push_back(std::fabs(x - middle));
        const double expected = median(distances);
        const double found = places_of(numbers).median_distance();
        if (n < rank_places::sorted_below) CHECK(found == doctest::Approx(expected).epsilon(1e-14));
        else if (range >= 0) CHECK(std::fabs(found - expected) <= gaps + 1.5 * (range / rank_places::parts));
    });
}

TEST_CASE("the middle of numbers is that of sorted ones")
{
    for_all([](const row& numbers, double) {
        row sorted = numbers;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t at = numbers.size() / 2;
        row unsorted = numbers;
        const auto middle = collprobe::detail::middle_of(collprobe::view<double>(unsorted));
        CHECK(middle.at == sorted[at]);
        CHECK(middle.below == sorted[at - std::min<std::size_t>(at, 1)]);
        CHECK(middle.above == sorted[std::min(at + 1, numbers.size() - 1)]);
    });
}

} // namespace collprobe::testing::rank_places_test
