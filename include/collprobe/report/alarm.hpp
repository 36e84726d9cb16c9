// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/evidence.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

/// Alarms as text for people and as JSON lines.
namespace collprobe::inline COLLPROBE_ABI::report {

/// An alarm as one line of text, without a newline at its end: "step 17, bucket 1: rank 3 held other bits of a result
/// than the other ranks (result_differs); damage: on the result's way to the ranks, or in their memory; what to do:
/// resync from rank 0". A statistical alarm has its number and rate too.
COLLPROBE_COLD_INLINE std::string describe(const alarm_record& raised)
{
    const bool has_ranks = !raised.ranks.empty();
    std::string text = "step " + std::to_string(raised.step);
    text += ", " + detail::describe_place(raised.call, raised.site) + ": ";
    text += detail::list_named(raised) + ' ' + phrase(raised.what, has_ranks) + " (" + name(raised.what) + ")";
    if (const std::string evidence = detail::evidence_of(raised, has_ranks); evidence != detail::only_bits)
        text += ": " + evidence;
    if (raised.false_alarms_per_step > 0 && !detail::is_by_odds(raised)) { // the odds say it of a run
        // The rounding that a sum is judged by is a model's.
        text += raised.what == finding::sum_differs ? "; about " : "; at most ";
        text += short_number(raised.false_alarms_per_step) + " false alarms a step";
    }
    if (const std::string where = detail::place_in_words(raised.where); !where.empty()) text += "; " + where;
    return text + "; what to do: " + detail::advise(raised);
}

/// An alarm as a JSON line. `kind` is "alarm"; the members are those of the struct, with `check`, `damage` and `advice`
/// by name. `ranks` is an array, empty if no rank is named; `bucket` and `source` are null if there is none.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const alarm_record& raised)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "alarm", head);
    json.key("step").integer(raised.step).key("bucket").index(raised.call);
    detail::write_site(json, raised.site);
    json.key("check").text(name(raised.what)).key("damage").text(name(raised.where));
    json.key("ranks").open('[');
    for (const int rank : raised.ranks) json.element().index(rank);
    json.close(']').key("statistic").number(raised.statistic).key("threshold").number(raised.threshold);
    json.key("false_alarms_per_step").number(raised.false_alarms_per_step);
    json.key("advice").text(name(raised.action)).key("source").index(raised.source);
    detail::write_evidence_text(json, raised, !raised.ranks.empty());
    if (raised.by_length) json.key("by_length").boolean(true);
    detail::write_number(json, raised.what, raised.number, raised.other);
    if (raised.what == finding::unlike) {
        json.key("evidence").open('{');
        detail::write_evidence(json, raised.evidence);
        json.close('}');
    }
    json.close('}');
    line += '\n';
    return line;
}

} // namespace collprobe::report
