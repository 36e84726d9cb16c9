// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>

/// The orders in which n values are added, as data: those of rings, trees and the algorithms of MPI libraries.
/// `sum_in_order` adds in them.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The number of elements of one chunk of a ring all-reduce: an n-th of all, rounded up to 16 bytes. The last chunks
/// are shorter or empty. Chunk c starts at rank c + 1, visits c + 2, ... and ends at rank c, all modulo n. Each rank
/// adds its own value to the value that it received.
/// Source: NCCL 2.28, src/device/all_reduce.h, runRing, for one channel and one loop over the data. More channels or
/// loops repeat the same pattern on smaller pieces.
constexpr std::uint64_t ring_chunk(std::uint64_t count, int ranks, int element_bytes) noexcept
{
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto unit = static_cast<std::uint64_t>(16 / element_bytes);
    const std::uint64_t share = count / n + (count % n != 0 ? 1 : 0);
    return share / unit * unit + (share % unit != 0 ? unit : 0);
}

} // namespace detail

/// The rank at which chunk `chunk` of a ring all-reduce starts.
COLLPROBE_HD constexpr int ring_start(int chunk, int ranks) noexcept { return (chunk + 1) % ranks; }

namespace detail {

/// The number of elements of a tree all-reduce that go over tree 0; the others go over tree 1.
constexpr std::uint64_t tree_0_count(std::uint64_t count) noexcept { return count - count / 2; }

/// The neighbours of a rank in a tree; -1 if there is none.
struct tree_links {
    int parent = -1;
    int child[2] = {-1, -1};
};

/// The in-order binary tree on 0 <= node < nodes. A node's level is its lowest set bit: odd nodes are
/// leaves, and 0 is the root, above the whole tree, with one child.
constexpr tree_links in_order_tree(int node, int nodes) noexcept
{
    tree_links links;
    if (node == 0) {
        int top = 0;
        for (int bit = 1; bit < nodes; bit *= 2) top = bit;
        if (top != 0) links.child[1] = top;
        return links;
    }
    const int level = node & -node;
    const int above = (node - level) | (2 * level);
    links.parent = above < nodes ? above : node - level;
    links.child[0] = level > 1 ? node - level / 2 : -1;
    // If the number of nodes cuts off the right half of the tree, the highest remaining subtree moves up.
    for (int step = level / 2; step > 0; step /= 2) {
        if (node + step < nodes) {
            links.child[1] = node + step;
            break;
        }
    }
    return links;
}

/// The neighbours of `rank` in tree 0 or 1 of the double binary tree of `ranks` ranks, one rank a node. Tree 1 is
/// tree 0 mirrored for an even number of ranks, and shifted by one for an odd number. So (nearly) every rank is a
/// leaf in one of them. A node adds its first child's partial result to its own value, then its second child's, and
/// passes the result to its parent.
/// Preconditions: tree is 0 or 1; 0 <= rank < ranks.
/// Source: P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
/// (2009); the choice of trees is that of NCCL 2.28, src/graph/trees.cc.
constexpr tree_links double_tree(int tree, int rank, int ranks) noexcept
{
    if (tree == 0) return in_order_tree(rank, ranks);
    const bool shift = ranks % 2 != 0;
    const int node = shift ? (rank + ranks - 1) % ranks : ranks - 1 - rank;
    const auto rank_of = [=](int at) { return at < 0 ? -1 : shift ? (at + 1) % ranks : ranks - 1 - at; };
    const tree_links links = in_order_tree(node, ranks);
    return {rank_of(links.parent), {rank_of(links.child[0]), rank_of(links.child[1])}};
}

/// The rank at the root of tree 0 or 1.
constexpr int tree_root(int tree, int ranks) noexcept
{
    if (tree == 0) return 0;
    return ranks % 2 != 0 ? 1 % ranks : ranks - 1;
}

} // namespace detail

/// One addition of a sum of n partial sums: partial sum `into` becomes itself plus partial sum `from`. At the start
/// partial sum i is term i.
struct addition {
    std::uint32_t into = 0;
    std::uint32_t from = 0;
    friend constexpr bool operator==(const addition&, const addition&) = default;
};

/// The n - 1 additions of a sum of n terms, in a valid sequence. The result is left in the `into` of the last
/// addition (term 0 if there is none). Either of two partial sums may be `into`, because addition is commutative.
using summation_order = std::vector<addition>;

/// ((x0 + x1) + x2) + ... after a rotation: the ranks from `start` on around the ring. A `start` of 0 gives the
/// linear order; chunk c of a ring all-reduce starts at `ring_start(c, n)`.
inline summation_order rotated_order(int n, int start)
{
    summation_order order;
    for (int hop = 1; hop < n; ++hop) {
        order.push_back({static_cast<std::uint32_t>(start), static_cast<std::uint32_t>((start + hop) % n)});
    }
    return order;
}

inline summation_order linear_order(int n) { return rotated_order(n, 0); }

/// One term after the other, in the order of the permutation.
inline summation_order permuted_order(const std::vector<int>& permutation)
{
    summation_order order;
    for (std::size_t k = 1; k < permutation.size(); ++k) {
        order.push_back({static_cast<std::uint32_t>(permutation[0]), static_cast<std::uint32_t>(permutation[k])});
    }
    return order;
}

namespace detail {

inline void climb_tree(summation_order& order, int tree, int rank, int n)
{
    for (const int child : double_tree(tree, rank, n).child) {
        if (child < 0) continue;
        climb_tree(order, tree, child, n);
        order.push_back({static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(child)});
    }
}

} // namespace detail

/// Tree 0 or 1 of the double binary tree.
inline summation_order tree_order(int n, int tree)
{
    summation_order order;
    detail::climb_tree(order, tree, detail::tree_root(tree, n), n);
    return order;
}

/// Neighbours first: ((x0 + x1) + (x2 + x3)) + ...; a last term without a neighbour waits. This is also the order of
/// recursive doubling.
inline summation_order pairwise_order(int n)
{
    summation_order order;
    for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i + step < n; i += 2 * step) {
            order.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + step)});
        }
    }
    return order;
}

/// The farthest first: x_i + x_(i + n/2), then a quarter, and so on down to neighbours. If n is no power of two, the
/// ranks beyond the largest power of two are first added to the first ranks.
/// Source: R. Rabenseifner, "Optimization of collective reduction operations" (2004).
inline summation_order recursive_halving_order(int n)
{
    int power = 1;
    while (2 * power <= n) power *= 2;
    summation_order order;
    for (int i = power; i < n; ++i) {
        order.push_back({static_cast<std::uint32_t>(i - power), static_cast<std::uint32_t>(i)});
    }
    for (int step = power / 2; step >= 1; step /= 2) {
        for (int i = 0; i < step; ++i) {
            order.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + step)});
        }
    }
    return order;
}

/// The order of MPI libraries: with p the largest power of two up to n, the first 2 (n - p) ranks are added in pairs,
/// then the p sums as in `pairwise_order`, which is the same order if n is a power of two.
inline summation_order recursive_doubling_order(int n)
{
    int power = 1;
    while (2 * power <= n) power *= 2;
    const auto pairs = static_cast<std::uint32_t>(n - power);
    summation_order order;
    for (std::uint32_t i = 0; i < pairs; ++i) order.push_back({2 * i, 2 * i + 1});
    const auto rank_of = [=](std::uint32_t part) { return part < pairs ? 2 * part : part + pairs; };
    for (const addition& step : pairwise_order(power)) order.push_back({rank_of(step.into), rank_of(step.from)});
    return order;
}

} // namespace collprobe
