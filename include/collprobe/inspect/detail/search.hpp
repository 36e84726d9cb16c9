// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>

/// Searches for the trees of additions. A probe shows, for a pair of ranks, the number of terms of the smallest partial
/// sum that contains both. Not all pairs are needed. With a pivot, one probe for each other rank shows how many terms
/// the partial sums on the pivot's way to the result have, and at which of them each other rank joins. The ranks that
/// join at the same one are told apart in the same way, by a pivot of their own.
/// Source: P. Xie, Y. Gao, Y. Wang, J. Xue, "Revealing floating-point accumulation orders in software/hardware
/// implementations" (FPRev), arXiv 2411.00442; here with random pivots.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct rank_pair {
    std::uint32_t pivot;
    std::uint32_t other;
};

/// The part of one tree that is known.
class growing_tree {
public:
    explicit growing_tree(std::uint32_t ranks) : joins_(ranks, result), nodes_{{~std::uint32_t{0}, {}}} {}

    /// Whether the probe of this pair is needed. Each rank is the pivot once.
    bool wants(std::uint32_t pivot, std::uint32_t other) const
    {
        return possible_ && other != pivot && joins_[other] != placed && joins_[other] == joins_[pivot];
    }
    /// Places the pivot and the ranks that join it. `size(other)` is the result of a probe that was wanted.
    template <class Size>
    void place(std::uint32_t pivot, Size size)
    {
        std::vector<std::pair<std::uint32_t, std::uint32_t>> joining; // size, rank
        for (std::uint32_t other = 0; other < joins_.size(); ++other) {
            if (wants(pivot, other)) joining.emplace_back(size(other), other);
        }
        std::sort(joining.begin(), joining.end());
        const std::uint32_t above = joins_[pivot];
        joins_[pivot] = placed;
        std::uint32_t below = pivot;
        std::uint32_t terms = 1;
        for (std::size_t i = 0; i < joining.size();) {
            const std::uint32_t all = joining[i].first;
            if (all == nodes_[above].terms) break; // these join where the pivot does, which adds more than two at once
            const auto node = static_cast<std::uint32_t>(nodes_.size());
            for (; i < joining.size() && joining[i].first == all; ++i, ++terms) joins_[joining[i].second] = node;
            possible_ = possible_ && terms == all;
            nodes_.push_back({all, {below}});
            below = static_cast<std::uint32_t>(joins_.size()) + node;
        }
        nodes_[above].parts.push_back(below);
    }

    /// Whether some tree has the sizes that were shown so far.
    bool possible() const noexcept { return possible_; }
    /// The tree when each rank has been the pivot; empty if the sizes are those of no tree, or ranks are missing.
    sum_tree tree() const
    {
        if (!possible_ || std::count(joins_.begin(), joins_.end(), placed) != std::ptrdiff_t(joins_.size())) return {};
        std::vector<std::size_t> by_terms;
        for (std::size_t node = 1; node < nodes_.size(); ++node) by_terms.push_back(node);
        std::sort(by_terms.begin(), by_terms.end(), [this](std::size_t a, std::size_t b) {
            return nodes_[a].terms != nodes_[b].terms ? nodes_[a].terms < nodes_[b].terms : a < b;
        });
        std::vector<std::uint32_t> name(joins_.size() + nodes_.size()); // of ranks and nodes: a rank in them
        for (std::uint32_t rank = 0; rank < joins_.size(); ++rank) name[rank] = rank;
        std::vector<joint_addition> additions;
        for (const std::size_t node : by_terms) {
            additions.emplace_back();
            for (const std::uint32_t part : nodes_[node].parts) additions.back().push_back(name[part]);
            name[joins_.size() + node] = additions.back()[0];
        }
        return tree_of(additions);
    }

private:
    static constexpr std::uint32_t result = 0; ///< the node above the whole tree
    static constexpr std::uint32_t placed = ~std::uint32_t{0};

    struct joint {
        std::uint32_t terms;
        std::vector<std::uint32_t> parts; ///< ranks, or the number of ranks plus a node
    };
    std::vector<std::uint32_t> joins_; ///< by rank: the node that it joins, or `placed`
    std::vector<joint> nodes_;
    bool possible_ = true;
};

/// Groups the positions of a message by the order that they show; each probe refines the groups.
struct position_groups {
    static constexpr std::size_t most = 1024; ///< further groups join the first: an algorithm has fewer

    struct group {
        growing_tree known;
        std::vector<std::uint32_t> sizes = {}; ///< one per probe so far; 0 if its result is no number of terms
        std::uint64_t first = 0;
        std::uint64_t elements = 0;
    };
    std::vector<std::uint32_t> group_of; ///< by element
    std::vector<group> groups;
    std::vector<rank_pair> probes;
    bool too_many = false;

    position_groups(int ranks, std::uint64_t count) : group_of(count, 0)
    {
        groups.push_back({growing_tree(static_cast<std::uint32_t>(ranks))});
        groups[0].elements = count;
    }

    /// `size(element)` is the number that the probe of `pair` shows for an element.
    template <class Size>
    void refine(const rank_pair& pair, Size size)
    {
        probes.push_back(pair);
        struct part {
            std::uint32_t old, shows;
            std::uint64_t first, elements;
        };
        std::vector<part> parts; // the new groups
        std::vector<std::vector<std::uint32_t>> parts_of(groups.size());
        for (std::uint64_t element = 0; element < group_of.size(); ++element) {
            const std::uint32_t old = group_of[element];
            const std::uint32_t shows = size(element);
            auto& known = parts_of[old];
            const auto same
                = std::find_if(known.begin(), known.end(), [&](auto each) { return parts[each].shows == shows; });
            std::uint32_t which = 0;
            if (same != known.end()) {
                which = *same;
            } else if (parts.size() == most) {
                too_many = true;
            } else {
                which = static_cast<std::uint32_t>(parts.size());
                known.push_back(which);
                parts.push_back({old, shows, element, 0});
            }
            group_of[element] = which;
            ++parts[which].elements;
        }
        std::vector<group> next;
        for (const part& each : parts) {
            group& from = groups[each.old];
            const bool last = parts_of[each.old].back() == next.size();
            next.push_back(last ? std::move(from) : from);
            next.back().sizes.push_back(each.shows);
            next.back().first = each.first;
            next.back().elements = each.elements;
        }
        groups = std::move(next);
    }
    /// The tree of a group, if it has one that all of the group's probes agree with; else empty.
    sum_tree tree_of_group(std::size_t which) const
    {
        const group& one = groups[which];
        sum_tree tree = one.known.tree();
        if (too_many || tree.empty()) return {};
        const meeting_sizes size(tree);
        for (std::size_t i = 0; i < probes.size(); ++i) {
            if (one.sizes[i] != size(probes[i].pivot, probes[i].other)) return {};
        }
        return tree;
    }
};

/// The ranks in a random sequence.
inline std::vector<std::uint32_t> shuffled_ranks(int ranks, std::uint64_t seed)
{
    std::vector<std::uint32_t> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(static_cast<std::uint32_t>(rank));
    for (std::size_t left = all.size(); left > 1; --left) {
        std::swap(all[left - 1], all[static_cast<std::size_t>(mix64(mix64(seed) + left) % left)]);
    }
    return all;
}

/// Finds the trees of all positions. Each rank in a random sequence is the pivot of the ranks that no earlier pivot has
/// told from it, in every group of positions. `probe(pair)` returns a function of the element that gives the number
/// that the pair shows there. `unite(wanted)` sets the bytes that are set on any rank.
/// Returns false if more than `most_probes` would be needed.
/// Cost for n ranks: n (n - 1) / 2 probes at most. For a tree of two-term additions O(n log n) on average over the
/// sequences, whatever the tree is: a pivot leaves no more than three quarters of the ranks together with probability
/// 3/4. An addition of k terms at once takes k (k - 1) / 2.
template <class Probe, class Unite>
bool search_orders(position_groups& positions, int ranks, std::uint64_t seed, std::uint64_t most_probes, Probe probe,
    Unite unite)
{
    const auto n = static_cast<std::uint32_t>(ranks);
    std::vector<std::uint8_t> wanted(n);
    std::vector<std::size_t> probe_of(n);
    for (const std::uint32_t pivot : shuffled_ranks(ranks, seed)) {
        std::fill(wanted.begin(), wanted.end(), std::uint8_t{0});
        for (const auto& group : positions.groups) {
            for (std::uint32_t other = 0; other < n; ++other) {
                if (group.known.wants(pivot, other)) wanted[other] = 1;
            }
        }
        unite(wanted);
        const auto needed = static_cast<std::uint64_t>(std::count(wanted.begin(), wanted.end(), 1));
        if (positions.probes.size() + needed > most_probes) return false;
        for (std::uint32_t other = 0; other < n; ++other) {
            if (wanted[other] == 0) continue;
            probe_of[other] = positions.probes.size();
            positions.refine({pivot, other}, probe(rank_pair{pivot, other}));
        }
        for (auto& group : positions.groups) {
            group.known.place(pivot, [&](std::uint32_t other) { return group.sizes[probe_of[other]]; });
        }
    }
    return true;
}

} // namespace collprobe::detail
