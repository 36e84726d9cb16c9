// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include <collprobe/core/record.hpp>

#include "json_fields.hpp"

namespace tools {

/// Reads alarms back from JSON lines of include/collprobe/report. The names in the records stay valid as long as this
/// object.
class alarm_reader {
public:
    /// The members of an alarm.
    collprobe::alarm_record alarm_of(const json& of)
    {
        collprobe::alarm_record raised;
        (void)member(of, "step");
        raised.step = count_of(of, "step");
        raised.call = index_of(of, "bucket");
        raised.site = site_of(of);
        raised.what = named<collprobe::finding>(of, "check");
        raised.where = named<collprobe::damage>(of, "damage");
        for (const json& rank : member(of, "ranks")) raised.ranks.push_back(rank.get<int>());
        raised.statistic = number_of(of, "statistic");
        raised.threshold = number_of(of, "threshold");
        raised.false_alarms_per_step = number_of(of, "false_alarms_per_step");
        raised.action = named<collprobe::advice>(of, "advice");
        raised.source = index_of(of, "source");
        if (const auto evidence = of.find("evidence"); evidence != of.end()) raised.evidence = evidence_of(*evidence);
        raised.by_length = of.contains("by_length");
        collprobe::unusual_number& number = raised.number;
        number.is_new_level = of.contains("new_level");
        if (of.contains("since")) number.since = count_of(of, "since");
        if (of.contains("value")) {
            number.value = number_of(of, "value");
            number.expected = number_of(of, "expected");
        }
        if (of.contains("window")) {
            number.steps = static_cast<std::uint32_t>(count_of(of, "window"));
            number.usual_difference = number_of(of, "usual_difference");
        }
        if (of.contains("steps_before")) number.steps = static_cast<std::uint32_t>(count_of(of, "steps_before"));
        if (const auto other = of.find("other_call"); other != of.end()) {
            raised.other.call = named<collprobe::collective>(*other, "call");
            raised.other.type = named<collprobe::element_type>(*other, "type");
            raised.other.count = count_of(*other, "count");
            raised.other.site = site_of(*other);
        }
        return raised;
    }

private:
    collprobe::rank_evidence evidence_of(const json& of)
    {
        collprobe::rank_evidence evidence;
        evidence.metric = named<collprobe::finding>(of, "metric");
        evidence.call = index_of(of, "bucket");
        evidence.side = named<collprobe::rank_side>(of, "side");
        evidence.odds = number_of(of, "odds");
        evidence.recurrence = number_of(of, "recurrence");
        evidence.since = count_of(of, "since");
        evidence.extreme = static_cast<std::uint32_t>(count_of(of, "extreme"));
        evidence.among = static_cast<std::uint32_t>(count_of(of, "among"));
        return evidence;
    }

    collprobe::call_site site_of(const json& of)
    {
        collprobe::call_site site;
        site.name = texts_.kept(text_of(of, "name"));
        const std::string line = text_of(of, "line");
        const std::size_t colon = line.rfind(':');
        if (colon == line.npos) return site;
        site.file = texts_.kept(line.substr(0, colon));
        std::from_chars(line.data() + colon + 1, line.data() + line.size(), site.line);
        return site;
    }

    text_pool texts_;
};

} // namespace tools
