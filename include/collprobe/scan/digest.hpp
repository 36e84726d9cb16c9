// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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

/// The second sum multiplies each product of a word and its key by a weight. It is odd, and each word of a period has
/// its own. A line of 64 bytes has four lanes: the words at bytes 0 to 7 and 32 to 39 have lane 0, the next have lane 1
/// and so on. The four words of a line and a lane have places 0 to 3. Each lane has odd keys for line and place. So
/// vector code makes the weights by adding up running sums, without a multiplication.
COLLPROBE_HD constexpr std::uint32_t digest_lane(std::uint32_t word) noexcept { return word / 2 % 4; }
COLLPROBE_HD constexpr std::uint32_t digest_place(std::uint32_t word) noexcept { return word / 8 % 2 * 2 + word % 2; }
COLLPROBE_HD constexpr std::uint64_t digest_line_key(std::uint32_t lane) noexcept
{
    return mix64(0x13198a2e03707344u + lane * 0x9e3779b97f4a7c15u) | 1;
}
COLLPROBE_HD constexpr std::uint64_t digest_place_key(std::uint32_t lane) noexcept
{
    return digest_line_key(4 + lane);
}
COLLPROBE_HD constexpr std::uint64_t digest_weight_of_line(std::uint64_t line) noexcept { return 257 - 2 * line; }
COLLPROBE_HD constexpr std::uint64_t digest_weight(std::uint32_t word) noexcept
{
    const std::uint32_t lane = digest_lane(word);
    return digest_line_key(lane) * digest_weight_of_line(word / 16)
        + 2 * digest_place_key(lane) * (3 - digest_place(word));
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
/// A digest always shows zeros that were appended to a buffer. At least one sum changes if all changes are within two
/// words of a period (8 KiB); so it does if one element changes. The digest misses a change that alters both sums with
/// probability about 2^-64. Any other change leaves both sums as they were with probability at most about 2^-62, or
/// 2^-57 if only the upper five bits of words change. The digest finds errors; it does not resist an attacker who
/// builds a collision.
///
/// Cost of a word: one product of 32 x 32 -> 64 bits and two additions.
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
/// such load needs the additional keys. And the keys of the lanes.
struct digest_key_table {
    alignas(64) std::uint32_t key[digest_period + 16] = {};
    std::uint64_t line[4] = {};
    std::uint64_t place[4] = {};

    constexpr digest_key_table() noexcept
    {
        for (std::uint32_t j = 0; j < digest_period + 16; ++j) key[j] = digest_key(j % digest_period);
        for (std::uint32_t lane = 0; lane < 4; ++lane) {
            line[lane] = digest_line_key(lane);
            place[lane] = digest_place_key(lane);
        }
    }
};
inline constexpr digest_key_table digest_keys{};

/// Running sums of products in a lane, as vector code and portable code keep them line by line.
struct digest_lane_sums {
    std::uint64_t plain = 0; ///< each product once
    std::uint64_t weighted = 0; ///< `plain` after each line, added up: each product times the lines from its own on
    std::uint64_t placed = 0; ///< each product times 3 - place

    /// Adds them to the sums of a period. `end`: index in the period of the line behind the last that was added.
    constexpr void add_to(digest_sums& sums, std::uint32_t lane, std::uint64_t end) const noexcept
    {
        sums.first += plain;
        sums.second += digest_keys.line[lane] * (2 * weighted + digest_weight_of_line(end) * plain)
            + 2 * digest_keys.place[lane] * placed;
    }
};

} // namespace detail
} // namespace collprobe

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

namespace collprobe::inline COLLPROBE_ABI {
namespace detail {

inline std::uint32_t load_word(const unsigned char* from) noexcept
{
    return std::uint32_t{from[0]} | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16
        | std::uint32_t{from[3]} << 24;
}

/// The sums over lines of 64 bytes, all in one period: the portable path. The first word is word `word` of the period,
/// a multiple of 16.
inline digest_sums sum_lines(const unsigned char* data, std::uint64_t lines, std::uint64_t word) noexcept
{
    const std::uint32_t* const keys = digest_keys.key + word;
    digest_lane_sums lanes[4];
    for (std::uint64_t i = 0; i < 16 * lines; i += 16) {
        for (unsigned lane = 0; lane < 4; ++lane) {
            digest_lane_sums& own = lanes[lane];
            const std::uint64_t first = i + 2 * lane;
            std::uint64_t sum = std::uint64_t{load_word(data + 4 * first)} * keys[first];
            own.placed += sum;
            sum += std::uint64_t{load_word(data + 4 * first + 4)} * keys[first + 1];
            own.placed += sum;
            sum += std::uint64_t{load_word(data + 4 * first + 32)} * keys[first + 8];
            own.placed += sum;
            sum += std::uint64_t{load_word(data + 4 * first + 36)} * keys[first + 9];
            own.plain += sum;
            own.weighted += own.plain;
        }
    }
    digest_sums sums;
    for (unsigned lane = 0; lane < 4; ++lane) lanes[lane].add_to(sums, lane, word / 16 + lines);
    return sums;
}

/// The state of `bytes` bytes that begin at offset `first_byte` of their buffer.
inline digest_state digest_bytes(
    isa path, const unsigned char* data, std::uint64_t bytes, std::uint64_t first_byte) noexcept
{
    digest_state state{0, 0, bytes};
    const std::uint64_t end = first_byte + bytes;
    while (first_byte < end) {
        // The whole lines up to the end of the period, or a part of one, among zeros, which add nothing.
        const std::uint64_t in_period = first_byte % digest_period_bytes;
        const std::uint64_t in_line = first_byte % 64;
        std::uint64_t taken = lesser(end - first_byte, digest_period_bytes - in_period) / 64 * 64;
        const unsigned char* from = data;
        unsigned char line[64] = {};
        if (in_line != 0 || taken == 0) {
            taken = lesser(end - first_byte, 64 - in_line);
            std::memcpy(line + in_line, data, static_cast<std::size_t>(taken));
            from = line;
        }
        const std::uint64_t lines = from == data ? taken / 64 : 1;
        const std::uint64_t word = in_period / 64 * 16;
        state.add_sums(first_byte / digest_period_bytes,
            COLLPROBE_ON_ISA(path, sum_lines(from, lines, word), sum_lines(from, lines, word)));
        data += taken;
        first_byte += taken;
    }
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
