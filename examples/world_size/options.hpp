// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/comm/local/order.hpp>

#include "../digits/command_line.hpp"
#include "../digits/dataset.hpp"

namespace world_size {

using trainer::usage_error;
using trainer::wire_element;

/// How the gradients of a step become their average.
enum class averaging {
    native, ///< each rank adds its own, the communicator's all-reduce adds the ranks'
    order_invariant, ///< the contract of that name, by fixed point
    correctly_rounded, ///< the contract of that name, by exchange
};

constexpr const char* name(averaging how)
{
    switch (how) {
    case averaging::native: return "native";
    case averaging::order_invariant: return "order_invariant";
    case averaging::correctly_rounded: return "correctly_rounded";
    }
    return "unknown";
}

enum class communicator_kind { local, mpi };

/// The command line.
struct options {
    std::vector<int> ranks; ///< empty: `default_ranks`
    int micro_batches = 16;
    std::uint64_t steps = 300;
    std::size_t batch = 8;
    std::vector<averaging> reductions = {averaging::native, averaging::order_invariant, averaging::correctly_rounded};
    wire_element element = wire_element::float32;
    collprobe::local::reduction_order order = collprobe::local::reduction_order::ring;
    communicator_kind communicator = communicator_kind::local;
    std::uint64_t seed = 1;
    std::string data = trainer::default_digits;
    std::string jsonl; ///< empty: none
    bool help = false;
};

inline constexpr const char* help_text =
    R"(world_size: does a training run depend on how many ranks share its work?

Trains a small network on handwritten digits. A step has 16 micro-batches, the same ones whatever the number of ranks:
2 ranks with 8 each, 4 with 4, 8 with 2, 16 with one. Their gradients are averaged in the order that the all-reduce
has, and under two contracts that promise the same bits for any order.

  --ranks LIST           numbers of ranks, each a divisor of the micro-batches (2,4,8,16; with mpi as far as the job has
                         them)
  --micro-batches N      of a step, 1 to 256 (16)
  --steps N              optimiser steps of each run (300)
  --batch N              samples of a micro-batch (8)
  --reductions LIST      of native, order_invariant, correctly_rounded (all three)
  --element TYPE         what the gradients travel and are added as: float, bfloat16 or half (float)
  --order ORDER          of the all-reduce of local: ring, tree or linear (ring)
  --communicator KIND    local: ranks are threads of this process; mpi: mpirun -n 4 world_size --communicator mpi (local)
  --seed N               seed of the run (1)
  --data PATH            the data file (optdigits.csv of the build)
  --jsonl PATH           write a summary of each run, one a line
  --help                 this text

Options take their value as the next argument or behind '='. Exit status: 0, 1 if the run failed or a contract was
not kept, 2 if the command line is wrong.
)";

/// 2, 4, 8 and 16, as far as there are so many ranks and the micro-batches can be dealt out evenly.
inline std::vector<int> default_ranks(int micro_batches, int most)
{
    std::vector<int> ranks;
    for (int n = 2; n <= 16 && n <= most; n *= 2) {
        if (micro_batches % n == 0) ranks.push_back(n);
    }
    return ranks.empty() ? std::vector<int>{1} : ranks;
}

/// \throws usage_error for anything it cannot follow.
inline options parse_options(const std::vector<std::string>& arguments)
{
    using namespace trainer::detail;
    options result;
    bool order_given = false;
    trainer::command_line line(arguments);
    while (line.next()) {
        const std::string_view option = line.option();
        if (option == "--help" || option == "-h") {
            result.help = true;
            return result;
        }
        if (option == "--ranks") {
            result.ranks.clear();
            for (const std::string_view part : split_list(line.value())) {
                result.ranks.push_back(number(option, part, 1, 256));
            }
        } else if (option == "--micro-batches") {
            result.micro_batches = number(option, line.value(), 1, 256);
        } else if (option == "--steps") {
            result.steps = number<std::uint64_t>(option, line.value(), 1, 1'000'000);
        } else if (option == "--batch") {
            result.batch = number<std::size_t>(option, line.value(), 1, 100'000);
        } else if (option == "--reductions") {
            constexpr word<averaging> words[] = {{"native", averaging::native},
                {"order_invariant", averaging::order_invariant}, {"correctly_rounded", averaging::correctly_rounded}};
            result.reductions.clear();
            for (const std::string_view part : split_list(line.value())) {
                result.reductions.push_back(choose(option, part, words));
            }
        } else if (option == "--element") {
            result.element = trainer::parse_element(option, line.value());
        } else if (option == "--order") {
            using collprobe::local::reduction_order;
            constexpr word<reduction_order> words[] = {
                {"ring", reduction_order::ring}, {"tree", reduction_order::tree}, {"linear", reduction_order::linear}};
            result.order = choose(option, line.value(), words);
            order_given = true;
        } else if (option == "--communicator") {
            constexpr word<communicator_kind> words[]
                = {{"local", communicator_kind::local}, {"mpi", communicator_kind::mpi}};
            result.communicator = choose(option, line.value(), words);
        } else if (option == "--seed") {
            result.seed = number<std::uint64_t>(option, line.value(), 0, ~std::uint64_t{0});
        } else if (option == "--data") {
            result.data = line.path();
        } else if (option == "--jsonl") {
            result.jsonl = line.path();
        } else {
            line.refuse();
        }
    }
    if (order_given && result.communicator == communicator_kind::mpi) {
        throw usage_error("--order: with --communicator mpi the order is MPI's");
    }
    for (const int n : result.ranks) {
        if (result.micro_batches % n == 0) continue;
        throw usage_error("--ranks: " + std::to_string(result.micro_batches)
            + " micro-batches cannot be dealt out evenly to " + std::to_string(n) + " ranks");
    }
    return result;
}

} // namespace world_size
