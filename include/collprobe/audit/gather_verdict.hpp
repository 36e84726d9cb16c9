// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The rank that the digests of a damaged shard point to.
enum class gather_culprit : std::uint32_t {
    receiver, ///< other ranks hold the owner's bits
    owner, ///< most receivers, or the owner's own copy, hold the same wrong bits: the owner sent them
    unknown, ///< with two ranks: either of them
};

constexpr const char* name(gather_culprit who) noexcept
{
    switch (who) {
    case gather_culprit::receiver: return "receiver";
    case gather_culprit::owner: return "owner";
    case gather_culprit::unknown: return "unknown";
    }
    return "unknown";
}

/// A shard whose bits at a receiver differ from its owner's.
struct damaged_shard {
    std::int32_t owner = -1;
    std::int32_t receiver = -1;
    gather_culprit culprit = gather_culprit::unknown;

    friend bool operator==(const damaged_shard&, const damaged_shard&) = default;
};

/// The result of checking an all-gather: all shards at all receivers. Equal on every rank.
struct gather_verdict {
    static constexpr std::uint32_t most_listed = 16;

    std::uint64_t damaged = 0; ///< damaged shards, counted at each receiver
    std::uint32_t receivers = 0; ///< ranks that hold a damaged shard
    std::uint32_t listed = 0;
    damaged_shard shard[most_listed]; ///< the first damaged shards, by receiver, then owner

    COLLPROBE_HD bool intact() const noexcept { return damaged == 0; }

    /// The ranks that the listed shards name, ascending; empty if no rank can be named.
    std::vector<int> culprits() const
    {
        std::vector<int> all;
        for (std::uint32_t i = 0; i < listed; ++i) {
            const damaged_shard& each = shard[i];
            if (each.culprit == gather_culprit::unknown) continue;
            all.push_back(each.culprit == gather_culprit::owner ? each.owner : each.receiver);
        }
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
        return all;
    }
};

static_assert(std::is_trivially_copyable_v<gather_verdict>);

} // namespace collprobe
