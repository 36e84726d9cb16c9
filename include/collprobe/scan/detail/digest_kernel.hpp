// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: simd/dispatch.hpp includes this once per instruction set.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::inline COLLPROBE_ABI::detail::COLLPROBE_ISA_NAMESPACE {

/// The sums of a digest over consecutive lines of 64 bytes. `weighted` adds up the running sums, so a product counts
/// once for each line from its own to the end: this weighs by position without a multiplication. The addition takes
/// place once a line, after the even words, so even words count once more than odd words. A multiplication takes the
/// low halves of 64-bit lanes. There a load of words has the words of even index, and a load of keys from one key
/// further on has the keys of odd index. (For the words a shift is faster.)
struct digest_lanes {
    words64 plain = {};
    words64 weighted = {};

    // Written out, here and below, because GCC compiles an implicit constructor for the baseline.
    [[gnu::always_inline]] digest_lanes() noexcept {}

    [[gnu::always_inline]] void add_line(const void* line, const std::uint32_t* keys) noexcept
    {
        const auto* const low = static_cast<const unsigned char*>(line);
        const auto* const high = low + 32; // narrow vectors: the second half
        plain += multiply_low_halves(load<words64>(low), load<words64>(keys));
        if constexpr (width == 32) plain += multiply_low_halves(load<words64>(high), load<words64>(keys + 8));
        weighted += plain;
        plain += multiply_low_halves(load<words64>(low) >> 32, load<words64>(keys + 1));
        if constexpr (width == 32) plain += multiply_low_halves(load<words64>(high) >> 32, load<words64>(keys + 9));
    }

    /// `word`: index in the period of the first word, a multiple of 16; `lines` added.
    [[gnu::always_inline]] digest_sums sums(std::uint64_t word, std::uint64_t lines) const noexcept
    {
        const std::uint64_t rest = digest_weight_of_group(word / 16 + lines);
        digest_sums result;
        for (unsigned lane = 0; lane < width / 8; ++lane) {
            result.first += plain[lane];
            result.second += digest_lane_key(lane % 4) * (2 * weighted[lane] + rest * plain[lane]);
        }
        return result;
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
    for (; i + 16 <= words; i += 16) lanes.add_line(data + 4 * i, keys + i);
    sums.merge(lanes.sums(word, i / 16));
    return i;
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
