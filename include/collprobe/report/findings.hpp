// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/evidence_text.hpp>

/// What the checks found in a run, whatever its length.
namespace collprobe::inline COLLPROBE_ABI::report {

/// A finding of a run, or an alarm: the same check, damage, call and ranks, in one step or many.
struct repeated_finding {
    finding first; ///< as in its first step; of an alarm with the strongest evidence and the gravest advice of all
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps = 0;
};

namespace detail {

/// " in 2 of 300 steps, first in step 17, bucket 0 'wte'"; ", since step 17, bucket 0 'wte'" of what is told once.
COLLPROBE_COLD_INLINE std::string where_in_run(const repeated_finding& of, std::uint64_t of_steps)
{
    const finding& found = of.first;
    const call_site& site = found.site;
    std::string text = " in " + std::to_string(of.steps) + " of " + counted(of_steps, "step");
    text += (of.steps > 1 ? ", first in step " : ", step ") + std::to_string(of.first_step);
    if (found.what == finding_kind::zeros) text = ", since step " + std::to_string(found.number.since);
    if (found.what == finding_kind::unlike) text = ", since step " + std::to_string(found.evidence.since);
    if (found.call >= 0) text += ", " + describe_call(found.call, site);
    else if (site.name[0] != '\0') text += ", " + quoted_name(site);
    return text;
}

} // namespace detail

/// The findings and alarms of a run so far.
/// Cost: memory for each different finding and alarm, at most `most` of each; those beyond are counted.
struct run_findings {
    static constexpr std::size_t most = 4096;

    int ranks = 0;
    std::uint64_t steps = 0;
    std::uint64_t suspicious_steps = 0; ///< in which a check found anything
    std::uint64_t calls = 0; ///< of all steps, seen or not
    std::uint64_t unprobed_calls = 0;
    std::uint64_t unread_calls = 0;
    std::uint64_t alarm_count = 0; ///< repetitions included
    std::vector<repeated_finding> findings; ///< by their first step
    std::vector<repeated_finding> alarms; ///< by their first step

    COLLPROBE_COLD_INLINE void add(const step_record& record)
    {
        ranks = record.ranks;
        ++steps;
        suspicious_steps += record.findings.empty() ? 0u : 1u;
        calls += record.calls.size() + record.unprobed_calls + record.unread_calls;
        unprobed_calls += record.unprobed_calls;
        unread_calls += record.unread_calls;
        for (finding each : record.findings) {
            each.step = record.step;
            add_to(findings, each, false);
        }
    }
    /// Precondition: its step was added before.
    COLLPROBE_COLD_INLINE void add(const finding& raised)
    {
        ++alarm_count;
        add_to(alarms, raised, true);
    }

    /// The run in one sentence: the gravest alarm with its advice; without alarms what the checks named; else that
    /// nothing was found, and among how many calls. Every report says it in the same words.
    COLLPROBE_COLD_INLINE std::string verdict() const
    {
        if (steps == 0) return "No step was recorded.";
        const bool are_alarms = !alarms.empty();
        const std::vector<repeated_finding>& all = are_alarms ? alarms : findings;
        if (!all.empty()) {
            const auto gravity = [are_alarms](const finding& of) {
                return are_alarms ? static_cast<int>(of.action) : of.exact ? 1 : 0;
            };
            const repeated_finding* gravest = &all.front();
            for (const repeated_finding& each : all) {
                const int more = gravity(each.first) - gravity(gravest->first);
                if (more > 0 || (more == 0 && each.steps > gravest->steps)) gravest = &each;
            }
            const finding& found = gravest->first;
            std::string text = found.what == finding_kind::call_missing
                ? detail::evidence_text(found)
                : detail::subject(found.what, found.ranks) + ' ' + facts_of(found.what).sentence.of(found.is_named())
                    + detail::where_in_run(*gravest, steps);
            text[0] = static_cast<char>(text[0] - 'a' + 'A');
            if (are_alarms) text += ": " + detail::advise(found);
            text += '.';
            std::size_t others = all.size() - 1;
            // Of alarms that were raised before, in their order, the first that names the ranks.
            const repeated_finding* begin = found.is_named() || !are_alarms ? gravest : all.data();
            while (begin != gravest && !(begin->first.is_named() && begin->first.what == found.what)) ++begin;
            if (begin != gravest) {
                text += " It began with " + detail::list_ranks(begin->first.ranks) + " in step "
                    + std::to_string(begin->first_step);
                if (begin->first.call >= 0) text += ", " + describe_call(begin->first.call, begin->first.site);
                text += '.';
                --others;
            }
            if (others > 0)
                text += " " + detail::counted(others, are_alarms ? "other alarm" : "other finding") + " in the run.";
            return text;
        }
        std::string text = "Nothing was found in " + detail::counted(steps, "step") + " of "
            + detail::counted(static_cast<std::uint64_t>(ranks), "rank");
        if (const std::uint64_t missed = unprobed_calls + unread_calls; missed != 0) {
            text += "; " + std::to_string(missed) + " of " + detail::counted(calls, "call") + " were not looked at";
        }
        return text + '.';
    }

private:
    COLLPROBE_COLD_INLINE static void add_to(std::vector<repeated_finding>& all, const finding& next, bool are_alarms)
    {
        for (repeated_finding& known : all) {
            finding& first = known.first;
            if (first.what != next.what || first.where != next.where || !collprobe::detail::is_same_place(first, next)
                || first.ranks != next.ranks || (!are_alarms && first.other_rank != next.other_rank))
                continue;
            if (!are_alarms || known.last_step != next.step) ++known.steps;
            known.last_step = next.step;
            const finding& graver = next.action > first.action ? next : first;
            const std::tuple kept{first.step, graver.action, graver.source};
            if (are_alarms && next.strength() > first.strength()) first = next;
            std::tie(first.step, first.action, first.source) = kept;
            return;
        }
        if (all.size() < most) all.push_back({next, next.step, next.step, 1});
    }
};

} // namespace collprobe::report
