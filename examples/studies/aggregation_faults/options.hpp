// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/replica/replica_averaging.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
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
    double gain = collprobe::when_worth_it().gain; ///< of dynamic_corrected
    std::string data = trainer::default_digits;
    report_files files;
    std::string plot; ///< empty: none

    std::size_t batch_of(int n) const
    {
        if (batch != 0) return batch;
        return n < 16 ? 32 / static_cast<std::size_t>(n) : 2;
    }
};

inline constexpr std::uint64_t burst_period = 500;

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    trainer::command_line line(
        "aggregation_faults: what becomes of a training run whose all-reduce hands each rank a slightly different\n"
        "gradient, and what repairs it?\n\n"
        "Trains a small network on handwritten digits, on ranks with a model each. With --fault gaussian every rank\n"
        "receives the averaged gradient with its own N(0, sigma2) in each element: the ranks' models drift apart. With\n"
        "--fault bit_flips one rank receives damaged elements in one step of a hundred or so. Compared are training\n"
        "without faults (clean), without repair (noised), averaging the models every H steps (periodic), averaging them\n"
        "when it is worth while (dynamic: the rule as published; dynamic_corrected) and copying what most ranks agree on\n"
        "(majority).",
        "0, 1 if a run failed\nor a repair did not do what it promises, 2 if the command line is wrong.");
    options result;
    line.choice("--fault", "MODEL", result.fault,
        {{"gaussian", fault_model::gaussian}, {"bit_flips", fault_model::bit_flips}}, "gaussian or bit_flips");
    line.choices("--methods", result.methods,
        {{"clean", method::clean}, {"noised", method::noised}, {"periodic", method::periodic}, {"dynamic", method::dynamic},
            {"dynamic_corrected", method::dynamic_corrected}, {"majority", method::majority}},
        "of clean, noised, periodic, dynamic, dynamic_corrected, majority (all)");
    line.numbers("--sigma2", result.sigma2, 1e-12, 1e6, "variances of the noise");
    line.numbers("--ranks", result.ranks, 1, 256, "numbers of ranks, threads of this process; the paper has 4 and 32");
    line.numbers("--intervals", result.intervals, 1, 1'000'000, "H of periodic");
    line.number("--steps", result.steps, 1, 1'000'000, "optimiser steps of each run");
    line.value("--batch", "N",
        [&result](const std::string& option, std::string_view text) {
            result.batch = trainer::number<std::size_t>(option, text, 1, 100'000);
        },
        "samples of a rank in a step (32 / ranks, at least 2)");
    line.number("--burst", result.burst, 0, 1e6, "noise of this variance on top of sigma2 every 500 steps", "VARIANCE");
    line.number("--gain", result.gain, 1e-3, 1e3, "of dynamic_corrected: a larger one averages more rarely", "GAIN");
    line.flag("--average-momentum", result.state, "average the optimiser's momentum with the weights");
    line.numbers("--seeds,--seed", result.seeds, 0, ~std::uint64_t{0},
        "runs with each of these seeds; the table has their median");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write a summary of each run, one a line");
    line.path("--plot", result.plot, "draw accuracy over sigma2, an SVG file");
    line.parse(arguments);
    if (result.fault == fault_model::bit_flips) {
        if (line.given("--sigma2") || result.burst > 0) throw usage_error("--sigma2 and --burst are for --fault gaussian");
        if (!result.plot.empty()) throw usage_error("--plot: there is no sigma2 to draw over with --fault bit_flips");
        result.sigma2 = {0};
    }
    return result;
}

} // namespace aggregation_faults
