// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The ranks of a world as nodes of `ranks_per_node` neighbours each: rank r is local rank r % ranks_per_node of node r
/// / ranks_per_node. Each rank has two communicators. One goes across the nodes, to the ranks with the same local rank
/// (the rank in it is the node). The other is within the node (the rank in it is the local rank). All shards of a model
/// share one object.
///
/// If the ranks of a node are not neighbours, split the world first, with a key that makes them neighbours.
template <communicator Comm>
    requires has_split<Comm>
class node_groups {
public:
    /// The communicator type that `split` of the world returns.
    using part = std::remove_cvref_t<decltype(*std::declval<Comm&>().split(0, 0, call_site()))>;
    using device = typename part::device;

    /// Collective: two splits, for which the calling thread waits. The world is not used after that, but a communicator
    /// that must outlive its parts (NCCL's) must outlive this object.
    /// \throws error `invalid_argument` on all ranks if `ranks_per_node` does not divide `size()`; `mismatch` on ranks
    ///   that notice different values of it; any exception of `split`.
    node_groups(Comm& world, int ranks_per_node, call_site where = call_site::current())
        : node_(world.rank() / checked(world, ranks_per_node, where)),
          across_(split(world, world.rank() % ranks_per_node, where)),
          within_(split(world, node_, where))
    {
        if (across_.size() == world.size() / ranks_per_node && within_.size() == ranks_per_node) return;
        const std::string message
            = "ranks_per_node is " + std::to_string(ranks_per_node) + " here, and another on some ranks";
        // A rank that has not noticed the mismatch must not wait for this rank.
        detail::abort(across_, message);
        detail::abort(within_, message);
        detail::caller(world, "node_groups", where).fail(status::mismatch, message);
    }

    int nodes() const noexcept { return across_.size(); }
    int ranks_per_node() const noexcept { return within_.size(); }
    int node() const noexcept { return node_; }
    int local_rank() const noexcept { return within_.rank(); }

    part& across_nodes() noexcept { return across_; }
    part& within_node() noexcept { return within_; }

private:
    static int checked(const Comm& world, int ranks_per_node, call_site where)
    {
        if (ranks_per_node >= 1 && world.size() % ranks_per_node == 0) return ranks_per_node;
        detail::caller(world, "node_groups", where)
            .fail(status::invalid_argument,
                "ranks_per_node is " + std::to_string(ranks_per_node) + ", which does not divide size(), "
                    + std::to_string(world.size()));
    }
    static part split(Comm& world, int color, call_site where)
    {
        auto made = world.split(color, world.rank(), where);
        return part(std::move(*made));
    }

    int node_;
    part across_;
    part within_;
};

} // namespace collprobe
