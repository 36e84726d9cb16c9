// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <collprobe/detail/printable.hpp>

#include "../../report_files.hpp"
#include "words.hpp"

namespace trainer {

/// `--help` was given; the message is the help text.
struct help_request : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Says what ended a program: on the standard output the help that was asked for, else on the standard error. Returns
/// the exit status: 0 for help, 2 for a command line that cannot be followed, else 1.
inline int explain(const char* program, const std::exception& problem)
{
    if (dynamic_cast<const help_request*>(&problem) != nullptr) {
        std::fputs(problem.what(), stdout);
        return 0;
    }
    const bool usage = dynamic_cast<const usage_error*>(&problem) != nullptr;
    const std::string text = collprobe::detail::printable(problem.what(), true); // it may have a path, or what was typed
    std::fprintf(stderr, "%s: %s\n%s", program, text.c_str(), usage ? "Try --help.\n" : "");
    return usage ? 2 : 1;
}

/// The options of a program, read by CLI11: `--name value` or `--name=value`. Of an option given twice the last holds.
/// Each member function adds an option that changes `result`, whose value by then is shown as the default.
class command_line {
public:
    command_line(const std::string& description, const std::string& exit_status) : app_(description)
    {
        app_.set_help_flag();
        app_.allow_extras();
        app_.footer("Options take their value as the next argument or behind '='. Exit status: " + exit_status);
        app_.get_formatter()->column_width(28);
        app_.add_flag_callback("-h,--help", [this] { throw help_request(app_.help()); }, "this text")->trigger_on_parse();
    }

    /// What `read(option, text)` makes of the text.
    template <class Read>
    CLI::Option* value(const std::string& names, const std::string& value_name, Read read, const std::string& help)
    {
        const std::string option = names.substr(names.find("--"));
        const auto callback = [option, read](const std::string& text) { read(option, std::string_view(text)); };
        return app_.add_option_function<std::string>(names, callback, help)->type_name(value_name)->trigger_on_parse();
    }
    void flag(const std::string& names, bool& result, const std::string& help) { app_.add_flag(names, result, help); }

    template <class Number>
    void number(const std::string& names, Number& result, std::type_identity_t<Number> low, std::type_identity_t<Number> high,
        const std::string& help, const std::string& value_name = "N")
    {
        const auto read = [&result, low, high](std::string_view option, std::string_view text) {
            result = trainer::number(option, text, low, high);
        };
        value(names, value_name, read, help)->default_str(plain(result));
    }
    template <class Number>
    void numbers(const std::string& names, std::vector<Number>& result, std::type_identity_t<Number> low,
        std::type_identity_t<Number> high, const std::string& help)
    {
        const auto read = [&result, low, high](std::string_view option, std::string_view text) {
            result.clear();
            for (const std::string_view part : split_list(text)) {
                result.push_back(trainer::number(option, part, low, high));
            }
        };
        std::string all;
        for (const Number each : result) all += (all.empty() ? "" : ",") + plain(each);
        value(names, "LIST", read, help)->default_str(all);
    }
    template <class Value>
    void choice(const std::string& names, const std::string& value_name, Value& result, std::vector<word<Value>> words,
        const std::string& help)
    {
        const auto found = std::find_if(words.begin(), words.end(), [&](const auto& each) { return each.value == result; });
        const std::string shown(found == words.end() ? std::string_view() : found->text);
        const auto read = [&result, words = std::move(words)](std::string_view option, std::string_view text) {
            result = choose(option, text, words);
        };
        value(names, value_name, read, help)->default_str(shown);
    }
    template <class Value>
    void choices(const std::string& names, std::vector<Value>& result, std::vector<word<Value>> words, const std::string& help)
    {
        const auto read = [&result, words = std::move(words)](std::string_view option, std::string_view text) {
            result.clear();
            for (const std::string_view part : split_list(text)) result.push_back(choose(option, part, words));
        };
        value(names, "LIST", read, help);
    }
    /// A file or a folder. `-` is refused: the standard output has the report.
    void path(const std::string& names, std::string& result, const std::string& help, const std::string& value_name = "PATH")
    {
        const auto read = [&result](const std::string& option, std::string_view text) {
            if (text.empty()) throw usage_error(option + " needs a path");
            if (text == "-") throw usage_error(option + ": '-' is no path here: the standard output has the report");
            result = text;
        };
        value(names, value_name, read, help);
    }

    /// What stands alone: files and folders.
    void paths(const std::string& name, std::vector<std::string>& result, const std::string& help)
    {
        app_.add_option(name, result, help)->type_name("");
    }

    /// The files that every study writes. `help`: of the lines of JSON.
    void files(report_files& result, const std::string& help)
    {
        result.for_each([&](const char* name, const char* what, std::string& of) {
            path(name, of, std::string(name) == "--jsonl" ? help : what);
        });
    }

    bool given(const std::string& name) const { return app_.count(name) > 0; }

    /// \throws usage_error for anything it cannot follow, help_request
    void parse(std::vector<std::string> arguments)
    {
        for (const std::string& argument : arguments) { // or CLI11 takes the next argument for the value
            if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
                throw usage_error(argument.substr(0, argument.size() - 1) + " needs a value");
            }
        }
        std::reverse(arguments.begin(), arguments.end()); // as CLI11 has it
        try {
            app_.parse(std::move(arguments));
        } catch (const CLI::ParseError& problem) {
            throw usage_error(problem.what());
        }
        if (app_.remaining_size() > 0) throw usage_error("unknown option '" + app_.remaining().front() + "'");
    }

private:
    CLI::App app_;
};

} // namespace trainer
