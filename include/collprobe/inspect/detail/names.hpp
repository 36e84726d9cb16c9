// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/record/inspection.hpp>
#include <collprobe/inspect/detail/order.hpp>
#include <collprobe/sum/order.hpp>

/// Gives names to the orders that the probes have shown.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// One order of some positions, as far as it is known.
struct shown_order {
    order_class kind = order_class::other;
    summation_order order; ///< empty if unknown
};

/// Whether the sizes are those of a chain around the ring of the ranks from `start`. Does not walk the chain per pair.
inline bool is_rotation(const pair_sizes& sizes, const std::vector<rank_pair>& pairs, int ranks, int start)
{
    const auto n = static_cast<std::uint32_t>(ranks);
    const auto place = [&](std::uint32_t rank) { return (rank + n - static_cast<std::uint32_t>(start)) % n; };
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const std::uint32_t low = place(pairs[i].low);
        const std::uint32_t high = place(pairs[i].high);
        if (sizes[i] != (low < high ? high : low) + 1) return false;
    }
    return true;
}

/// See `order_class::recursive_doubling`.
inline summation_order recursive_doubling_order(int n)
{
    int power = 1;
    while (2 * power <= n) power *= 2;
    const int folded = n - power; // number of pairs
    summation_order order;
    for (int i = 0; i < folded; ++i) {
        order.push_back({static_cast<std::uint32_t>(2 * i), static_cast<std::uint32_t>(2 * i + 1)});
    }
    const auto rank_of = [&](std::uint32_t part) {
        return part < static_cast<std::uint32_t>(folded) ? 2 * part : part + static_cast<std::uint32_t>(folded);
    };
    for (const auto& [into, from] : pairwise_order(power)) order.push_back({rank_of(into), rank_of(from)});
    return order;
}

/// Names a single order. A chain with a start other than 0 is `rotated`; a tree that is a chain counts as a chain.
inline shown_order recognise(const pair_sizes& sizes, const std::vector<rank_pair>& pairs, int n)
{
    if (n <= 2) return {order_class::single, linear_order(n)};
    const auto all = [&](std::uint32_t size) {
        for (const std::uint32_t own : sizes) {
            if (own != size) return false;
        }
        return true;
    };
    if (all(2)) return {order_class::exact, {}};
    if (all(static_cast<std::uint32_t>(n))) return {order_class::fused, {}};
    if (is_rotation(sizes, pairs, n, 0)) return {order_class::linear, linear_order(n)};
    const auto is = [&](const summation_order& known) { return sizes_of(known, pairs) == sizes; };
    if (summation_order known = pairwise_order(n); is(known)) return {order_class::pairwise, std::move(known)};
    if (summation_order known = recursive_doubling_order(n); is(known)) {
        return {order_class::recursive_doubling, std::move(known)};
    }
    if (summation_order known = recursive_halving_order(n); is(known)) {
        return {order_class::recursive_halving, std::move(known)};
    }
    for (int start = 1; start < n; ++start) {
        if (is_rotation(sizes, pairs, n, start)) return {order_class::rotated, rotated_order(n, start)};
    }
    for (int tree = 0; tree < 2; ++tree) {
        if (summation_order known = tree_order(n, tree); is(known)) return {order_class::tree, std::move(known)};
    }
    if (n > most_ranks_of_all_pairs) return {};
    summation_order order = order_from(sizes, pairs, n);
    return {chain_of(order).empty() ? order_class::other : order_class::chain, std::move(order)};
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
    // The two trees of 3 and of 5 ranks are chains around the ring, too.
    const auto pairs = pairs_to_probe(n);
    const auto is_a_tree = [&](const shown_order& each) {
        if (each.order.empty()) return false;
        const pair_sizes sizes = sizes_of(each.order, pairs);
        return sizes == sizes_of(tree_order(n, 0), pairs) || sizes == sizes_of(tree_order(n, 1), pairs);
    };
    if (shown.size() == 2 && is_a_tree(shown[0]) && is_a_tree(shown[1])) return order_class::tree;
    std::vector<std::vector<std::uint32_t>> chains;
    for (const shown_order& each : shown) {
        chains.push_back(chain_of(each.order));
        if (chains.back().empty()) return order_class::other;
    }
    return around_one_ring(chains) ? order_class::ring : order_class::chain;
}

} // namespace collprobe::detail
