// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/code.hpp>

/// The bytes of quantised messages, and the elements that they stand for.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A message: the codes of its blocks, then the scales. Each of these planes has whole words of 16 bytes, so both are
/// aligned in messages of any count.
struct wire_layout {
    std::uint64_t blocks = 0;
    std::uint32_t code_bytes = 0; ///< of a block

    COLLPROBE_HD static constexpr wire_layout of(const codec& how, std::uint64_t blocks) noexcept
    {
        return {blocks, how.code_bytes()};
    }
    COLLPROBE_HD constexpr std::uint64_t scales_at() const noexcept { return blocks * code_bytes; }
    COLLPROBE_HD constexpr std::uint64_t bytes() const noexcept
    {
        return scales_at() + (blocks * scale_bytes + 15) / 16 * 16;
    }
};

/// Reads and writes the scale of a block of a message.
COLLPROBE_HD inline float read_block_scale(
    const wire_layout& wire, const unsigned char* message, std::uint64_t block) noexcept
{
    return read_scale(message + wire.scales_at(), block);
}
/// The last block also writes zeros behind its plane: a message's bytes are a function of its elements.
COLLPROBE_HD inline void write_block_scale(
    const wire_layout& wire, unsigned char* message, std::uint64_t block, float scale) noexcept
{
    unsigned char* const plane = message + wire.scales_at();
    write_scale(plane, block, scale);
    if (block + 1 < wire.blocks) return;
    for (std::uint64_t at = wire.blocks; at * scale_bytes % 16 != 0; ++at) write_scale(plane, at, 0);
}

/// The same block of some messages.
struct block_terms {
    const unsigned char* first_codes;
    const unsigned char* first_scale;
    std::uint64_t stride; ///< bytes from a message to the next
    std::uint32_t count;

    const unsigned char* codes(std::uint32_t term) const noexcept { return first_codes + term * stride; }
    float scale(std::uint32_t term) const noexcept { return read_scale(first_scale + term * stride, 0); }

    /// Of the terms, and of their sums, over the elements of the block.
    struct squares {
        float of_terms = 0;
        float of_sums = 0;
    };
};

/// The elements of a buffer that some messages hold. The buffer consists of slices of equal length, of which the last
/// may reach beyond its end; a piece of the work is the same part of each slice, and blocks start with each part. A
/// message holds `slices_per_message` slices. The slices of all messages are counted as places: place p has slice
/// `slice_of[p]`.
struct message_slices {
    std::uint32_t messages = 1;
    std::uint32_t slices_per_message = 1;
    std::uint32_t block = 128; ///< elements
    std::uint64_t stride = 0; ///< elements from a slice to the next
    std::uint64_t first = 0; ///< of the part, in a slice
    std::uint64_t length = 0; ///< elements of the part
    std::uint64_t count = 0; ///< elements of the buffer
    const std::uint32_t* slice_of = nullptr; ///< null if place p has slice p

    COLLPROBE_HD constexpr std::uint64_t blocks_per_slice() const noexcept
    {
        return (length + block - 1) / block;
    }
    COLLPROBE_HD constexpr std::uint64_t blocks_per_message() const noexcept
    {
        return blocks_per_slice() * slices_per_message;
    }
    COLLPROBE_HD constexpr std::uint64_t blocks() const noexcept { return blocks_per_message() * messages; }

    /// The number in the buffer of a message's slice number `run`.
    COLLPROBE_HD constexpr std::uint64_t slice(std::uint64_t message, std::uint64_t run) const noexcept
    {
        const std::uint64_t at = message * slices_per_message + run;
        return slice_of == nullptr ? at : slice_of[at];
    }

    /// A block: its message and place there, and its elements. `count` is 0 beyond the end of the buffer.
    struct place {
        std::uint64_t message;
        std::uint64_t block;
        std::uint64_t element; ///< index of the first one in the buffer
        std::uint32_t count;
    };
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
