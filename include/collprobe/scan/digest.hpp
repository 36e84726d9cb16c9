// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/simd/vector.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Words of 32 bits after which the keys repeat.
inline constexpr std::uint32_t digest_period = 2048;
inline constexpr std::uint32_t digest_period_bytes = 4 * digest_period;

/// The key of the words whose index is `word` modulo the period: odd, pseudo-random (SplitMix64). All keys are
/// distinct (a test checks it). A device thread whose stride is the period keeps its keys.
COLLPROBE_HD constexpr std::uint32_t digest_key(std::uint32_t word) noexcept
{
    return static_cast<std::uint32_t>(mix64((std::uint64_t{word} + 1) * 0x9e3779b97f4a7c15u) >> 32) | 1;
}

/// The second sum weighs each product of a word and its key by the word's place in the period: by its lane and by its
/// group. Both factors are odd. The lane is the pair of words, of the four pairs in 32 bytes, that the word belongs
/// to. The words of even index in a line of 64 bytes share a group with the words of odd index in the line before,
/// because vector code adds up its running sums once a line, between even and odd words. So the two words of an
/// 8-byte element are in different groups.
COLLPROBE_HD constexpr std::uint64_t digest_lane_key(std::uint32_t lane) noexcept
{
    return mix64(0x13198a2e03707344u + lane * 0x9e3779b97f4a7c15u) | 1;
}
COLLPROBE_HD constexpr std::uint64_t digest_weight_of_group(std::uint64_t group) noexcept { return 257 - 2 * group; }
COLLPROBE_HD constexpr std::uint32_t digest_group(std::uint32_t word) noexcept { return word / 16 + word % 2; }
COLLPROBE_HD constexpr std::uint64_t digest_weight(std::uint32_t word) noexcept
{
    return digest_lane_key(word / 2 % 4) * digest_weight_of_group(digest_group(word));
}

/// Sums over the words of one period, or over part of it, modulo 2^64.
struct digest_sums {
    std::uint64_t first = 0;
    std::uint64_t second = 0;

    /// `word`: index in the period.
    COLLPROBE_HD constexpr void add(std::uint32_t word, std::uint32_t value, std::uint32_t key) noexcept
    {
        const std::uint64_t product = std::uint64_t{value} * key;
        first += product;
        second += product * digest_weight(word);
    }
    COLLPROBE_HD constexpr void merge(const digest_sums& other) noexcept
    {
        first += other.first;
        second += other.second;
    }
};

/// The state of a digest: two sums over the words read so far, and the number of their bytes.
///
/// The digest of a buffer depends on its bytes, their positions and their number alone. Both sums are linear in the
/// bytes. So the states of parts of a buffer, cut at any byte and read in any order, add up to the state of the
/// whole.
///
/// A digest always shows zeros that were appended to a buffer. At least one sum changes if one element changes, if
/// the same bits flip in two words of a period (8 KiB), or if two such words are swapped. The digest misses a change
/// that alters both sums with probability about 2^-64. Any other change leaves both sums as they were with
/// probability about 2^-62. The digest finds errors; it does not resist an attacker who builds a collision.
///
/// Cost of a word: one product of 32 x 32 -> 64 bits and one addition; and one addition for each lane of a line of 64
/// bytes.
/// Source: scan/digest.md has the definition and the proofs.
struct digest_state {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    std::uint64_t bytes = 0;

    /// Takes in one element. `first_byte`: its offset in the buffer, a multiple of its size.
    template <element T>
    COLLPROBE_HD constexpr void add(std::uint64_t first_byte, T value) noexcept
    {
        const auto bits = std::uint64_t{to_bits(value)};
        if constexpr (sizeof(T) == 8) {
            add_word(first_byte / 4, static_cast<std::uint32_t>(bits));
            add_word(first_byte / 4 + 1, static_cast<std::uint32_t>(bits >> 32));
        } else {
            add_word(first_byte / 4, static_cast<std::uint32_t>(bits << (8 * (first_byte % 4))));
        }
        bytes += sizeof(T);
    }

    /// Adds `word` to the word of that index. Leaves `bytes` to the caller.
    COLLPROBE_HD constexpr void add_word(std::uint64_t index, std::uint32_t word) noexcept
    {
        const auto j = static_cast<std::uint32_t>(index % digest_period);
        digest_sums sums;
        sums.add(j, word, digest_key(j));
        add_sums(index / digest_period, sums);
    }

    /// Adds sums over words of the period `period` (word index / 2048). Leaves `bytes` to the caller.
    COLLPROBE_HD constexpr void add_sums(std::uint64_t period, const digest_sums& sums) noexcept
    {
        constexpr std::uint64_t step = 0x9e3779b97f4a7c15u;
        const std::uint64_t seed = 0x243f6a8885a308d3u + 2 * period * step;
        first += (mix64(seed) | 1) * sums.first;
        second += (mix64(seed + step) | 1) * sums.second;
    }

    /// Joins the state of another part of the same buffer, before or after this one.
    COLLPROBE_HD constexpr void merge(const digest_state& other) noexcept
    {
        first += other.first;
        second += other.second;
        bytes += other.bytes;
    }

    /// The digest, once every byte has been taken in exactly once.
    COLLPROBE_HD constexpr std::uint64_t finish() const noexcept
    {
        return mix64(first + mix64(second + (bytes + 1) * 0xd1342543de82ef95u));
    }
};

/// The keys of a period and some more: vector code reads the odd keys by a load that is one key ahead, and the last
/// such load needs the additional keys.
struct digest_key_table {
    alignas(64) std::uint32_t key[digest_period + 16] = {};

    constexpr digest_key_table() noexcept
    {
        for (std::uint32_t j = 0; j < digest_period + 16; ++j) key[j] = digest_key(j % digest_period);
    }
};
inline constexpr digest_key_table digest_keys{};

} // namespace detail
} // namespace collprobe

#define COLLPROBE_KERNEL <collprobe/scan/detail/digest_kernel.hpp>
#include <collprobe/simd/dispatch.hpp>

namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

inline std::uint32_t load_word(const unsigned char* from) noexcept
{
    return std::uint32_t{from[0]} | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16
        | std::uint32_t{from[3]} << 24;
}

/// Sums over `words` words. The first is word `word` of a period, and the last is within the same period.
inline digest_sums sum_words([[maybe_unused]] isa path, const unsigned char* data, std::uint64_t words,
    std::uint64_t word) noexcept
{
    digest_sums sums;
    std::uint64_t i = 0;
    const auto scalar_until = [&](std::uint64_t end) {
        for (; i < end; ++i)
            sums.add(static_cast<std::uint32_t>(word + i), load_word(data + 4 * i), digest_keys.key[word + i]);
    };
    if (path != isa::portable) {
        const std::uint64_t head = (16 - word % 16) % 16;
        scalar_until(head < words ? head : words);
        i += COLLPROBE_ON_ISA(path, 0, sum_words(data + 4 * i, words - i, word + i, sums));
    }
    scalar_until(words);
    return sums;
}

/// The state of `bytes` bytes that begin at offset `first_byte` of their buffer.
inline digest_state digest_bytes(
    isa path, const unsigned char* data, std::uint64_t bytes, std::uint64_t first_byte) noexcept
{
    digest_state state;
    std::uint64_t done = 0;
    const auto bytes_until = [&](std::uint64_t end) {
        for (; done < end; ++done) state.add(first_byte + done, data[done]);
    };
    const std::uint64_t head = (4 - first_byte % 4) % 4;
    bytes_until(head < bytes ? head : bytes);
    while (bytes - done >= 4) {
        const std::uint64_t word = (first_byte + done) / 4;
        const std::uint64_t left = digest_period - word % digest_period;
        const std::uint64_t whole = (bytes - done) / 4;
        const std::uint64_t words = whole < left ? whole : left;
        state.add_sums(word / digest_period, sum_words(path, data + done, words, word % digest_period));
        state.bytes += 4 * words;
        done += 4 * words;
    }
    bytes_until(bytes);
    return state;
}

template <class T>
void require_data(view<const T> input, const char* call, const call_site& where)
{
    if (input.data() != nullptr || input.empty()) return;
    refuse(call, "null input with a count of " + std::to_string(input.count()), where);
}

/// For functions that read elements; a digest reads bytes.
template <class T>
void require_aligned(view<const T> input, const char* call, const call_site& where)
{
    if (input.aligned()) return;
    refuse(call, "input is not aligned to " + std::to_string(alignof(T)) + " bytes", where);
}

} // namespace detail

/// The 64-bit digest of a buffer: equal for equal bytes, on every machine and device. `digest_state` says what it
/// detects; scan/digest.md has the definition.
///
/// Shapes: `input`: elements in host memory, of any alignment.
/// \throws error `invalid_argument` on a null pointer with a count above 0.
/// Cost: one read of the buffer; no allocation.
template <element T>
std::uint64_t digest(view<const T> input, call_site where = call_site::current())
{
    detail::require_data(input, "digest", where);
    return detail::digest_bytes(detail::best_isa(), reinterpret_cast<const unsigned char*>(input.data()),
        input.size_bytes(), 0)
        .finish();
}

} // namespace collprobe
