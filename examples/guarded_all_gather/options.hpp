// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../digits/command_line.hpp"
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
    std::string jsonl; ///< empty: none
    bool help = false;
};

inline constexpr const char* help_text =
    R"(guarded_all_gather: what becomes of a training run whose all-gather does not wait for the copy before it?

Trains a small network on handwritten digits. Each rank owns a slice of the parameters; a step updates it on one stream,
copies it to the rank's shard on a second, gathers the shards of all ranks on a third, and computes with the result on
the first. Three runs: nothing orders the copy and the all-gather (unguarded); one guarded call does, by events
(guarded); the host waits for the copy (synchronised). A checker of stream order watches all three.

  --mode LIST            of unguarded, guarded, synchronised (all three)
  --ranks N              threads of this process, 1 to 64 (4)
  --steps N              optimiser steps of each run (200)
  --seed N               seed of the weights and of the samples (1)
  --delay-seed N         seed of the delays: about half of all updates come up to 0.6 ms late (1)
  --data PATH            the data file (optdigits.csv of the build)
  --jsonl PATH           write a summary of each run, one a line
  --help                 this text

Options take their value as the next argument or behind '='. Exit status: 0; 1 if the run failed, if the checker missed
the unguarded all-gather or complained of another, or if guarded and synchronised differ in a bit of a loss; 2 if the
command line is wrong.
)";

/// \throws usage_error for anything it cannot follow.
inline options parse_options(const std::vector<std::string>& arguments)
{
    using namespace trainer::detail;
    options result;
    trainer::command_line line(arguments);
    while (line.next()) {
        const std::string_view option = line.option();
        if (option == "--help" || option == "-h") {
            result.help = true;
            return result;
        }
        if (option == "--mode") {
            constexpr word<mode> words[] = {
                {"unguarded", mode::unguarded}, {"guarded", mode::guarded}, {"synchronised", mode::synchronised}};
            result.modes.clear();
            for (const std::string_view part : split_list(line.value())) {
                result.modes.push_back(choose(option, part, words));
            }
        } else if (option == "--ranks") {
            result.ranks = number(option, line.value(), 1, 64);
        } else if (option == "--steps") {
            result.steps = number<std::uint64_t>(option, line.value(), 1, 100'000);
        } else if (option == "--seed") {
            result.seed = number<std::uint64_t>(option, line.value(), 0, ~std::uint64_t{0});
        } else if (option == "--delay-seed") {
            result.delay_seed = number<std::uint64_t>(option, line.value(), 0, ~std::uint64_t{0});
        } else if (option == "--data") {
            result.data = line.path();
        } else if (option == "--jsonl") {
            result.jsonl = line.path();
        } else {
            line.refuse();
        }
    }
    return result;
}

} // namespace guarded_all_gather
