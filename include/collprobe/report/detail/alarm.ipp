// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/report/alarm.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {
namespace detail {

/// "rank 3", "ranks 1, 2 and 5" or "nobody is named". For more than ten ranks it lists the first ten and the number of
/// all, as NCCL's RAS prints its outliers.
COLLPROBE_COLD_INLINE std::string list_named(const alarm_record& raised)
{
    constexpr std::size_t most = 10;
    const std::size_t count = raised.ranks.size();
    if (count == 0) return "nobody is named";
    std::string text = count == 1 ? "rank " : "ranks ";
    const std::size_t shown = count < most ? count : most;
    for (std::size_t i = 0; i < shown; ++i) {
        if (i > 0) text += i + 1 == count ? " and " : ", ";
        text += std::to_string(raised.ranks[i]);
    }
    if (count > most) text += " and " + std::to_string(count - most) + " others";
    return text;
}

/// The advice in words: "resync from rank 0".
COLLPROBE_COLD_INLINE std::string advise(const alarm_record& raised)
{
    switch (raised.action) {
    case advice::none: return "note it";
    case advice::recheck: return "look closer, or repeat the step";
    case advice::skip: return "drop the step's update";
    case advice::resync:
        if (raised.source < 0) return "resync from elsewhere: no rank is known to hold what is right";
        return "resync from rank " + std::to_string(raised.source);
    case advice::quarantine: return "take out of the job";
    }
    return "unknown";
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string describe(const alarm_record& raised)
{
    std::string text = "step " + std::to_string(raised.step);
    text += raised.call < 0 ? std::string(", whole step: ")
                              : ", " + describe_call(raised.call, raised.site) + ": ";
    text += std::string(name(raised.what)) + ": " + detail::list_named(raised);
    if (raised.what == finding::late) {
        text += ", by " + milliseconds(raised.statistic);
    } else if (raised.threshold > 0) {
        text += ", score " + short_number(raised.statistic) + " against " + short_number(raised.threshold);
    }
    if (raised.strikes > 1) text += ", strike " + std::to_string(raised.strikes);
    if (raised.false_alarms_per_step > 0) {
        text += ", at most " + short_number(raised.false_alarms_per_step) + " false alarms a step";
    }
    return text + "; damage: " + name(raised.where) + "; advice: " + detail::advise(raised);
}

COLLPROBE_COLD_INLINE std::string json_line(std::string_view run, const alarm_record& raised)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "alarm", run);
    json.key("step").integer(raised.step).key("bucket").index(raised.call);
    detail::write_site(json, raised.site);
    json.key("check").text(name(raised.what)).key("damage").text(name(raised.where));
    json.key("ranks").open('[');
    for (const int rank : raised.ranks) json.element().index(rank);
    json.close(']').key("statistic").number(raised.statistic).key("threshold").number(raised.threshold);
    json.key("false_alarms_per_step")
        .number(raised.false_alarms_per_step)
        .key("strikes")
        .index(raised.strikes);
    json.key("advice").text(name(raised.action)).key("source").index(raised.source).close('}');
    line += '\n';
    return line;
}

} // namespace collprobe::inline COLLPROBE_ABI::report
