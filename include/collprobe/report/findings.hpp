// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>

/// What the checks found in a run, whatever its length.
namespace collprobe::inline COLLPROBE_ABI::report {

/// One finding of a check in a run, which may recur in many steps.
struct repeated_finding {
    suspect first; ///< as in its first step
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps = 0; ///< number of steps in which the same check named the same rank and bucket
};

/// One alarm of a run: the same check, damage, call and ranks in one step or many.
struct repeated_alarm {
    alarm_record first; ///< as in its first step, with the strongest evidence and the gravest advice of all
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps = 0;
};

/// Collects the findings and alarms of a run.
/// Cost: memory for each different finding and alarm, at most `most` of each; those beyond are counted.
class run_findings {
public:
    static constexpr std::size_t most = 4096;

    void add(const step_record& record);
    /// Precondition: its step was added before.
    void add(const alarm_record& raised);

    int ranks() const noexcept { return ranks_; }
    std::uint64_t steps() const noexcept { return steps_; }
    std::uint64_t suspicious_steps() const noexcept { return suspicious_steps_; } ///< in which any rank is named
    std::uint64_t calls() const noexcept { return calls_; } ///< of all steps, seen or not
    std::uint64_t unprobed_calls() const noexcept { return unprobed_calls_; }
    std::uint64_t unread_calls() const noexcept { return unread_calls_; }
    std::uint64_t alarm_count() const noexcept { return alarm_count_; } ///< repetitions included
    const std::vector<repeated_finding>& findings() const noexcept { return findings_; } ///< by their first step
    const std::vector<repeated_alarm>& alarms() const noexcept { return alarms_; } ///< by their first step

    /// The run in one sentence: the gravest alarm with its advice; without alarms what the checks named; else that
    /// nothing was found, and among how many calls. Every report says it in the same words.
    std::string verdict() const;

private:
    int ranks_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t suspicious_steps_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t unprobed_calls_ = 0;
    std::uint64_t unread_calls_ = 0;
    std::uint64_t alarm_count_ = 0;
    std::vector<repeated_finding> findings_;
    std::vector<repeated_alarm> alarms_;
};

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/findings.ipp>
#endif
