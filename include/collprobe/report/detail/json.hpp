// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string_view>

#include <collprobe/report/detail/record_fields.hpp>
#include <collprobe/report/json.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

COLLPROBE_COLD_INLINE void json_writer::quoted(std::string_view value)
{
    out_ += '"';
    bool is_plain = true;
    for (const char character : value) {
        const auto code = static_cast<unsigned char>(character);
        is_plain = is_plain && code >= 0x20 && code < 0x80 && character != '"' && character != '\\' && character != '<';
    }
    if (is_plain) {
        out_.append(value).append(1, '"');
        return;
    }
    for (const char character : utf8_text(value)) {
        const auto code = static_cast<unsigned char>(character);
        if (character == '"' || character == '\\') {
            out_ += '\\';
            out_ += character;
        } else if (code < 0x20 || character == '<') { // "<" may end a script that the line stands in
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code));
            out_ += escape;
        } else {
            out_ += character;
        }
    }
    out_ += '"';
}

inline void write_value(
    json_writer& json, const member_type& type, unit in, const void* of, const step_record* step);

/// A list by rank as an object: a list for each member that any rank has.
inline void write_columns(json_writer& json, const member_type& element, const list_items& ranks)
{
    const void* const fresh = element.fresh();
    json.open('{');
    for (const field& each : element.fields()) {
        bool has_any = each.told == field::rule::always;
        for (std::size_t rank = 0; rank < ranks.count && !has_any; ++rank)
            has_any = !is_same(*each.type, each.of(ranks.at(rank)), each.of(fresh));
        if (!has_any) continue;
        json.plain_key(each.name).open('[');
        for (std::size_t rank = 0; rank < ranks.count; ++rank)
            write_value(json.element(), *each.type, each.in, each.of(ranks.at(rank)), nullptr);
        json.close(']');
    }
    json.close('}');
}

inline void write_list(
    json_writer& json, const member_type& element, unit in, const list_items& items, const step_record* step)
{
    if (in == unit::columns) return write_columns(json, element, items);
    json.open('[');
    for (std::size_t i = 0; i < items.count; ++i) {
        const void* const item = items.at(i);
        json.element();
        if (element.how != form::object) {
            write_value(json, element, unit::none, item, step);
        } else if (in == unit::rows) {
            json.open('[');
            for (const field& each : element.fields())
                write_value(json.element(), *each.type, each.in, each.of(item), step);
            json.close(']');
        } else {
            json.open('{');
            write_members(json, element.fields(), {item, step, i}, element.fresh());
            json.close('}');
        }
    }
    json.close(']');
}

inline void write_value(
    json_writer& json, const member_type& type, unit in, const void* of, const step_record* step)
{
    switch (type.how) {
    case form::boolean: json.boolean(*static_cast<const bool*>(of)); return;
    case form::int32: {
        const int value = *static_cast<const int*>(of);
        json.index(in == unit::positive && value == 0 ? -1 : value);
        return;
    }
    case form::uint32: json.integer(*static_cast<const std::uint32_t*>(of)); return;
    case form::uint64: {
        const std::uint64_t value = *static_cast<const std::uint64_t*>(of);
        if (in == unit::bits) json.bits(value);
        else if (in == unit::index && value == no_index) json.index(-1);
        else if (in == unit::sizes) json.open('[').element().open('[').element().integer(value).close(']').close(']');
        else json.integer(value);
        return;
    }
    case form::real: json.number(*static_cast<const double*>(of)); return;
    case form::enumeration: json.plain_text(type.name_of(*static_cast<const std::uint8_t*>(of))); return;
    case form::text: json.text(*static_cast<const std::string*>(of)); return;
    case form::site: return; // has two members of its own
    case form::object:
        json.open('{');
        write_members(json, type.fields(), {of, step, 0}, type.fresh());
        json.close('}');
        return;
    case form::list: write_list(json, *type.element, in, type.items(of), step); return;
    }
}

inline void write_members(json_writer& json, field_table fields, const walk& at, const void* fresh)
{
    std::string_view open; // the object that further members "open.x" belong to
    for (const field& each : fields) {
        if (!is_told(each, at, fresh)) continue;
        if (!open.empty() && each.group != open) {
            json.close('}');
            open = {};
        }
        if (!each.group.empty() && open.empty()) json.plain_key(each.group).open('{');
        open = each.group;
        const void* const of = each.of(at.of);
        if (each.type == nullptr) {
            each.write(json.plain_key(each.name), at);
        } else if (each.type->how == form::site) {
            write_site(json, *static_cast<const call_site*>(of));
        } else if (each.type->how == form::object) {
            json.plain_key(each.name).open('{');
            write_members(json, each.type->fields(), {of, at.step, 0}, each.type->fresh());
            open = each.name; // and stays open
        } else {
            write_value(json.plain_key(each.name), *each.type, each.in, of, at.step);
        }
    }
    if (!open.empty()) json.close('}');
}

/// A line of a record.
template <class Record>
std::string record_line(
    std::string_view kind, const line_head& head, const Record& record, const step_record* step = nullptr)
{
    std::string line;
    json_writer json(line);
    write_head(json, kind, head);
    write_members(json, record, step);
    json.close('}');
    line += '\n';
    return line;
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const step_record& record)
{
    return detail::record_line("step", head, record, &record);
}

COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const finding& raised)
{
    return detail::record_line("alarm", head, raised);
}

COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const inspection& found)
{
    return detail::record_line("inspection", head, found);
}

COLLPROBE_COLD_INLINE std::string json_line(const run_record& run)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "run", run.name);
    json.key("job").text(run.job).key("comm").text(run.communicator).key("comm_id").text(run.communicator_id);
    json.key("host").text(run.host).key("device").text(run.device).key("writer").index(run.rank);
    json.key("global_rank").index(run.rank_of_job()).key("ranks").index(run.ranks).key("nodes");
    json.index(run.nodes == 0 ? -1 : run.nodes).key("pid").integer(static_cast<std::uint64_t>(run.process));
    json.key("started_us").integer(run.started_ns / 1000).key("version").text(run.library);
    json.key("settings").open('{');
    for (const auto& [setting, value] : run.settings) json.key(setting).text(value);
    json.close('}').close('}');
    return line + '\n';
}

} // namespace collprobe::inline COLLPROBE_ABI::report
