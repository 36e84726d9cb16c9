// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include <collprobe/metrics/direction.hpp>

#include "support/infinite.hpp"

namespace collprobe::testing::direction_test {
namespace {

using collprobe::detail::align_from_gram;
using collprobe::detail::align_from_sums;
using collprobe::direction;

using gradients = std::vector<std::vector<double>>;

bool undefined(double value) { return collprobe::is_nan(value); }

bool near(double value, double expected, double tolerance)
{
    return collprobe::is_finite(value) && std::fabs(value - expected) <= tolerance;
}

long double dot(const std::vector<long double>& a, const std::vector<long double>& b)
{
    long double sum = 0;
    for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
    return sum;
}

/// What the library is given, and what it should find, from the gradients themselves.
struct truth {
    std::vector<double> gram;
    std::vector<double> norms_squared;
    std::vector<double> dots;
    double sum_norm_squared = 0;
    double mean_pairwise = 0;
    double pooled = 0;
    double noise_scale = 0;
    std::vector<double> leave_one_out;
    std::vector<double> pairwise;

    explicit truth(const gradients& given)
    {
        const std::size_t n = given.size();
        const std::size_t d = given[0].size();
        std::vector<std::vector<long double>> g;
        for (const auto& one : given) g.emplace_back(one.begin(), one.end());
        std::vector<long double> sum(d);
        for (const auto& one : g)
            for (std::size_t k = 0; k < d; ++k) sum[k] += one[k];
        std::vector<long double> wide(n * n);
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i; j < n; ++j) wide[i * n + j] = wide[j * n + i] = dot(g[i], g[j]);
        gram.assign(wide.begin(), wide.end());
        long double cosines = 0;
        long double products = 0;
        long double norms = 0;
        long double squares = 0;
        for (std::size_t i = 0; i < n; ++i) {
            squares += wide[i * n + i];
            norms_squared.push_back(static_cast<double>(wide[i * n + i]));
            dots.push_back(static_cast<double>(dot(g[i], sum)));
            for (std::size_t j = i + 1; j < n; ++j) {
                const long double length = sqrtl(wide[i * n + i] * wide[j * n + j]);
                cosines += wide[i * n + j] / length;
                products += wide[i * n + j];
                norms += length;
            }
            std::vector<long double> rest(d);
            for (std::size_t j = 0; j < n; ++j)
                if (j != i)
                    for (std::size_t k = 0; k < d; ++k) rest[k] += g[j][k];
            leave_one_out.push_back(static_cast<double>(dot(g[i], rest) / sqrtl(wide[i * n + i] * dot(rest, rest))));
            long double own = -1; // its cosine with itself
            for (std::size_t j = 0; j < n; ++j) own += wide[i * n + j] / sqrtl(wide[i * n + i] * wide[j * n + j]);
            pairwise.push_back(static_cast<double>(own / static_cast<long double>(n - 1)));
        }
        const long double ranks = static_cast<long double>(n);
        const long double total = dot(sum, sum);
        sum_norm_squared = static_cast<double>(total);
        mean_pairwise = static_cast<double>(cosines / (ranks * (ranks - 1) / 2));
        pooled = static_cast<double>(products / norms);
        // k-diffusion's gns.py with b = 1 and B = n.
        const long double small = squares / ranks;
        const long double big = total / (ranks * ranks);
        const long double signal = (ranks * big - small) / (ranks - 1);
        noise_scale = static_cast<double>((small - big) / (1 - 1 / ranks) / signal);
    }
};

gradients shared_signal(std::size_t n, std::size_t d, double noise, unsigned seed)
{
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> signal(d);
    for (double& x : signal) x = normal(random);
    gradients g(n, signal);
    for (auto& one : g)
        for (double& x : one) x += noise * normal(random);
    return g;
}

TEST_CASE("alignment of random gradients agrees with long double, also where one rank outweighs the others")
{
    for (const std::size_t n : {2u, 3u, 8u, 64u}) {
        for (const std::pair<double, double>& of : {std::pair{0.1, 1.0}, {1.0, 1.0}, {3.0, 1.0}, {1.0, 100.0}, {0.5, 1e9}}) {
            const double noise = of.first, large = of.second; // CAPTURE takes no structured binding
            gradients g = shared_signal(n, 500, noise, static_cast<unsigned>(n));
            // Norms that differ, so that pooled and mean pairwise do.
            for (std::size_t r = 0; r < n; ++r)
                for (double& x : g[r]) x *= r == 1 ? large : 1 + static_cast<double>(r % 5);
            truth expected(g);
            CAPTURE(n);
            CAPTURE(noise);
            CAPTURE(large);
            const double unit = n == 3 ? 0x1p-900 : n == 8 ? 0x1p+900 : 1; // alignment has none
            for (auto* all : {&expected.gram, &expected.norms_squared, &expected.dots})
                for (double& x : *all) x *= unit;
            expected.sum_norm_squared *= unit;

            direction a;
            collprobe::detail::align_from_gram(expected.gram, static_cast<int>(n), a);
            CHECK(near(a.mean_pairwise, expected.mean_pairwise, 1e-12));
            CHECK(near(a.pooled, expected.pooled, 1e-12));
            REQUIRE(a.leave_one_out.size() == n);
            REQUIRE(a.pairwise.size() == n);
            for (std::size_t r = 0; r < n; ++r) {
                CHECK(near(a.leave_one_out[r], expected.leave_one_out[r], 1e-12));
                CHECK(near(a.pairwise[r], expected.pairwise[r], 1e-12));
            }
            if (large > 1e6) { // the sums have lost it, and say so rather than guess
                CHECK(undefined(collprobe::leave_one_out(expected.norms_squared[1], expected.dots[1], expected.sum_norm_squared)));
                continue;
            }
            CHECK(near(a.noise_scale / expected.noise_scale, 1, 1e-11));
            CHECK(near(a.predicted_cosine, 1 / (1 + expected.noise_scale), 1e-12));

            direction b;
            collprobe::detail::align_from_sums(expected.norms_squared, expected.dots, expected.sum_norm_squared, b);
            CHECK(undefined(b.mean_pairwise));
            CHECK(near(b.pooled, expected.pooled, 1e-12));
            CHECK(near(b.noise_scale / expected.noise_scale, 1, 1e-11));
            REQUIRE(b.leave_one_out.size() == n);
            // Subtracting the large rank costs digits, not the answer.
            for (std::size_t r = 0; r < n; ++r)
                CHECK(near(b.leave_one_out[r], expected.leave_one_out[r], large > 1 ? 1e-9 : 1e-12));

            collprobe::detail::align_from_sums(expected.norms_squared, {}, expected.sum_norm_squared, b);
            CHECK(near(b.pooled, expected.pooled, 1e-12));
            CHECK(b.leave_one_out.empty());
        }
    }
}

TEST_CASE("identical gradients have cosine one and no noise")
{
    std::vector<double> gradient = shared_signal(1, 100, 1, 9)[0];
    for (const std::size_t n : {2u, 3u, 8u}) {
        const truth expected(gradients(n, gradient));
        direction a;
        collprobe::detail::align_from_gram(expected.gram, static_cast<int>(n), a);
        CHECK(near(a.mean_pairwise, 1, 1e-15));
        CHECK(near(a.pooled, 1, 1e-15));
        CHECK(a.noise_scale == 0);
        CHECK(a.predicted_cosine == 1);
        for (const double c : a.leave_one_out) CHECK(near(c, 1, 1e-15));
        collprobe::detail::align_from_sums(expected.norms_squared, expected.dots, expected.sum_norm_squared, a);
        CHECK(near(a.pooled, 1, 1e-14));
        CHECK(near(a.noise_scale, 0, 1e-14));
        for (const double c : a.leave_one_out) CHECK(near(c, 1, 1e-14));
    }
}

TEST_CASE("opposite gradients have cosine minus one and unbounded noise")
{
    const std::vector<double> gram = {4, -4, -4, 4};
    direction a;
    collprobe::detail::align_from_gram(gram, 2, a);
    CHECK(a.mean_pairwise == -1);
    CHECK(a.pooled == -1);
    CHECK(collprobe::testing::is_infinite(a.noise_scale));
    CHECK(a.predicted_cosine == 0);
    CHECK(a.leave_one_out[0] == -1);
    CHECK(a.leave_one_out[1] == -1);
    const std::vector<double> norms = {4, 4};
    const std::vector<double> dots = {0, 0};
    collprobe::detail::align_from_sums(norms, dots, 0, a);
    CHECK(a.pooled == -1);
    CHECK(collprobe::testing::is_infinite(a.noise_scale));
    CHECK(a.leave_one_out[0] == -1);
}

TEST_CASE("one rank has no alignment")
{
    const std::vector<double> gram = {4};
    const std::vector<double> dots = {4};
    direction a;
    for (const bool from_gram : {true, false}) {
        if (from_gram) collprobe::detail::align_from_gram(gram, 1, a);
        else collprobe::detail::align_from_sums(gram, dots, 4, a);
        CHECK(undefined(a.mean_pairwise));
        CHECK(undefined(a.pooled));
        CHECK(undefined(a.noise_scale));
        CHECK(undefined(a.predicted_cosine));
        REQUIRE(a.leave_one_out.size() == 1);
        CHECK(undefined(a.leave_one_out[0]));
    }
}

TEST_CASE("ranks without direction are left out")
{
    gradients g = shared_signal(6, 200, 1, 11);
    const truth healthy(gradients(g.begin(), g.begin() + 4));
    for (double& x : g[4]) x = 0;
    truth all(g);
    // Rank 4 is zero, rank 5 non-finite.
    for (std::size_t i = 0; i < 6; ++i)
        all.gram[i * 6 + 5] = all.gram[5 * 6 + i]
            = i % 2 == 0 ? collprobe::detail::not_a_number() : collprobe::detail::infinity();
    direction a;
    collprobe::detail::align_from_gram(all.gram, 6, a);
    CHECK(near(a.mean_pairwise, healthy.mean_pairwise, 1e-12));
    CHECK(near(a.pooled, healthy.pooled, 1e-12));
    for (std::size_t r = 0; r < 4; ++r) CHECK(near(a.leave_one_out[r], healthy.leave_one_out[r], 1e-12));
    CHECK(undefined(a.leave_one_out[4]));
    CHECK(undefined(a.leave_one_out[5]));
    // The zero gradient is a sample of the noise.
    const truth with_zero(gradients(g.begin(), g.begin() + 5));
    CHECK(near(a.noise_scale / with_zero.noise_scale, 1, 1e-11));

    collprobe::detail::align_from_sums(all.norms_squared, all.dots, collprobe::detail::not_a_number(), a);
    CHECK(undefined(a.pooled));
    CHECK(undefined(a.noise_scale));
    CHECK(undefined(a.leave_one_out[0]));
    all.norms_squared[2] = collprobe::detail::infinity();
    collprobe::detail::align_from_sums(all.norms_squared, all.dots, 1, a);
    CHECK(undefined(a.pooled));
    CHECK(undefined(a.leave_one_out[2]));

    const std::vector<double> zeros(9, 0.0);
    collprobe::detail::align_from_gram(zeros, 3, a);
    CHECK(undefined(a.mean_pairwise));
    CHECK(undefined(a.noise_scale));
    CHECK(undefined(a.leave_one_out[0]));
    const std::vector<double> nothing(9, collprobe::detail::not_a_number());
    collprobe::detail::align_from_gram(nothing, 3, a);
    CHECK(undefined(a.mean_pairwise));
    CHECK(undefined(a.leave_one_out[2]));
}

TEST_CASE("a Gram matrix of another size is refused")
{
    const std::vector<double> gram(8, 1.0);
    const std::vector<double> norms(3, 1.0);
    const std::vector<double> dots(2, 1.0);
    direction a;
    CHECK_THROWS_AS(collprobe::detail::align_from_gram(gram, 3, a), collprobe::error);
    CHECK_THROWS_AS(collprobe::detail::align_from_gram(gram, 0, a), collprobe::error);
    CHECK_THROWS_AS(collprobe::detail::align_from_sums(norms, dots, 1, a), collprobe::error);
}

TEST_CASE("the smoothed noise scale averages moments before it divides")
{
    collprobe::detail::smoothed_noise_scale smoothed;
    CHECK(undefined(smoothed.predicted_cosine()));
    smoothed.update({2, 3});
    CHECK(near(smoothed.predicted_cosine(), 2.0 / (2 + 3), 1e-14));
    smoothed.update({-1, 5}); // a noisy step: its own ratio would be meaningless
    CHECK(near(smoothed.predicted_cosine(), (0.99 * 2 - 1) / (0.99 * 2 - 1 + 0.99 * 3 + 5), 1e-13));
    smoothed.update({collprobe::detail::not_a_number(), 1});
    CHECK(near(smoothed.predicted_cosine(), (0.99 * 2 - 1) / (0.99 * 2 - 1 + 0.99 * 3 + 5), 1e-13));
}

} // namespace

} // namespace collprobe::testing::direction_test
