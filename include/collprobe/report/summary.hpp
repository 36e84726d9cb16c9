// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/metric.hpp>

/// Reduces the records of a run's steps to one number per metric.
namespace collprobe::inline COLLPROBE_ABI::report {

/// A run with one number per metric: the median over its steps. One faulty step, or the very first step, does not move
/// a median.
struct run_summary {
    std::string run; ///< the caller's name for it
    int ranks = 0;
    std::uint64_t steps = 0;
    std::uint64_t suspicious_steps = 0; ///< steps in which any rank is named
    std::array<double, detail::metric_count> medians{}; ///< by `metric`; NaN by bits if no step has the metric
    std::vector<double> leave_one_out; ///< median per rank
    std::vector<repeated_finding> findings; ///< in order of their first step
    std::string verdict; ///< in one sentence: `run_findings::verdict`

    double operator[](metric which) const noexcept { return medians[static_cast<std::size_t>(which)]; }
};

/// Collects the records of one run.
class run_history {
public:
    explicit run_history(std::string run = {}) : run_(std::move(run)) {}

    /// Adds one finished step. Steps arrive in order.
    /// Cost: memory for one number per metric and rank, and the search for each finding.
    COLLPROBE_COLD_INLINE void add(const step_record& record)
    {
        found_.add(record);
        for (int which = 0; which < detail::metric_count; ++which) {
            series_[static_cast<std::size_t>(which)].push_back(detail::value_of(static_cast<metric>(which), record));
        }
        const std::vector<double>& cosines = record.cosine.leave_one_out;
        if (leave_one_out_.size() < cosines.size()) leave_one_out_.resize(cosines.size());
        for (std::size_t rank = 0; rank < cosines.size(); ++rank) leave_one_out_[rank].push_back(cosines[rank]);
    }

    /// Adds an alarm of a step that was added before: the verdict then rests on alarms.
    void add(const finding& raised) { found_.add(raised); }

    /// The values of one metric, one per step.
    const std::vector<double>& series(metric which) const noexcept
    {
        return series_[static_cast<std::size_t>(which)];
    }

    /// Cost: linear in steps × (metrics + ranks).
    run_summary summarize() const;

private:
    std::string run_;
    run_findings found_;
    std::array<std::vector<double>, detail::metric_count> series_;
    std::vector<std::vector<double>> leave_one_out_; // [rank][step]
};

namespace detail {

/// An integer with the same order as the number, infinities included, so that no comparison of doubles is left for
/// `-ffast-math` to change. NaNs have no place in the order.
constexpr std::int64_t to_ordered(double value) noexcept
{
    const auto bits = static_cast<std::int64_t>(to_bits(value));
    return bits < 0 ? bits ^ 0x7fffffffffffffff : bits;
}

constexpr double from_ordered(std::int64_t key) noexcept
{
    return collprobe::detail::bit_cast<double>(key < 0 ? key ^ 0x7fffffffffffffff : key);
}

} // namespace detail

/// The median of those `values` that are defined (infinity is, NaN is not): the middle value, or the mean of the two in
/// the middle. NaN by bits if no value is defined. Cost: linear in the number of values on average.
COLLPROBE_COLD_INLINE double median(const std::vector<double>& values)
{
    std::vector<std::int64_t> keys;
    keys.reserve(values.size());
    for (const double value : values) {
        if (!is_nan(value)) keys.push_back(detail::to_ordered(value));
    }
    if (keys.empty()) return collprobe::detail::not_a_number();
    const auto middle = collprobe::detail::middle_of(view(keys));
    const double upper = detail::from_ordered(middle.at);
    if (keys.size() % 2 != 0) return upper;
    const double lower = detail::from_ordered(middle.below);
    if (is_finite(lower) && is_finite(upper)) return 0.5 * lower + 0.5 * upper;
    if (is_finite(lower)) return upper;
    return is_finite(upper) || middle.below == middle.at ? lower : collprobe::detail::not_a_number();
}

COLLPROBE_COLD_INLINE run_summary run_history::summarize() const
{
    run_summary result{run_, found_.ranks(), found_.steps(), found_.suspicious_steps(), {}, {}, found_.findings(),
        found_.verdict()};
    for (std::size_t which = 0; which < series_.size(); ++which)
        result.medians[which] = median(series_[which]);
    for (const std::vector<double>& cosines : leave_one_out_) result.leave_one_out.push_back(median(cosines));
    return result;
}

} // namespace collprobe::report
