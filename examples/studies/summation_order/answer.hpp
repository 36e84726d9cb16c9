// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
    bool rounded = false; ///< to `type` from a wider one
    std::string first_bad_row; ///< the file of the first term that is not finite
    std::vector<worst_element> worst; ///< of each method; empty terms if it has no error

    const std::vector<method_measures>& table() const { return found.by_ranks.back(); }
    std::uint64_t counted() const { return elements - found.not_finite - found.too_large; }
    double per_element(std::size_t m) const { return table()[m].nanoseconds / static_cast<double>(elements); }
    vector_length noise() const { return found.noise_squares.length(); }
    /// The length of the vector of errors over that of the noise; NaN if there is no noise.
    double error_over_noise(std::size_t m) const { return table()[m].error().over(noise()); }
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
    /// Whether two methods have the same bits for every number of ranks and every permutation.
    bool same_everywhere(std::size_t a, std::size_t b) const
    {
        for (const auto& each : found.by_ranks) {
            if (each[a].digest() != each[b].digest()) return false;
        }
        return found.permuted[a].fingerprint == found.permuted[b].fingerprint;
    }
    /// Whether all orders with an accumulation that `wanted` accepts, over all numbers of ranks and permutations, have
    /// the same bits.
    template <class Wanted>
    bool is_invariant(Wanted wanted) const
    {
        bool any = false;
        std::uint64_t digest = 0;
        for (std::size_t m = 0; m < asked.methods.size(); ++m) {
            if (!wanted(asked.methods[m].in)) continue;
            for (const auto& measures : found.by_ranks) {
                if (any && measures[m].digest() != digest) return false;
                digest = measures[m].digest();
                any = true;
            }
            if (found.permuted[m].changed != 0) return false;
        }
        return any;
    }
    /// The fastest method of each accumulation that `is_invariant`, the fastest of all first.
    std::vector<std::size_t> invariant_methods() const
    {
        std::vector<std::size_t> all;
        for (const accumulation in : {accumulation::native, accumulation::float32, accumulation::float64,
                 accumulation::exact}) {
            const auto is_in = [&](accumulation own) { return own == in; };
            if (is_invariant(is_in)) all.push_back(fastest(is_in));
        }
        std::stable_sort(all.begin(), all.end(),
            [&](std::size_t a, std::size_t b) { return table()[a].nanoseconds < table()[b].nanoseconds; });
        return all;
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
inline std::string listed(const std::vector<std::string>& words)
{
    std::string all;
    for (std::size_t i = 0; i < words.size(); ++i) {
        all += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
    }
    return all;
}

/// "in every order tried and for 2, 4 and 8 ranks"
inline std::string tried_text(const answer& of)
{
    std::vector<order_choice> orders;
    for (const method& each : of.asked.methods) {
        if (std::find(orders.begin(), orders.end(), each.order) == orders.end()) orders.push_back(each.order);
    }
    std::vector<std::string> ranks;
    for (const int each : of.asked.ranks) ranks.push_back(std::to_string(each));
    return std::string(orders.size() > 1 ? "in every order tried" : "in the one order tried")
        + (ranks.size() > 1 ? " and for " + listed(ranks) + " ranks" : "");
}

/// Which accumulations keep their bits, and what the cheapest of them costs.
inline std::string invariance_text(const answer& of)
{
    const auto& methods = of.asked.methods;
    if (methods.size() > 1 && of.is_invariant([](accumulation) { return true; })) {
        return "Every method has the same bits on these data, " + tried_text(of);
    }
    const std::vector<std::size_t> invariant = of.invariant_methods();
    if (invariant.empty()) {
        return "No accumulation that was compared has the same bits " + tried_text(of) + "; exact sums always have";
    }
    const std::size_t cheapest = invariant[0], fastest = of.fastest([](accumulation) { return true; });
    std::vector<std::string> names;
    for (const std::size_t m : invariant) names.emplace_back(collprobe::name(methods[m].in));
    const bool has_exact = std::find(names.begin(), names.end(), "exact") != names.end();
    const bool only_exact = has_exact && names.size() == 1;
    return "Of the accumulations, " + std::string(names.size() == 1 ? "only " : "") + listed(names)
        + (names.size() == 1 ? " has" : " have") + " the same bits " + tried_text(of)
        + (only_exact ? ", as it has for any data"
                      : std::string(" on these data (") + (has_exact ? "exact has" : "exact sums have") + " them for any)")
        + (names.size() == 1 ? "; it costs " : "; the cheapest, " + names[0] + ", costs ")
        + collprobe::report::short_number(of.per_element(cheapest)) + " ns an element"
        + (cheapest == fastest ? ", the fastest method"
                               : ", " + number_text("%.1f", of.per_element(cheapest) / of.per_element(fastest))
                    + " times the fastest method, " + text(methods[fastest]));
}

/// Which methods overflow, and how large the error of the worst is beside the noise of the data.
inline std::string errors_text(const answer& of)
{
    const auto& methods = of.asked.methods;
    std::size_t differ = 0, overflow = 0, most = 0, worst = 0;
    for (std::size_t m = 0; m < methods.size(); ++m) {
        differ += of.table()[m].differ != 0 ? 1 : 0;
        overflow += of.table()[m].overflows != 0 ? 1 : 0;
        if (of.table()[m].overflows > of.table()[most].overflows) most = m;
        if (of.table()[worst].error() < of.table()[m].error()) worst = m;
    }
    if (differ == 0) return "no method has an error";
    std::string all;
    if (overflow != 0) {
        all = (overflow > 1 ? std::to_string(overflow) + " methods overflow, most often " : "") + text(methods[most])
            + (overflow > 1 ? ": in " : " overflows in ")
            + collprobe::report::detail::counted(of.table()[most].overflows, "element") + "; ";
    }
    const std::string elsewhere = overflow != 0 ? "elsewhere " : "";
    if (of.table()[worst].error().fraction == 0) {
        const bool signs = std::any_of(
            of.table().begin(), of.table().end(), [](const auto& each) { return each.differ > each.overflows; });
        return all + elsewhere + (signs ? "methods differ in the sign of zeros only" : "no method has an error");
    }
    all += elsewhere + "the largest error of a method, as a vector, is that of " + text(methods[worst]) + ": ";
    const std::string between = of.leaves ? "leaves" : "ranks";
    if (of.noise().fraction == 0) return all + "the " + between + " are alike, so there is no noise to hold it against";
    const double ratio = of.error_over_noise(worst);
    const double share = 100 * ratio;
    return all + (ratio < 1 ? number_text(share < 9.5 ? "%.2g %%" : "%.0f %%", share) + " of" : number_text("%.3g times", ratio))
        + " the noise between the " + between;
}

/// What it means, in one sentence.
inline std::string conclusion(const answer& of) { return invariance_text(of) + "; " + errors_text(of) + '.'; }

} // namespace summation
