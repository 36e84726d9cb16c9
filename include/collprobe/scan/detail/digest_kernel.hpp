// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: simd/dispatch.hpp includes this once per instruction set.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::inline COLLPROBE_ABI::detail::COLLPROBE_ISA_NAMESPACE {

/// The sums of a digest over consecutive lines of 64 bytes: `digest_lane_sums` for each 64-bit lane of a vector. A
/// multiplication takes the low halves of such lanes. There a load of words has the words of even index, and a load of
/// keys from one key further on has the keys of odd index. (For the words a shift is faster.)
struct digest_lanes {
    words64 plain = {};
    words64 weighted = {};
    words64 placed = {}; // a vector as wide as a line: without the 2 that the first half counts more

    // Written out, here and below, because GCC compiles an implicit constructor for the baseline.
    [[gnu::always_inline]] digest_lanes() noexcept {}

    [[gnu::always_inline]] void add_line(const void* line, const std::uint32_t* keys) noexcept
    {
        if constexpr (width == 32)
            add_vectors(load<words64>(line), load<words64>(static_cast<const unsigned char*>(line) + 32), keys);
        else add_vectors(load<words64>(line), words64{}, keys);
    }
    /// A line in vectors; `high` is for those of half a line. Loads as wide as a line are slow if they cross one: so
    /// words are loaded once, and the odd keys of such a vector come from a shift, too.
    [[gnu::always_inline]] void add_vectors(
        words64 low, [[maybe_unused]] words64 high, const std::uint32_t* keys) noexcept
    {
        asm("" : "+" COLLPROBE_ISA_REGISTER(low)); // without this GCC loads it again for the shift
        words64 even_keys = load<words64>(keys);
        if constexpr (width == 64) asm("" : "+" COLLPROBE_ISA_REGISTER(even_keys));
        const words64 odd_keys = width == 64 ? even_keys >> 32 : load<words64>(keys + 1);
        words64 sum = multiply_low_halves(low, even_keys);
        placed += sum;
        sum += multiply_low_halves(low >> 32, odd_keys);
        if constexpr (width == 32) {
            asm("" : "+" COLLPROBE_ISA_REGISTER(high));
            placed += sum;
            sum += multiply_low_halves(high, load<words64>(keys + 8));
            placed += sum;
            sum += multiply_low_halves(high >> 32, load<words64>(keys + 9));
        }
        plain += sum;
        weighted += plain;
    }

    /// Adds the sums over `lines` lines to `to`. `word`: index in the period of the first word, a multiple of 16.
    [[gnu::always_inline]] void add_to(digest_sums& to, std::uint64_t word, std::uint64_t lines) const noexcept
    {
        COLLPROBE_ISA_UNROLL
        for (unsigned lane = 0; lane < width / 8; ++lane) {
            const std::uint64_t first_half = width == 64 && lane < 4 ? 2 * plain[lane] : 0;
            const digest_lane_sums own{plain[lane], weighted[lane], placed[lane] + first_half};
            own.add_to(to, lane % 4, word / 16 + lines);
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
    constexpr std::uint64_t ahead = width == 64 ? 12288 : 4096; // bytes, as in `prefetch_ahead`
    for (; i + 16 <= words; i += 16) {
        __builtin_prefetch(data + 4 * i + ahead);
        lanes.add_line(data + 4 * i, keys + i);
    }
    lanes.add_to(sums, word, i / 16);
    return i;
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
