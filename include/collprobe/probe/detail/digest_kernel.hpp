// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: for_each_isa.hpp includes this once per instruction set.
#if defined(COLLPROBE_ISA_NAMESPACE)
namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE {

inline constexpr int width = COLLPROBE_ISA_WIDTH; // bytes of a vector
using words64 = vector<std::uint64_t, width>;

template <class V>
[[gnu::always_inline]] inline V load(const void* from) noexcept
{
    typedef V unaligned __attribute__((aligned(1), may_alias));
    return *static_cast<const unaligned*>(from);
}

/// The product of the low halves of each 64-bit lane.
[[gnu::always_inline]] inline words64 multiply_low_halves(words64 a, words64 b) noexcept
{
#if COLLPROBE_ISA_WIDTH == 32
    using v8si = vector<int, 32>;
    return (words64)__builtin_ia32_pmuludq256((v8si)a, (v8si)b);
#elif defined(COLLPROBE_ISA_AVX512) && !defined(__clang__)
    using v16si = vector<int, 64>;
    using v8di = vector<long long, 64>;
    return (words64)__builtin_ia32_pmuludq512_mask((v16si)a, (v16si)b, v8di{}, -1);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu); // clang sees the instruction in this
#endif
}

/// The sums of a digest over consecutive whole vectors. `weighted` adds up the running sums, so that a
/// vector counts once for each vector from it to the end: a weight by position, without a product.
/// Multiplication takes the low halves of 64-bit lanes, where a load has its words of even index; keys
/// loaded one further on have those of odd index there. (For the words a shift is faster.)
struct digest_lanes {
    words64 plain = {};
    words64 weighted = {};

    // Written out, here and below: GCC compiles an implicit constructor for the baseline.
    [[gnu::always_inline]] digest_lanes() noexcept {}

    [[gnu::always_inline]] void add(words64 words, const std::uint32_t* keys) noexcept
    {
        plain += multiply_low_halves(words, load<words64>(keys));
        plain += multiply_low_halves(words >> 32, load<words64>(keys + 1));
        weighted += plain;
    }

    /// `word`: index in the period of the first word, a multiple of 8; `steps`: vectors added.
    [[gnu::always_inline]] digest_sums sums(std::uint64_t word, std::uint64_t steps) const noexcept
    {
        constexpr std::uint64_t groups = width / 32; // of 8 words, in a vector
        digest_sums result;
        for (unsigned lane = 0; lane < width / 8; ++lane) {
            const std::uint64_t rest = digest_weight_of_group(word / 8 + lane / 4) - 2 * groups * steps;
            result.first += plain[lane];
            result.second += digest_lane_key(lane % 4) * (2 * groups * weighted[lane] + rest * plain[lane]);
        }
        return result;
    }
};

/// Adds the leading words that fill whole vectors to `sums`; returns how many those are. The first is
/// word `word` of its period, a multiple of 8.
inline std::uint64_t sum_words(
    const unsigned char* data, std::uint64_t words, std::uint64_t word, digest_sums& sums) noexcept
{
    constexpr std::uint64_t step = width / 4;
    const std::uint32_t* const keys = digest_keys.key + word;
    digest_lanes lanes;
    std::uint64_t i = 0;
    for (; i + step <= words; i += step) lanes.add(load<words64>(data + 4 * i), keys + i);
    sums.merge(lanes.sums(word, i / step));
    return i;
}

} // namespace collprobe::detail::COLLPROBE_ISA_NAMESPACE
#endif
