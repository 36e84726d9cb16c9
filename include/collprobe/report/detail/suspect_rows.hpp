// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/axis.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/words.hpp>

/// What a page says of the findings of a run.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// How much a run deserves attention: the word beside its verdict.
enum class run_level : std::uint8_t { none, fine, look, act };

constexpr const char* name(run_level level) noexcept
{
    switch (level) {
    case run_level::none: return "none";
    case run_level::fine: return "fine";
    case run_level::look: return "look";
    case run_level::act: return "act";
    }
    return "none";
}

COLLPROBE_COLD_INLINE run_level level_of(const run_findings& found) noexcept
{
    if (found.steps() == 0) return run_level::none;
    bool acts = false;
    for (const repeated_alarm& each : found.alarms()) acts = acts || each.first.action >= advice::skip;
    if (found.alarms().empty()) { // perhaps nobody judged the findings
        for (const repeated_finding& each : found.findings()) acts = acts || each.first.exact;
    }
    if (acts) return run_level::act;
    const bool is_blind
        = found.calls() != 0 && found.calls() == found.unprobed_calls() + found.unread_calls();
    const bool is_clean = found.alarms().empty() && found.findings().empty();
    return is_clean && !is_blind ? run_level::fine : run_level::look;
}

/// A row of the table of suspects: an alarm, or a finding that raised none.
struct suspect_row {
    std::string ranks;
    std::vector<int> rank_list;
    finding what = finding::non_finite;
    int call = -1;
    call_site site = {};
    std::string evidence;
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t steps = 0;
    std::string false_alarms;
    std::string advice;
};

/// The host of a row's ranks; empty if the run's record does not show it.
COLLPROBE_COLD_INLINE std::string host_of(const suspect_row& row, const run_record& run)
{
    if (run.host.empty() || row.rank_list.empty()) return {};
    const bool is_known = run.nodes == 1 || (row.rank_list.size() == 1 && row.rank_list[0] == run.rank);
    return is_known ? run.host : std::string();
}

/// The evidence of what is exact and has no number.
inline constexpr const char* only_bits = "bits compared";

/// Of a suspect or an alarm.
template <class Found>
std::string evidence_of(const Found& found, bool has_rank)
{
    const finding what = found.what;
    const double statistic = found.statistic;
    const double threshold = found.threshold;
    if (what == finding::unlike) return describe(found.evidence);
    if (found.by_length) return length_text(what, statistic, threshold);
    if (is_of_number(what)) return describe(found.number, what, found.call, has_rank);
    if (is_of_spread(found)) return spread_text(statistic, found.number.since);
    if (what == finding::non_finite)
        return with_commas(count_of(statistic)) + (statistic > 1 ? " elements are" : " element is")
            + " NaN or infinite";
    if (what == finding::weights)
        return weight_text(statistic, threshold) + " times the mean's weight, within " + short_number(threshold);
    if (std::string fact = fact_text(found, no_index); !fact.empty()) return fact;
    if (!(threshold > 0))
        return what == finding::quantisation ? "value " + short_number(statistic) : only_bits;
    return "residual " + short_number(statistic) + ", limit " + short_number(threshold);
}

/// How often a healthy step, or run, has such a suspect or alarm.
template <class Found>
std::string false_alarms_of(const Found& found, bool is_exact)
{
    const double rate = found.false_alarms_per_step;
    if (is_by_odds(found)) return "in a run, 1 in " + round_count(found.threshold);
    if (found.what == finding::sum_differs && !is_exact && rate > 0)
        return "about " + tick_text(rate, 2) + " a step, unless a rank is far larger than the others";
    if (rate > 0) return "at most " + tick_text(rate, 2) + " a step";
    return is_exact ? "none: exact" : "not stated";
}

COLLPROBE_COLD_INLINE const char* place_in_words(damage where) noexcept
{
    switch (where) {
    case damage::none: return "";
    case damage::input: return "damage: in the rank's own data, before the call";
    case damage::reduce: return "damage: in the sum, alike for all ranks";
    case damage::broadcast: return "damage: on the result's way to the ranks, or in their memory";
    case damage::duplicated_data: return "ranks have the same data and should have their own";
    case damage::unknown: return "the evidence does not show where the damage happened";
    }
    return "";
}

COLLPROBE_COLD_INLINE suspect_row row_of(const repeated_alarm& each, const run_findings& found)
{
    const alarm_record& raised = each.first;
    suspect_row row;
    row.rank_list = raised.ranks;
    row.ranks = list_named(raised);
    row.what = raised.what;
    row.call = raised.call;
    row.site = raised.site;
    row.evidence = evidence_of(raised, !raised.ranks.empty());
    if (const std::string where = place_in_words(raised.where); !where.empty()) row.evidence += "; " + where;
    row.first_step = each.first_step;
    row.last_step = each.last_step;
    row.steps = each.steps;
    bool is_exact = !(raised.threshold > 0) && raised.what != finding::quantisation;
    for (const repeated_finding& of : found.findings()) {
        if (of.first.what == raised.what && of.first.call == raised.call) is_exact = of.first.exact;
    }
    row.false_alarms = false_alarms_of(raised, is_exact);
    row.advice = advise(raised);
    return row;
}

COLLPROBE_COLD_INLINE suspect_row row_of(const repeated_finding& each)
{
    const suspect& named = each.first;
    suspect_row row;
    if (named.rank >= 0) row.rank_list.push_back(named.rank);
    row.ranks = named.rank < 0 ? unnamed(named) : "rank " + std::to_string(named.rank);
    row.what = named.what;
    row.call = named.call;
    row.site = named.site;
    row.evidence = evidence_of(named, named.rank >= 0);
    if (named.other_rank >= 0 && !is_of_value(named.what))
        row.evidence += "; other rank: " + std::to_string(named.other_rank);
    if (named.index != no_index) row.evidence += "; first at element " + std::to_string(named.index);
    row.first_step = each.first_step;
    row.last_step = each.last_step;
    row.steps = each.steps;
    row.false_alarms = false_alarms_of(named, named.exact);
    row.advice = "no alarm was raised: watch it";
    return row;
}

/// Whether an alarm tells of this finding already.
COLLPROBE_COLD_INLINE bool is_told(const repeated_finding& each, const run_findings& found) noexcept
{
    const suspect& named = each.first;
    for (const repeated_alarm& alarm : found.alarms()) {
        const alarm_record& raised = alarm.first;
        if (raised.call != named.call) continue;
        const bool has_rank = named.rank < 0
            || std::find(raised.ranks.begin(), raised.ranks.end(), named.rank) != raised.ranks.end();
        const bool is_same = raised.what == named.what && (has_rank || raised.ranks.empty());
        const bool is_within = has_rank && raised.call >= 0 && alarm.first_step <= each.first_step
            && each.last_step <= alarm.last_step;
        if (is_same || is_within) return true;
    }
    return false;
}

/// Alarms, the gravest first; then findings without one, exact ones first.
COLLPROBE_COLD_INLINE std::vector<suspect_row> suspect_rows(const run_findings& found)
{
    std::vector<const repeated_alarm*> alarms;
    for (const repeated_alarm& each : found.alarms()) alarms.push_back(&each);
    std::sort(alarms.begin(), alarms.end(), [](const repeated_alarm* a, const repeated_alarm* b) {
        if (a->first.action != b->first.action) return a->first.action > b->first.action;
        return a->steps != b->steps ? a->steps > b->steps : a < b;
    });
    std::vector<const repeated_finding*> rest;
    for (const repeated_finding& each : found.findings()) {
        if (!is_told(each, found)) rest.push_back(&each);
    }
    std::sort(rest.begin(), rest.end(), [](const repeated_finding* a, const repeated_finding* b) {
        if (a->first.exact != b->first.exact) return a->first.exact;
        return a->steps != b->steps ? a->steps > b->steps : a < b;
    });
    std::vector<suspect_row> rows;
    for (const repeated_alarm* each : alarms) rows.push_back(row_of(*each, found));
    for (const repeated_finding* each : rest) rows.push_back(row_of(*each));
    return rows;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
