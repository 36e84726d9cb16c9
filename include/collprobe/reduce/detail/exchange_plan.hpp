// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Cuts a buffer into pieces that are exchanged one after the other. All ranks get the same cuts from the same counts.
/// The bits of an element do not depend on the cuts.
class exchange_plan {
public:
    /// A run of elements. A `padded` piece does not divide into whole parts, so it is sent from a copy.
    struct piece {
        std::uint64_t first = 0;
        std::uint64_t count = 0;
        std::uint64_t part = 0; ///< elements of each rank's part; `count` is at most ranks * part
        bool padded = false;
    };

    /// `room`: elements of the largest piece, at least `ranks * unit`. `unit`: elements in 16 bytes. Parts are
    /// multiples of it, so that kernels read whole words.
    constexpr exchange_plan(std::uint64_t count, std::uint64_t ranks, std::uint64_t unit, std::uint64_t room) noexcept
        : count_(count), ranks_(ranks), unit_(unit), largest_part_(room / ranks / unit * unit)
    {
    }

    /// The piece after `before`; its count is 0 if there is none.
    constexpr piece next(const piece& before) const noexcept
    {
        piece at;
        at.first = before.first + before.count;
        const std::uint64_t left = count_ - at.first;
        if (left == 0) return at;
        const std::uint64_t whole = left / ranks_ / unit_ * unit_; // elements of each rank's part
        at.part = whole < largest_part_ ? whole : largest_part_;
        at.count = at.part * ranks_;
        const std::uint64_t rest = left - at.count;
        // A remainder is a piece of its own, unless a copy of all that is left costs less than two more messages.
        const std::uint64_t padded_part = (left + ranks_ * unit_ - 1) / (ranks_ * unit_) * unit_;
        if (at.count == 0
            || (rest != 0 && rest < ranks_ * unit_ && left <= copied_elements && padded_part <= largest_part_)) {
            at.padded = true;
            at.part = padded_part;
            at.count = left;
        }
        return at;
    }

private:
    static constexpr std::uint64_t copied_elements = 1 << 15;

    std::uint64_t count_;
    std::uint64_t ranks_;
    std::uint64_t unit_;
    std::uint64_t largest_part_;
};

} // namespace collprobe::detail
