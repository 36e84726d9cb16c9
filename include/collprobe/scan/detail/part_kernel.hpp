// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// The bytes of a line from `first` to `end`, and zeros around them, which are not read.
struct line_bytes {
    words64 low;
    words64 high; // of half a line

    [[gnu::always_inline]] line_bytes(
        const unsigned char* line, unsigned first, unsigned end) noexcept
        : low{}, high{}
    {
        const ints low_bytes{0, 4, 8, 12, 16, 20, 24, 28};
        const ints high_bytes = low_bytes + 32;
        const int from = static_cast<int>((first + 3) / 4 * 4);
        const int to = static_cast<int>(end / 4 * 4);
        ints low_words = load_words(line, (low_bytes >= from) & (low_bytes < to));
        ints high_words = load_words(line + 32, (high_bytes >= from) & (high_bytes < to));
        // A word that is not read whole: the first one, the last one, or one that is both.
        const auto add_bytes = [&](unsigned begin, unsigned stop) {
            std::uint32_t word = 0;
            for (unsigned i = begin; i < stop; ++i) word |= std::uint32_t{line[i]} << (8 * (i % 4));
            const int place = static_cast<int>(begin / 4 * 4);
            low_words |= (low_bytes == place) & static_cast<int>(word);
            high_words |= (high_bytes == place) & static_cast<int>(word);
        };
        const auto behind_first = static_cast<unsigned>(from);
        if (first % 4 != 0) add_bytes(first, behind_first < end ? behind_first : end);
        if (end % 4 != 0 && behind_first < end) add_bytes(end / 4 * 4, end);
        low = reinterpret_cast<words64>(low_words);
        high = reinterpret_cast<words64>(high_words);
    }
};

/// Adds rows to `to`, but not the number of their bytes. A row's sums stay in their lanes: they are multiplied by the
/// keys of its period there, and those of all rows are added up once.
inline void add_digest_rows(const digest_rows& all, digest_state& to) noexcept
{
    words64 plain = {};
    words64 weighted = {};
    words64 placed = {};
    digest_state period_keys;
    std::uint64_t period = ~std::uint64_t{0};
    // Bytes, or rows of as many bytes, as in `sum_words`.
    constexpr std::uint64_t ahead = 4096;
    const std::uint64_t distance = all.bytes < ahead && all.bytes != 0 ? ahead / all.bytes * all.memory_pitch : ahead;
    for (std::uint64_t row = 0; row < all.rows; ++row) {
        const unsigned char* from = all.data + row * all.memory_pitch;
        std::uint64_t first = all.first + row * all.pitch;
        for (const std::uint64_t row_end = first + all.bytes; first < row_end;) {
            if (first / digest_period_bytes != period) {
                period = first / digest_period_bytes;
                period_keys = {};
                period_keys.add_sums(period, {1, 1});
            }
            const auto begin = static_cast<unsigned>(first % digest_period_bytes);
            const unsigned end = row_end - first < digest_period_bytes - begin
                ? begin + static_cast<unsigned>(row_end - first)
                : digest_period_bytes;
            // Where the line would begin: before the row, perhaps.
            const auto* line = reinterpret_cast<const unsigned char*>(
                reinterpret_cast<std::uintptr_t>(from) - begin % 64);
            unsigned at = begin / 64 * 64;
            const std::uint32_t* keys = digest_keys.key + at / 4;
            digest_lanes lanes;
            // Inlined, so that the sums stay in registers.
            const auto add_part = [&](unsigned from_byte, unsigned to_byte) __attribute__((always_inline)) {
                __builtin_prefetch(line + distance);
                const line_bytes bytes(line, from_byte, to_byte);
                lanes.add_vectors(bytes.low, bytes.high, keys);
            };
            const auto next = [&] {
                at += 64;
                line += 64;
                keys += 16;
            };
            if (begin != at) {
                add_part(begin - at, end < at + 64 ? end - at : 64);
                next();
            }
            while (at + 64 <= end) {
                __builtin_prefetch(line + distance);
                lanes.add_line(line, keys);
                next();
            }
            if (at < end) {
                add_part(0, end - at);
                next();
            }
            plain += lanes.plain * period_keys.first;
            weighted += (2 * lanes.weighted + lanes.plain * digest_weight_of_line(at / 64)) * period_keys.second;
            placed += lanes.placed * period_keys.second;
            from += end - begin;
            first += end - begin;
        }
    }
    COLLPROBE_UNROLL_VECTORS
    for (unsigned lane = 0; lane < 4; ++lane) {
        to.first += plain[lane];
        to.second += digest_keys.line[lane] * weighted[lane] + 2 * digest_keys.place[lane] * placed[lane];
    }
}

/// `cast_float` of floats of any alignment.
inline void cast_floats(
    const unsigned char* from, std::uint64_t count, const element_cast& cast, std::uint16_t* to) noexcept
{
    constexpr std::uint64_t lanes = 8;
    const bool to_bfloat16 = cast.type == element_type::bfloat16;
    const bool nearest = cast.rounding == cast_rounding::nearest_even;
    std::uint64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        if (to_bfloat16) {
            const auto bits = load<words32>(from + 4 * i);
            const auto magnitude = reinterpret_cast<ints>(bits & 0x7fffffffu);
            const auto not_a_number = reinterpret_cast<words32>(magnitude > 0x7f800000);
            const words32 rounded = nearest ? rounded_to_bfloat16(bits) : bits;
            const words32 result = (not_a_number & (bits | 0x400000u)) | (~not_a_number & rounded);
            store(to + i, lower_halves(result >> 16));
        } else {
            const auto eight = load<floats>(from + 4 * i);
            if (!nearest && !truncates_to_half) break;
            store(to + i, nearest ? half_bits_of_floats<true>(eight) : half_bits_of_floats<!truncates_to_half>(eight));
        }
    }
    for (; i < count; ++i) to[i] = cast_float(load<std::uint32_t>(from + 4 * i), cast);
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
