// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <string_view>
#include <vector>

#include <collprobe/quant/format.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
#include "../digits/dataset.hpp"

namespace quantised_training {

using trainer::usage_error;

inline constexpr int nodes = 2;
inline constexpr int ranks_per_node = 4;
inline constexpr int ranks = nodes * ranks_per_node;
inline constexpr std::uint32_t deepspeed_group = 4096; ///< elements that share a scale

/// How gradients travel: as they are; as codes in the node and between nodes; or by the rules of a published system.
enum class scheme { fp32, int8, int8_int4, int4, deepspeed };

constexpr const char* name(scheme how)
{
    switch (how) {
    case scheme::fp32: return "fp32";
    case scheme::int8: return "int8";
    case scheme::int8_int4: return "int8_int4";
    case scheme::int4: return "int4";
    case scheme::deepspeed: return "deepspeed";
    }
    return "unknown";
}

/// How the roundings are made.
enum class variant { nearest, stochastic, feedback, rotate };

constexpr const char* name(variant how)
{
    switch (how) {
    case variant::nearest: return "nearest";
    case variant::stochastic: return "stochastic";
    case variant::feedback: return "feedback";
    case variant::rotate: return "rotated";
    }
    return "unknown";
}

/// The numeric defects of `deepspeed_rules`, as bits.
enum defect : unsigned {
    reinterpreted_bits = 1,
    node_divisor = 2,
    half_sums = 4,
    hidden_nan = 8,
    clipped_extremes = 16,
    all_defects = 31,
};

constexpr const char* name_of_defects(unsigned which)
{
    switch (which) {
    case 0: return "none";
    case reinterpreted_bits: return "bfloat16 read as half";
    case node_divisor: return "divided by the nodes";
    case half_sums: return "sums in half";
    case hidden_nan: return "NaN becomes 0";
    case clipped_extremes: return "extremes clipped";
    case all_defects: return "all five";
    default: return "several";
    }
}

/// The command line.
struct options {
    std::vector<scheme> formats = {scheme::fp32, scheme::int8, scheme::int4, scheme::deepspeed};
    std::vector<std::uint32_t> blocks = {128, 1024};
    std::vector<variant> variants = {variant::nearest, variant::stochastic, variant::feedback};
    std::vector<std::uint64_t> seeds = {1};
    std::uint64_t steps = 600;
    std::size_t hidden = 146; ///< 32,422 weights: 8 groups of 4096 are nearly full
    std::size_t batch = 4; ///< of a rank
    std::string data = trainer::default_digits;
    report_files files;
    std::string plot; ///< empty: none
    std::string dump; ///< empty: none
    std::vector<std::uint64_t> dump_steps = {0};
};

/// The settings of all runs, for their reports.
inline std::vector<std::pair<std::string, std::string>> settings_of(const options& given)
{
    return {{"steps", std::to_string(given.steps)}, {"batch of a rank", std::to_string(given.batch)},
        {"hidden units", std::to_string(given.hidden)}};
}

/// One run of the program's list.
struct run_plan {
    scheme how = scheme::fp32;
    variant roundings = variant::nearest;
    std::uint32_t block = 0;
    unsigned defects = 0;
    std::uint64_t seed = 1;

    /// Of the exchange in the node, or of the one between nodes.
    collprobe::quantisation quantisation(bool across) const
    {
        const bool four_bits = how == scheme::int4 || (across && how == scheme::int8_int4);
        collprobe::quantisation made{.format = four_bits ? collprobe::code_format::int4 : collprobe::code_format::int8,
            .block = block, .seed = trainer::derive(seed, 3000), .rotate = roundings == variant::rotate};
        if (roundings == variant::stochastic) made.rounding = collprobe::code_rounding::stochastic;
        if (roundings == variant::feedback) made.feedback = collprobe::error_feedback::all;
        return made;
    }
    std::string label() const
    {
        if (how == scheme::fp32) return "fp32";
        return std::string(name(how)) + ", " + std::to_string(block) + ", "
            + (how == scheme::deepspeed ? name_of_defects(defects) : name(roundings));
    }
};

/// The runs with one seed.
inline std::vector<run_plan> plans_of(const options& given, std::uint64_t seed)
{
    std::vector<run_plan> plans;
    for (const scheme how : given.formats) {
        if (how == scheme::fp32) {
            plans.push_back({.how = how, .seed = seed});
        } else if (how == scheme::deepspeed) {
            for (const unsigned defects : {0u, 1u, 2u, 4u, 8u, 16u, 31u}) {
                plans.push_back({.how = how, .block = deepspeed_group, .defects = defects, .seed = seed});
            }
        } else {
            for (const std::uint32_t block : given.blocks) {
                for (const variant roundings : given.variants) {
                    plans.push_back({.how = how, .roundings = roundings, .block = block, .seed = seed});
                }
            }
        }
    }
    return plans;
}

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    trainer::command_line line(
        "quantised_training: what do gradients that travel as codes do to training, and what tells it first?\n\n"
        "Trains a small network on handwritten digits on 8 ranks, 2 nodes of 4, that average their gradients by codes\n"
        "of 8 or 4 bits, and by the rules of DeepSpeed's quantised gradients with the defects that its source has.\n"
        "Beside each accuracy stands what quantisation_probe said of the steps: the error of the roundings, that of\n"
        "the average, their energy against the gradient's own noise, and the verdict.",
        "0, 1 if a run failed\nor left ranks with different weights, 2 if the command line is wrong.");
    options result;
    line.choices("--formats", result.formats,
        {{"fp32", scheme::fp32}, {"int8", scheme::int8}, {"int8_int4", scheme::int8_int4}, {"int4", scheme::int4},
            {"deepspeed", scheme::deepspeed}},
        "of fp32, int8, int8_int4 (4 bits between nodes), int4, deepspeed\n(fp32,int8,int4,deepspeed)");
    line.numbers("--blocks", result.blocks, 32, 1024,
        "elements that share a scale, powers of two; deepspeed has its own");
    line.choices("--variants", result.variants,
        {{"nearest", variant::nearest}, {"stochastic", variant::stochastic}, {"feedback", variant::feedback},
            {"rotate", variant::rotate}},
        "of nearest, stochastic, feedback, rotate (nearest,stochastic,feedback)");
    line.number("--steps", result.steps, 1, 1'000'000, "optimiser steps of each run");
    line.number("--hidden", result.hidden, 1, 4096, "units of each of the two hidden layers");
    line.number("--batch", result.batch, 1, 100'000, "samples of a rank in a step");
    line.numbers("--seeds,--seed", result.seeds, 0, ~std::uint64_t{0},
        "runs with each of these seeds; the table has their median");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write a summary of each run, one a line");
    line.path("--plot", result.plot, "draw accuracy and noise ratio over the steps, an SVG file");
    line.path("--dump", result.dump,
        "write gradients and averages of every rank as NumPy files,\nDIR/<run>/grad_step<s>_rank<r>.npy and "
        "average_step<s>_rank<r>.npy",
        "DIR");
    line.numbers("--dump-steps", result.dump_steps, 0, 1'000'000, "the steps that --dump writes");
    line.parse(arguments);
    for (const std::uint32_t block : result.blocks) {
        if ((block & (block - 1)) != 0) throw usage_error("--blocks: " + std::to_string(block) + " is no power of two");
    }
    if (line.given("--dump-steps") && result.dump.empty()) throw usage_error("--dump-steps is for --dump");
    return result;
}

} // namespace quantised_training
