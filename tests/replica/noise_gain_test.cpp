// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <collprobe/replica/detail/averaging_decision.hpp>

namespace collprobe::testing::noise_gain_test {

using collprobe::detail::expected_divergence;
using collprobe::detail::noise_gain;

namespace {

/// Parameter and velocity after one unit of noise in one step, by the rule of SGD with momentum. The noises of steps
/// are independent, so the variance is the sum of the squares of these parameters.
struct impulse {
    double theta = 0;
    double velocity = 1;
};

double sum_of_squares(const std::vector<impulse>& noises)
{
    double sum = 0;
    for (const impulse& each : noises) sum += each.theta * each.theta;
    return sum;
}

} // namespace

TEST_CASE("the gain is the sum of the squared effects of each step's noise, with momentum, over averages of weights and state")
{
    for (const double momentum : {0.0, 0.9}) {
        for (const bool state : {false, true}) {
            for (const int interval : {1, 3, 10}) {
                std::vector<impulse> noises;
                noise_gain gain(momentum);
                for (int step = 1; step <= 30; ++step) {
                    const double rate = 0.04 / (1 + 0.1 * step);
                    for (impulse& each : noises) each.velocity *= momentum;
                    noises.push_back({});
                    for (impulse& each : noises) each.theta -= rate * each.velocity;
                    gain.step(rate);
                    CHECK(gain.value() == doctest::Approx(sum_of_squares(noises)).epsilon(1e-12));
                    if (step % interval != 0) continue;
                    for (impulse& each : noises) each = {0, state ? 0 : each.velocity};
                    gain.synchronised(state);
                    CHECK(gain.value() == 0);
                }
            }
        }
    }
}

TEST_CASE("nothing is said of the variance of one rank, of no coordinate, or before a step")
{
    const auto variance = [](double squared_distances, double dimension, int ranks, double gain) {
        return collprobe::detail::noise_variance(squared_distances, expected_divergence(1, dimension, ranks, gain));
    };
    CHECK(variance(1, 10, 1, 0.1) == 0);
    CHECK(variance(1, 0, 4, 0.1) == 0);
    CHECK(variance(1, 10, 4, 0) == 0);
    CHECK(variance(0, 10, 4, 0.1) == 0);
    CHECK(variance(6, 10, 4, 0.1) == doctest::Approx(8)); // 6 = 10 * 8 * 3/4 * 0.1
}

} // namespace collprobe::testing::noise_gain_test
