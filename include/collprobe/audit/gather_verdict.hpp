// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Whom the digests of a damaged shard speak against.
enum class gather_culprit : std::uint32_t {
    receiver, ///< other ranks hold what the owner had
    owner, ///< most receivers, or the owner's own copy, hold the same wrong bits: so they were sent
    unknown, ///< of two ranks: either
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

/// A shard that is not, at a receiver, what its owner had.
struct damaged_shard {
    std::int32_t owner = -1;
    std::int32_t receiver = -1;
    gather_culprit culprit = gather_culprit::unknown;

    friend bool operator==(const damaged_shard&, const damaged_shard&) = default;
};

/// What an all-gather brought, of all shards at all receivers. Equal on every rank.
struct gather_verdict {
    static constexpr std::uint32_t most_listed = 16;

    std::uint64_t damaged = 0; ///< shards, counted at each receiver
    std::uint32_t receivers = 0; ///< ranks that hold any
    std::uint32_t listed = 0;
    damaged_shard shard[most_listed]; ///< the first, by receiver, then owner

    COLLPROBE_HD bool intact() const noexcept { return damaged == 0; }

    /// The ranks that the listed shards name, ascending; empty where none can be.
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
