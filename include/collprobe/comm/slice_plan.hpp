// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Cuts the work of an exchange into pieces that are exchanged one after the other: of each slice the same part. All
/// ranks get the same cuts from the same counts. Slices that the caller gives, as those of a reduce-scatter, have
/// `stride` elements. A buffer that is reduced as a whole has none: each piece of it is cut into slices of its own.
struct slice_plan {
    std::uint64_t slices;
    std::uint64_t stride; ///< elements of a slice; 0 if each piece has slices of its own
    std::uint64_t count; ///< elements of the buffer
    std::uint64_t unit; ///< slices of its own are multiples of it: the last ones may reach beyond the buffer
    std::uint64_t most; ///< elements of a slice in a piece, a multiple of `unit`

    struct piece {
        std::uint64_t first = 0; ///< of the part, in a slice; or of the piece, in the buffer
        std::uint64_t length = 0; ///< elements of each slice
        std::uint64_t count = 0; ///< elements that the next piece starts behind; 0 behind the last piece
        std::uint64_t before = 0; ///< elements of one slice in the pieces before, each rounded up to `unit`
    };

    /// The piece after `before`.
    constexpr piece next(const piece& before) const noexcept
    {
        piece at;
        at.first = before.first + before.count;
        at.before = before.before + rounded_up(before.length);
        const std::uint64_t end = stride == 0 ? count : stride;
        if (at.first >= end) return at;
        const std::uint64_t left = end - at.first;
        at.length = lesser(stride == 0 ? rounded_up((left + slices - 1) / slices) : left, most);
        at.count = stride == 0 ? at.length * slices : at.length;
        return at;
    }
    /// Whether the slices of a piece reach beyond the buffer.
    constexpr bool is_padded(const piece& at) const noexcept { return stride == 0 && at.first + at.count > count; }
    /// Elements of a slice in all pieces, each rounded up to `unit`.
    constexpr std::uint64_t slice_elements() const noexcept
    {
        piece at = next({});
        while (at.count != 0) at = next(at);
        return at.before;
    }

private:
    constexpr std::uint64_t rounded_up(std::uint64_t elements) const noexcept
    {
        return (elements + unit - 1) / unit * unit;
    }
};

} // namespace collprobe::detail
