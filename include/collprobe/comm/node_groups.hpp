// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The ranks of a world in nodes of equally many ranks. Nodes are numbered in the order of their lowest ranks, and the
/// ranks of a node, from 0, in the order of their ranks: their local ranks. Each rank has two communicators. One goes
/// across the nodes, to the ranks with the same local rank (the rank in it is the node). The other is within the node
/// (the rank in it is the local rank). Many algorithms may share one object, one after the other on one thread.
///
///     node_groups nodes(world, 8);                       // neighbours: rank r is local rank r % 8 of node r / 8
///     node_groups nodes(world, {0, 1, 0, 1});            // ranks dealt out in turn
template <communicator Comm>
class node_groups {
public:
    /// The communicator type that `split` of the world returns.
    using part = std::remove_cvref_t<decltype(*std::declval<Comm&>().split(0, 0, call_site()))>;
    using device = typename part::device;

    /// Nodes of `ranks_per_node` neighbours.
    /// Collective: two splits, for which the calling thread waits. The world is not used after that, but a communicator
    /// that must outlive its parts (NCCL's) must outlive this object.
    /// \throws error `invalid_argument` on all ranks if `ranks_per_node` does not divide `size()`; `mismatch` on ranks
    ///   that notice different values of it; any exception of `split`.
    node_groups(Comm& world, int ranks_per_node, call_site where = call_site::current())
        : node_groups(world, neighbours(world, ranks_per_node, where),
            "ranks_per_node is " + std::to_string(ranks_per_node) + " here, and another on some ranks", where)
    {
    }

    /// The same for any placement: rank r is on the node `node_of[r]`, any number that the node's ranks have in common.
    /// Equal on all ranks.
    /// \throws error `invalid_argument` on all ranks unless `node_of` has a node for each rank, and each node as many
    ///   ranks; `mismatch` on ranks that notice other numbers of nodes; any exception of `split`.
    node_groups(Comm& world, const std::vector<int>& node_of, call_site where = call_site::current())
        : node_groups(world, placed(world, node_of, where), "node_of is another on some ranks", where)
    {
    }

    int nodes() const noexcept { return across_.size(); }
    int ranks_per_node() const noexcept { return within_.size(); }
    int node() const noexcept { return node_; }
    int local_rank() const noexcept { return within_.rank(); }
    /// The rank in the world of a local rank of a node.
    int world_rank(int node, int local_rank) const noexcept
    {
        return rank_of_[static_cast<std::size_t>(node * ranks_per_node() + local_rank)];
    }

    part& across_nodes() noexcept { return across_; }
    part& within_node() noexcept { return within_; }

private:
    /// The ranks of the world, node by node.
    struct placement {
        std::vector<int> rank_of;
        int ranks_per_node = 1;

        int place_of(int rank) const noexcept
        {
            return static_cast<int>(std::find(rank_of.begin(), rank_of.end(), rank) - rank_of.begin());
        }
    };

    node_groups(Comm& world, placement where_ranks_are, const std::string& mismatch, call_site where)
        : node_groups(world, where_ranks_are.place_of(world.rank()), where_ranks_are, mismatch, where)
    {
    }
    node_groups(Comm& world, int place, placement& placed, const std::string& mismatch, call_site where)
        : rank_of_(std::move(placed.rank_of)),
          node_(place / placed.ranks_per_node),
          across_(split(world, place % placed.ranks_per_node, node_, where)),
          within_(split(world, node_, place % placed.ranks_per_node, where))
    {
        if (across_.size() == world.size() / placed.ranks_per_node && within_.size() == placed.ranks_per_node) return;
        // A rank that has not noticed the mismatch must not wait for this rank.
        across_.abort(mismatch);
        within_.abort(mismatch);
        detail::caller(world, "node_groups", where).fail(status::mismatch, mismatch);
    }

    static placement neighbours(const Comm& world, int ranks_per_node, call_site where)
    {
        if (ranks_per_node < 1 || world.size() % ranks_per_node != 0) {
            detail::caller(world, "node_groups", where)
                .fail(status::invalid_argument,
                    "ranks_per_node is " + std::to_string(ranks_per_node) + ", which does not divide size(), "
                        + std::to_string(world.size()));
        }
        placement result{std::vector<int>(static_cast<std::size_t>(world.size())), ranks_per_node};
        std::iota(result.rank_of.begin(), result.rank_of.end(), 0);
        return result;
    }
    static placement placed(const Comm& world, const std::vector<int>& node_of, call_site where)
    {
        const detail::caller who(world, "node_groups", where);
        const auto size = static_cast<std::size_t>(world.size());
        if (node_of.size() != size) {
            who.fail(status::invalid_argument, "node_of has " + std::to_string(node_of.size()) + " nodes for "
                    + std::to_string(size) + " ranks");
        }
        std::vector<int> by_node(size);
        std::iota(by_node.begin(), by_node.end(), 0);
        const auto node = [&](int rank) { return node_of[static_cast<std::size_t>(rank)]; };
        std::sort(by_node.begin(), by_node.end(),
            [&](int a, int b) { return node(a) != node(b) ? node(a) < node(b) : a < b; });
        struct run {
            std::size_t first, count;
        };
        std::vector<run> nodes;
        for (std::size_t at = 0; at < size; ++at) {
            if (at == 0 || node(by_node[at]) != node(by_node[at - 1])) nodes.push_back({at, 0});
            ++nodes.back().count;
        }
        std::sort(nodes.begin(), nodes.end(), [&](run a, run b) { return by_node[a.first] < by_node[b.first]; });
        placement result{{}, static_cast<int>(nodes.front().count)};
        for (const run& each : nodes) {
            if (each.count != nodes.front().count) {
                who.fail(status::invalid_argument,
                    "node " + std::to_string(node(by_node[each.first])) + " has " + std::to_string(each.count)
                        + " ranks, and node " + std::to_string(node_of[0]) + " has "
                        + std::to_string(nodes.front().count));
            }
            for (std::size_t k = 0; k < each.count; ++k) result.rank_of.push_back(by_node[each.first + k]);
        }
        return result;
    }
    static part split(Comm& world, int color, int key, call_site where)
    {
        auto made = world.split(color, key, where);
        return part(std::move(*made));
    }

    std::vector<int> rank_of_;
    int node_;
    part across_;
    part within_;
};

} // namespace collprobe
