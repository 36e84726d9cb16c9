// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/detail/json_writer.hpp>
#include <collprobe/report/detail/record_fields.hpp>
#include <collprobe/report/findings.hpp>

/// Records as JSON lines: one object per line, ended by a newline, so that a file can be cut at any line and two files
/// can be joined. `schema` changes when the meaning of a name changes.
namespace collprobe::inline COLLPROBE_ABI::report {

inline constexpr int json_schema = 1;

/// What a line says of its run: the name alone, or also the members `comm`, `writer` (the rank that wrote the line),
/// `time_us` (microseconds since 1970, UTC) and `records_dropped` (so many were lost before it).
struct line_head {
    std::string_view run;
    const record_context* context = nullptr;

    line_head(const char* name) : run(name) {}
    line_head(std::string_view name) : run(name) {}
    line_head(const std::string& name) : run(name) {}
    /// Precondition: `of` outlives this object.
    line_head(const record_context& of) : run(of.run.name), context(&of) {}
};

namespace detail {

COLLPROBE_COLD_INLINE void write_head(json_writer& json, std::string_view kind, const line_head& head)
{
    json.open('{').key("schema").integer(json_schema).key("kind").text(kind).key("run").text(head.run);
    if (head.context == nullptr) return;
    const record_context& of = *head.context;
    json.key("comm").text(of.run.communicator).key("writer").index(of.run.rank);
    json.key("time_us").integer(of.unix_ns / 1000).key("records_dropped").integer(of.dropped);
}

/// A line. `write`: its members.
template <class Write>
std::string line_of(std::string_view kind, const line_head& head, const Write& write)
{
    std::string line;
    json_writer json(line);
    write_head(json, kind, head);
    write(json);
    json.close('}');
    return line += '\n';
}

} // namespace detail

/// One step as a JSON line: README.md.
///
/// Numbers are as short as they can be and read as the same double. JSON has only finite numbers, so an undefined
/// number is the string "nan", infinities are "inf" and "-inf" (Python's `float` takes all three). A bucket, rank or
/// index that does not exist is null. Digests are strings ("0x1f"). Text is UTF-8: what is none becomes U+FFFD, and
/// quotes, control characters and "<" are escaped. Cost: one string of about 400 bytes, 300 a call and 320 a rank.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const step_record& record)
{
    return detail::line_of("step", head, [&](detail::json_writer& json) { json.members(record, &record); });
}

/// The beginning of a run as a JSON line: `kind` is "run", the members are those of `run_record`.
COLLPROBE_COLD_INLINE std::string json_line(const run_record& run)
{
    return detail::line_of("run", run.name, [&](detail::json_writer& json) {
        json.key("job").text(run.job).key("comm").text(run.communicator).key("comm_id").text(run.communicator_id);
        json.key("host").text(run.host).key("device").text(run.device).key("writer").index(run.rank);
        json.key("global_rank").index(run.rank_of_job()).key("ranks").index(run.ranks).key("nodes");
        json.index(run.nodes == 0 ? -1 : run.nodes).key("pid").integer(static_cast<std::uint64_t>(run.process));
        json.key("started_us").integer(run.started_ns / 1000).key("version").text(run.library);
        json.key("settings").open('{');
        for (const auto& [setting, value] : run.settings) json.key(setting).text(value);
        json.close('}');
    });
}

/// The end of a run as a JSON line: `kind` is "end", with `steps`, `alarms` and `verdict`.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const run_findings& found)
{
    return detail::line_of("end", head, [&](detail::json_writer& json) {
        json.key("steps").integer(found.steps).key("suspicious_steps").integer(found.suspicious_steps);
        json.key("alarms").integer(found.alarm_count).key("verdict").text(found.verdict());
    });
}

/// An alarm: `kind` is "alarm", with `step` and the members of a finding.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const finding& raised)
{
    return detail::line_of("alarm", head, [&](detail::json_writer& json) { json.members(raised); });
}

/// An inspection: `kind` is "inspection". Bits and roundings are null if undefined or unknown; `reproduced` is "nan" if
/// there is nothing to compare with.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const inspection& found)
{
    return detail::line_of("inspection", head, [&](detail::json_writer& json) { json.members(found); });
}

} // namespace collprobe::report
