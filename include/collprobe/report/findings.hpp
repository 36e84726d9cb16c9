// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/words.hpp>

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

namespace detail {

/// " in 2 of 300 steps, first in step 17, bucket 0 'wte'"; ", since step 17, bucket 0 'wte'" of what is told once.
template <class Found>
std::string where_in_run(
    const Found& found, std::uint64_t steps, std::uint64_t of_steps, std::uint64_t first_step)
{
    const call_site& site = found.site;
    std::string text = " in " + std::to_string(steps) + " of " + counted(of_steps, "step");
    text += (steps > 1 ? ", first in step " : ", step ") + std::to_string(first_step);
    if (found.what == finding::zeros) text = ", since step " + std::to_string(found.number.since);
    if (found.what == finding::unlike) text = ", since step " + std::to_string(found.evidence.since);
    if (found.call >= 0) text += ", " + describe_call(found.call, site);
    else if (site.name[0] != '\0') text += ", " + quoted_name(site);
    return text;
}

} // namespace detail

COLLPROBE_COLD_INLINE void run_findings::add(const step_record& record)
{
    ranks_ = record.ranks;
    ++steps_;
    suspicious_steps_ += record.suspects.empty() ? 0u : 1u;
    calls_ += record.calls.size() + record.unprobed_calls + record.unread_calls;
    unprobed_calls_ += record.unprobed_calls;
    unread_calls_ += record.unread_calls;
    for (const suspect& named : record.suspects) {
        bool is_known = false;
        for (repeated_finding& known : findings_) {
            const suspect& before = known.first;
            is_known = before.what == named.what && before.rank == named.rank
                && collprobe::detail::is_same_place(before, named) && before.other_rank == named.other_rank;
            if (!is_known) continue;
            known.last_step = record.step;
            ++known.steps;
            break;
        }
        if (!is_known && findings_.size() < most) findings_.push_back({named, record.step, record.step, 1});
    }
}

COLLPROBE_COLD_INLINE void run_findings::add(const alarm_record& raised)
{
    ++alarm_count_;
    const auto unit = [](double threshold) { return threshold > 0 ? threshold : 1; };
    for (repeated_alarm& known : alarms_) {
        alarm_record& first = known.first;
        if (first.what != raised.what || first.where != raised.where
            || !collprobe::detail::is_same_place(first, raised) || first.ranks != raised.ranks) {
            continue;
        }
        if (known.last_step != raised.step) ++known.steps;
        known.last_step = raised.step;
        if (raised.action > first.action) {
            first.action = raised.action;
            first.source = raised.source;
        }
        if (collprobe::detail::absolute(raised.statistic) * unit(first.threshold)
            > collprobe::detail::absolute(first.statistic) * unit(raised.threshold)) {
            first.statistic = raised.statistic;
            first.threshold = raised.threshold;
            first.false_alarms_per_step = raised.false_alarms_per_step;
            first.evidence = raised.evidence;
            first.number = raised.number;
        }
        return;
    }
    if (alarms_.size() < most) alarms_.push_back({raised, raised.step, raised.step, 1});
}

COLLPROBE_COLD_INLINE std::string run_findings::verdict() const
{
    if (steps_ == 0) return "No step was recorded.";
    if (!alarms_.empty()) {
        const repeated_alarm* gravest = &alarms_.front();
        for (const repeated_alarm& each : alarms_) {
            const advice action = each.first.action;
            const advice best = gravest->first.action;
            if (action > best || (action == best && each.steps > gravest->steps)) gravest = &each;
        }
        const alarm_record& raised = gravest->first;
        std::string text = detail::list_named(raised);
        text[0] = static_cast<char>(text[0] - 'a' + 'A');
        if (raised.what == finding::call_missing) {
            text = 'S' + detail::fact_text(raised).substr(1);
        } else {
            text += std::string(" ") + phrase(raised.what, !raised.ranks.empty())
                + detail::where_in_run(raised, gravest->steps, steps_, gravest->first_step);
        }
        text += ": " + detail::advise(raised) + '.';
        std::size_t others = alarms_.size() - 1;
        // Of alarms that were raised before, in their order, the first that names the ranks.
        const repeated_alarm* begin = raised.ranks.empty() ? alarms_.data() : gravest;
        while (begin != gravest && (begin->first.ranks.empty() || begin->first.what != raised.what)) ++begin;
        if (begin != gravest) {
            text += " It began with " + detail::list_named(begin->first) + " in step "
                + std::to_string(begin->first_step);
            if (begin->first.call >= 0) text += ", " + describe_call(begin->first.call, begin->first.site);
            text += '.';
            --others;
        }
        if (others > 0) text += " " + detail::counted(others, "other alarm") + " in the run.";
        return text;
    }
    if (!findings_.empty()) {
        const repeated_finding* most_often = &findings_.front();
        for (const repeated_finding& each : findings_) {
            const bool graver = each.first.exact && !most_often->first.exact;
            if (graver || (each.first.exact == most_often->first.exact && each.steps > most_often->steps)) {
                most_often = &each;
            }
        }
        const suspect& named = most_often->first;
        std::string text = named.rank < 0 ? detail::unnamed(named) : "rank " + std::to_string(named.rank);
        text[0] = static_cast<char>(text[0] - 'a' + 'A');
        text += std::string(" ") + phrase(named.what, named.rank >= 0)
            + detail::where_in_run(named, most_often->steps, steps_, most_often->first_step) + '.';
        if (findings_.size() > 1) {
            text += " " + detail::counted(findings_.size() - 1, "other finding") + " in the run.";
        }
        return text;
    }
    std::string text = "Nothing was found in " + detail::counted(steps_, "step") + " of "
        + detail::counted(static_cast<std::uint64_t>(ranks_), "rank");
    if (const std::uint64_t missed = unprobed_calls_ + unread_calls_; missed != 0) {
        text += "; " + std::to_string(missed) + " of " + detail::counted(calls_, "call") + " were not looked at";
    }
    return text + '.';
}

} // namespace collprobe::report
