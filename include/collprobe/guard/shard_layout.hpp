// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A rank's traffic with ranks of other nodes and of its own node, in each direction: elements, or bytes.
struct shard_volume {
    std::uint64_t inter_node = 0;
    std::uint64_t intra_node = 0;

    friend bool operator==(const shard_volume&, const shard_volume&) = default;
    friend shard_volume operator+(shard_volume a, shard_volume b) noexcept
    {
        return {a.inter_node + b.inter_node, a.intra_node + b.intra_node};
    }
    friend shard_volume operator*(std::uint64_t times, shard_volume each) noexcept
    {
        return {times * each.inter_node, times * each.intra_node};
    }
};

/// The places of a parameter's elements in nodes of several ranks, each of which keeps the whole: pure arithmetic.
///
/// With K nodes of Z ranks, local rank l of node k owns slice l K + k. So the slices that the ranks of local rank l
/// gather across the nodes are neighbours, and the result *is* secondary shard l. The secondary shards, in the order of
/// the local ranks, are the parameter in natural order. (With slices in the order of the ranks, as in DeepSpeed's MiCS,
/// elements must be copied to their places between the two gathers.)
///
/// A slice has slot() = ceil(count / (K Z)) elements, a secondary shard K slot(), the gathered parameter K Z slot().
/// Elements from `count` on are padding, so the last slices may be short or empty.
struct shard_layout {
    /// A run of elements of a parameter.
    struct range {
        std::uint64_t first = 0;
        std::uint64_t count = 0;

        friend bool operator==(const range&, const range&) = default;
    };

    std::uint64_t count = 0; ///< elements of the parameter
    std::uint64_t nodes = 1;
    std::uint64_t ranks_per_node = 1;
    std::uint64_t node = 0; ///< of the rank
    std::uint64_t local_rank = 0; ///< of the rank in its node

    constexpr std::uint64_t ranks() const noexcept { return nodes * ranks_per_node; }
    constexpr std::uint64_t slot() const noexcept { return count / ranks() + (count % ranks() != 0 ? 1 : 0); }
    constexpr std::uint64_t secondary_count() const noexcept { return nodes * slot(); }
    constexpr std::uint64_t padded_count() const noexcept { return ranks() * slot(); }

    /// The elements that the rank owns, without padding.
    constexpr range primary() const noexcept { return part(local_rank * nodes + node, slot()); }
    /// The elements of the rank's secondary shard, without padding.
    constexpr range secondary() const noexcept { return part(local_rank, secondary_count()); }

    /// Elements that a rank receives when the secondary shards are made: K - 1 slots.
    constexpr shard_volume regenerate_volume() const noexcept { return {(nodes - 1) * slot(), 0}; }
    /// Elements that a rank receives when a parameter is gathered from them: Z - 1 secondary shards.
    constexpr shard_volume gather_volume() const noexcept { return {0, (ranks_per_node - 1) * secondary_count()}; }
    /// For comparison, a gather of the primary slices over all ranks: (K - 1) Z slots come from other nodes, Z times as
    /// many as in `regenerate_volume`, and again for each gather. (A ring of neighbours forwards them within the node:
    /// then K Z - 1 slots enter a node, against Z (K - 1) in `regenerate_volume`, which is the least.)
    constexpr shard_volume flat_volume() const noexcept
    {
        return {(nodes - 1) * ranks_per_node * slot(), (ranks_per_node - 1) * slot()};
    }

private:
    constexpr range part(std::uint64_t index, std::uint64_t size) const noexcept
    {
        if (size == 0 || index > count / size) return {count, 0};
        const std::uint64_t left = count - index * size;
        return {index * size, left < size ? left : size};
    }
};

} // namespace collprobe
