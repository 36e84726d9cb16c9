// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/json.hpp>

#include "json_fields.hpp"

namespace tools {

/// Reads records back from JSON lines of include/collprobe/report. A member that a line lacks stays as in a new record.
/// The names in the records stay valid as long as this object.
class record_reader {
    using form = collprobe::report::detail::form;
    using unit = collprobe::report::detail::unit;
    using member_type = collprobe::report::detail::member_type;
    using field = collprobe::report::detail::field;
    using field_table = collprobe::report::detail::field_table;

public:
    /// \throws bad_line for a member of another kind
    template <class Record>
    void read(const json& of, Record& into)
    {
        into = Record();
        read_members(of, collprobe::report::detail::fields_of<Record>(), &into);
    }

    /// The members of an alarm.
    collprobe::finding alarm_of(const json& of)
    {
        for (const char* const needed : {"step", "check", "damage", "ranks", "advice"}) (void)member(of, needed);
        collprobe::finding found;
        read(of, found);
        std::sort(found.ranks.begin(), found.ranks.end());
        if (found.is_named() && found.rank() < 0) throw bad_line("names a rank that is none");
        return found;
    }

    /// A step. Lists by rank or call that a line has apart from their records are put together.
    void step_of(const json& of, collprobe::step_record& into)
    {
        read(of, into);
        if (!of.contains("loss_weighted")) into.loss_weighted = into.loss;
        const auto findings = of.find("findings");
        for (std::size_t i = 0; i < into.findings.size(); ++i)
            if (!(*findings)[i].contains("step")) into.findings[i].step = into.step;
        if (of.contains("evidence")) into.evidence_by_rank.resize(static_cast<std::size_t>(into.ranks));
        for (const char* const list : {"evidence", "weak_evidence"}) {
            if (!of.contains(list)) continue;
            for (const json& each : of[list])
                read(each, into.evidence_by_rank.at(static_cast<std::size_t>(index_of(each, "rank"))));
        }
        if (!of.contains("quantisation")) return;
        for (const json& each : of["quantisation"]) {
            collprobe::call_record& call = into.calls.at(static_cast<std::size_t>(index_of(each, "bucket")));
            read(each, call.quantisation);
            call.quantisation.seen = true;
        }
    }

    /// A list of records, or of their parts, by its type.
    static void resize_list(const member_type& list, void* at, std::size_t count)
    {
        resize<double, int, std::uint64_t, collprobe::call_record, collprobe::finding, collprobe::missing_call,
            collprobe::expectation_record, collprobe::number_record, collprobe::rank_with_zeros, collprobe::rank_evidence,
            collprobe::rank_lateness, collprobe::call_weights, collprobe::call_interval, collprobe::statistics,
            collprobe::inspection::order_of_elements>(list, at, count);
    }

private:
    template <class... Items>
    static void resize(const member_type& list, void* at, std::size_t count)
    {
        const auto one = [&]<class Item>(std::vector<Item>* of) {
            if (list.element == &collprobe::report::detail::type_of<Item>::is) of->resize(count);
        };
        (one(static_cast<std::vector<Items>*>(at)), ...);
    }

    void read_members(const json& of, field_table fields, void* into)
    {
        for (const field& each : fields) {
            if (each.type == nullptr) continue;
            const json* from = &of;
            if (!each.group.empty()) {
                const auto group = of.find(std::string(each.group));
                if (group == of.end()) continue;
                from = &*group;
            }
            void* const at = const_cast<void*>(each.of(into));
            if (each.type->how == form::site) {
                *static_cast<collprobe::call_site*>(at) = site_of(*from);
                continue;
            }
            const std::string name(each.name);
            const auto found = from->find(name);
            if (found == from->end() || each.when == collprobe::report::detail::in_step) continue;
            if (each.flag >= 0) *static_cast<bool*>(static_cast<void*>(static_cast<char*>(into) + each.flag)) = true;
            read_value(*from, name.c_str(), *found, *each.type, each.in, at);
        }
    }

    void read_value(
        const json& of, const char* name, const json& value, const member_type& type, unit in, void* at)
    {
        switch (type.how) {
        case form::boolean: *static_cast<bool*>(at) = value.get<bool>(); return;
        case form::int32:
            *static_cast<int*>(at) = in == unit::positive && value.is_null() ? 0 : index_in(value, name);
            return;
        case form::uint32: *static_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(count_in(value, name)); return;
        case form::uint64: {
            auto& number = *static_cast<std::uint64_t*>(at);
            if (in == unit::bits) number = bits_in(value, name);
            else if (in == unit::sizes) number = elements_of(of, name);
            else number = in == unit::index && value.is_null() ? collprobe::no_index : count_in(value, name);
            return;
        }
        case form::real: *static_cast<double*>(at) = number(value); return;
        case form::enumeration: *static_cast<std::uint8_t*>(at) = named(value, name, type); return;
        case form::text: *static_cast<std::string*>(at) = value.get<std::string>(); return;
        case form::object: read_members(value, type.fields(), at); return;
        case form::list: read_list(value, name, type, in, at); return;
        case form::site: return;
        }
    }

    void read_list(const json& value, const char* name, const member_type& list, unit in, void* at)
    {
        const bool are_columns = in == unit::columns;
        resize_list(list, at, are_columns ? (value.empty() ? 0 : value.begin()->size()) : value.size());
        const auto items = list.items(at);
        const auto item = [&](std::size_t i) { return const_cast<void*>(items.at(i)); };
        if (list.element->how != form::object) {
            for (std::size_t i = 0; i < items.count; ++i)
                read_value(value, name, value[i], *list.element, unit::none, item(i));
            return;
        }
        std::size_t column = 0;
        for (const field& each : list.element->fields()) {
            const auto found = are_columns ? value.find(std::string(each.name)) : value.end();
            for (std::size_t i = 0; i < items.count && (found != value.end() || in == unit::rows); ++i) {
                const json& cell = are_columns ? found->at(i) : value[i].at(column);
                read_value(value, name, cell, *each.type, each.in, const_cast<void*>(each.of(item(i))));
            }
            ++column;
        }
        for (std::size_t i = 0; i < items.count && !are_columns && in != unit::rows; ++i)
            read_members(value[i], list.element->fields(), item(i));
    }
    /// A name that is unknown is an error; but of a place of damage it is the unknown place.
    static std::uint8_t named(const json& value, const char* name, const member_type& type)
    {
        const auto text = value.get<std::string>();
        const bool is_damage = &type == &collprobe::report::detail::type_of<collprobe::damage>::is;
        for (int i = 0; i < 256 && (text != "unknown" || i == 0); ++i)
            if (text == type.name_of(static_cast<std::uint8_t>(i))) return static_cast<std::uint8_t>(i);
        if (is_damage) return static_cast<std::uint8_t>(collprobe::damage::unknown);
        throw bad_line("has '" + printable(text) + "' as '" + name + "', which is unknown");
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
