// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/summary.hpp>

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

/// Appends JSON text. Writes a comma before an item that follows an earlier sibling.
class json_writer {
public:
    explicit json_writer(std::string& out) noexcept : out_(out) {}

    json_writer& open(char bracket)
    {
        out_ += bracket;
        fresh_ = true;
        return *this;
    }
    json_writer& close(char bracket)
    {
        out_ += bracket;
        fresh_ = false;
        return *this;
    }
    /// Writes a member's name; for an element of an array, only the comma.
    json_writer& key(std::string_view name)
    {
        separate();
        quoted(name);
        out_ += ':';
        return *this;
    }
    json_writer& element()
    {
        separate();
        return *this;
    }

    COLLPROBE_COLD_INLINE json_writer& number(double value)
    {
        // JSON has neither NaN nor infinity, and null for both would not distinguish them.
        if (!is_finite(value)) {
            out_ += is_nan(value) ? "\"nan\"" : to_bits(value) >> 63 != 0 ? "\"-inf\"" : "\"inf\"";
            return *this;
        }
        char text[40];
        out_.append(text, std::to_chars(text, text + sizeof text, value).ptr);
        return *this;
    }

    json_writer& integer(std::uint64_t value)
    {
        out_ += std::to_string(value);
        return *this;
    }
    /// Writes an index or a rank; null if it is negative, which in a record means "none".
    json_writer& index(int value)
    {
        out_ += value < 0 ? std::string("null") : std::to_string(value);
        return *this;
    }
    json_writer& text(std::string_view value)
    {
        quoted(value);
        return *this;
    }
    json_writer& boolean(bool value)
    {
        out_ += value ? "true" : "false";
        return *this;
    }

    COLLPROBE_COLD_INLINE json_writer& numbers(const std::vector<double>& values)
    {
        open('[');
        for (const double value : values) element().number(value);
        return close(']');
    }

    /// Writes all 64 bits as a string, because JavaScript reads a number as a double: "0x1f".
    json_writer& bits(std::uint64_t value)
    {
        return text(collprobe::detail::hexadecimal(value));
    }

private:
    void separate()
    {
        if (!fresh_) out_ += ',';
        fresh_ = false;
    }
    void quoted(std::string_view value);

    std::string& out_;
    bool fresh_ = true;
};

COLLPROBE_COLD_INLINE void write_head(json_writer& json, std::string_view kind, const line_head& head)
{
    json.open('{').key("schema").integer(json_schema).key("kind").text(kind).key("run").text(head.run);
    if (head.context == nullptr) return;
    const record_context& of = *head.context;
    json.key("comm").text(of.run.communicator).key("writer").index(of.run.rank);
    json.key("time_us").integer(of.unix_ns / 1000).key("records_dropped").integer(of.dropped);
}

/// The members `name` and `line` ("train.cpp:88") of a call, those that are known.
COLLPROBE_COLD_INLINE void write_site(json_writer& json, const call_site& site)
{
    if (site.name[0] != '\0') json.key("name").text(site.name);
    if (site.line != 0) json.key("line").text(short_line(site));
}

/// The members of call `c` of a step, without the braces.
void write_call(json_writer& json, const step_record& record, std::size_t c);

/// The members of evidence, without the braces.
COLLPROBE_COLD_INLINE void write_evidence(json_writer& json, const rank_evidence& of)
{
    json.key("metric").text(name(of.metric)).key("bucket").index(of.call).key("side").text(name(of.side));
    json.key("odds").number(of.odds).key("recurrence").number(of.recurrence);
    json.key("since").integer(of.since).key("extreme").integer(of.extreme).key("among").integer(of.among);
}

COLLPROBE_COLD_INLINE void write_form(json_writer& json, const call_form& of)
{
    json.open('{').key("call").text(name(of.call)).key("type").text(name(of.type)).key("count").integer(of.count);
    write_site(json, of.site);
    json.close('}');
}

COLLPROBE_COLD_INLINE void write_ranks(json_writer& json, const std::vector<int>& ranks)
{
    json.open('[');
    for (const int rank : ranks) json.element().index(rank);
    json.close(']');
}

/// The members of a finding, without the braces: those of the struct, with `check`, `damage` and `advice` by name.
void write_finding(json_writer& json, const finding& of);
/// An element of a list, with its steps.
void write_finding(json_writer& json, const repeated_finding& of);

} // namespace detail

/// One step as a JSON line. README.md lists the members: of the step, of each call in `calls`, and of the findings.
///
/// Numbers are as short as they can be and read as the same double. JSON has only finite numbers, so an undefined
/// number is the string "nan", infinities are "inf" and "-inf" (Python's `float` takes all three). A bucket, rank or
/// index that does not exist is null. Digests are strings ("0x1f"). Text is UTF-8: what is none becomes U+FFFD, and
/// quotes, control characters and "<" are escaped. Cost: one string of about 400 bytes, 300 a call and 60 a rank.
std::string json_line(const line_head& head, const step_record& record);

/// The beginning of a run as a JSON line: `kind` is "run", the members are those of `run_record`.
std::string json_line(const run_record& run);

/// The end of a run as a JSON line: `kind` is "end", with `steps`, `alarms` and `verdict`.
COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const run_findings& found)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "end", head);
    json.key("steps").integer(found.steps()).key("suspicious_steps").integer(found.suspicious_steps());
    json.key("alarms").integer(found.alarm_count()).key("verdict").text(found.verdict()).close('}');
    return line + '\n';
}

/// A run as a JSON line. `kind` is "summary", `steps` is the number of steps, and the metrics are medians over the
/// steps, under the names that a step has. `findings` has an object per finding, as in a step, with `first_step`,
/// `last_step` and `steps`. `verdict` is the run in one sentence. `extra`: the caller's own numbers by name, which
/// become members of the object.
std::string json_line(const run_summary& summary, const std::vector<std::pair<std::string_view, double>>& extra = {});

} // namespace collprobe::report

#include <collprobe/report/detail/json.hpp>
