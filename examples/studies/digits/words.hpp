// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <collprobe/core/element.hpp>

/// What the studies share.
namespace trainer {

/// A command line that cannot be followed; the message says why.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The shortest text that means this number.
template <class Number>
std::string plain(Number number)
{
    char digits[40];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

/// A number that fills all of `text` and lies in [low, high].
template <class Number>
Number number(std::string_view option, std::string_view text, Number low, Number high)
{
    Number value{};
    const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    bool good = problem == std::errc() && rest == text.data() + text.size() && value >= low && value <= high;
    if constexpr (std::is_same_v<Number, double>)
        good = good && collprobe::is_finite(value); // "nan" is a number too
    if (!good) {
        throw usage_error(std::string(option) + ": '" + std::string(text) + "' is not a number from " + plain(low) + " to "
            + plain(high));
    }
    return value;
}

/// A size in bytes from 1 to 2^36: "100", "64K", "1M", "64MiB", "2g".
inline std::uint64_t parse_bytes(std::string_view option, std::string_view text)
{
    std::string_view digits = text;
    if (digits.size() > 3 && digits.ends_with("iB")) digits.remove_suffix(2);
    int shift = 0;
    if (!digits.empty()) {
        const char last = digits.back();
        shift = last == 'K' || last == 'k' ? 10 : last == 'M' || last == 'm' ? 20 : last == 'G' || last == 'g' ? 30 : 0;
    }
    if (shift != 0) digits.remove_suffix(1);
    else digits = text;
    return number<std::uint64_t>(option, digits, 1, (std::uint64_t{1} << 36) >> shift) << shift;
}

inline std::vector<std::string_view> split_list(std::string_view text)
{
    std::vector<std::string_view> parts;
    for (std::size_t first = 0;;) {
        const std::size_t comma = text.find(',', first);
        parts.push_back(text.substr(first, comma - first));
        if (comma == std::string_view::npos) return parts;
        first = comma + 1;
    }
}

/// One of several words, each with what it stands for.
template <class Value>
struct word {
    std::string_view text;
    Value value;
};

template <class Value>
Value choose(std::string_view option, std::string_view text, const std::vector<word<Value>>& words)
{
    std::string known;
    for (const word<Value>& each : words) {
        if (each.text == text) return each.value;
        known += (known.empty() ? "" : ", ") + std::string(each.text);
    }
    throw usage_error(std::string(option) + ": '" + std::string(text) + "' is none of " + known);
}

/// What gradients travel as.
enum class wire_element { float32, bfloat16, float16 };

inline std::vector<word<wire_element>> wire_elements()
{
    return {{"float", wire_element::float32}, {"bfloat16", wire_element::bfloat16}, {"half", wire_element::float16}};
}

constexpr const char* name(wire_element element)
{
    return element == wire_element::bfloat16 ? "bfloat16" : element == wire_element::float16 ? "half" : "float";
}

/// Calls `fn` with a value of the type that gradients travel as.
template <class Fn>
auto with_wire_type(wire_element element, Fn fn)
{
    switch (element) {
    case wire_element::bfloat16: return fn(collprobe::bfloat16{});
    case wire_element::float16: return fn(collprobe::float16{});
    case wire_element::float32: break;
    }
    return fn(float{});
}

} // namespace trainer
