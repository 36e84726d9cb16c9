// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/replica/detail/average_replicas.hpp>

/// Of `when_worth_it`: distances on a sample of the coordinates, from which the next interval follows. README.md has
/// the model of the drift, and where the estimate of sigma is off.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr std::uint64_t first_interval = 10; ///< steps before the first average: there is no measurement yet
inline constexpr std::uint64_t least_interval = 2; ///< also the steps until the host asks for the decision
/// Holds on clean ranks, and also where no noise was measured in the interval.
inline constexpr std::uint64_t most_interval = 100;
inline constexpr std::uint64_t sampled_coordinates = 65536; ///< at least, of weights that have so many
inline constexpr std::uint64_t distance_parts = 16; ///< of a sum over a buffer

/// Squared distance of every `stride`-th element of two buffers, or their squared norm if `other` is null. A body
/// for `sum_each` with `distance_parts` items.
template <element T>
struct sampled_distance {
    const T* elements;
    const T* other;
    std::uint64_t samples;
    std::uint64_t stride;
    double* sums;

    COLLPROBE_HD double part(std::uint64_t item, unsigned lane, unsigned lanes) const noexcept
    {
        const std::uint64_t length = samples / distance_parts + 1;
        std::uint64_t last = (item + 1) * length;
        if (last > samples) last = samples;
        double sum = 0;
        for (std::uint64_t k = item * length + lane; k < last; k += lanes) {
            const double value = widen(elements[k * stride]);
            const double distance = other == nullptr ? value : value - widen(other[k * stride]);
            sum += distance * distance;
        }
        return sum;
    }
    COLLPROBE_HD void store(std::uint64_t item, double sum) const noexcept { sums[item] = sum; }
};

/// The numbers that the ranks add up for the decision.
struct averaging_sums {
    double squared_distance; ///< ||thetabar - theta^m||^2 on the sample
    double squared_gradient; ///< ||g~^m||^2 on the same coordinates
    double squared_weights; ///< ||thetabar||^2 on the same coordinates
    double ratio; ///< ||g~^m|| / ||thetabar - theta^m||, at most the largest interval
};

/// This rank's terms. A body for `for_each` with one index.
struct add_up_distances {
    const double* distances; ///< `parts` numbers for each of the three sums, in the order of `averaging_sums`
    std::uint64_t parts;
    averaging_sums* sums;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        averaging_sums all{0, 0, 0, 0};
        for (std::uint64_t i = 0; i < parts; ++i) {
            all.squared_distance += distances[i];
            all.squared_gradient += distances[parts + i];
            all.squared_weights += distances[2 * parts + i];
        }
        // If one of them is not finite the ratio is 0 too, which gives the shortest interval.
        if (is_finite(all.squared_distance) && is_finite(all.squared_gradient)) {
            constexpr auto most = static_cast<double>(most_interval);
            all.ratio = all.squared_gradient < most * most * all.squared_distance
                ? square_root(all.squared_gradient / all.squared_distance)
                : most;
        }
        *sums = all;
    }
};

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

/// sigma^2 from squared distances; 0 where no estimate is possible. `divisor`: their expectation for a sigma^2 of 1.
constexpr double noise_variance(double squared_distances, double divisor) noexcept
{
    return divisor > 0 ? squared_distances / divisor : 0;
}

inline std::uint64_t limited_interval(double wanted) noexcept
{
    if (!(wanted < static_cast<double>(most_interval))) return most_interval;
    const auto rounded = static_cast<std::uint64_t>(wanted + 0.5);
    return rounded < least_interval ? least_interval : rounded;
}

/// Memory for averages beside a step, and for what is measured of them.
template <class Device>
struct measuring_memory : averaging_memory<Device> {
    measuring_memory(const std::vector<replica>& buffers, std::size_t weights)
        : averaging_memory<Device>(buffers, weights), distances(3 * weights * distance_parts), sums(1), seen(1)
    {
        for (const replica& each : buffers) copies.emplace_back(each.size_bytes());
    }
    bool finished_by(deadline until) const noexcept
    {
        return detail::finished_by(until, placed) && averaging_memory<Device>::finished_by(until);
    }

    std::vector<typename Device::template buffer<std::uint8_t>> copies; ///< become the averages
    typename Device::template buffer<double> distances; ///< of the weights, then squares of gradients and averages
    typename Device::template buffer<averaging_sums> sums;
    typename Device::template host_buffer<averaging_sums> seen;
    typename Device::event placed; ///< the last work on the caller's stream
    typename Device::stream communication; // destroyed first, with the work that uses the other members
};

} // namespace collprobe::detail
