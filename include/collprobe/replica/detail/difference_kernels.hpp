// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/scan/digest.hpp>

/// The device's part of the search for differences. Elements are handled as bits, in a word of their size.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Calls `use` with a word of the size of a replica's elements.
template <class Use>
void with_word(element_type type, Use&& use)
{
    switch (bytes_of(type)) {
    case 1: return use(std::uint8_t{});
    case 2: return use(std::uint16_t{});
    case 4: return use(std::uint32_t{});
    default: return use(std::uint64_t{});
    }
}

/// The bits of an element, independent of its type.
template <class Word>
COLLPROBE_HD Word load_bits(const void* data, std::uint64_t index) noexcept
{
    typedef Word of_any_type __attribute__((may_alias));
    return static_cast<const of_any_type*>(data)[index];
}
template <class Word>
COLLPROBE_HD void store_bits(void* data, std::uint64_t index, Word bits) noexcept
{
    typedef Word of_any_type __attribute__((may_alias));
    static_cast<of_any_type*>(data)[index] = bits;
}

/// Blocks of a buffer in ascending order, with `length` elements each (the end of the buffer may cut the last one).
/// Block i begins with element `first[i]`.
struct block_list {
    const std::uint64_t* first = nullptr;
    std::uint64_t length = 1;

    /// The index in the buffer of element `index` of all blocks.
    COLLPROBE_HD std::uint64_t place(std::uint64_t index) const noexcept
    {
        return first[index / length] + index % length;
    }
};

/// Computes the digest of block `index`. Elements count at their places in the buffer.
template <class Word>
struct digest_blocks {
    const void* buffer;
    std::uint64_t count; ///< elements of the buffer
    block_list blocks;
    std::uint64_t* digests;

    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        const std::uint64_t first = blocks.first[block];
        const std::uint64_t left = count - first;
        const std::uint64_t here = left < blocks.length ? left : blocks.length;
        digest_state state;
        if constexpr (on_device) {
            for (std::uint64_t i = first; i < first + here; ++i) {
                const Word bits = load_bits<Word>(buffer, i);
                if constexpr (sizeof(Word) == 2) state.add(2 * i, bit_cast<float16>(bits));
                else state.add(i * sizeof(Word), bits);
            }
        } else {
            state = digest_bytes(best_isa(), static_cast<const unsigned char*>(buffer) + first * sizeof(Word),
                here * sizeof(Word), first * sizeof(Word));
        }
        digests[block] = state.finish();
    }
};

/// 1 where two digests differ, else 0.
struct mark_differences {
    const std::uint64_t* mine;
    const std::uint64_t* expected;
    std::uint8_t* differs;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        differs[index] = mine[index] != expected[index];
    }
};

/// Packs elements of the blocks one after the other, beginning with element `from` of all blocks.
template <class Word>
struct gather_blocks {
    const void* buffer;
    block_list blocks;
    std::uint64_t from;
    void* packed;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        store_bits(packed, index, load_bits<Word>(buffer, blocks.place(from + index)));
    }
};

/// Puts packed elements back to their places in the blocks.
template <class Word>
struct scatter_blocks {
    const void* packed;
    block_list blocks;
    std::uint64_t from;
    void* buffer;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        store_bits(buffer, blocks.place(from + index), load_bits<Word>(packed, index));
    }
};

/// The difference of a rank's elements from the expected ones. Sent as bytes.
struct found_difference {
    std::uint64_t first = no_index;
    std::uint64_t last = 0; ///< meaningless if `elements` is 0
    std::uint64_t elements = 0;
    std::uint64_t expected_bits = 0; ///< of `first`
    std::uint64_t actual_bits = 0;

    COLLPROBE_HD void merge(const found_difference& other) noexcept
    {
        if (other.elements == 0) return;
        if (other.first < first) {
            first = other.first;
            expected_bits = other.expected_bits;
            actual_bits = other.actual_bits;
        }
        if (elements == 0 || other.last > last) last = other.last;
        elements += other.elements;
    }
};

/// Compares a buffer's blocks with the expected contents. A reducer over the packed elements.
template <class Word>
struct compare_blocks {
    using partial = found_difference;
    static constexpr std::uint64_t block = 65536;

    const void* buffer;
    block_list blocks;
    std::uint64_t from; ///< index, in all blocks, of the first element of `expected`
    const void* expected;

    COLLPROBE_HD static partial identity() noexcept { return {}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const noexcept
    {
        const std::uint64_t place = blocks.place(from + index);
        const Word wanted = load_bits<Word>(expected, index);
        const Word found = load_bits<Word>(buffer, place);
        if (found != wanted) into.merge({place, place, 1, wanted, found});
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t index = first; index < first + count; ++index) add(into, index);
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept { into.merge(next); }
    COLLPROBE_HD static partial finish(const partial& all) noexcept { return all; }
};

} // namespace collprobe::detail
