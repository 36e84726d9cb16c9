// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <collprobe/replica/detail/averaging_decision.hpp>

using collprobe::detail::expected_divergence;
using collprobe::detail::noise_gain;

namespace {

/// M replicas of d coordinates that start equal and step with noise of their own; what they have in common cancels
/// and is left out.
class replicas {
public:
    replicas(int ranks, std::size_t dimension, double sigma, double momentum, std::uint64_t seed)
        : ranks_(static_cast<std::size_t>(ranks)), dimension_(dimension), sigma_(sigma), momentum_(momentum),
          random_(seed), theta_(ranks_ * dimension), velocity_(ranks_ * dimension)
    {
    }
    void step(double rate)
    {
        std::normal_distribution<double> normal(0, sigma_);
        for (std::size_t i = 0; i < theta_.size(); ++i) {
            velocity_[i] = momentum_ * velocity_[i] + normal(random_);
            theta_[i] -= rate * velocity_[i];
        }
    }
    void average(bool state)
    {
        average(theta_);
        if (state) average(velocity_);
    }
    /// The mean over the ranks of ||thetabar - theta^m||^2.
    double divergence() const
    {
        double sum = 0;
        for (std::size_t i = 0; i < dimension_; ++i) {
            double mean = 0;
            for (std::size_t m = 0; m < ranks_; ++m) mean += theta_[m * dimension_ + i];
            mean /= static_cast<double>(ranks_);
            for (std::size_t m = 0; m < ranks_; ++m) {
                const double distance = theta_[m * dimension_ + i] - mean;
                sum += distance * distance;
            }
        }
        return sum / static_cast<double>(ranks_);
    }

private:
    void average(std::vector<double>& values) const
    {
        for (std::size_t i = 0; i < dimension_; ++i) {
            double mean = 0;
            for (std::size_t m = 0; m < ranks_; ++m) mean += values[m * dimension_ + i];
            for (std::size_t m = 0; m < ranks_; ++m) values[m * dimension_ + i] = mean / static_cast<double>(ranks_);
        }
    }

    std::size_t ranks_;
    std::size_t dimension_;
    double sigma_;
    double momentum_;
    std::mt19937_64 random_;
    std::vector<double> theta_;
    std::vector<double> velocity_;
};

/// So many coordinates that a simulated divergence is within 2 % of its mean by 3.6 standard deviations.
std::size_t dimension_for(int ranks) { return 65536 / static_cast<std::size_t>(ranks - 1); }

/// The paper's (M+1)/M sigma^2 sum eta^2, as printed (eq. 6): not what happens.
double literal_divergence(double variance, int ranks, double gain) { return variance * (ranks + 1) / ranks * gain; }

/// The paper's bound with averaging every `interval` steps (eq. 9), times the dimension that it leaves out: for plain
/// SGD with eta_t <= 2 eta_(t+H).
double divergence_bound(double variance, double dimension, int ranks, std::uint64_t interval, double rate)
{
    return 4 * static_cast<double>(interval) * dimension * (ranks + 1) / ranks * variance * rate * rate;
}

/// The estimate of sigma^2 that `when_worth_it` makes of the mean over the ranks of ||thetabar - theta^m||^2.
double noise_variance(double mean_squared_distance, double dimension, int ranks, double gain)
{
    return collprobe::detail::noise_variance(
        ranks * mean_squared_distance, ranks * expected_divergence(1, dimension, ranks, gain));
}

} // namespace

TEST_CASE("the divergence is what the corrected formula says within 2 percent, and not what the literal one says")
{
    constexpr double sigma = 0.1;
    for (const int ranks : {2, 4, 8, 32}) {
        const std::size_t d = dimension_for(ranks);
        replicas all(ranks, d, sigma, 0, 17);
        noise_gain gain;
        for (int step = 1; step <= 100; ++step) {
            const double rate = 0.1 / (1 + 0.02 * step);
            all.step(rate);
            gain.step(rate);
            if (step != 1 && step != 2 && step != 5 && step != 10 && step != 50 && step != 100) continue;
            const double simulated = all.divergence();
            const double corrected = expected_divergence(sigma * sigma, static_cast<double>(d), ranks, gain.value());
            const double literal = literal_divergence(sigma * sigma, ranks, gain.value());
            const double per_coordinate = simulated / static_cast<double>(d) / (sigma * sigma) / gain.value();
            MESSAGE("M = ", ranks, ", H = ", step, ": simulated ", simulated, ", corrected ", corrected, ", literal ",
                literal, "; per coordinate ", per_coordinate, " (M-1)/M = ", double(ranks - 1) / ranks,
                ", (M+1)/M = ", double(ranks + 1) / ranks);
            CHECK(std::fabs(simulated - corrected) < 0.02 * corrected);
            // Even with the dimension put in, its factor is wrong: 3 times too large for two ranks.
            const double factor = static_cast<double>(ranks + 1) / (ranks - 1);
            CHECK(literal * static_cast<double>(d) > (1 + 0.5 * (factor - 1)) * simulated);
            CHECK(literal < 0.01 * simulated);
        }
    }
}

TEST_CASE("with momentum the gain follows the noise of earlier steps, over averages with and without the state")
{
    constexpr double sigma = 0.3;
    for (const bool state : {false, true}) {
        for (const int interval : {1, 3, 10}) {
            const int ranks = 4;
            const std::size_t d = dimension_for(ranks);
            replicas all(ranks, d, sigma, 0.9, 5);
            noise_gain gain(0.9);
            for (int step = 1; step <= 30; ++step) {
                const double rate = 0.04 / (1 + 0.1 * step);
                all.step(rate);
                gain.step(rate);
                if (step % interval != 0) continue;
                const double expected = expected_divergence(sigma * sigma, static_cast<double>(d), ranks, gain.value());
                CHECK(std::fabs(all.divergence() - expected) < 0.02 * expected);
                all.average(state);
                gain.synchronised(state);
                CHECK(gain.value() == 0);
            }
        }
    }
}

TEST_CASE("the bound of equation 9 holds while the learning rate falls by half at most in an interval")
{
    constexpr double sigma = 0.2;
    constexpr std::size_t d = 4096;
    for (const int ranks : {2, 8}) {
        for (const std::uint64_t interval : {1u, 5u, 20u}) {
            replicas all(ranks, d, sigma, 0, 3);
            for (std::uint64_t step = 0; step < 60; ++step) {
                const double rate = 0.1 * std::pow(0.5, static_cast<double>(step) / static_cast<double>(interval));
                all.step(rate);
                const double bound = divergence_bound(sigma * sigma, d, ranks, interval, rate);
                CHECK(all.divergence() <= bound);
                if ((step + 1) % interval == 0) all.average(false);
            }
        }
    }
}

TEST_CASE("the estimate of the variance is unbiased")
{
    constexpr double sigma = 0.05;
    constexpr std::size_t d = 16;
    constexpr int trials = 4000;
    for (const int ranks : {2, 4, 8}) {
        double sum = 0;
        for (int trial = 0; trial < trials; ++trial) {
            replicas all(ranks, d, sigma, 0, static_cast<std::uint64_t>(trial));
            noise_gain gain;
            for (int step = 0; step < 4; ++step) {
                all.step(0.1 + 0.05 * step);
                gain.step(0.1 + 0.05 * step);
            }
            sum += noise_variance(all.divergence(), d, ranks, gain.value());
        }
        const double standard_error = sigma * sigma * std::sqrt(2.0 / (16.0 * (ranks - 1)) / trials);
        CHECK(std::fabs(sum / trials - sigma * sigma) < 4 * standard_error);
        // Control: without (M-1)/M it would be found wrong.
        CHECK(std::fabs(sum / trials * (ranks - 1) / ranks - sigma * sigma) > 4 * standard_error);
    }
}

TEST_CASE("nothing is said of the variance of one rank, of no coordinate, or before a step")
{
    CHECK(noise_variance(1, 10, 1, 0.1) == 0);
    CHECK(noise_variance(1, 0, 4, 0.1) == 0);
    CHECK(noise_variance(1, 10, 4, 0) == 0);
    CHECK(noise_variance(0, 10, 4, 0.1) == 0);
}
