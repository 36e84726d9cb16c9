// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/dispersion.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Both forms of `dispersion`. `weight(rank)` is 1 in the plain form; a rank of weight 0 is left out.
template <class Weight>
spread spread_of(view<const double> values, Weight weight) noexcept
{
    spread result;
    double largest = 0;
    double reference = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
        const double x = values[r];
        if (!is_finite(x) || !(weight(r) > 0)) continue;
        if (result.finite == 0) reference = x;
        if (result.finite == 0 || x < result.minimum) {
            result.minimum = x;
            result.minimum_rank = static_cast<int>(r);
        }
        if (result.finite == 0 || x > result.maximum) {
            result.maximum = x;
            result.maximum_rank = static_cast<int>(r);
        }
        if (absolute(x) > largest) largest = absolute(x);
        ++result.finite;
    }
    if (result.finite == 0) return result;

    // A power of two brings the values near 1, so that their squares neither overflow nor vanish.
    int exponent = binary_exponent(largest);
    if (exponent > 1022) exponent = 1022;
    if (exponent < -1022) exponent = -1022;
    const double down = power_of_two(-exponent);
    const double up = power_of_two(exponent);

    // Subtract one of the values first: then equal values give a deviation of exactly zero.
    double total = 0;
    double sum = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
        const double w = weight(r);
        if (!is_finite(values[r]) || !(w > 0)) continue;
        total += w;
        sum += w * (values[r] * down - reference * down);
    }
    const double mean = reference * down + sum / total;
    double squares = 0;
    double rest = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
        const double w = weight(r);
        if (!is_finite(values[r]) || !(w > 0)) continue;
        const double distance = values[r] * down - mean;
        squares += w * distance * distance;
        rest += w * distance;
    }
    squares -= rest * (rest / total);
    if (squares < 0) squares = 0;

    const double deviation = square_root(squares / total);
    result.mean = mean * up;
    result.std = deviation * up;
    result.range = (result.maximum * down - result.minimum * down) * up;
    if (total > 1) result.std_sample = square_root(squares / (total - 1)) * up;
    if (absolute(mean) > 0) result.cv = deviation / absolute(mean);
    return result;
}

} // namespace detail

COLLPROBE_INLINE spread dispersion(view<const double> values) noexcept
{
    return detail::spread_of(values, [](std::size_t) noexcept { return 1.0; });
}

COLLPROBE_COLD_INLINE spread dispersion(
    view<const double> values, view<const double> weights, const call_site& where)
{
    if (values.size() != weights.size()) {
        detail::refuse("dispersion",
            std::to_string(values.size()) + " values but " + std::to_string(weights.size()) + " weights", where);
    }
    for (std::size_t r = 0; r < weights.size(); ++r) {
        if (is_finite(weights[r]) && weights[r] < 0) {
            throw error(status::invalid_argument, "the weight of rank " + std::to_string(r) + " is negative",
                error_origin{"dispersion", -1, 0, {}, where}, {static_cast<int>(r)});
        }
    }
    return detail::spread_of(values, [weights](std::size_t r) noexcept {
        if (is_finite(weights[r])) return weights[r];
        return 0.0;
    });
}

} // namespace collprobe::inline COLLPROBE_ABI
