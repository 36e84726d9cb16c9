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
        words64 low = load<words64>(line);
        words64 high = load<words64>(static_cast<const unsigned char*>(line) + 32);
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

    /// `end`: index in the period of the line behind the last.
    [[gnu::always_inline]] digest_sums sums(std::uint64_t end) const noexcept
    {
        digest_sums all;
        COLLPROBE_UNROLL_VECTORS
        for (unsigned lane = 0; lane < 4; ++lane) {
            const digest_lane_sums own{plain[lane], weighted[lane], placed[lane]};
            own.add_to(all, lane, end);
        }
        return all;
    }
};

/// The sums over lines of one period. The first word is word `word` of it, a multiple of 16.
inline digest_sums sum_lines(const unsigned char* data, std::uint64_t lines, std::uint64_t word) noexcept
{
    const std::uint32_t* keys = digest_keys.key + word;
    digest_lanes all;
    constexpr std::uint64_t ahead = 4096; // bytes
    for (std::uint64_t i = 0; i < lines; ++i, data += 64, keys += 16) {
        __builtin_prefetch(data + ahead);
        all.add_line(data, keys);
    }
    return all.sums(word / 16 + lines);
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
