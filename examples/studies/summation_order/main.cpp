// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What do the order of a sum, the type of its elements and its accumulation do to one's own data? Reads the ranks'
// arrays, adds them by every method, and holds each sum against the correctly rounded one.

#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/detail/printable.hpp>

#include "../digits/file_error.hpp"
#include "answer.hpp"
#include "input.hpp"
#include "options.hpp"
#include "picture.hpp"
#include "report.hpp"
#include "run.hpp"

namespace {

using namespace summation;

/// The terms of each method's worst element.
template <floating_element T>
std::vector<worst_element> find_worst(const answer& of, const input& from)
{
    std::vector<worst_element> all(of.asked.methods.size());
    for (std::size_t m = 0; m < all.size(); ++m) {
        const largest_distance& largest = of.table()[m].largest;
        if (!largest.found) continue;
        std::vector<T> terms(static_cast<std::size_t>(from.rows()));
        std::vector<const T*> rows;
        for (std::size_t row = 0; row < terms.size(); ++row) {
            T room{};
            terms[row] = *from.block(static_cast<int>(row), largest.index, 1, &room);
            rows.push_back(&terms[row]);
            all[m].terms.push_back(static_cast<double>(terms[row]));
        }
        const auto orders = orders_over_leaves(of.asked.methods[m].order, from.rows(), of.asked.ranks.back(),
            {from.elements, static_cast<int>(sizeof(T)), largest.index, largest.index + 1});
        T sum{};
        add_rows(of.asked.methods[m].in, rows.data(), orders, &sum, largest.index, 1);
        all[m].result = static_cast<double>(sum);
        add_rows(accumulation::exact, rows.data(), orders, &sum, largest.index, 1);
        all[m].right = static_cast<double>(sum);
    }
    return all;
}

std::vector<int> checked_ranks(const options& given, const input& from)
{
    const std::vector<int> ranks = numbers_of_ranks(given.ranks, from.rows());
    if (ranks.back() > from.rows()) {
        throw usage_error("--ranks: " + std::to_string(ranks.back()) + " ranks were asked for, and there are "
            + std::to_string(from.rows()) + " rows");
    }
    if (ranks.back() < from.rows() && !given.leaves) {
        throw usage_error("--ranks: there are " + std::to_string(from.rows()) + " rows, one a rank; with --leaves they are dealt to "
            + std::to_string(ranks.back()) + " ranks");
    }
    return ranks;
}

int run_with(const options& given)
{
    const input from = given.random
        ? input::draw(*given.random, given.seed, numbers_of_ranks(given.ranks, 8).back(), given.elements,
            given.as.value_or(element_type::float32))
        : input::read(given.paths, {given.tensor, given.u2_is_bfloat16});
    const element_type type = given.as.value_or(from.type);
    for (const accumulation in : given.accumulations) {
        if (in == accumulation::float32 && type == element_type::float64)
            throw usage_error("--accumulations: float32 cannot hold double");
    }
    question asked{checked_ranks(given, from), {}, given.permutations, given.threads, given.seed};
    asked.methods = methods_of(given.orders,
        given.accumulations.empty() ? default_accumulations(type) : given.accumulations, type,
        !given.accumulations.empty());
    answer all{asked, findings(asked.ranks.size(), asked.methods.size()), type, from.elements, from.rows(), given.leaves,
        from.what + (type == from.type ? "" : std::string(", rounded to ") + collprobe::name(type)),
        given.random.has_value() || type != from.type, {}, {}};
    with_floating_type(type, [&]<class T>(T) {
        if constexpr (sizeof(T) > 1) {
            all.found = run<T>(asked, from);
            all.worst = find_worst<T>(all, from);
        }
    });
    if (all.counted() == 0) {
        throw bad_input("'" + from.row_name(all.found.first_not_finite.row)
            + "': no element is left: each" + (all.rounded ? std::string(", rounded to ") + collprobe::name(type) + ',' : "")
            + " has NaN or infinity in some row, or in its sum; finite terms were expected");
    }
    if (all.found.not_finite != 0) all.first_bad_row = from.row_name(all.found.first_not_finite.row);
    if (!given.svg.empty()) {
        errno = 0;
        std::ofstream file(given.svg, std::ios::binary);
        file << picture(all).text();
        file.close();
        if (!file) throw trainer::file_error("write", given.svg);
    }
    const std::string text = given.to == output::json ? json_lines(all) : given.to == output::csv ? csv(all) : screen(all);
    if (given.to != output::table) std::fputs(left_out_text(all).c_str(), stderr);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
        throw std::runtime_error("the report could not be written to stdout");
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        return run_with(parse_options(std::vector<std::string>(argv + 1, argv + argc)));
    } catch (const bad_input& problem) {
        std::fprintf(stderr, "summation_order: %s\n", detail::printable(problem.what()).c_str());
        return 2;
    } catch (const std::exception& problem) {
        return trainer::explain("summation_order", problem);
    }
}
