// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>

/// The device's part of dynamic averaging: distances on a sample of the coordinates, and the next interval.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The number of parts of a sum over a buffer.
inline constexpr std::uint64_t distance_parts = 16;

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

/// The result, equal on all ranks.
struct averaging_decision {
    std::uint64_t interval;
    double variance; ///< sigma^2
    double ratio; ///< the ratio that the interval is computed from
};

/// This rank's terms. A body for `for_each` with one index.
struct add_up_distances {
    const double* distances; ///< `parts` numbers for each of the three sums, in the order of `averaging_sums`
    std::uint64_t parts;
    double most;
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
        const bool finite = is_finite(all.squared_distance) && is_finite(all.squared_gradient);
        if (finite) {
            all.ratio = all.squared_gradient < most * most * all.squared_distance
                ? square_root(all.squared_gradient / all.squared_distance)
                : most;
        }
        *sums = all;
    }
};

/// The next interval from the sums over all ranks. A body for `for_each` with one index.
struct decide_interval {
    const averaging_sums* sums;
    bool literal;
    double ranks;
    double divisor; ///< squared distance per sigma^2, summed over the ranks; 0: no estimate is possible
    double coordinates; ///< coordinates of the sample, over all ranks
    double reach; ///< the final displacement of a coordinate per unit of a step's gradient
    double gain; ///< the interval for a ratio of 1
    std::uint64_t least;
    std::uint64_t most;
    averaging_decision* decision;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        const averaging_sums all = *sums;
        averaging_decision result{most, 0, 0};
        const bool finite = is_finite(all.squared_distance) && is_finite(all.squared_gradient)
            && is_finite(all.squared_weights);
        if (!finite) {
            result.interval = least; // the numbers are unusable: measure again soon
        } else {
            if (divisor > 0) result.variance = all.squared_distance / divisor;
            if (literal) {
                result.ratio = all.ratio / ranks;
                result.interval = limited(result.ratio);
            } else if (result.variance > 0 && reach > 0) {
                result.ratio = square_root(all.squared_weights / coordinates / result.variance) / reach;
                result.interval = limited(gain * result.ratio);
            }
        }
        *decision = result;
    }

private:
    COLLPROBE_HD std::uint64_t limited(double wanted) const noexcept
    {
        if (!(wanted < static_cast<double>(most))) return most;
        const auto rounded = static_cast<std::uint64_t>(wanted + 0.5);
        return rounded < least ? least : rounded;
    }
};

} // namespace collprobe::detail
