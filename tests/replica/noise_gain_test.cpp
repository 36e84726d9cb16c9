// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <collprobe/replica/detail/averaging_decision.hpp>

namespace collprobe::testing::noise_gain_test {

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

/// The estimate of sigma^2 that `when_worth_it` makes of the mean over the ranks of ||thetabar - theta^m||^2.
double noise_variance(double mean_squared_distance, double dimension, int ranks, double gain)
{
    return collprobe::detail::noise_variance(
        ranks * mean_squared_distance, ranks * expected_divergence(1, dimension, ranks, gain));
}

} // namespace

TEST_CASE("the divergence is what the formula says within 2 percent, with momentum and without, over averages of weights and of state")
{
    constexpr double sigma = 0.3;
    for (const double momentum : {0.0, 0.9}) {
        for (const bool state : {false, true}) {
            for (const int interval : {1, 3, 10}) {
                for (const int ranks : {2, 8}) {
                    const std::size_t d = dimension_for(ranks);
                    replicas all(ranks, d, sigma, momentum, 5);
                    noise_gain gain(momentum);
                    for (int step = 1; step <= 30; ++step) {
                        const double rate = 0.04 / (1 + 0.1 * step);
                        all.step(rate);
                        gain.step(rate);
                        if (step % interval != 0) continue;
                        const double expected
                            = expected_divergence(sigma * sigma, static_cast<double>(d), ranks, gain.value());
                        CHECK(std::fabs(all.divergence() - expected) < 0.02 * expected);
                        all.average(state);
                        gain.synchronised(state);
                        CHECK(gain.value() == 0);
                    }
                }
            }
        }
    }
}

TEST_CASE("nothing is said of the variance of one rank, of no coordinate, or before a step")
{
    CHECK(noise_variance(1, 10, 1, 0.1) == 0);
    CHECK(noise_variance(1, 0, 4, 0.1) == 0);
    CHECK(noise_variance(1, 10, 4, 0) == 0);
    CHECK(noise_variance(0, 10, 4, 0.1) == 0);
}

} // namespace collprobe::testing::noise_gain_test
