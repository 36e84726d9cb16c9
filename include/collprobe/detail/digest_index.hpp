// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Finds the ranks that hold a digest: a hash table for n ranks that is made once and cleared for each use.
class digest_index {
public:
    struct group {
        std::uint64_t digest = 0;
        int first_rank = -1; ///< -1 marks a free place
        int ranks = 0;
    };

    explicit digest_index(int ranks)
    {
        std::uint64_t places = 4;
        while (places < 2 * static_cast<std::uint64_t>(ranks)) places *= 2;
        groups_ = std::vector<group>(static_cast<std::size_t>(places));
    }

    void clear() noexcept
    {
        for (group& place : groups_) place = {};
        distinct_ = added_ = 0;
    }
    /// Adds `rank`, which holds `digest`.
    /// Precondition: ranks are added in ascending order.
    void add(std::uint64_t digest, int rank) noexcept
    {
        group& found = groups_[place_of(digest)];
        if (found.first_rank < 0) {
            found = {digest, rank};
            ++distinct_;
        }
        ++found.ranks;
        ++added_;
    }
    const group& find(std::uint64_t digest) const noexcept { return groups_[place_of(digest)]; }
    int distinct() const noexcept { return distinct_; }
    /// The digest that more than half of the ranks that were added hold, with its ranks; null if there is none.
    const group* majority() const noexcept
    {
        for (const group& place : groups_)
            if (2 * place.ranks > added_) return &place;
        return nullptr;
    }

private:
    // Digests are distributed uniformly, so their low bits serve as a hash.
    std::size_t place_of(std::uint64_t digest) const noexcept
    {
        std::size_t place = static_cast<std::size_t>(digest) & (groups_.size() - 1);
        while (groups_[place].first_rank >= 0 && groups_[place].digest != digest)
            place = (place + 1) & (groups_.size() - 1);
        return place;
    }

    std::vector<group> groups_;
    int distinct_ = 0;
    int added_ = 0;
};

} // namespace collprobe::detail
