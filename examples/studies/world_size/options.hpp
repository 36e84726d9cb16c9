// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/local/order.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"
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
    report_files files;
};

/// The settings of a run, for its reports.
inline std::vector<std::pair<std::string, std::string>> settings_of(const options& given, averaging how)
{
    return {{"reduction", name(how)}, {"element", trainer::name(given.element)},
        {"micro-batches of a step", std::to_string(given.micro_batches)}, {"samples of each", std::to_string(given.batch)},
        {"steps", std::to_string(given.steps)}, {"seed", std::to_string(given.seed)}};
}

/// 2, 4, 8 and 16, as far as there are so many ranks and the micro-batches can be dealt out evenly.
inline std::vector<int> default_ranks(int micro_batches, int most)
{
    std::vector<int> ranks;
    for (int n = 2; n <= 16 && n <= most; n *= 2) {
        if (micro_batches % n == 0) ranks.push_back(n);
    }
    return ranks.empty() ? std::vector<int>{1} : ranks;
}

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    using collprobe::local::reduction_order;
    trainer::command_line line(
        "world_size: does a training run depend on how many ranks share its work?\n\n"
        "Trains a small network on handwritten digits. A step has 16 micro-batches, the same ones whatever the number of\n"
        "ranks: 2 ranks with 8 each, 4 with 4, 8 with 2, 16 with one. Their gradients are averaged in the order that the\n"
        "all-reduce has, and under two contracts that promise the same bits for any order.",
        "0, 1 if the run failed\nor a contract was not kept, 2 if the command line is wrong.");
    options result;
    line.numbers("--ranks", result.ranks, 1, 256,
        "numbers of ranks, each a divisor of the micro-batches\n(2,4,8,16; with mpi as far as the job has them)");
    line.number("--micro-batches", result.micro_batches, 1, 256, "of a step, 1 to 256");
    line.number("--steps", result.steps, 1, 1'000'000, "optimiser steps of each run");
    line.number("--batch", result.batch, 1, 100'000, "samples of a micro-batch");
    line.choices("--reductions", result.reductions,
        {{"native", averaging::native}, {"order_invariant", averaging::order_invariant},
            {"correctly_rounded", averaging::correctly_rounded}},
        "of native, order_invariant, correctly_rounded (all three)");
    line.choice("--element", "TYPE", result.element, trainer::wire_elements(),
        "what the gradients travel and are added as: float, bfloat16 or half");
    line.choice("--order", "ORDER", result.order,
        {{"ring", reduction_order::ring}, {"tree", reduction_order::tree}, {"linear", reduction_order::linear}},
        "of the all-reduce of local: ring, tree or linear");
    line.choice("--communicator", "KIND", result.communicator,
        {{"local", communicator_kind::local}, {"mpi", communicator_kind::mpi}},
        "local: ranks are threads of this process;\nmpi: mpirun -n 4 world_size --communicator mpi");
    line.number("--seed", result.seed, 0, ~std::uint64_t{0}, "seed of the run");
    line.path("--data", result.data, "the data file (optdigits.csv of the build)");
    line.files(result.files, "write a summary of each run, one a line");
    line.parse(arguments);
    if (line.given("--order") && result.communicator == communicator_kind::mpi) {
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
