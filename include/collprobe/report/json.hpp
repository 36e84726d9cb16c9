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
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/detail/fields.hpp>
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

/// Appends JSON text. Writes a comma before an item that follows an earlier sibling.
class json_writer {
public:
    explicit json_writer(std::string& out) noexcept : out_(out) {}

    json_writer& open(char bracket)
    {
        fresh_ = true;
        return put({&bracket, 1});
    }
    json_writer& close(char bracket)
    {
        fresh_ = false;
        return put({&bracket, 1});
    }
    /// Begins an element of an array: a comma, if there was one before.
    json_writer& element()
    {
        if (!fresh_) out_ += ',';
        fresh_ = false;
        return *this;
    }
    json_writer& key(std::string_view name) { return element().text(name).put(":"); }
    /// Of a name that has nothing to escape.
    json_writer& plain_key(std::string_view name) { return element().put("\"").put(name).put("\":"); }

    json_writer& number(double value)
    {
        if (is_finite(value)) return characters(value);
        // JSON has neither NaN nor infinity, and null for both would not distinguish them.
        return put(is_nan(value) ? "\"nan\"" : to_bits(value) >> 63 != 0 ? "\"-inf\"" : "\"inf\"");
    }
    COLLPROBE_COLD_INLINE json_writer& numbers(const std::vector<double>& values)
    {
        open('[');
        for (const double value : values) element().number(value);
        return close(']');
    }
    json_writer& integer(std::uint64_t value) { return characters(value); }
    /// Writes an index or a rank; null if it is negative, which in a record means "none".
    json_writer& index(int value) { return value < 0 ? put("null") : characters(value); }
    /// Writes all 64 bits as a string, because JavaScript reads a number as a double: "0x1f".
    json_writer& bits(std::uint64_t value) { return put("\"0x").characters(value, 16).put("\""); }
    json_writer& boolean(bool value) { return put(value ? "true" : "false"); }
    json_writer& text(std::string_view value);
    /// Of a name that has nothing to escape.
    json_writer& plain_text(std::string_view value) { return put("\"").put(value).put("\""); }

    /// The members of a record (detail/record_fields.hpp), each behind a comma. `step`: that it belongs to.
    template <class Record>
    json_writer& members(const Record& record, const step_record* step = nullptr)
    {
        return members(fields_of<Record>(), {&record, step, 0}, type_of<Record>::fresh());
    }

private:
    json_writer& members(const field_table& fields, const walk& at, const void* fresh);
    json_writer& value(const member_type& type, unit in, const walk& at);
    void columns(const member_type& list, const void* of);
    template <class... Number>
    json_writer& characters(Number... value)
    {
        char text[40];
        const char* const end = std::to_chars(text, text + sizeof text, value...).ptr;
        return put({text, static_cast<std::size_t>(end - text)});
    }
    json_writer& put(std::string_view text)
    {
        out_ += text;
        return *this;
    }

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

} // namespace detail

/// One step as a JSON line. README.md lists the members: of the step, of each call in `calls`, and of the findings.
///
/// Numbers are as short as they can be and read as the same double. JSON has only finite numbers, so an undefined
/// number is the string "nan", infinities are "inf" and "-inf" (Python's `float` takes all three). A bucket, rank or
/// index that does not exist is null. Digests are strings ("0x1f"). Text is UTF-8: what is none becomes U+FFFD, and
/// quotes, control characters and "<" are escaped. Cost: one string of about 400 bytes, 300 a call and 320 a rank.
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

/// An alarm: `kind` is "alarm", with `step` and the members of a finding.
std::string json_line(const line_head& head, const finding& raised);

/// An inspection: `kind` is "inspection". Bits and roundings are null if undefined or unknown; `reproduced` is "nan" if
/// there is nothing to compare with.
std::string json_line(const line_head& head, const inspection& found);

} // namespace collprobe::report

#include <collprobe/report/detail/json.hpp>
