// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

template <class Comm>
consteval auto part_of_world()
{
    if constexpr (requires(Comm& world) { world.split(0, 0, call_site()); }) {
        return std::type_identity<std::remove_cvref_t<decltype(*std::declval<Comm&>().split(0, 0, call_site()))>>();
    } else return std::type_identity<Comm>();
}

} // namespace detail

/// The ranks of a world in nodes of equally many neighbours: rank r is local rank r % ranks_per_node() of node
/// r / ranks_per_node(). Each rank has two communicators. One goes across the nodes, to the ranks with the same local
/// rank (the rank in it is the node). The other is within the node (the rank in it is the local rank). Many algorithms
/// may share one object, one after the other on one thread.
///
///     node_groups nodes(world, 8);
template <communicator Comm>
class node_groups {
public:
    /// What `split` of the world returns, or the world's own type if it cannot be split.
    using part = typename decltype(detail::part_of_world<Comm>())::type;
    using device = typename part::device;

    /// Nodes of `ranks_per_node` neighbours.
    /// Collective: two splits, for which the calling thread waits. The world is not used after that.
    /// \throws error `invalid_argument` on all ranks if `ranks_per_node` does not divide `size()`; `mismatch` on ranks
    ///   that notice different values of it; any exception of `split`.
    node_groups(Comm& world, int ranks_per_node, call_site where = call_site::current())
        : within_(split(world, node_of(world, ranks_per_node, where), world.rank(), where)),
          across_(split(world, world.rank() % ranks_per_node, world.rank(), where))
    {
        if (nodes() == world.size() / ranks_per_node && within_.size() == ranks_per_node) return;
        const std::string mismatch
            = "ranks_per_node is " + std::to_string(ranks_per_node) + " here, and another on some ranks";
        // A rank that has not noticed the mismatch must not wait for this rank.
        within_.fail(mismatch);
        across_.fail(mismatch);
        detail::caller(world, "node_groups", where).fail(status::mismatch, mismatch);
    }

    /// The same from communicators that exist, such as those of ncclCommSplit or MPI_Comm_split: the caller's node, and
    /// the ranks with the caller's local rank.
    /// \throws error `invalid_argument` on a rank whose communicators do not fit the world's numbers.
    node_groups(const Comm& world, part within, part across, call_site where = call_site::current())
        : within_(std::move(within)), across_(std::move(across))
    {
        if (nodes() * ranks_per_node() == world.size() && world_rank(node(), local_rank()) == world.rank()) return;
        detail::caller(world, "node_groups", where)
            .fail(status::invalid_argument,
                "the rank is " + std::to_string(local_rank()) + " of " + std::to_string(ranks_per_node())
                    + " within its node and " + std::to_string(node()) + " of " + std::to_string(nodes())
                    + " across the nodes: neighbours share a node");
    }

    int nodes() const noexcept { return across_.size(); }
    int ranks_per_node() const noexcept { return within_.size(); }
    int node() const noexcept { return across_.rank(); }
    int local_rank() const noexcept { return within_.rank(); }
    /// The rank in the world of a local rank of a node.
    int world_rank(int node, int local_rank) const noexcept { return node * ranks_per_node() + local_rank; }

    part& across_nodes() noexcept { return across_; }
    part& within_node() noexcept { return within_; }

private:
    static int node_of(const Comm& world, int ranks_per_node, call_site where)
    {
        if (ranks_per_node < 1 || world.size() % ranks_per_node != 0) {
            detail::caller(world, "node_groups", where)
                .fail(status::invalid_argument,
                    "ranks_per_node is " + std::to_string(ranks_per_node) + ", which does not divide size(), "
                        + std::to_string(world.size()));
        }
        return world.rank() / ranks_per_node;
    }
    static part split(Comm& world, int color, int key, call_site where)
    {
        auto made = world.split(color, key, where);
        return part(std::move(*made));
    }

    part within_;
    part across_;
};

} // namespace collprobe
