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

#include "../digits/command_line.hpp"

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
    std::string jsonl; ///< empty: none
    bool verbose = false;
    bool help = false;
};

inline constexpr const char* help_text =
    R"(inspect_all_reduce: what arithmetic does an all-reduce do?

To arithmetic what nccl-tests is to speed: in which order a communicator adds the values of the ranks, in what precision
it keeps partial sums, whether its bits are stable, how far they are from the exact sum, and how fast it is.

  --communicator KIND    local: ranks are threads of this process;
                         mpi: mpirun -n 4 inspect_all_reduce --communicator mpi;
                         nccl: a process for each GPU, started by torchrun, mpirun or srun (local)
  --ranks N              of local, 1 to 256 (4)
  --order ORDER          of the all-reduce of local: ring, tree or linear (ring)
  --contract LEVEL       inspect not the communicator's own all-reduce, but one that keeps a contract over it:
                         size_invariant, correctly_rounded (both by exchange) or order_invariant (in fixed point);
                         of local and mpi
  --types LIST           of half, bfloat16, float, double (all four)
  -b, --min-bytes N      size of the first message; K, M or G may follow, for 2^10, 2^20 and 2^30 (4K)
  -e, --max-bytes N      no message is larger (1M)
  -f, --factor N         from one size to the next, 2 to 1024 (16)
  -w, --warm-ups N       calls before those that are timed (2)
  -n, --iterations N     timed calls (10)
  --seed N               of the random terms (1)
  --verbose              the orders that were found, in brackets
  --jsonl PATH           write each row of the table as an object, one a line
  --help                 this text

Options take their value as the next argument or behind '='. Exit status: 0, 1 if the run failed, 2 if the command
line is wrong.
)";

/// "64", "4K", "1M", "2G"
inline std::uint64_t parse_bytes(std::string_view option, std::string_view text)
{
    constexpr std::uint64_t most = std::uint64_t{1} << 36;
    int shift = 0;
    if (!text.empty()) {
        const char last = text.back();
        shift = last == 'K' || last == 'k' ? 10 : last == 'M' || last == 'm' ? 20 : last == 'G' || last == 'g' ? 30 : 0;
    }
    const std::string_view digits = text.substr(0, text.size() - (shift != 0 ? 1 : 0));
    return trainer::detail::number<std::uint64_t>(option, digits, 1, most >> shift) << shift;
}

/// \throws usage_error for anything it cannot follow.
inline options parse_options(const std::vector<std::string>& arguments)
{
    using namespace trainer::detail;
    options result;
    std::string of_local; // an option that only local has
    trainer::command_line line(arguments);
    while (line.next()) {
        const std::string_view option = line.option();
        if (option == "--help" || option == "-h") {
            result.help = true;
            return result;
        }
        if (option == "--communicator") {
            constexpr word<communicator_kind> words[] = {{"local", communicator_kind::local},
                {"mpi", communicator_kind::mpi}, {"nccl", communicator_kind::nccl}};
            result.communicator = choose(option, line.value(), words);
        } else if (option == "--ranks") {
            result.ranks = number(option, line.value(), 1, 256);
            of_local = option;
        } else if (option == "--order") {
            using collprobe::local::reduction_order;
            constexpr word<reduction_order> words[] = {
                {"ring", reduction_order::ring}, {"tree", reduction_order::tree}, {"linear", reduction_order::linear}};
            result.order = choose(option, line.value(), words);
            of_local = option;
        } else if (option == "--contract") {
            constexpr word<reproducibility> words[] = {{"size_invariant", reproducibility::size_invariant},
                {"order_invariant", reproducibility::order_invariant},
                {"correctly_rounded", reproducibility::correctly_rounded}};
            result.contract = choose(option, line.value(), words);
        } else if (option == "--types") {
            constexpr word<element_type> words[] = {{"half", element_type::float16}, {"bfloat16", element_type::bfloat16},
                {"float", element_type::float32}, {"double", element_type::float64}};
            result.types.clear();
            for (const std::string_view part : split_list(line.value())) {
                result.types.push_back(choose(option, part, words));
            }
        } else if (option == "-b" || option == "--min-bytes") {
            result.min_bytes = parse_bytes(option, line.value());
        } else if (option == "-e" || option == "--max-bytes") {
            result.max_bytes = parse_bytes(option, line.value());
        } else if (option == "-f" || option == "--factor") {
            result.factor = number<std::uint64_t>(option, line.value(), 2, 1024);
        } else if (option == "-w" || option == "--warm-ups") {
            result.warm_ups = number(option, line.value(), 0, 1'000'000);
        } else if (option == "-n" || option == "--iterations") {
            result.iterations = number(option, line.value(), 1, 1'000'000);
        } else if (option == "--seed") {
            result.seed = number<std::uint64_t>(option, line.value(), 0, ~std::uint64_t{0});
        } else if (option == "--verbose") {
            result.verbose = true;
        } else if (option == "--jsonl") {
            result.jsonl = line.path();
        } else {
            line.refuse();
        }
    }
    if (result.min_bytes > result.max_bytes) {
        throw usage_error("--min-bytes: " + std::to_string(result.min_bytes) + " are more than --max-bytes, "
            + std::to_string(result.max_bytes));
    }
    if (!of_local.empty() && result.communicator != communicator_kind::local) {
        throw usage_error(of_local + ": belongs to --communicator local, the others are what they are");
    }
    if (result.contract != reproducibility::unspecified && result.communicator == communicator_kind::nccl) {
        throw usage_error("--contract: not with --communicator nccl, which takes kernels that this program has not");
    }
    return result;
}

} // namespace inspect_all_reduce
