// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>


#include "../digits/random.hpp"
#include "history.hpp"

/// Whether two runs differ in a metric by more than chance explains.
namespace trainer {

/// Fewer steps than this are not compared.
inline constexpr std::size_t steps_to_compare = 30;

/// Two runs, one metric, step by step.
struct difference {
    double from = 0; ///< median over the steps of the first run
    double to = 0; ///< of the second
    /// Share of the steps on which the second run is above the first (a tie counts as half): 1/2 if
    /// the runs are alike.
    double share = 0.5;
    double margin = 0; ///< how far chance alone may move the share from 1/2

    bool rises() const { return share - 0.5 > margin; }
    bool falls() const { return 0.5 - share > margin; }
};

namespace detail {

/// The standard error of the mean of a series whose neighbours are alike, by a moving-block bootstrap:
/// blocks of 2 n^(1/3) values on end, 200 resamples, a fixed seed.
inline double standard_error(const std::vector<double>& values)
{
    const std::size_t count = values.size();
    const auto block = std::clamp<std::size_t>(
        static_cast<std::size_t>(2 * std::cbrt(static_cast<double>(count))), 1, count);
    std::vector<double> sums_before(count + 1, 0); // of the values in front of each
    for (std::size_t i = 0; i < count; ++i) sums_before[i + 1] = sums_before[i] + values[i];
    constexpr int resamples = 200;
    random_stream random(1);
    double mean = 0;
    double squares = 0;
    for (int resample = 1; resample <= resamples; ++resample) {
        double sum = 0;
        for (std::size_t drawn = 0; drawn < count; drawn += block) {
            const std::size_t length = std::min(block, count - drawn);
            const std::size_t first = random.below(count - block + 1);
            sum += sums_before[first + length] - sums_before[first];
        }
        const double value = sum / static_cast<double>(count);
        const double distance = value - mean;
        mean += distance / resample;
        squares += distance * (value - mean);
    }
    return std::sqrt(squares / (resamples - 1));
}

} // namespace detail

/// Pairs the steps, since the course of training moves both runs alike. The margin is four standard
/// errors of the share, estimated from the steps themselves, and at least those of independent steps.
/// (Four, not two: a report makes six comparisons and a false one must be rare.)
inline difference compare(metric which, const run_history& from, const run_history& to)
{
    const std::vector<double>& a = from.series(which);
    const std::vector<double>& b = to.series(which);
    difference result{median(a), median(b), 0.5, 0.5};
    std::vector<double> above;
    double sum = 0;
    for (std::size_t step = 0; step < std::min(a.size(), b.size()); ++step) {
        if (!collprobe::is_finite(a[step]) || !collprobe::is_finite(b[step])) continue;
        above.push_back(b[step] > a[step] ? 1 : b[step] < a[step] ? 0 : 0.5);
        sum += above.back();
    }
    if (above.empty()) return result;
    const auto count = static_cast<double>(above.size());
    result.share = sum / count;
    result.margin = 4 * std::max(detail::standard_error(above), 0.5 / std::sqrt(count));
    return result;
}

} // namespace trainer
