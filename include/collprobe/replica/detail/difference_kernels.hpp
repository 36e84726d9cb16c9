// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/replica/disagreement.hpp>
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

/// Writes {key, ~key}. The maxima of a pair over the ranks are the largest key and the complement of the smallest, so
/// they tell whether all keys are equal (`is_equal_pair`). A pair of zeros does not count.
COLLPROBE_HD inline void write_pair(std::uint64_t* pairs, std::uint64_t index, std::uint64_t key) noexcept
{
    pairs[2 * index] = key;
    pairs[2 * index + 1] = ~key;
}
inline bool is_equal_pair(const std::uint64_t* maxima, std::uint64_t index) noexcept
{
    return maxima[2 * index] == ~maxima[2 * index + 1];
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

/// Writes the digest of block `index` as a pair (`write_pair`). Elements count at their places in the buffer.
template <class Word>
struct digest_blocks {
    const void* buffer;
    std::uint64_t count; ///< elements of the buffer
    block_list blocks;
    std::uint64_t* pairs;

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
        write_pair(pairs, block, state.finish());
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

/// Adds the elements of another part of the buffer to what is known of a rank's difference.
COLLPROBE_HD inline void merge(difference& into, const difference& other) noexcept
{
    if (other.elements == 0) return;
    if (other.first < into.first) {
        into.first = other.first;
        into.expected_bits = other.expected_bits;
        into.actual_bits = other.actual_bits;
    }
    if (into.elements == 0 || other.last > into.last) into.last = other.last;
    into.elements += other.elements;
}

/// Compares a buffer's blocks with the expected contents. A reducer over the packed elements.
template <class Word>
struct compare_blocks {
    using partial = difference;
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
        if (found != wanted) detail::merge(into, {-1, true, place, place, 1, wanted, found});
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t index = first; index < first + count; ++index) add(into, index);
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept { detail::merge(into, next); }
    COLLPROBE_HD static partial finish(const partial& all) noexcept { return all; }
};

} // namespace collprobe::detail
