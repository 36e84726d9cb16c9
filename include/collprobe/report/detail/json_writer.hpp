// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/report/detail/fields.hpp>

namespace collprobe::inline COLLPROBE_ABI::report::detail {

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
    json_writer& numbers(const std::vector<double>& values)
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
    COLLPROBE_COLD_INLINE json_writer& text(std::string_view value)
    {
        bool is_plain = true;
        for (const char character : value) {
            const auto code = static_cast<unsigned char>(character);
            const bool is_special = character == '"' || character == '\\' || character == '<';
            is_plain = is_plain && code >= 0x20 && code < 0x80 && !is_special;
        }
        if (is_plain) return plain_text(value);
        out_ += '"';
        for (const char character : utf8_text(value)) {
            const auto code = static_cast<unsigned char>(character);
            if (code < 0x20 || character == '<') { // "<" may end a script that the line stands in
                (out_ += "\\u00") += {"0123456789abcdef"[code >> 4], "0123456789abcdef"[code & 15]};
                continue;
            }
            if (character == '"' || character == '\\') out_ += '\\';
            out_ += character;
        }
        return put("\"");
    }
    /// Of a name that has nothing to escape.
    json_writer& plain_text(std::string_view value) { return put("\"").put(value).put("\""); }

    /// The members `name` and `line` ("train.cpp:88") of a call, those that are known.
    COLLPROBE_COLD_INLINE json_writer& site(const call_site& of)
    {
        if (of.name[0] != '\0') key("name").text(of.name);
        return of.line == 0 ? *this : key("line").text(short_line(of));
    }
    /// The members of a record (detail/record_fields.hpp), each behind a comma. `step`: that it belongs to.
    template <class Record>
    json_writer& members(const Record& record, const step_record* step = nullptr)
    {
        return members(fields_of<Record>(), {&record, step, 0}, type_of<Record>::fresh());
    }

private:
    json_writer& members(const field_table& fields, const walk& at, const void* fresh)
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
                site(part.as<call_site>());
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

    json_writer& value(const member_type& type, unit in, const walk& at)
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

    /// `list`: the type of a list by rank; an object with a list for each member that any rank has.
    void columns(const member_type& list, const void* of)
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

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
