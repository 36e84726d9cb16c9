// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
#include "../digits/dataset.hpp"

namespace guarded_all_gather {

using trainer::usage_error;

/// What orders the all-gather behind the copy that fills its shard.
enum class mode {
    unguarded, ///< nothing
    guarded, ///< collprobe::copy_then_all_gather
    synchronised, ///< the host, which waits for the stream of the copy
};

constexpr const char* name(mode how)
{
    switch (how) {
    case mode::unguarded: return "unguarded";
    case mode::guarded: return "guarded";
    case mode::synchronised: return "synchronised";
    }
    return "unknown";
}

/// The command line.
struct options {
    int ranks = 4;
    std::uint64_t steps = 200;
    std::vector<mode> modes = {mode::unguarded, mode::guarded, mode::synchronised};
    std::uint64_t seed = 1;
    std::uint64_t delay_seed = 1;
    std::string data = trainer::default_digits;
    report_files files;
};

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    trainer::command_line line(
        "guarded_all_gather: what becomes of a training run whose all-gather does not wait for the copy before it?\n\n"
        "Trains a small network on handwritten digits. Each rank owns a slice of the parameters; a step updates it on one\n"
        "stream, copies it to the rank's shard on a second, gathers the shards of all ranks on a third, and computes with\n"
        "the result on the first. Three runs: nothing orders the copy and the all-gather (unguarded); one guarded call\n"
        "does, by events (guarded); the host waits for the copy (synchronised). A checker of stream order watches all\n"
        "three.",
        "0; 1 if the run\nfailed, if the checker missed the unguarded all-gather or complained of another, or if guarded and\n"
        "synchronised differ in a bit of a loss; 2 if the command line is wrong.");
    options result;
    line.choices("--mode", result.modes,
        {{"unguarded", mode::unguarded}, {"guarded", mode::guarded}, {"synchronised", mode::synchronised}},
        "of unguarded, guarded, synchronised (all three)");
    line.number("--ranks", result.ranks, 1, 64, "threads of this process, 1 to 64");
    line.number("--steps", result.steps, 1, 100'000, "optimiser steps of each run");
    line.number("--seed", result.seed, 0, ~std::uint64_t{0}, "seed of the weights and of the samples");
    line.number("--delay-seed", result.delay_seed, 0, ~std::uint64_t{0},
        "seed of the delays: about half of all updates come up to 0.6 ms late");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write a summary of each run, one a line");
    line.parse(arguments);
    return result;
}

} // namespace guarded_all_gather
