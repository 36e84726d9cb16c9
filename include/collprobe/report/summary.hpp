// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/metric.hpp>

/// Reduces the records of a run's steps to one number per metric.
namespace collprobe::inline COLLPROBE_ABI::report {

/// The median of those `values` that are defined (infinity is, NaN is not): the middle value, or the mean of the two in
/// the middle. NaN by bits if no value is defined. Cost: linear in the number of values on average.
double median(const std::vector<double>& values);

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
    /// Cost: memory for one number per metric and rank, and the search for each suspect.
    void add(const step_record& record);
    /// Adds an alarm of a step that was added before: the verdict then rests on alarms.
    void add(const alarm_record& raised) { found_.add(raised); }

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

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/summary.ipp>
#endif
