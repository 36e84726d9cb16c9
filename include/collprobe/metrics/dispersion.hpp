// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// The spread of one number per rank over the ranks, with and without weights.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Both forms of `dispersion`. Without weights each rank has the weight 1; a rank of weight 0 is left out.
inline spread spread_of(view<const double> values, view<const double> weights) noexcept
{
    const auto for_each = [=](const auto& use) noexcept { // rank that is not left out: its value and weight
        for (std::size_t r = 0; r < values.size(); ++r) {
            if (!is_finite(values[r]) || (!weights.empty() && !(is_finite(weights[r]) && weights[r] > 0))) continue;
            use(values[r], weights.empty() ? 1.0 : weights[r], static_cast<int>(r));
        }
    };
    spread result;
    double largest = 0, reference = 0;
    for_each([&](double x, double, int rank) {
        if (result.finite == 0) reference = x;
        if (result.finite == 0 || x < result.minimum) result.minimum = x, result.minimum_rank = rank;
        if (result.finite == 0 || x > result.maximum) result.maximum = x, result.maximum_rank = rank;
        largest = std::max(largest, absolute(x));
        ++result.finite;
    });
    if (result.finite == 0) return result;

    // A power of two brings the values near 1, so that their squares neither overflow nor vanish.
    const int exponent = std::clamp(binary_exponent(largest), -1022, 1022);
    const double down = power_of_two(-exponent);
    const double up = power_of_two(exponent);

    // Subtract one of the values first: then equal values give a deviation of exactly zero.
    double total = 0, sum = 0;
    for_each([&](double x, double w, int) {
        total += w;
        sum += w * (x * down - reference * down);
    });
    const double mean = reference * down + sum / total;
    double squares = 0, rest = 0;
    for_each([&](double x, double w, int) {
        const double distance = x * down - mean;
        squares += w * distance * distance;
        rest += w * distance;
    });
    squares = std::max(0.0, squares - rest * (rest / total));
    const double deviation = square_root(squares / total);
    result.mean = mean * up;
    result.std = deviation * up;
    result.range = (result.maximum * down - result.minimum * down) * up;
    if (total > 1) result.std_sample = square_root(squares / (total - 1)) * up;
    if (absolute(mean) > 0) result.cv = deviation / absolute(mean);
    return result;
}

} // namespace detail

/// The spread over the ranks of one number per rank (a loss, a gradient norm).
/// `values[r]` belongs to rank r, in any unit. Non-finite values are left out; `finite` is the number n of the others.
/// `std` divides by n, `std_sample` by n - 1: README.md says which one is published.
/// Undefined fields are NaN by bits: all but `finite` if no value is finite, `std_sample` for one value, `cv` for mean
/// 0. Ties for minimum and maximum go to the lowest rank. Equal values have a deviation of exactly 0; the error
/// is below 1e-14 of the largest |value|. Errors: none. Cost: O(n), no allocation.
inline spread dispersion(view<const double> values) noexcept { return detail::spread_of(values, {}); }

/// The spread with a weight per rank, for losses that are means over different numbers of tokens.
/// `weights[r]` is a number of repetitions (tokens, samples): frequency weights. With W their sum, `mean` = sum w x /
/// W, which is the loss over all tokens; `std` = sqrt(sum w (x - mean)^2 / W); `std_sample` divides by W - 1 (NaN for W
/// <= 1). Ranks of weight 0, and ranks whose value or weight is not finite, are left out, also from minimum and
/// maximum.
/// Errors: `status::invalid_argument` if the sizes differ or a weight is negative. Cost: O(n), no allocation.
COLLPROBE_COLD_INLINE spread dispersion(view<const double> values, view<const double> weights,
    const call_site& where = call_site::current())
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
    return detail::spread_of(values, weights);
}

} // namespace collprobe
