// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

/// The drift of replicas if every rank's aggregated gradient has independent noise: g~ = g + eps with eps ~ N(0,
/// sigma^2) in each coordinate, the model of PAFT (OpenReview cPZepCZlFW). The common part g cancels in thetabar -
/// theta^m. So the result is exact for any model whose update is linear in g~: SGD, with or without momentum.
///
/// The paper's Lemma 3.1 has (M+1)/M where independent noise gives (M-1)/M, and omits the dimension.
/// (tests/replica/noise_gain_test.cpp compares both with a simulation.)
///
/// The estimate of sigma is unbiased for float and double weights. The rounding of bfloat16 weights does not act like
/// such noise: updates below half an ulp are lost, others are rounded up. Measured ratio of the estimate of sigma^2 to
/// the truth: 0.31 to 0.36 if a step's noise moves a weight by 0.1 half-ulps, 1.11 to 1.13 at one half-ulp, at most
/// 1.025 from 3 on.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Variance of one coordinate's drift since the replicas were last equal, divided by sigma^2. Without momentum it is
/// the sum of eta_s^2. With momentum (v = momentum v + g~, theta -= eta v) it includes the later effects of a step's
/// noise.
class noise_gain {
public:
    explicit constexpr noise_gain(double momentum = 0) noexcept : momentum_(momentum) {}

    /// Adds a step of the parameters with learning rate `rate`.
    constexpr void step(double rate) noexcept
    {
        velocity_ = momentum_ * momentum_ * velocity_ + 1;
        const double before = momentum_ * mixed_; // covariance of theta before the step and v after it
        mixed_ = before - rate * velocity_;
        gain_ += rate * rate * velocity_ - 2 * rate * before;
    }
    /// Notes that the parameters became equal on all ranks, and with `state` the momentum too.
    constexpr void synchronised(bool state) noexcept
    {
        gain_ = 0;
        mixed_ = 0;
        if (state) velocity_ = 0;
    }
    constexpr double value() const noexcept { return gain_; }

private:
    double momentum_;
    double gain_ = 0;
    double mixed_ = 0;
    double velocity_ = 0;
};

/// E ||thetabar - theta^m||^2, summed over the coordinates: d sigma^2 (M-1)/M gain for M ranks and dimension d.
constexpr double expected_divergence(double variance, double dimension, int ranks, double gain) noexcept
{
    return dimension * variance * (ranks - 1) / ranks * gain;
}

} // namespace collprobe::detail
