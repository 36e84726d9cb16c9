// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/record/inspection.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/sum/order.hpp>

/// Derives orders of summation from probes. A probe shows, for a pair of ranks, the number of terms in the smallest
/// partial sum that contains both. The sizes of all pairs determine the order.
/// Source: P. Xie, Y. Gao, Y. Wang, J. Xue, "Revealing floating-point accumulation orders in software/hardware
/// implementations" (FPRev), arXiv 2411.00442.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct rank_pair {
    std::uint32_t low;
    std::uint32_t high;
};

/// By pair of ranks: the number of terms in the smallest partial sum that contains both; 0 if the result of the probe
/// is no such number.
using pair_sizes = std::vector<std::uint32_t>;

/// Up to this many ranks all n (n - 1) / 2 pairs are probed. With more ranks a sample of the pairs is probed, which
/// distinguishes the known orders but shows no other order.
inline constexpr int most_ranks_of_all_pairs = 32;

inline std::vector<rank_pair> pairs_to_probe(int ranks)
{
    const auto n = static_cast<std::uint32_t>(ranks);
    std::vector<rank_pair> pairs;
    if (ranks <= most_ranks_of_all_pairs) {
        for (std::uint32_t high = 1; high < n; ++high) {
            for (std::uint32_t low = 0; low < high; ++low) pairs.push_back({low, high});
        }
        return pairs;
    }
    // Neighbours around the ring show where a chain starts. The other pairs show the rest of the order.
    const auto add = [&](std::uint32_t one, std::uint32_t two) {
        pairs.push_back(one < two ? rank_pair{one, two} : rank_pair{two, one});
    };
    for (std::uint32_t rank = 0; rank < n; ++rank) add(rank, (rank + 1) % n);
    for (std::uint64_t draw = 0; pairs.size() < n + 256; ++draw) {
        const auto one = static_cast<std::uint32_t>(mix64(2 * draw) % n);
        const auto two = static_cast<std::uint32_t>(mix64(2 * draw + 1) % n);
        if (one != two) add(one, two);
    }
    return pairs;
}

inline pair_sizes sizes_of(const summation_order& order, const std::vector<rank_pair>& pairs)
{
    // Nodes are the terms, followed by the additions: a parent has a higher number than its children.
    const std::size_t n = order.size() + 1;
    std::vector<std::size_t> above(n + order.size()), terms(n + order.size(), 1), node_of(n);
    for (std::size_t i = 0; i < n; ++i) node_of[i] = i;
    for (std::size_t k = 0; k < order.size(); ++k) {
        const std::size_t left = node_of[order[k].into];
        const std::size_t right = node_of[order[k].from];
        above[left] = above[right] = node_of[order[k].into] = n + k;
        terms[n + k] = terms[left] + terms[right];
    }
    pair_sizes sizes;
    for (const rank_pair& pair : pairs) {
        std::size_t one = pair.low;
        std::size_t two = pair.high;
        while (one != two) (one < two ? one : two) = above[one < two ? one : two];
        sizes.push_back(static_cast<std::uint32_t>(terms[one]));
    }
    return sizes;
}

/// The order that has these sizes of all pairs; empty if no order of two-term additions has them.
inline summation_order order_from(const pair_sizes& sizes, const std::vector<rank_pair>& pairs, int ranks)
{
    std::vector<std::uint32_t> sum_of(static_cast<std::size_t>(ranks)); // by rank: the partial sum that contains it
    for (std::uint32_t i = 0; i < sum_of.size(); ++i) sum_of[i] = i;
    summation_order order;
    for (std::uint32_t size = 2; size <= sum_of.size(); ++size) { // small sums first
        for (std::size_t at = 0; at < pairs.size(); ++at) {
            const std::uint32_t into = sum_of[pairs[at].low];
            const std::uint32_t from = sum_of[pairs[at].high];
            if (sizes[at] != size || into == from) continue;
            order.push_back({into, from});
            for (std::uint32_t& sum : sum_of) sum = sum == from ? into : sum;
        }
    }
    if (order.size() + 1 != sum_of.size()) return {};
    if (sizes_of(order, pairs) != sizes) order.clear();
    return order;
}

/// Text such as "((0+1)+2)+3". The larger part comes first, since addition is commutative.
inline std::string brackets_of(const summation_order& order)
{
    std::vector<std::string> sums(order.size() + 1);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = std::to_string(i);
    std::string text;
    for (const addition& step : order) {
        const std::string& one = sums[step.into];
        const std::string& other = sums[step.from];
        const bool in_order = one.size() != other.size() ? one.size() > other.size() : one < other;
        text = in_order ? one + '+' + other : other + '+' + one;
        sums[step.into] = '(' + text + ')';
    }
    return text;
}

/// The ranks in the order in which a chain adds them (the first two in either order); empty if it is no chain.
inline std::vector<std::uint32_t> chain_of(const summation_order& order)
{
    std::vector<std::uint32_t> terms(order.size() + 1, 1);
    std::vector<std::uint32_t> chain;
    for (std::uint32_t k = 0; k < order.size(); ++k) {
        const auto [into, from] = order[k];
        const std::uint32_t sum = terms[from] > terms[into] ? from : into;
        const std::uint32_t term = sum == from ? into : from;
        if (terms[sum] != k + 1 || terms[term] != 1) return {};
        if (k == 0) chain.push_back(sum);
        chain.push_back(term);
        terms[into] = k + 2;
    }
    return chain;
}

} // namespace collprobe::detail
