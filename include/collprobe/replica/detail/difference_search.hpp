// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/replica/disagreement.hpp>

/// What ranks hold of a buffer, and the blocks in which that differs.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A rank's report of its buffer.
struct held_buffer {
    std::uint64_t digest = 0;
    std::uint64_t count = 0;
    std::uint64_t type = no_type; ///< an element_type, or `no_type`

    static constexpr std::uint64_t no_type = 0xff; ///< the rank has no such buffer

    /// Equal for equal contents. The type is part of them: equal bits of another type are another value. The digest
    /// includes the count.
    COLLPROBE_HD std::uint64_t key() const noexcept { return digest ^ mix64(type); }
};

/// Narrows a buffer down to the blocks that hold differences, in rounds with a message of at most `most_blocks`
/// digests.
///
/// Blocks are split as long as a round has room for twice as many, down to 64 bytes; one damaged element of 1 GiB takes
/// two rounds. If damage is widespread, blocks stay long; then at most about half of `most_blocks` are wanted, and they
/// can be sent whole.
class block_search {
public:
    static constexpr std::uint64_t most_blocks = 4096;
    static constexpr std::uint64_t shortest_bytes = 64;

    block_search(std::uint64_t count, std::uint64_t element_bytes)
        : count_(count), shortest_(shortest_bytes / element_bytes), length_(shortest_)
    {
        while ((count_ + length_ - 1) / length_ > most_blocks) length_ *= 2;
        for (std::uint64_t first = 0; first < count_; first += length_) firsts_.push_back(first);
    }

    view<const std::uint64_t> firsts() const noexcept { return firsts_; }
    std::uint64_t length() const noexcept { return length_; }
    /// The number of elements of all blocks.
    std::uint64_t elements() const noexcept
    {
        if (firsts_.empty()) return 0;
        const std::uint64_t left = count_ - firsts_.back();
        return (firsts_.size() - 1) * length_ + (left < length_ ? left : length_);
    }

    /// Keeps the blocks that differ and splits them. Returns false once they have the least length.
    bool narrow(view<const std::uint8_t> differs)
    {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < firsts_.size(); ++i) {
            if (differs[i] != 0) firsts_[kept++] = firsts_[i];
        }
        firsts_.resize(kept);
        std::uint64_t parts = 1;
        while (length_ / parts > shortest_ && kept * parts * 2 <= most_blocks) parts *= 2;
        if (kept == 0 || parts == 1) return false;
        length_ /= parts;
        std::vector<std::uint64_t> split;
        split.reserve(kept * parts);
        for (const std::uint64_t first : firsts_) {
            for (std::uint64_t part = 0; part < parts && first + part * length_ < count_; ++part)
                split.push_back(first + part * length_);
        }
        firsts_.swap(split);
        return true;
    }

    /// The blocks, with neighbours joined.
    std::vector<collprobe::disagreement::range> ranges() const
    {
        std::vector<collprobe::disagreement::range> joined;
        for (const std::uint64_t first : firsts_) {
            const std::uint64_t left = count_ - first;
            const std::uint64_t count = left < length_ ? left : length_;
            if (!joined.empty() && joined.back().first + joined.back().count == first) joined.back().count += count;
            else joined.push_back({first, count});
        }
        return joined;
    }

private:
    std::uint64_t count_;
    std::uint64_t shortest_;
    std::uint64_t length_;
    std::vector<std::uint64_t> firsts_;
};

/// A disagreement, and the blocks to restore.
struct located_difference {
    collprobe::disagreement report;
    block_search search{0, 1};
    held_buffer wanted; ///< the reference's
};

} // namespace collprobe::detail
