// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <collprobe/metrics/dispersion.hpp>

namespace collprobe::testing::dispersion_test {
namespace {

using collprobe::dispersion;
using collprobe::spread;

bool undefined(double value) { return collprobe::is_nan(value); }

bool near(double value, long double expected, double tolerance = 1e-12)
{
    return collprobe::is_finite(value)
        && std::fabs(static_cast<double>(value - expected)) <= tolerance * std::fabs(static_cast<double>(expected));
}

TEST_CASE("dispersion divides by n and its sample form by n - 1, as in long double, whatever the offset and the scale")
{
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (const double offset : {0.0, 1.0, 1e6, -3e9}) {
        for (const double scale : {1.0, 1e-200, 1e150, 0x1p900}) {
            for (const std::size_t n : {2u, 3u, 8u, 64u, 1000u}) {
                std::vector<double> values(n);
                for (double& x : values) x = (offset + normal(random)) * scale;
                long double sum = 0;
                for (const double x : values) sum += x;
                const long double mean = sum / static_cast<long double>(n);
                long double squares = 0;
                for (const double x : values) squares += (x - mean) * (x - mean);
                const spread s = dispersion(values);
                CAPTURE(offset);
                CAPTURE(scale);
                CAPTURE(n);
                CHECK(std::fabs(static_cast<double>((s.mean - mean) / scale)) <= 1e-14 * (std::fabs(offset) + 10));
                CHECK(near(s.std, sqrtl(squares / static_cast<long double>(n))));
                CHECK(near(s.std_sample, sqrtl(squares / static_cast<long double>(n - 1))));
                const auto [least, most] = std::minmax_element(values.begin(), values.end());
                CHECK(s.minimum == *least);
                CHECK(s.maximum == *most);
                CHECK(s.minimum_rank == least - values.begin());
                CHECK(s.maximum_rank == most - values.begin());
                CHECK(near(s.range, *most - *least));
                CHECK(near(s.cv, s.std / std::fabs(s.mean)));
                CHECK(s.finite == static_cast<int>(n));
            }
        }
    }
}

TEST_CASE("equal losses have a dispersion of exactly zero")
{
    for (const double loss : {0.1, 2.3025850929940457, 1e300, 1e-310}) {
        const std::vector<double> losses(7, loss);
        const spread s = dispersion(losses);
        CHECK(s.std == 0);
        CHECK(s.std_sample == 0);
        CHECK(s.range == 0);
        CHECK(s.minimum_rank == 0);
        CHECK(s.maximum_rank == 0);
    }
}

TEST_CASE("ranks without a finite value are counted out and keep the rest intact")
{
    const std::vector<double> losses
        = {collprobe::detail::not_a_number(), 3, collprobe::detail::infinity(), 1, -collprobe::detail::infinity(), 2};
    const spread s = dispersion(losses);
    CHECK(s.finite == 3);
    CHECK(s.mean == 2);
    CHECK(near(s.std, std::sqrt(2.0 / 3)));
    CHECK(s.minimum_rank == 3);
    CHECK(s.maximum_rank == 1);
}

TEST_CASE("undefined fields are NaN by bits")
{
    const spread none = dispersion(std::span<const double>());
    CHECK(none.finite == 0);
    CHECK(undefined(none.mean));
    CHECK(undefined(none.std));
    CHECK(undefined(none.minimum));
    CHECK(none.minimum_rank == -1);

    const std::vector<double> one = {4};
    const spread single = dispersion(one);
    CHECK(single.mean == 4);
    CHECK(single.std == 0);
    CHECK(undefined(single.std_sample));
    CHECK(single.cv == 0);

    const std::vector<double> balanced = {-1, 1};
    CHECK(undefined(dispersion(balanced).cv));
    CHECK(dispersion(balanced).std == 1);

    const std::vector<double> bad(3, collprobe::detail::not_a_number());
    CHECK(undefined(dispersion(bad).mean));
    CHECK(dispersion(bad).finite == 0);
}

TEST_CASE("weights count as repetitions")
{
    const std::vector<double> values = {1.5, 2.25, 4.125};
    const std::vector<double> weights = {3, 1, 6};
    std::vector<double> repeated;
    for (std::size_t r = 0; r < values.size(); ++r)
        for (int i = 0; i < static_cast<int>(weights[r]); ++i) repeated.push_back(values[r]);
    const spread weighted = dispersion(values, weights);
    const spread plain = dispersion(repeated);
    CHECK(near(weighted.mean, plain.mean));
    CHECK(near(weighted.std, plain.std));
    CHECK(near(weighted.std_sample, plain.std_sample));
    CHECK(near(weighted.cv, plain.cv));
    CHECK(weighted.finite == 3);
    CHECK(weighted.maximum_rank == 2);

    const std::vector<double> equal(3, 5.0);
    CHECK(near(dispersion(values, equal).std, dispersion(values).std));
}

TEST_CASE("a rank of weight zero or of a non-finite loss does not count")
{
    const double nan = collprobe::detail::not_a_number();
    const std::vector<double> values = {nan, 1, 100, 3, 50};
    const std::vector<double> weights = {10, 1, 0, 1, nan};
    const spread s = dispersion(values, weights);
    CHECK(s.finite == 2);
    CHECK(s.mean == 2);
    CHECK(s.std == 1);
    CHECK(s.maximum_rank == 3);
    const std::vector<double> nothing(5, 0.0);
    CHECK(undefined(dispersion(values, nothing).mean));
}

TEST_CASE("bad weights are refused by name")
{
    const std::vector<double> values = {1, 2, 3};
    const std::vector<double> few = {1, 2};
    const std::vector<double> negative = {1, -2, 1};
    CHECK_THROWS_AS((void)dispersion(values, few), collprobe::error);
    try {
        (void)dispersion(values, negative);
        FAIL("a negative weight was taken");
    } catch (const collprobe::error& e) {
        CHECK(e.code() == collprobe::status::invalid_argument);
        CHECK(e.culprits() == std::vector<int>{1});
        CHECK(std::string(e.what()).find("rank 1") != std::string::npos);
    }
}

} // namespace

} // namespace collprobe::testing::dispersion_test
