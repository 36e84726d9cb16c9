// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/preload/engine/call_period.hpp"

#include "recorded_calls.hpp"

namespace call_sequences {

struct call {
    std::uint64_t signature = 0;
    std::uint64_t bytes = 0;
};

inline call call_of(
    unsigned operation, std::uint64_t count, unsigned size = 4, unsigned reduction = 1, unsigned root = 0)
{
    return {collprobe_preload::call_signature(operation, size, count, reduction, root), count * size};
}

using calls = std::vector<call>;

inline void append(calls& to, const calls& more, std::size_t times = 1)
{
    for (std::size_t i = 0; i < times; ++i) to.insert(to.end(), more.begin(), more.end());
}

/// A program's calls, and where its steps really began.
struct program {
    calls made;
    std::vector<std::size_t> steps;

    void step(const calls& of_it)
    {
        steps.push_back(made.size());
        append(made, of_it);
    }
    void other(const calls& more) { append(made, more); }
};

/// A recorded program by its pieces.
struct pieces {
    std::vector<calls> init, steps, batches; ///< in the order in which they were recorded
};

inline std::size_t number_at(const std::string& text, std::size_t& at)
{
    std::size_t length = 0;
    const std::size_t result = std::stoul(text.substr(at), &length);
    at += length;
    return result;
}

/// Letters, each or a group in parentheses followed by * and how often.
inline calls sequence(const std::string& text, std::size_t& at, const std::map<char, call>& known)
{
    calls result;
    while (at < text.size() && text[at] != ')') {
        if (text[at] == ' ') {
            ++at;
            continue;
        }
        calls part;
        if (text[at] == '(') {
            part = sequence(text, ++at, known);
        } else {
            part.push_back(known.at(text[at]));
        }
        ++at;
        std::size_t times = 1;
        if (at < text.size() && text[at] == '*') times = number_at(text, ++at);
        append(result, part, times);
    }
    return result;
}

inline pieces pieces_of(const recorded_program& recorded)
{
    const std::map<std::string, unsigned> operations
        = {{"all_reduce", 0}, {"reduce_scatter", 1}, {"all_gather", 2}, {"broadcast", 3}};
    const std::map<std::string, unsigned> sizes = {{"float32", 4}, {"bfloat16", 2}, {"int64", 8}, {"int32", 4}};
    const std::map<std::string, unsigned> reductions = {{"-", 0}, {"SUM", 1}, {"AVG", 2}};
    pieces result;
    std::map<char, call> known;
    std::istringstream lines(recorded.text);
    for (std::string line; std::getline(lines, line);) {
        if (line.empty()) continue;
        if (line[1] == ' ') {
            std::istringstream words(line);
            std::string letter, operation, type, reduction;
            std::uint64_t count = 0;
            unsigned root = 0;
            words >> letter >> operation >> type >> count >> reduction >> root;
            known[letter[0]] = call_of(operations.at(operation), count, sizes.at(type), reductions.at(reduction), root);
            continue;
        }
        std::size_t at = line.find(':');
        const std::string title = line.substr(0, at++);
        std::size_t star = title.find('*');
        std::size_t times = 1;
        if (star != std::string::npos) times = number_at(title, ++star);
        const calls made = sequence(line, at, known);
        std::vector<calls>& to = title[0] == 'i' ? result.init : title[0] == 's' ? result.steps : result.batches;
        for (std::size_t i = 0; i < times; ++i) to.push_back(made);
    }
    return result;
}

inline pieces recorded(const std::string& name)
{
    for (const recorded_program& each : recorded_programs) {
        if (name == each.name) return pieces_of(each);
    }
    throw std::runtime_error("no recorded program " + name);
}

} // namespace call_sequences
