// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The sums of a digest over consecutive lines of 64 bytes: `digest_lane_sums` for each 64-bit lane of a vector. A
/// multiplication takes the low halves of such lanes. There a load of words has the words of even index, and a load of
/// keys from one key further on has the keys of odd index. (For the words a shift is faster.)
struct digest_lanes {
    words64 plain = {};
    words64 weighted = {};
    words64 placed = {};

    // Written out, here and below, because GCC compiles an implicit constructor for the baseline.
    [[gnu::always_inline]] digest_lanes() noexcept {}

    [[gnu::always_inline]] void add_line(const void* line, const std::uint32_t* keys) noexcept
    {
        add_vectors(load<words64>(line), load<words64>(static_cast<const unsigned char*>(line) + 32), keys);
    }
    [[gnu::always_inline]] void add_vectors(words64 low, words64 high, const std::uint32_t* keys) noexcept
    {
        low = hidden(low); // without this GCC loads it again for the shift
        high = hidden(high);
        words64 sum = multiply_low_halves(low, load<words64>(keys));
        placed += sum;
        sum += multiply_low_halves(low >> 32, load<words64>(keys + 1));
        placed += sum;
        sum += multiply_low_halves(high, load<words64>(keys + 8));
        placed += sum;
        sum += multiply_low_halves(high >> 32, load<words64>(keys + 9));
        plain += sum;
        weighted += plain;
    }

    /// Adds the sums over `lines` lines to `to`. `word`: index in the period of the first word, a multiple of 16.
    [[gnu::always_inline]] void add_to(digest_sums& to, std::uint64_t word, std::uint64_t lines) const noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (unsigned lane = 0; lane < 4; ++lane) {
            const digest_lane_sums own{plain[lane], weighted[lane], placed[lane]};
            own.add_to(to, lane, word / 16 + lines);
        }
    }
};

/// Adds the leading words that fill whole lines to `sums`, and returns their number. The first word is word `word` of
/// its period, a multiple of 16.
inline std::uint64_t sum_words(
    const unsigned char* data, std::uint64_t words, std::uint64_t word, digest_sums& sums) noexcept
{
    const std::uint32_t* const keys = digest_keys.key + word;
    digest_lanes lanes;
    std::uint64_t i = 0;
    constexpr std::uint64_t ahead = 4096; // bytes
    for (; i + 16 <= words; i += 16) {
        __builtin_prefetch(data + 4 * i + ahead);
        lanes.add_line(data + 4 * i, keys + i);
    }
    lanes.add_to(sums, word, i / 16);
    return i;
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
