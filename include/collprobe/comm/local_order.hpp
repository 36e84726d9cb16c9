// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/config.hpp>

namespace collprobe::local {

/// In which order `local` combines the n values of an element. Every combination rounds to the
/// element type, as it does on the wire of the algorithm that has this order.
enum class reduction_order : std::uint8_t {
    linear, ///< ((x0 + x1) + x2) + ...: by rank
    ring, ///< NCCL's ring: the starting rank rotates from chunk to chunk, see `ring_chunk`
    tree, ///< NCCL's double binary tree: each half of the elements has a tree, see `tree_links`
};

constexpr const char* name(reduction_order order) noexcept
{
    switch (order) {
    case reduction_order::linear: return "linear";
    case reduction_order::ring: return "ring";
    case reduction_order::tree: return "tree";
    }
    return "unknown";
}

/// How many elements one chunk of a ring all-reduce has: an n-th of all, rounded up to 16 bytes; the
/// last chunks are shorter or empty. Chunk c starts at rank c + 1, visits c + 2, ... and ends at rank c,
/// all modulo n; each rank adds its own value to what it received.
/// Source: NCCL 2.28, src/device/all_reduce.h, runRing, for one channel and one loop over the data.
/// More channels or loops repeat the same pattern on smaller pieces.
constexpr std::uint64_t ring_chunk(std::uint64_t count, int ranks, int element_bytes) noexcept
{
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto unit = static_cast<std::uint64_t>(16 / element_bytes);
    const std::uint64_t share = count / n + (count % n != 0 ? 1 : 0);
    return share / unit * unit + (share % unit != 0 ? unit : 0);
}

/// The rank at which chunk `chunk` of a ring all-reduce starts.
COLLPROBE_HD constexpr int ring_start(int chunk, int ranks) noexcept { return (chunk + 1) % ranks; }

/// How many elements of a tree all-reduce go over tree 0; the others go over tree 1.
constexpr std::uint64_t tree_0_count(std::uint64_t count) noexcept { return count - count / 2; }

/// The neighbours of a rank in a tree; -1 where there is none.
struct tree_links {
    int parent = -1;
    int child[2] = {-1, -1};
};

namespace detail {

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
    // Where the right half of the tree is cut off, the highest subtree that is left moves up.
    for (int step = level / 2; step > 0; step /= 2) {
        if (node + step < nodes) {
            links.child[1] = node + step;
            break;
        }
    }
    return links;
}

} // namespace detail

/// The neighbours of `rank` in tree 0 or 1 of the double binary tree of `ranks` ranks, one rank a
/// node. Tree 1 is tree 0 mirrored for an even number of ranks and shifted by one for an odd one, so
/// that (nearly) every rank is a leaf in one of them. A node adds its first child's partial result to
/// its own value, then its second child's, and passes the result to its parent.
/// Preconditions: tree is 0 or 1; 0 <= rank < ranks.
/// Source: P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast,
/// reduction and scan" (2009); the choice of trees is that of NCCL 2.28, src/graph/trees.cc.
constexpr tree_links double_tree(int tree, int rank, int ranks) noexcept
{
    if (tree == 0) return detail::in_order_tree(rank, ranks);
    const bool shift = ranks % 2 != 0;
    const int node = shift ? (rank + ranks - 1) % ranks : ranks - 1 - rank;
    const auto rank_of = [=](int at) { return at < 0 ? -1 : shift ? (at + 1) % ranks : ranks - 1 - at; };
    const tree_links links = detail::in_order_tree(node, ranks);
    return {rank_of(links.parent), {rank_of(links.child[0]), rank_of(links.child[1])}};
}

/// The rank at the root of tree 0 or 1.
constexpr int tree_root(int tree, int ranks) noexcept
{
    if (tree == 0) return 0;
    return ranks % 2 != 0 ? 1 % ranks : ranks - 1;
}

} // namespace collprobe::local
