// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/words.hpp>

/// What a page says of the findings of a run.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// How much a run deserves attention: the word beside its verdict.
enum class run_level : std::uint8_t { none, fine, look, act };

constexpr const char* name(run_level level) noexcept
{
    return collprobe::detail::name_of<run_level::act>(level, {"none", "fine", "look", "act"});
}

COLLPROBE_COLD_INLINE run_level level_of(const run_findings& found) noexcept
{
    if (found.steps() == 0) return run_level::none;
    bool acts = false;
    for (const repeated_finding& each : found.alarms()) acts = acts || each.first.action >= advice::skip;
    if (found.alarms().empty()) { // perhaps nobody judged the findings
        for (const repeated_finding& each : found.findings()) acts = acts || each.first.exact;
    }
    if (acts) return run_level::act;
    const bool is_blind
        = found.calls() != 0 && found.calls() == found.unprobed_calls() + found.unread_calls();
    const bool is_clean = found.alarms().empty() && found.findings().empty();
    return is_clean && !is_blind ? run_level::fine : run_level::look;
}

/// A row of the table of findings: an alarm, or a finding that raised none.
struct finding_row {
    const repeated_finding* of;
    bool is_alarm;
};

/// The host of a row's ranks; empty if the run's record does not show it.
COLLPROBE_COLD_INLINE std::string host_of(const std::vector<int>& ranks, const run_record& run)
{
    if (run.host.empty() || ranks.empty()) return {};
    const bool is_known = run.nodes == 1 || (ranks.size() == 1 && ranks[0] == run.rank);
    return is_known ? run.host : std::string();
}

/// What was seen, and where the damage is; "bits compared" of what is exact and has no number.
COLLPROBE_COLD_INLINE std::string row_evidence(const finding_row& row)
{
    const finding& of = row.of->first;
    std::string text = evidence_text(of);
    if (text.empty()) text = "bits compared";
    if (!row.is_alarm) return text;
    const std::string where = place_in_words(of.where);
    return where.empty() ? text : text + "; " + where;
}

/// Whether an alarm tells of this finding already.
COLLPROBE_COLD_INLINE bool is_told(const repeated_finding& each, const run_findings& found) noexcept
{
    const finding& of = each.first;
    for (const repeated_finding& alarm : found.alarms()) {
        const finding& raised = alarm.first;
        if (raised.call != of.call) continue;
        const bool has_ranks = std::all_of(
            of.ranks.begin(), of.ranks.end(), [&raised](int rank) { return raised.names(rank); });
        const bool is_same = raised.what == of.what && (has_ranks || !raised.is_named());
        const bool is_within = has_ranks && raised.call >= 0 && alarm.first_step <= each.first_step
            && each.last_step <= alarm.last_step;
        if (is_same || is_within) return true;
    }
    return false;
}

/// Alarms, the gravest first; then findings without one, exact ones first.
COLLPROBE_COLD_INLINE std::vector<finding_row> finding_rows(const run_findings& found)
{
    std::vector<finding_row> rows;
    for (const repeated_finding& each : found.alarms()) rows.push_back({&each, true});
    for (const repeated_finding& each : found.findings())
        if (!is_told(each, found)) rows.push_back({&each, false});
    const auto gravity = [](const finding_row& of) {
        return of.is_alarm ? 2 + static_cast<int>(of.of->first.action) : of.of->first.exact ? 1 : 0;
    };
    std::sort(rows.begin(), rows.end(), [&gravity](const finding_row& a, const finding_row& b) {
        const int more = gravity(a) - gravity(b);
        if (more != 0) return more > 0;
        return a.of->steps != b.of->steps ? a.of->steps > b.of->steps : a.of < b.of; // of one list
    });
    return rows;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
