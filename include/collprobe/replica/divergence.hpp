// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

/// How far replicas drift apart if every rank's aggregated gradient has noise of its own: g~ = g + eps with eps ~
/// N(0, sigma^2) in each coordinate, the model of PAFT (OpenReview cPZepCZlFW). The common part g cancels in
/// thetabar - theta^m, so what is here is exact whatever is trained, as long as the update is linear in g~: SGD,
/// with or without momentum.
///
/// The paper's Lemma 3.1 has (M+1)/M where independent noise gives (M-1)/M, and leaves out the dimension. Both
/// forms are here, under names that say which is which.
namespace collprobe::inline COLLPROBE_ABI {

/// Variance of one coordinate's drift since the replicas were last equal, over sigma^2. Without momentum the sum
/// of eta_s^2. With momentum (v = momentum v + g~, theta -= eta v) what a step's noise does later is in it too.
class noise_gain {
public:
    explicit constexpr noise_gain(double momentum = 0) noexcept : momentum_(momentum) {}

    /// The parameters took a step with learning rate `rate`.
    constexpr void step(double rate) noexcept
    {
        velocity_ = momentum_ * momentum_ * velocity_ + 1;
        const double before = momentum_ * mixed_; // covariance of theta before the step and v after it
        mixed_ = before - rate * velocity_;
        gain_ += rate * rate * velocity_ - 2 * rate * before;
    }
    /// The parameters became equal on all ranks; the momentum too if `state`.
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

/// E ||thetabar - theta^m||^2 of `ranks` replicas with `dimension` coordinates: d sigma^2 (M-1)/M gain.
constexpr double expected_divergence(double variance, double dimension, int ranks, double gain) noexcept
{
    return dimension * variance * (ranks - 1) / ranks * gain;
}

/// The paper's (M+1)/M sigma^2 sum eta^2, as printed (eq. 6). To compare with; it is not what happens.
constexpr double literal_divergence(double variance, int ranks, double gain) noexcept
{
    return variance * (ranks + 1) / ranks * gain;
}

/// The paper's bound with averaging every `interval` steps (eq. 9), times the dimension that it leaves out: holds
/// for plain SGD with eta_t <= 2 eta_(t+H), and generously, since its constant is that of `literal_divergence`.
constexpr double divergence_bound(
    double variance, double dimension, int ranks, std::uint64_t interval, double rate) noexcept
{
    return 4 * static_cast<double>(interval) * dimension * (ranks + 1) / ranks * variance * rate * rate;
}

/// The unbiased estimate of sigma^2 from the mean over all ranks of ||thetabar - theta^m||^2 on `dimension`
/// coordinates. 0 if nothing can be said: one rank, no coordinate or no step.
///
/// Unbiased for float and double weights. The rounding of bfloat16 weights is no such noise: updates below half an ulp
/// are lost, and others rounded up. Measured there, estimate over truth: 0.31 to 0.36 where a step's noise moves a
/// weight by 0.1 half-ulps, 1.11 to 1.13 at one half-ulp, at most 1.025 from 3 on.
constexpr double noise_variance(double mean_squared_distance, double dimension, int ranks, double gain) noexcept
{
    const double expected = ranks > 1 ? expected_divergence(1, dimension, ranks, gain) : 0;
    return expected > 0 ? mean_squared_distance / expected : 0;
}

} // namespace collprobe
