// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/printable.hpp>
#include <collprobe/report/json.hpp>

/// Members of JSON lines as the numbers, texts and names that report/json.hpp wrote.
namespace tools {

using json = nlohmann::json;

/// What is wrong with a line.
struct bad_line : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using collprobe::detail::printable;

/// Texts that stay where they are as long as this object, each of them once.
class text_pool {
public:
    const char* kept(const std::string& text) { return texts_.insert(text).first->c_str(); }

private:
    std::unordered_set<std::string> texts_;
};

/// \throws bad_line for what is no JSON
inline json parsed(std::string_view text)
{
    // The parser takes a NUL for the end of the text: a hole that a crash left would hide what follows it.
    if (const auto nul = text.find('\0'); nul != text.npos)
        throw bad_line("is not JSON (a NUL, column " + std::to_string(nul + 1) + ")");
    try {
        return json::parse(text);
    } catch (const json::parse_error& problem) {
        throw bad_line("is not JSON (column " + std::to_string(problem.byte) + ")");
    }
}

inline const json& member(const json& of, const char* name)
{
    const auto found = of.find(name);
    if (found == of.end()) throw bad_line(std::string("has no member '") + name + "'");
    return *found;
}

inline double number(const json& value)
{
    if (value.is_number()) return value.get<double>();
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    if (text == "nan") return collprobe::detail::not_a_number();
    if (text == "inf") return collprobe::detail::infinity();
    if (text == "-inf") return -collprobe::detail::infinity();
    throw bad_line("has '" + printable(value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40))
        + "' in the place of a number");
}

inline double number_of(const json& of, const char* name)
{
    const auto found = of.find(name);
    return found == of.end() ? collprobe::detail::not_a_number() : number(*found);
}

inline std::uint64_t count_in(const json& value, const char* name)
{
    if (!value.is_number_unsigned()) throw bad_line(std::string("has no count as '") + name + "'");
    return value.get<std::uint64_t>();
}

/// 0 for null, and where there is none.
inline std::uint64_t count_of(const json& of, const char* name)
{
    const auto found = of.find(name);
    return found == of.end() || found->is_null() ? 0 : count_in(*found, name);
}

/// -1 for null.
inline int index_in(const json& value, const char* name)
{
    const std::uint64_t index = value.is_null() ? 0 : count_in(value, name);
    if (index > std::numeric_limits<int>::max()) throw bad_line(std::string("has no index as '") + name + "'");
    return value.is_null() ? -1 : static_cast<int>(index);
}

/// -1 for null, and where there is none.
inline int index_of(const json& of, const char* name)
{
    const auto found = of.find(name);
    return found == of.end() ? -1 : index_in(*found, name);
}

inline std::string text_of(const json& of, const char* name)
{
    const auto found = of.find(name);
    return found == of.end() || found->is_null() ? std::string() : printable(found->get<std::string>());
}

/// A number that is written with all its bits, "0x1f".
inline std::uint64_t bits_in(const json& value, const char* name)
{
    const std::string digits = value.get<std::string>();
    const char* const end = digits.data() + digits.size();
    std::uint64_t bits = 0;
    if (digits.size() < 3 || digits[0] != '0' || digits[1] != 'x'
        || std::from_chars(digits.data() + 2, end, bits, 16).ptr != end) {
        throw bad_line("has '" + printable(digits) + "' as '" + name + "'");
    }
    return bits;
}

inline std::uint64_t bits_of(const json& of, const char* name) { return bits_in(member(of, name), name); }

inline std::uint64_t elements_of(const json& of, const char* name)
{
    const json& sizes = member(of, name);
    if (!sizes.is_array() || sizes.empty() || !sizes[0].is_array() || sizes[0].empty()) {
        throw bad_line(std::string("has no '") + name + "'");
    }
    if (!sizes[0][0].is_number_unsigned()) throw bad_line(std::string("has no count as '") + name + "'");
    return sizes[0][0].get<std::uint64_t>();
}

/// \throws bad_line unless the line is one that this program reads
inline void require_schema(const json& line)
{
    if (!line.is_object()) throw bad_line("is no JSON object");
    const auto schema = line.find("schema");
    if (schema == line.end()) throw bad_line("has no member 'schema': it is no line of collprobe's");
    if (*schema == collprobe::report::json_schema) return;
    throw bad_line("has schema " + printable(schema->dump(-1, ' ', true).substr(0, 20)) + "; this program reads "
        + std::to_string(collprobe::report::json_schema));
}

} // namespace tools
