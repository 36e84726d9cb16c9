// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/record/inspection.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>
#include <collprobe/sum/order.hpp>

/// Gives names to the orders that the probes have shown.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// One order of some positions, as far as it is known.
struct shown_order {
    order_class kind = order_class::other;
    sum_tree tree = {}; ///< empty if unknown
};

/// The name of a chain by rank: all ranks upwards or downwards from 0 or from another one; else `chain`.
inline order_class name_of_chain(const std::vector<std::uint32_t>& chain)
{
    const std::size_t n = chain.size();
    const auto runs = [&](std::size_t first, std::size_t second, std::size_t step) {
        std::size_t expected = second;
        for (std::size_t i = 2; i < n; ++i) {
            expected = (expected + step) % n;
            if (chain[i] != expected) return false;
        }
        return (first + step) % n == second;
    };
    for (const bool swap : {false, true}) { // the first two ranks are in either order
        const std::size_t first = chain[swap ? 1 : 0];
        const std::size_t second = chain[swap ? 0 : 1];
        if (runs(first, second, 1)) return first == 0 ? order_class::linear : order_class::rotated;
        if (first == n - 1 && runs(first, second, n - 1)) return order_class::reversed;
    }
    return order_class::chain;
}

/// Names a single order. Where several names fit, which is so for few ranks, the first in this sequence is given.
inline shown_order recognise(sum_tree tree, int n)
{
    const auto named = [&](order_class kind) { return shown_order{kind, std::move(tree)}; };
    if (n <= 2) return {order_class::single, tree_of(linear_order(n))};
    if (tree.empty()) return {};
    if (tree.size() == 1) return named(order_class::fused);
    if (!is_binary(tree)) return named(order_class::multi_way);
    const std::vector<std::uint32_t> chain = chain_of(tree);
    const order_class of_chain = chain.empty() ? order_class::other : name_of_chain(chain);
    if (of_chain == order_class::linear) return named(of_chain);
    const auto is = [&](const summation_order& known) { return tree_of(known) == tree; };
    if (is(pairwise_order(n))) return named(order_class::pairwise);
    if (is(recursive_doubling_order(n))) return named(order_class::recursive_doubling);
    if (is(recursive_halving_order(n))) return named(order_class::recursive_halving);
    if (of_chain == order_class::rotated || of_chain == order_class::reversed) return named(of_chain);
    if (is(tree_order(n, 0)) || is(tree_order(n, 1))) return named(order_class::tree);
    return named(of_chain);
}

/// Whether all chains go around one ring of the ranks, with any starts. The first two ranks of a chain may be swapped,
/// so each chain fits two rings.
inline bool around_one_ring(const std::vector<std::vector<std::uint32_t>>& chains)
{
    using ring = std::vector<std::uint32_t>; // the next rank, by rank
    const auto ring_of = [](std::vector<std::uint32_t> chain, bool swap) {
        if (swap) std::swap(chain[0], chain[1]);
        ring next(chain.size());
        for (std::size_t i = 0; i < chain.size(); ++i) next[chain[i]] = chain[(i + 1) % chain.size()];
        return next;
    };
    const auto all_fit = [&](const ring& one) {
        for (const auto& chain : chains) {
            if (ring_of(chain, false) != one && ring_of(chain, true) != one) return false;
        }
        return true;
    };
    return all_fit(ring_of(chains[0], false)) || all_fit(ring_of(chains[0], true));
}

/// Finds one name for the orders of all positions.
inline order_class classify(const std::vector<shown_order>& shown, int n)
{
    if (shown.empty()) return order_class::other;
    if (shown.size() == 1) return shown[0].kind;
    for (const shown_order& each : shown) {
        if (each.kind == order_class::call_limit) return order_class::call_limit;
    }
    // The two trees of 3 and of 5 ranks are chains around the ring, too.
    const auto is_a_tree = [&](const shown_order& each) {
        return each.tree == tree_of(tree_order(n, 0)) || each.tree == tree_of(tree_order(n, 1));
    };
    if (shown.size() == 2 && is_a_tree(shown[0]) && is_a_tree(shown[1])) return order_class::tree;
    std::vector<std::vector<std::uint32_t>> chains;
    for (const shown_order& each : shown) {
        chains.push_back(chain_of(each.tree));
        if (chains.back().empty()) return order_class::other;
    }
    return around_one_ring(chains) ? order_class::ring : order_class::chain;
}

} // namespace collprobe::detail
