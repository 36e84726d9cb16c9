// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../digits/command_line.hpp"
#include "../digits/dataset.hpp"

namespace aggregation_faults {

using trainer::usage_error;

enum class fault_model {
    gaussian, ///< PAFT's: every rank receives the averaged gradient with noise of its own
    bit_flips, ///< now and then one rank receives damaged elements
};

constexpr const char* name(fault_model model) { return model == fault_model::gaussian ? "gaussian" : "bit_flips"; }

enum class method { clean, noised, periodic, dynamic, dynamic_corrected, majority };

constexpr const char* name(method how)
{
    switch (how) {
    case method::clean: return "clean";
    case method::noised: return "noised";
    case method::periodic: return "periodic";
    case method::dynamic: return "dynamic";
    case method::dynamic_corrected: return "dynamic_corrected";
    case method::majority: return "majority";
    }
    return "unknown";
}

/// The command line.
struct options {
    fault_model fault = fault_model::gaussian;
    std::vector<method> methods = {method::clean, method::noised, method::periodic, method::dynamic,
        method::dynamic_corrected, method::majority};
    std::vector<double> sigma2 = {1e-4, 1e-3, 1e-2, 1e-1};
    std::vector<int> ranks = {4};
    std::vector<std::uint64_t> intervals = {5, 10, 50};
    std::vector<std::uint64_t> seeds = {1};
    std::uint64_t steps = 600;
    std::size_t batch = 0; ///< of a rank; 0: 32 / ranks, at least 2
    double burst = 0; ///< variance on top every 500 steps; 0: none
    bool state = false; ///< whether the momentum is averaged too
    std::string data = trainer::default_digits;
    std::string jsonl; ///< empty: none
    std::string plot; ///< empty: none
    bool help = false;

    std::size_t batch_of(int n) const
    {
        if (batch != 0) return batch;
        return n < 16 ? 32 / static_cast<std::size_t>(n) : 2;
    }
};

inline constexpr std::uint64_t burst_period = 500;

inline constexpr const char* help_text =
    R"(aggregation_faults: what becomes of a training run whose all-reduce hands each rank a slightly different gradient,
and what repairs it?

Trains a small network on handwritten digits, on ranks with a model each. With --fault gaussian every rank receives
the averaged gradient with its own N(0, sigma2) in each element: the ranks' models drift apart. With --fault bit_flips
one rank receives damaged elements in one step of a hundred or so. Compared are training without faults (clean),
without repair (noised), averaging the models every H steps (periodic), averaging them when it is worth while
(dynamic: the rule as published; dynamic_corrected) and copying what most ranks agree on (majority).

  --fault MODEL          gaussian or bit_flips (gaussian)
  --methods LIST         of clean, noised, periodic, dynamic, dynamic_corrected, majority (all)
  --sigma2 LIST          variances of the noise (1e-4,1e-3,1e-2,1e-1)
  --ranks LIST           numbers of ranks, threads of this process; the paper has 4 and 32 (4)
  --intervals LIST       H of periodic (5,10,50)
  --steps N              optimiser steps of each run (600)
  --batch N              samples of a rank in a step (32 / ranks, at least 2)
  --burst VARIANCE       noise of this variance on top of sigma2 every 500 steps (0)
  --average-momentum     average the optimiser's momentum with the weights
  --seeds LIST           runs with each of these seeds; the table has their median (1)
  --data PATH            the data file (optdigits.csv of the build)
  --jsonl PATH           write a summary of each run, one a line
  --plot PATH            draw accuracy over sigma2, an SVG file
  --help                 this text

Options take their value as the next argument or behind '='. Exit status: 0, 1 if a run failed or a repair did not do
what it promises, 2 if the command line is wrong.
)";

namespace detail {

template <class Value, class Parse>
std::vector<Value> list(std::string_view text, Parse parse)
{
    std::vector<Value> values;
    for (const std::string_view part : trainer::detail::split_list(text)) values.push_back(parse(part));
    return values;
}

} // namespace detail

/// \throws usage_error for anything it cannot follow.
inline options parse_options(const std::vector<std::string>& arguments)
{
    using namespace trainer::detail;
    options result;
    bool sigma2_given = false;
    trainer::command_line line(arguments);
    while (line.next()) {
        const std::string_view option = line.option();
        if (option == "--help" || option == "-h") {
            result.help = true;
            return result;
        }
        if (option == "--fault") {
            constexpr word<fault_model> words[]
                = {{"gaussian", fault_model::gaussian}, {"bit_flips", fault_model::bit_flips}};
            result.fault = choose(option, line.value(), words);
        } else if (option == "--methods") {
            constexpr word<method> words[] = {{"clean", method::clean}, {"noised", method::noised},
                {"periodic", method::periodic}, {"dynamic", method::dynamic},
                {"dynamic_corrected", method::dynamic_corrected}, {"majority", method::majority}};
            result.methods = detail::list<method>(
                line.value(), [&](std::string_view part) { return choose(option, part, words); });
        } else if (option == "--sigma2") {
            sigma2_given = true;
            result.sigma2 = detail::list<double>(
                line.value(), [&](std::string_view part) { return number(option, part, 1e-12, 1e6); });
        } else if (option == "--ranks") {
            result.ranks = detail::list<int>(
                line.value(), [&](std::string_view part) { return number(option, part, 1, 256); });
        } else if (option == "--intervals") {
            result.intervals = detail::list<std::uint64_t>(line.value(),
                [&](std::string_view part) { return number<std::uint64_t>(option, part, 1, 1'000'000); });
        } else if (option == "--steps") {
            result.steps = number<std::uint64_t>(option, line.value(), 1, 1'000'000);
        } else if (option == "--batch") {
            result.batch = number<std::size_t>(option, line.value(), 1, 100'000);
        } else if (option == "--burst") {
            result.burst = number(option, line.value(), 0.0, 1e6);
        } else if (option == "--average-momentum") {
            result.state = true;
        } else if (option == "--seeds" || option == "--seed") {
            result.seeds = detail::list<std::uint64_t>(line.value(),
                [&](std::string_view part) { return number<std::uint64_t>(option, part, 0, ~std::uint64_t{0}); });
        } else if (option == "--data") {
            result.data = line.path();
        } else if (option == "--jsonl") {
            result.jsonl = line.path();
        } else if (option == "--plot") {
            result.plot = line.path();
        } else {
            line.refuse();
        }
    }
    if (result.fault == fault_model::bit_flips) {
        if (sigma2_given || result.burst > 0) throw usage_error("--sigma2 and --burst are for --fault gaussian");
        if (!result.plot.empty()) throw usage_error("--plot: there is no sigma2 to draw over with --fault bit_flips");
        result.sigma2 = {0};
    }
    return result;
}

} // namespace aggregation_faults
