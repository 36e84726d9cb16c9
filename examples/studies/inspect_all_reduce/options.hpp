// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/comm/local/order.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/sum/accumulation.hpp>

#include "../../report_files.hpp"
#include "../digits/words.hpp"

namespace inspect_all_reduce {

using collprobe::element_type;
using collprobe::reproducibility;
using trainer::usage_error;

enum class communicator_kind { local, mpi, nccl };

/// The command line.
struct options {
    communicator_kind communicator = communicator_kind::local;
    int ranks = 4;
    collprobe::local::reduction_order order = collprobe::local::reduction_order::ring;
    reproducibility contract = reproducibility::unspecified;
    std::vector<element_type> types
        = {element_type::float16, element_type::bfloat16, element_type::float32, element_type::float64};
    std::uint64_t min_bytes = 4096;
    std::uint64_t max_bytes = 1 << 20;
    std::uint64_t factor = 16;
    int warm_ups = 2;
    int iterations = 10;
    std::uint64_t seed = 1;
    report_files files;
    bool verbose = false;
};

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    using collprobe::local::reduction_order;
    trainer::command_line line("inspect_all_reduce: what arithmetic does an all-reduce do?\n\n"
        "To arithmetic what nccl-tests is to speed: in which order a communicator adds the values of the ranks, in what\n"
        "precision it keeps partial sums, whether its bits are stable, how far they are from the exact sum, and how fast\n"
        "it is.",
        "0, 1 if the run failed,\n2 if the command line is wrong.");
    options result;
    const auto bytes = [](std::uint64_t& size) {
        return [&size](const std::string& option, std::string_view text) { size = trainer::parse_bytes(option, text); };
    };
    line.choice("--communicator", "KIND", result.communicator,
        {{"local", communicator_kind::local}, {"mpi", communicator_kind::mpi}, {"nccl", communicator_kind::nccl}},
        "local: ranks are threads of this process;\nmpi: mpirun -n 4 inspect_all_reduce --communicator mpi;\n"
        "nccl: a process for each GPU, started by torchrun, mpirun or srun");
    line.number("--ranks", result.ranks, 1, 256, "of local, 1 to 256");
    line.choice("--order", "ORDER", result.order,
        {{"ring", reduction_order::ring}, {"tree", reduction_order::tree}, {"linear", reduction_order::linear}},
        "of the all-reduce of local: ring, tree or linear");
    line.choice("--contract", "LEVEL", result.contract,
        {{"size_invariant", reproducibility::size_invariant}, {"order_invariant", reproducibility::order_invariant},
            {"correctly_rounded", reproducibility::correctly_rounded}},
        "inspect not the communicator's own all-reduce, but one that keeps\na contract over it: size_invariant, "
        "correctly_rounded (both by\nexchange) or order_invariant (in fixed point); of local and mpi");
    line.choices("--types", result.types,
        {{"half", element_type::float16}, {"bfloat16", element_type::bfloat16}, {"float", element_type::float32},
            {"double", element_type::float64}},
        "of half, bfloat16, float, double (all four)");
    line.value("-b,--min-bytes", "N", bytes(result.min_bytes),
        "size of the first message; K, M or G may follow, for 2^10, 2^20\nand 2^30 (4K)");
    line.value("-e,--max-bytes", "N", bytes(result.max_bytes), "no message is larger (1M)");
    line.number("-f,--factor", result.factor, 2, 1024, "from one size to the next, 2 to 1024");
    line.number("-w,--warm-ups", result.warm_ups, 0, 1'000'000, "calls before those that are timed");
    line.number("-n,--iterations", result.iterations, 1, 1'000'000, "timed calls");
    line.number("--seed", result.seed, 0, ~std::uint64_t{0}, "of the random terms");
    line.flag("--verbose", result.verbose, "the orders that were found, in brackets");
    line.files(result.files, "write each row of the table as an object, one a line");
    line.parse(arguments);
    if (result.min_bytes > result.max_bytes) {
        throw usage_error("--min-bytes: " + std::to_string(result.min_bytes) + " are more than --max-bytes, "
            + std::to_string(result.max_bytes));
    }
    for (const char* const of_local : {"--ranks", "--order"}) {
        if (!line.given(of_local) || result.communicator == communicator_kind::local) continue;
        throw usage_error(std::string(of_local) + ": belongs to --communicator local, the others are what they are");
    }
    if (result.contract != reproducibility::unspecified && result.communicator == communicator_kind::nccl) {
        throw usage_error("--contract: not with --communicator nccl, which takes kernels that this program has not");
    }
    return result;
}

} // namespace inspect_all_reduce
