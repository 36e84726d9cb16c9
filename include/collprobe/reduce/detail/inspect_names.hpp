// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/reduce/detail/inspect_order.hpp>
#include <collprobe/reduce/inspection.hpp>
#include <collprobe/sum/order.hpp>

/// The names of orders that probes have shown.
namespace collprobe::detail {

/// One order that some positions have, as far as it is known.
struct shown_order {
    order_class kind = order_class::other;
    summation_order order; ///< empty where none is known
};

/// The sizes of a chain that goes around the ring of the ranks from `start`: without a walk for each pair.
inline bool is_rotation(const pair_sizes& sizes, const std::vector<rank_pair>& pairs, int ranks, int start)
{
    const auto n = static_cast<std::uint32_t>(ranks);
    const auto place = [&](std::uint32_t rank) { return (rank + n - static_cast<std::uint32_t>(start)) % n; };
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        if (sizes[i] != std::max(place(pairs[i].low), place(pairs[i].high)) + 1) return false;
    }
    return true;
}

/// Names one order by itself: a start that is not 0 is `rotated`, and a tree that is a chain is one of those.
inline shown_order recognise(const pair_sizes& sizes, const std::vector<rank_pair>& pairs, int n)
{
    const bool all_pairs = n <= most_ranks_of_all_pairs;
    if (n <= 2) return {order_class::single, linear_order(n)};
    const auto all = [&](std::uint32_t size) {
        return std::all_of(sizes.begin(), sizes.end(), [&](std::uint32_t each) { return each == size; });
    };
    if (all(2)) return {order_class::exact, {}};
    if (all(static_cast<std::uint32_t>(n))) return {order_class::fused, {}};
    if (is_rotation(sizes, pairs, n, 0)) return {order_class::linear, linear_order(n)};
    const auto is = [&](const summation_order& known) { return sizes_of(known, pairs) == sizes; };
    if (summation_order known = pairwise_order(n); is(known)) return {order_class::pairwise, std::move(known)};
    if (summation_order known = recursive_halving_order(n); is(known)) {
        return {order_class::recursive_halving, std::move(known)};
    }
    for (int start = 1; start < n; ++start) {
        if (is_rotation(sizes, pairs, n, start)) return {order_class::rotated, rotated_order(n, start)};
    }
    for (int tree = 0; tree < 2; ++tree) {
        if (summation_order known = tree_order(n, tree); is(known)) return {order_class::tree, std::move(known)};
    }
    if (!all_pairs) return {};
    summation_order order = order_from(sizes, pairs, n);
    return {chain_of(order).empty() ? order_class::other : order_class::chain, std::move(order)};
}

/// Whether chains go around one ring of the ranks, whatever their starts: a ring as a list that begins with
/// rank 0. The first two ranks of a chain may be swapped, so each chain fits two rings.
inline bool around_one_ring(const std::vector<std::vector<std::uint32_t>>& chains)
{
    using ring = std::vector<std::uint32_t>;
    const auto from_zero = [](ring chain) {
        std::rotate(chain.begin(), std::find(chain.begin(), chain.end(), 0u), chain.end());
        return chain;
    };
    const auto fitting = [&](ring chain) {
        ring swapped = chain;
        std::swap(swapped[0], swapped[1]);
        return std::pair(from_zero(std::move(chain)), from_zero(std::move(swapped)));
    };
    const auto [one, other] = fitting(chains[0]);
    bool fits_one = true;
    bool fits_other = true;
    for (const ring& chain : chains) {
        const auto [mine, swapped] = fitting(chain);
        fits_one = fits_one && (mine == one || swapped == one);
        fits_other = fits_other && (mine == other || swapped == other);
    }
    return fits_one || fits_other;
}

/// One name for the orders of all positions.
inline order_class classify(const std::vector<shown_order>& shown, int n)
{
    if (shown.empty()) return order_class::other;
    const auto all = [&](auto test) { return std::all_of(shown.begin(), shown.end(), test); };
    if (all([&](const shown_order& each) { return each.kind == shown[0].kind; }) && shown.size() == 1) {
        return shown[0].kind;
    }
    // The two trees of 3 and of 5 ranks are chains around the ring, too.
    const auto pairs = pairs_to_probe(n);
    const auto is_tree = [&](const shown_order& each, int tree) {
        return !each.order.empty() && sizes_of(each.order, pairs) == sizes_of(tree_order(n, tree), pairs);
    };
    if (shown.size() == 2 && (is_tree(shown[0], 0) || is_tree(shown[0], 1))
        && (is_tree(shown[1], 0) || is_tree(shown[1], 1))) {
        return order_class::tree;
    }
    std::vector<std::vector<std::uint32_t>> chains;
    for (const shown_order& each : shown) {
        chains.push_back(chain_of(each.order));
        if (chains.back().empty()) return order_class::other;
    }
    return around_one_ring(chains) ? order_class::ring : order_class::chain;
}

} // namespace collprobe::detail
