// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/report/json.hpp>

namespace collprobe::testing {

/// The first member that differs, as "calls.[1].audit.ranks.", by the names in JSON; empty if none does. Bits are
/// compared; NaN is like NaN.
inline std::string difference(const report::detail::member_type& type, const void* a, const void* b)
{
    using report::detail::form;
    if (is_same(type, a, b)) return "";
    if (type.how == form::object) {
        for (const report::detail::field& each : type.fields()) {
            if (each.type == nullptr) continue;
            if (is_same(*each.type, each.of(a), each.of(b)) && each.is_set(a) == each.is_set(b)) continue;
            return std::string(each.name) + '.' + difference(*each.type, each.of(a), each.of(b));
        }
    }
    if (type.how == form::list && type.items(a).count == type.items(b).count) {
        for (std::size_t i = 0; i < type.items(a).count; ++i) {
            const std::string found = difference(*type.element, type.items(a).at(i), type.items(b).at(i));
            if (!found.empty()) return '[' + std::to_string(i) + "]." + found;
        }
    }
    return type.how == form::real ? std::to_string(*static_cast<const double*>(a)) + " and "
            + std::to_string(*static_cast<const double*>(b)) : "";
}
template <class Record>
std::string difference(const Record& a, const Record& b)
{
    const auto& type = report::detail::type_of<Record>::is;
    return is_same(type, &a, &b) ? "" : "differs: " + difference(type, &a, &b);
}

} // namespace collprobe::testing
