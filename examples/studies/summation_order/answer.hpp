// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/report/words.hpp>

#include "run.hpp"

/// What the findings mean.
namespace summation {

/// The elements of one sum whose error is the largest, as numbers.
struct worst_element {
    std::vector<double> terms;
    double result = 0;
    double right = 0;
};

/// All that is printed.
struct answer {
    question asked;
    findings found;
    element_type type = element_type::float32;
    std::uint64_t elements = 0;
    int rows = 0;
    bool leaves = false; ///< the rows are not ranks
    std::string what; ///< the input in words
    std::string first_bad_row; ///< the file of the first term that is not finite
    std::vector<worst_element> worst; ///< of each method; empty terms if it has no error

    const std::vector<method_measures>& table() const { return found.by_ranks.back(); }
    std::uint64_t counted() const { return elements - found.not_finite - found.too_large; }
    double per_element(std::size_t m) const { return table()[m].nanoseconds / static_cast<double>(elements); }
    double noise() const { return std::sqrt(found.noise_squares.round()); }
    /// The length of the vector of errors over that of the noise.
    double error_over_noise(std::size_t m) const
    {
        const double errors = std::sqrt(table()[m].error_squares());
        return errors == 0 ? 0 : errors / noise();
    }
    /// The methods in groups with equal bits, by their first.
    std::vector<std::vector<std::size_t>> groups() const
    {
        std::vector<std::vector<std::size_t>> all;
        std::map<std::uint64_t, std::size_t> known;
        for (std::size_t m = 0; m < asked.methods.size(); ++m) {
            const auto [at, is_new] = known.emplace(table()[m].digest(), all.size());
            if (is_new) all.emplace_back();
            all[at->second].push_back(m);
        }
        return all;
    }
    std::uint64_t different(std::size_t a, std::size_t b) const
    {
        if (a > b) std::swap(a, b);
        return found.pairs[a * asked.methods.size() + b];
    }
    /// Whether all orders with this accumulation, over all numbers of ranks and permutations, have the same bits.
    bool is_invariant(accumulation in) const
    {
        bool any = false;
        std::uint64_t digest = 0;
        for (std::size_t m = 0; m < asked.methods.size(); ++m) {
            if (asked.methods[m].in != in) continue;
            for (const auto& measures : found.by_ranks) {
                if (any && measures[m].digest() != digest) return false;
                digest = measures[m].digest();
                any = true;
            }
            if (found.permuted[m].changed != 0) return false;
        }
        return any;
    }
    /// The method of least time, with an accumulation that `wanted` accepts; methods.size() if there is none.
    template <class Wanted>
    std::size_t fastest(Wanted wanted) const
    {
        std::size_t best = asked.methods.size();
        for (std::size_t m = 0; m < asked.methods.size(); ++m) {
            if (!wanted(asked.methods[m].in)) continue;
            if (best == asked.methods.size() || table()[m].nanoseconds < table()[best].nanoseconds) best = m;
        }
        return best;
    }
};

inline std::string text(const method& of)
{
    return std::string(collprobe::name(of.in)) + (of.in == accumulation::exact ? "" : ' ' + of.order.text());
}

/// 0.0123 as "1.23 %"; what is not 0 is never shown as 0.
inline std::string percent(std::uint64_t part, std::uint64_t whole)
{
    if (part == 0 || whole == 0) return "0";
    const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
    char digits[32];
    std::snprintf(digits, sizeof digits, share >= 10 ? "%.1f %%" : share >= 0.01 ? "%.2f %%" : "%.1e %%", share);
    return digits;
}

inline std::string number_text(const char* format, double value)
{
    char digits[48];
    std::snprintf(digits, sizeof digits, format, value);
    return digits;
}

/// "2, 4 and 8"
inline std::string listed(const std::vector<int>& numbers)
{
    std::string all;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        all += (i == 0 ? "" : i + 1 == numbers.size() ? " and " : ", ") + std::to_string(numbers[i]);
    }
    return all;
}

/// What it means, in one sentence.
inline std::string conclusion(const answer& of)
{
    const auto& methods = of.asked.methods;
    const std::size_t fastest = of.fastest([](accumulation) { return true; });
    const std::size_t invariant = of.fastest([&](accumulation in) { return of.is_invariant(in); });
    const bool several_orders = methods.size() > 1;
    std::string tried = several_orders ? "in every order tried" : "in the one order tried";
    if (of.asked.ranks.size() > 1) tried += " and for " + listed(of.asked.ranks) + " ranks";
    std::string all;
    if (invariant == methods.size()) {
        all = "No accumulation that was compared has the same bits " + tried + "; exact sums always have";
    } else {
        const accumulation in = methods[invariant].in;
        const double ratio = of.table()[invariant].nanoseconds / of.table()[fastest].nanoseconds;
        const bool others = of.fastest([&](accumulation other) { return other != in && of.is_invariant(other); })
            != methods.size();
        all = std::string(in == accumulation::native ? "Native rounding" : in != accumulation::exact
                    ? "Accumulation in " + std::string(collprobe::name(in)) : others ? "The exact sum" : "Only the exact sum")
            + " has the same bits " + tried
            + (in == accumulation::exact ? ", as it has for any data" : " on these data (exact has them for any)") + ", at "
            + collprobe::report::short_number(of.per_element(invariant)) + " ns an element"
            + (invariant == fastest ? ", the fastest"
                                    : ", " + number_text("%.1f", ratio) + " times the fastest, " + text(methods[fastest]));
    }
    std::size_t worst = 0;
    for (std::size_t m = 0; m < methods.size(); ++m) {
        if (of.table()[m].error_squares() > of.table()[worst].error_squares()) worst = m;
    }
    if (of.table()[worst].error_squares() == 0) return all + "; no method has an error.";
    const double ratio = of.error_over_noise(worst);
    if (!is_finite(ratio)) return all + "; the rows are alike, so nothing tells the noise.";
    return all + "; the largest error of a method, that of " + text(methods[worst]) + ", is " + number_text("%.2g", ratio)
        + " of the noise of the sum (the spread between the " + (of.leaves ? "leaves" : "ranks") + "): "
        + (ratio < 0.1 ? "far below it." : ratio < 1 ? "below it." : "above it.");
}

} // namespace summation
