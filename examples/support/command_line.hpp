// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/printable.hpp>

/// What programs read from their command lines.
namespace support {

/// A command line that cannot be followed; the message says why.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// `--help` was given; the message is the help text.
struct help_request : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Says what ended a program: on the standard output the help that was asked for, else on the standard error. Returns
/// the exit status: 0 for help, 2 for a command line that cannot be followed, else `status`.
inline int explain(const char* program, const std::exception& problem, int status = 1)
{
    if (dynamic_cast<const help_request*>(&problem) != nullptr) {
        std::fputs(problem.what(), stdout);
        return 0;
    }
    const bool usage = dynamic_cast<const usage_error*>(&problem) != nullptr;
    // It may have a path, or what was typed.
    const std::string text = collprobe::detail::printable(problem.what(), true);
    std::fprintf(stderr, "%s: %s\n%s", program, text.c_str(), usage ? "Try --help.\n" : "");
    return usage ? 2 : status;
}

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
        throw usage_error(std::string(option) + ": '" + std::string(text) + "' is not a number from " + plain(low)
            + " to " + plain(high));
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

/// The options of a program: `--name value` or `--name=value`, `-n value` or `-nvalue`; behind `--` none. Of an option
/// given twice the last holds, unless it collects. Each member function adds an option that changes `result`, whose
/// value by then is shown as the default. The object refers to the results until it has parsed.
class command_line {
public:
    /// What is to be done with the text that was given to an option.
    using reader = std::function<void(const std::string& option, std::string_view text)>;

    command_line(std::string description, const std::string& exit_status)
        : description_(std::move(description)),
          footer_("Options take their value as the next argument or behind '='. Exit status: " + exit_status)
    {
    }

    /// `names`: "--name", or "-n,--name".
    void value(const std::string& names, const std::string& value_name, reader read, const std::string& help,
        const std::string& shown = "")
    {
        const std::string value = ' ' + value_name + (shown.empty() ? "" : '=' + shown);
        options_.push_back({names, value, help, std::move(read), nullptr});
    }
    void flag(const std::string& names, bool& result, const std::string& help)
    {
        options_.push_back({names, "", help, nullptr, &result});
    }
    void text(const std::string& names, const std::string& value_name, std::string& result, const std::string& help)
    {
        value(names, value_name, [&result](const std::string&, std::string_view text) { result = text; }, help);
    }
    /// An option that may be given several times.
    void collect(const std::string& names, const std::string& value_name, std::vector<std::string>& result,
        const std::string& help)
    {
        const auto read = [&result](const std::string&, std::string_view text) { result.emplace_back(text); };
        value(names, value_name + " ...", read, help);
    }

    template <class Number>
    void number(const std::string& names, Number& result, std::type_identity_t<Number> low,
        std::type_identity_t<Number> high, const std::string& help, const std::string& value_name = "N")
    {
        const auto read = [&result, low, high](std::string_view option, std::string_view text) {
            result = support::number(option, text, low, high);
        };
        value(names, value_name, read, help, plain(result));
    }
    template <class Number>
    void numbers(const std::string& names, std::vector<Number>& result, std::type_identity_t<Number> low,
        std::type_identity_t<Number> high, const std::string& help)
    {
        const auto read = [&result, low, high](std::string_view option, std::string_view text) {
            result.clear();
            for (const std::string_view part : split_list(text)) {
                result.push_back(support::number(option, part, low, high));
            }
        };
        std::string all;
        for (const Number each : result) all += (all.empty() ? "" : ",") + plain(each);
        value(names, "LIST", read, help, all);
    }
    template <class Value>
    void choice(const std::string& names, const std::string& value_name, Value& result, std::vector<word<Value>> words,
        const std::string& help)
    {
        const auto is_it = [&](const auto& each) { return each.value == result; };
        const auto found = std::find_if(words.begin(), words.end(), is_it);
        const std::string shown(found == words.end() ? std::string_view() : found->text);
        const auto read = [&result, words = std::move(words)](std::string_view option, std::string_view text) {
            result = choose(option, text, words);
        };
        value(names, value_name, read, help, shown);
    }
    template <class Value>
    void choices(const std::string& names, std::vector<Value>& result, std::vector<word<Value>> words,
        const std::string& help)
    {
        const auto read = [&result, words = std::move(words)](std::string_view option, std::string_view text) {
            result.clear();
            for (const std::string_view part : split_list(text)) result.push_back(choose(option, part, words));
        };
        value(names, "LIST", read, help);
    }
    /// A file or a folder. `-` is refused: the standard output has the report.
    void path(const std::string& names, std::string& result, const std::string& help,
        const std::string& value_name = "PATH")
    {
        const auto read = [&result](const std::string& option, std::string_view text) {
            if (text.empty()) throw usage_error(option + " needs a path");
            if (text == "-") throw usage_error(option + ": '-' is no path here: the standard output has the report");
            result = text;
        };
        value(names, value_name, read, help);
    }

    /// What stands alone: files and folders. One that is required:
    void position(const std::string& name, std::string& result, const std::string& help)
    {
        positions_.push_back({name, help, true, &result, nullptr});
    }
    /// All that are left; at least one, if they are required.
    void positions(const std::string& name, std::vector<std::string>& result, const std::string& help,
        bool required = false)
    {
        positions_.push_back({name, help, required, nullptr, &result});
    }

    /// The files that programs write when they are asked to (report_files.hpp). `help`: of the lines of JSON.
    template <class Files>
    void files(Files& result, const std::string& help)
    {
        result.for_each([&](const char* name, const char* what, std::string& of) {
            path(name, of, std::string(name) == "--jsonl" ? help : what);
        });
    }

    bool given(std::string_view name) const
    {
        const auto is_it = [&](const entry& each) { return each.given && has_name(each.names, name); };
        return std::any_of(options_.begin(), options_.end(), is_it);
    }

    /// \throws usage_error for anything it cannot follow, help_request
    void parse(const std::vector<std::string>& arguments)
    {
        std::vector<std::string> alone;
        for (std::size_t i = 0; i < arguments.size(); ++i) {
            const std::string& argument = arguments[i];
            if (argument == "--") {
                alone.insert(alone.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
                break;
            }
            if (argument.size() < 2 || argument[0] != '-') {
                alone.push_back(argument);
                continue;
            }
            if (argument == "-h" || argument == "--help") throw help_request(help());
            const std::size_t end = argument[1] == '-' ? argument.find('=') : 2;
            entry& with = known(argument.substr(0, end), argument);
            const std::string name = long_name(with.names);
            const bool has_text = end < argument.size();
            with.given = true;
            if (with.result != nullptr) {
                if (has_text) throw usage_error(name + " takes no value");
                *with.result = true;
            } else if (has_text) {
                const std::string text = argument.substr(argument[end] == '=' ? end + 1 : end);
                if (text.empty()) throw usage_error(name + " needs a value");
                with.read(name, text);
            } else {
                if (++i == arguments.size()) throw usage_error(name + " needs a value");
                with.read(name, arguments[i]);
            }
        }
        assign(alone);
    }

private:
    struct entry {
        std::string names;
        std::string value; ///< as the help text has it
        std::string help;
        reader read; ///< or
        bool* result; ///< of a flag
        bool given = false;
    };
    struct position_of {
        std::string name;
        std::string help;
        bool required;
        std::string* one; ///< or
        std::vector<std::string>* several;
    };

    static bool has_name(std::string_view names, std::string_view name)
    {
        const auto all = split_list(names);
        return std::find(all.begin(), all.end(), name) != all.end();
    }
    static std::string long_name(const std::string& names)
    {
        return std::string(split_list(std::string_view(names).substr(names.find("--"))).front());
    }
    entry& known(const std::string& name, const std::string& argument)
    {
        for (entry& each : options_) {
            if (has_name(each.names, name)) return each;
        }
        throw usage_error("unknown option '" + (name.starts_with("--") ? name : argument) + "'");
    }
    void assign(std::vector<std::string>& alone) const
    {
        std::size_t used = 0;
        for (const position_of& each : positions_) {
            if (used == alone.size() && each.required) throw usage_error(each.name + " is required");
            if (each.one != nullptr) {
                *each.one = alone[used++];
            } else {
                each.several->assign(alone.begin() + static_cast<std::ptrdiff_t>(used), alone.end());
                used = alone.size();
            }
        }
        if (used < alone.size()) throw usage_error("unknown option '" + alone[used] + "'");
    }

    std::string help() const
    {
        std::string text = description_ + "\nUsage: " + program_invocation_short_name + " [OPTIONS]";
        for (const position_of& each : positions_) {
            const std::string name = each.name + (each.several != nullptr ? "..." : "");
            text += each.required ? ' ' + name : " [" + name + ']';
        }
        text += '\n';
        if (!positions_.empty()) text += "\nPositionals:\n";
        for (const position_of& each : positions_) {
            add_entry(text, each.name + (each.several != nullptr ? " ..." : ""), each.help);
        }
        text += "\nOptions:\n";
        add_entry(text, "-h,--help", "this text");
        for (const entry& each : options_) add_entry(text, each.names + each.value, each.help);
        return text + '\n' + footer_ + '\n';
    }
    static void add_entry(std::string& text, const std::string& left, const std::string& help)
    {
        constexpr std::size_t column = 28;
        std::string line = "  " + left;
        if (line.size() >= column) {
            text += line + '\n';
            line.clear();
        }
        line.resize(column, ' ');
        text += line;
        for (const char each : help) {
            text += each;
            if (each == '\n') text.append(column, ' ');
        }
        text += '\n';
    }

    std::string description_;
    std::string footer_;
    std::vector<entry> options_;
    std::vector<position_of> positions_;
};

} // namespace support
