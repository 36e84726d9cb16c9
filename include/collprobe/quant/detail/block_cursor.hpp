// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/wire.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The place of a block, for growing numbers of blocks, also beyond the last one, where there is none. Blocks are
/// numbered message by message. Only the first one costs divisions, of which a GPU has none for 64 bits. The same cut
/// is passed to all functions.
class block_cursor {
public:
    /// Precondition: the messages have blocks.
    COLLPROBE_HD block_cursor(const message_slices& cut, std::uint64_t index) noexcept
        : per_slice_(cut.blocks_per_slice())
    {
        const std::uint64_t slices = index / per_slice_; // before this one
        in_slice_ = index - slices * per_slice_;
        message_ = static_cast<std::uint32_t>(slices / cut.slices_per_message);
        run_ = static_cast<std::uint32_t>(slices - std::uint64_t{message_} * cut.slices_per_message);
        start_slice(cut);
    }
    COLLPROBE_HD void advance(const message_slices& cut, std::uint64_t blocks) noexcept
    {
        in_slice_ += blocks;
        if (in_slice_ < per_slice_) return;
        do {
            in_slice_ -= per_slice_;
            if (++run_ == cut.slices_per_message) {
                run_ = 0;
                ++message_;
            }
        } while (in_slice_ >= per_slice_);
        start_slice(cut);
    }
    COLLPROBE_HD message_slices::place place(const message_slices& cut) const noexcept
    {
        const std::uint64_t in_part = in_slice_ * cut.block;
        const std::uint64_t element = start_ + in_part;
        const std::uint64_t left = element < cut.count ? cut.count - element : 0;
        return {message_, run_ * per_slice_ + in_slice_, element,
            static_cast<std::uint32_t>(lesser(lesser(cut.block, cut.length - in_part), left))};
    }
    /// The number of the slice among those of all messages, and the block's place in it.
    COLLPROBE_HD std::uint64_t slice(const message_slices& cut) const noexcept
    {
        return std::uint64_t{message_} * cut.slices_per_message + run_;
    }
    COLLPROBE_HD std::uint64_t in_slice() const noexcept { return in_slice_; }

private:
    COLLPROBE_HD void start_slice(const message_slices& cut) noexcept
    {
        if (message_ < cut.messages) start_ = cut.slice(message_, run_) * cut.stride + cut.first;
    }

    std::uint64_t per_slice_;
    std::uint64_t in_slice_;
    std::uint32_t message_;
    std::uint64_t start_ = 0; ///< index of the slice's first element of the part
    std::uint32_t run_;
};

/// Calls `take(number, cursor, place)` for `count` blocks: for as many whole ones of a slice as have up to
/// `largest_block` elements, whose `place.count` has the elements of all, or for one that may have fewer elements.
template <class Take>
void for_each_run(const message_slices& cut, std::uint64_t first, std::uint64_t count, const Take& take)
{
    if (count == 0) return;
    block_cursor cursor(cut, first);
    for (std::uint64_t b = first; b < first + count;) {
        message_slices::place at = cursor.place(cut);
        std::uint64_t blocks = 1;
        if (at.count == cut.block) {
            const std::uint64_t whole = lesser(cut.length - cursor.in_slice() * cut.block, cut.count - at.element);
            blocks = lesser(lesser(whole, largest_block) / cut.block, first + count - b);
            at.count = static_cast<std::uint32_t>(blocks * cut.block);
        }
        take(b, cursor, at);
        b += blocks;
        cursor.advance(cut, blocks);
    }
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
