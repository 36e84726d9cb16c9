// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <collprobe/core/element.hpp>

/// What the examples share to read their command lines.
namespace trainer {

/// A command line that cannot be followed; the message says why.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Says on the standard error what ended a program. Returns its exit status: 2 for a command line that cannot be
/// followed, else 1.
inline int explain(const char* program, const std::exception& problem)
{
    const bool usage = dynamic_cast<const usage_error*>(&problem) != nullptr;
    std::fprintf(stderr, "%s: %s\n%s", program, problem.what(), usage ? "Try --help.\n" : "");
    return usage ? 2 : 1;
}

/// The options of a command line one by one: `--name value` or `--name=value`.
class command_line {
public:
    explicit command_line(const std::vector<std::string>& arguments) : arguments_(arguments) {}

    /// Goes on to the next option; false behind the last.
    bool next()
    {
        if (next_ == arguments_.size()) return false;
        argument_ = arguments_[next_++];
        equals_ = argument_.find('=');
        return true;
    }
    std::string_view option() const { return argument_.substr(0, equals_); }
    /// \throws usage_error if there is none.
    std::string_view value()
    {
        if (equals_ != std::string_view::npos) return argument_.substr(equals_ + 1);
        if (next_ == arguments_.size()) throw usage_error(std::string(option()) + " needs a value");
        return arguments_[next_++];
    }
    /// \throws usage_error if there is none, or an empty one.
    std::string path()
    {
        const std::string_view text = value();
        if (text.empty()) throw usage_error(std::string(option()) + " needs a path");
        return std::string(text);
    }
    [[noreturn]] void refuse() const { throw usage_error("unknown option '" + std::string(argument_) + "'"); }

private:
    const std::vector<std::string>& arguments_;
    std::size_t next_ = 0;
    std::string_view argument_;
    std::size_t equals_ = 0;
};

namespace detail {

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
        const auto plain = [](Number limit) {
            char digits[40]; // the shortest that mean this number
            return std::string(digits, std::to_chars(digits, digits + sizeof digits, limit).ptr);
        };
        throw usage_error(std::string(option) + ": '" + std::string(text) + "' is not a number from "
            + plain(low) + " to " + plain(high));
    }
    return value;
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
template <class Value, std::size_t count>
Value choose(std::string_view option, std::string_view text, const word<Value> (&words)[count])
{
    std::string known;
    for (const word<Value>& each : words) {
        if (each.text == text) return each.value;
        known += (known.empty() ? "" : ", ") + std::string(each.text);
    }
    throw usage_error(std::string(option) + ": '" + std::string(text) + "' is none of " + known);
}

} // namespace detail

/// What gradients travel as.
enum class wire_element { float32, bfloat16, float16 };

inline wire_element parse_element(std::string_view option, std::string_view text)
{
    constexpr detail::word<wire_element> words[] = {{"float", wire_element::float32},
        {"bfloat16", wire_element::bfloat16}, {"half", wire_element::float16}};
    return detail::choose(option, text, words);
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
