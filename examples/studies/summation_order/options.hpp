// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/printable.hpp>
#include <collprobe/sum/accumulation.hpp>

#include "../digits/words.hpp"
#include "orders.hpp"
#include "random_terms.hpp"

namespace summation {

using trainer::usage_error;

enum class output { table, json, csv };

/// The command line.
struct options {
    std::vector<std::string> paths;
    std::optional<input_kind> random;
    std::uint64_t elements = 1'000'000;
    std::uint64_t seed = 1;
    bool u2_is_bfloat16 = false;
    std::optional<element_type> as;
    std::string tensor;
    bool leaves = false;
    std::vector<int> ranks; ///< as given
    std::vector<order_choice> orders = default_orders();
    std::vector<accumulation> accumulations; ///< empty: the default ones of the type
    int permutations = 0;
    int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
    output to = output::table;
    std::string svg;
};

/// The numbers of ranks over which `rows` rows are dealt. `given`: as on the command line. One number stands for itself
/// and the powers of two below it.
inline std::vector<int> numbers_of_ranks(std::vector<int> given, int rows)
{
    if (given.empty()) given = {rows};
    if (given.size() == 1) {
        const int most = given[0];
        given.clear();
        for (int ranks = 2; ranks < most; ranks *= 2) given.push_back(ranks);
        given.push_back(most);
    }
    std::sort(given.begin(), given.end());
    given.erase(std::unique(given.begin(), given.end()), given.end());
    return given;
}

/// The accumulations that are compared unless others are asked for: those that are another arithmetic each.
inline std::vector<accumulation> default_accumulations(element_type type)
{
    if (type == element_type::float64) return {accumulation::native, accumulation::exact};
    return {accumulation::native, accumulation::float32, accumulation::float64, accumulation::exact};
}

/// \throws usage_error for anything it cannot follow, help_request
inline options parse_options(const std::vector<std::string>& arguments)
{
    std::string orders = "orders, of:";
    for (const order_name& each : order_names) {
        orders += "\n  " + std::string(each.text) + (each.has_number ? ":N" : "") + "\n    " + each.meaning;
    }
    trainer::command_line line("summation_order: what do order, type and accumulation do to one's own sums?\n\n"
        "  summation_order gradients/                 one .npy a rank, in the order of their names\n"
        "  summation_order all_ranks.npy              shape (ranks, ...), or (leaves, ...) with --leaves\n"
        "  summation_order --random heavy --ranks 8\n\n"
        "Each method is an order of additions and the type in which partial sums are kept: native rounds to the element\n"
        "type at each addition, the others once, at the end. Its sums are held against the correctly rounded ones; an\n"
        "error in ulp is the number of steps from a number of the type to the next. Files hold float16, float32, float64\n"
        "or bfloat16 (as ml_dtypes writes it, or uint16 with --type bfloat16), in C order. They are mapped and read a\n"
        "block at a time: memory of the program's own is at most 16 MiB and 2 blocks of 16384 elements a method, for\n"
        "each thread.",
        "0, 1 if the run failed,\n2 if the command line or an input is wrong.");
    options result;
    // The library's words, then NumPy's.
    const std::vector<trainer::word<element_type>> types{{"half", element_type::float16},
        {"bfloat16", element_type::bfloat16}, {"float", element_type::float32}, {"double", element_type::float64},
        {"float16", element_type::float16}, {"float32", element_type::float32}, {"float64", element_type::float64}};
    line.positions("PATH", result.paths,
        "a folder of files, or files: one a row, sorted by their names (grad_2 before grad_10),\nin whichever sequence they "
        "are given; or one file with a row for each index of its\nfirst dimension. .npy or .safetensors");
    std::vector<trainer::word<input_kind>> kinds;
    for (std::size_t k = 0; k < std::size(input_names); ++k) kinds.push_back({input_names[k], static_cast<input_kind>(k)});
    line.value("--random", "KIND",
        [&](std::string_view option, std::string_view text) { result.random = trainer::choose(option, text, kinds); },
        "in place of files: normal, same_sign, heavy, wide or cancelling terms");
    line.number("--elements", result.elements, 1, std::uint64_t{1} << 40, "of --random");
    line.number("--seed", result.seed, 0, ~std::uint64_t{0}, "of --random and --permutations");
    line.value("--type", "TYPE",
        [&](std::string_view option, std::string_view text) {
            const std::vector<trainer::word<bool>> known{{"bfloat16", true}};
            result.u2_is_bfloat16 = trainer::choose(option, text, known);
        },
        "bfloat16: what NumPy calls uint16 is that");
    line.value("--as", "TYPE",
        [&](std::string_view option, std::string_view text) { result.as = trainer::choose(option, text, types); },
        "round the input to half, bfloat16, float or double first");
    line.value("--tensor", "NAME", [&](std::string_view, std::string_view text) { result.tensor = text; },
        "of safetensors files");
    line.flag("--leaves", result.leaves, "rows are not ranks, but leaves that are dealt to the ranks; each adds its own first");
    line.numbers("--ranks", result.ranks, 2, 16384,
        "numbers of ranks to compare; one number: that, and the powers of two below it.\nThe most is that of the rows, "
        "but with --leaves");
    line.value("--orders", "LIST",
        [&](std::string_view option, std::string_view text) {
            result.orders.clear();
            for (const std::string_view each : trainer::split_list(text)) {
                const order_choice choice = parse_order(option, each);
                if (std::find(result.orders.begin(), result.orders.end(), choice) == result.orders.end())
                    result.orders.push_back(choice);
            }
        },
        orders);
    line.choices("--accumulations", result.accumulations,
        {{"native", accumulation::native}, {"float32", accumulation::float32}, {"float64", accumulation::float64},
            {"exact", accumulation::exact}},
        "of native, float32, float64, exact");
    line.number("--permutations", result.permutations, 0, 1000, "of the ranks: how many results has an element?");
    line.number("--threads", result.threads, 1, 64, "that add");
    bool json = false, csv = false;
    line.flag("--json", json, "in place of the table, objects on the standard output, one a line");
    line.flag("--csv", csv, "in place of the table, a line for each method and number of ranks");
    line.path("--svg", result.svg, "draw errors by method, and changed elements by number of ranks");
    line.parse(arguments);
    if (json && csv) throw usage_error("--csv: the standard output has the lines of --json");
    result.to = json ? output::json : csv ? output::csv : output::table;
    if (result.paths.empty() && !result.random) throw usage_error("a path or --random KIND was expected");
    if (!result.paths.empty() && result.random) throw usage_error("--random: '" + detail::printable(result.paths[0]) + "' is the input");
    for (const char* const of_files : {"--leaves", "--tensor", "--type"}) {
        if (result.random && line.given(of_files)) throw usage_error(std::string(of_files) + ": belongs to files");
    }
    if (!result.random && line.given("--elements")) throw usage_error("--elements: belongs to --random");
    std::sort(result.accumulations.begin(), result.accumulations.end());
    result.accumulations.erase(
        std::unique(result.accumulations.begin(), result.accumulations.end()), result.accumulations.end());
    return result;
}

} // namespace summation
