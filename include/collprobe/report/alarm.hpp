// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

/// Alarms as text for people and as JSON lines.
namespace collprobe::inline COLLPROBE_ABI::report {

/// An alarm as one line of text, without a newline at its end: "step 17, bucket 1: rank 3 held other bits of a result
/// than the other ranks (result_differs); damage: on the result's way to the ranks, or in their memory; what to do:
/// resync from rank 0". A statistical alarm has its number and rate too.
COLLPROBE_COLD_INLINE std::string describe_alarm(const finding& raised)
{
    std::string text = "step " + std::to_string(raised.step) + ", " + describe(raised);
    if (raised.false_alarms_per_step > 0 && !detail::is_by_odds(raised)) // the odds say it of a run
        text += "; false alarms: " + detail::false_alarms_of(raised);
    if (const std::string where = detail::place_in_words(raised.where); !where.empty()) text += "; " + where;
    return text + "; what to do: " + detail::advise(raised);
}

/// An alarm as a JSON line: `kind` is "alarm", with `step` and the members of a finding.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const finding& raised)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "alarm", head);
    json.key("step").integer(raised.step);
    detail::write_finding(json, raised);
    json.close('}');
    return line + '\n';
}

} // namespace collprobe::report
