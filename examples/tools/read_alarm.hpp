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
    collprobe::finding alarm_of(const json& of)
    {
        (void)member(of, "step");
        collprobe::finding found = finding_of(of);
        found.step = count_of(of, "step");
        return found;
    }

    /// The members of a finding.
    collprobe::finding finding_of(const json& of)
    {
        collprobe::finding found;
        found.call = index_of(of, "bucket");
        found.site = site_of(of);
        found.what = named<collprobe::finding_kind>(of, "check");
        found.where = named<collprobe::damage>(of, "damage");
        for (const json& rank : member(of, "ranks")) {
            if (rank.get<int>() < 0) throw bad_line("names a rank that is none");
            found.add(rank.get<int>());
        }
        found.other_rank = index_of(of, "other_rank");
        found.exact = !of.contains("exact") || of["exact"].get<bool>();
        if (const auto index = of.find("index"); index != of.end() && !index->is_null())
            found.index = index->get<std::uint64_t>();
        found.statistic = number_of(of, "statistic");
        found.threshold = number_of(of, "threshold");
        found.false_alarms_per_step = number_of(of, "false_alarms_per_step");
        found.action = named<collprobe::advice>(of, "advice");
        found.source = index_of(of, "source");
        if (const auto evidence = of.find("evidence"); evidence != of.end()) found.evidence = evidence_of(*evidence);
        found.by_length = of.contains("by_length");
        collprobe::unusual_number& number = found.number;
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
            found.other.call = named<collprobe::collective>(*other, "call");
            found.other.type = named<collprobe::element_type>(*other, "type");
            found.other.count = count_of(*other, "count");
            found.other.site = site_of(*other);
        }
        return found;
    }

private:
    collprobe::rank_evidence evidence_of(const json& of)
    {
        collprobe::rank_evidence evidence;
        evidence.metric = named<collprobe::finding_kind>(of, "metric");
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
