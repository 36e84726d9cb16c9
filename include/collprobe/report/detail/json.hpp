// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string_view>

#include <collprobe/report/detail/record_fields.hpp>
#include <collprobe/report/json.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

COLLPROBE_COLD_INLINE json_writer& json_writer::text(std::string_view value)
{
    bool is_plain = true;
    for (const char character : value) {
        const auto code = static_cast<unsigned char>(character);
        is_plain = is_plain && code >= 0x20 && code < 0x80 && character != '"' && character != '\\' && character != '<';
    }
    if (is_plain) return plain_text(value);
    out_ += '"';
    for (const char character : utf8_text(value)) {
        const auto code = static_cast<unsigned char>(character);
        if (code < 0x20 || character == '<') { // "<" may end a script that the line stands in
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code));
            out_ += escape;
            continue;
        }
        if (character == '"' || character == '\\') out_ += '\\';
        out_ += character;
    }
    return put("\"");
}

/// `list`: the type of a list by rank; an object with a list for each member that any rank has.
inline void json_writer::columns(const member_type& list, const void* of)
{
    const list_items ranks = list.items(of);
    const void* const fresh = list.element->fresh();
    open('{');
    for (const field& each : list.element->fields()) {
        bool has_any = each.told == field::rule::common;
        for (std::size_t rank = 0; rank < ranks.count && !has_any; ++rank)
            has_any = !is_same(*each.type, each.of(ranks.at(rank)), each.of(fresh));
        if (!has_any) continue;
        plain_key(each.name).open('[');
        for (std::size_t rank = 0; rank < ranks.count; ++rank)
            element().value(*each.type, each.in, {each.of(ranks.at(rank))});
        close(']');
    }
    close('}');
}

inline json_writer& json_writer::value(const member_type& type, unit in, const walk& at)
{
    switch (type.how) {
    case form::boolean: return boolean(at.as<bool>());
    case form::int32: return index(in == unit::positive && at.as<int>() == 0 ? -1 : at.as<int>());
    case form::uint32: return integer(at.as<std::uint32_t>());
    case form::uint64: {
        const auto number = at.as<std::uint64_t>();
        if (in == unit::bits) return bits(number);
        if (in == unit::index && number == no_index) return index(-1);
        if (in == unit::sizes) return open('[').element().open('[').element().integer(number).close(']').close(']');
        return integer(number);
    }
    case form::real: return number(at.as<double>());
    case form::enumeration: return plain_text(type.name_of(at.as<std::uint8_t>()));
    case form::text: return text(at.as<std::string>());
    case form::site: return *this; // has two members of its own
    case form::object: return open('{').members(type.fields(), at, type.fresh()).close('}');
    case form::list: break;
    }
    if (in == unit::columns) {
        columns(type, at.record);
        return *this;
    }
    const list_items items = type.items(at.record);
    open('[');
    for (std::size_t i = 0; i < items.count; ++i) {
        element();
        if (in == unit::rows) {
            open('[');
            for (const field& each : type.element->fields())
                element().value(*each.type, each.in, {each.of(items.at(i))});
            close(']');
        } else {
            value(*type.element, unit::none, {items.at(i), at.step, i});
        }
    }
    return close(']');
}

inline json_writer& json_writer::members(const field_table& fields, const walk& at, const void* fresh)
{
    std::string_view group; // the object that further members "group.x" belong to
    for (const field& each : fields) {
        if (!is_told(each, fields.whole, at, fresh)) continue;
        if (!group.empty() && each.group != group) close('}');
        if (!each.group.empty() && each.group != group) plain_key(each.group).open('{');
        group = each.group;
        const walk part{each.of(at.record), at.step, 0};
        if (each.type == nullptr) {
            each.write(plain_key(each.name), at);
        } else if (each.type->how == form::site) {
            write_site(*this, part.as<call_site>());
        } else if (each.type->how == form::object) {
            plain_key(each.name).open('{').members(each.type->fields(), part, each.type->fresh());
            group = each.name; // and stays open
        } else {
            plain_key(each.name).value(*each.type, each.in, part);
        }
    }
    if (!group.empty()) close('}');
    return *this;
}

/// A line of a record.
template <class Record>
std::string record_line(
    std::string_view kind, const line_head& head, const Record& record, const step_record* step = nullptr)
{
    std::string line;
    json_writer json(line);
    write_head(json, kind, head);
    json.members(record, step).close('}');
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
