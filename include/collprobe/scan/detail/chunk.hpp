// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/device/slots.hpp>
#include <collprobe/scan/detail/words.hpp>

/// What a thread of a GPU takes in at a time: sixteen bytes of each of four runs of 4 KiB. On the host the same code
/// reads ordinary memory: a test runs the schedule of a kernel there.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr unsigned chunk_runs = 4;
inline constexpr unsigned chunk_bytes = chunk_runs * round_bytes;
/// Chunks that the threads of a block prepare for together.
inline constexpr unsigned prepared_chunks = 32;

/// A buffer is cut into at most so many slots, and slot s has every chunk c of which c mod slots is s. So a block of
/// each GPU that has as many at once (H100: 132 multiprocessors, 4 blocks each) leaves one partial result. The number
/// does not depend on the GPU, so neither do the bits.
inline constexpr unsigned read_slots = 528;
COLLPROBE_HD constexpr std::uint64_t chunks_of(std::uint64_t bytes) noexcept
{
    return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

/// Where the thread's words of a chunk stand.
struct chunk {
    std::uint64_t byte; ///< offset of the first run's words in the buffer; the others follow at each `round_bytes`
    std::uint64_t bytes; ///< of the buffer
    unsigned step = 0; ///< the how manieth it is of those that the block prepared for
    const unsigned char* data = nullptr; ///< the buffer

    /// Whether the words of the first `runs` runs are in the buffer.
    COLLPROBE_HD constexpr bool is_whole(unsigned runs = chunk_runs) const noexcept
    {
        return byte + (runs - 1) * round_bytes + 16 <= bytes;
    }
    /// The bytes of run `k` that are in the buffer, at most 16.
    COLLPROBE_HD constexpr unsigned bytes_of(unsigned k) const noexcept
    {
        const std::uint64_t begin = byte + k * round_bytes;
        return begin >= bytes ? 0 : bytes - begin < 16 ? static_cast<unsigned>(bytes - begin) : 16;
    }
    /// How many zeros stand for elements beyond the buffer.
    template <class T>
    COLLPROBE_HD constexpr unsigned missing() const noexcept
    {
        if (is_whole()) return 0;
        unsigned there = 0;
        for (unsigned k = 0; k < chunk_runs; ++k) there += bytes_of(k);
        return (16 * chunk_runs - there) / sizeof(T);
    }
    /// Reads the words of another buffer at the same places, with zeros beyond its end.
    template <unsigned runs>
    COLLPROBE_HD void load(const byte_source& from, words16 (&to)[runs]) const noexcept
    {
        if (is_whole(runs)) return from.load(to, byte, round_bytes);
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < runs; ++k) to[k] = load_some(from.data + byte + k * round_bytes, 0, bytes_of(k));
    }
};

/// Calls `use(element)` for the elements of words, in their order.
template <class T, unsigned runs, class Use>
COLLPROBE_HD inline void each_value(const words16 (&words)[runs], const Use& use) noexcept
{
    COLLPROBE_UNROLL
    for (unsigned k = 0; k < runs; ++k) {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_words16<T>; ++e) use(element_of<T>(words[k], e));
    }
}

/// Calls `use(element, index)` for the elements that are in the buffer, in their order. For what is rare: the elements
/// are read once more, so that words need no registers for it.
template <class T, unsigned runs>
COLLPROBE_HD inline void each_element_again(const chunk& at, const auto& use) noexcept
{
    COLLPROBE_NO_UNROLL
    for (unsigned k = 0; k < runs; ++k) {
        const std::uint64_t first = (at.byte + k * round_bytes) / sizeof(T);
        const std::uint64_t end = first + at.bytes_of(k) / sizeof(T);
        COLLPROBE_NO_UNROLL
        for (std::uint64_t index = first; index < end; ++index)
            use(reinterpret_cast<const T*>(at.data)[index], index);
    }
}

/// The value of elements of less than 32 bits as floats, in this unit: that of e4m3 saves a product for each element.
template <class T>
inline constexpr double float_unit = on_device && std::is_same_v<T, float8_e4m3> ? 0x1p8 : 1;

/// The elements of a word as floats, divided by `float_unit`.
template <class T>
struct floats_of_word {
    static constexpr unsigned count = 4 / sizeof(T);
    float of[count];

    COLLPROBE_HD explicit floats_of_word(std::uint32_t word) noexcept
    {
        if constexpr (!on_device) {
            using bits = typename element_traits<T>::bits_type;
            for (unsigned e = 0; e < count; ++e)
                of[e] = static_cast<float>(bit_cast<T>(static_cast<bits>(word >> (8 * sizeof(T) * e))));
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            of[0] = bit_cast<float>(word << 16);
            of[1] = bit_cast<float>(word & 0xffff0000u);
        } else if constexpr (std::is_same_v<T, float16>) {
            floats_of_half_bits(word, of[0], of[1]);
        } else {
            floats_of_half_bits(halves_of(word << 8), of[0], of[2]);
            floats_of_half_bits(halves_of(word), of[1], of[3]);
        }
    }

private:
    /// Of the bytes 1 and 3. A half has e5m2 in its upper byte; e4m3 fits below its sign and its highest exponent bit.
    COLLPROBE_HD static std::uint32_t halves_of(std::uint32_t word) noexcept
    {
        if constexpr (std::is_same_v<T, float8_e4m3>) return (word & 0x80008000u) | (word >> 1 & 0x3f803f80u);
        else return word & 0xff00ff00u;
    }
};

/// Calls `use(i, x)` for elements of less than 32 bits, as floats in units of `float_unit`.
template <class T, unsigned runs, class Use>
COLLPROBE_HD inline void each_float(const words16 (&words)[runs], const Use& use) noexcept
{
    COLLPROBE_UNROLL
    for (unsigned word = 0; word < 4 * runs; ++word) {
        const floats_of_word<T> floats(words[word / 4].w[word % 4]);
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < floats.count; ++e) use(word * floats.count + e, floats.of[e]);
    }
}

/// The bits of the largest magnitude, with those that are not finite.
template <class T, unsigned runs>
COLLPROBE_HD inline std::uint64_t largest_magnitude(const words16 (&words)[runs]) noexcept
{
    using bits = typename element_traits<T>::bits_type;
    if constexpr (sizeof(T) < 4) {
        constexpr std::uint32_t magnitudes = sizeof(T) == 2 ? 0x7fff7fff : 0x007f007f;
        std::uint32_t most = 0; // of two at a time
        COLLPROBE_UNROLL
        for (unsigned i = 0; i < 4 * runs; ++i) {
            const std::uint32_t word = words[i / 4].w[i % 4];
            most = larger_halves(most, word & magnitudes);
            if constexpr (sizeof(T) == 1) most = larger_halves(most, word >> 8 & magnitudes);
        }
        return larger(most & 0xffff, most >> 16);
    } else {
        bits most = 0;
        each_value<T>(words, [&](T element) {
            most = larger(most, static_cast<bits>(to_bits(element) & ~element_traits<T>::sign_mask));
        });
        return most;
    }
}

/// The number of zeros of either sign.
template <class T, unsigned runs>
COLLPROBE_HD inline unsigned count_zeros(const words16 (&words)[runs]) noexcept
{
    unsigned zeros = 0;
    if constexpr (sizeof(T) >= 4) {
        each_value<T>(words, [&](T element) {
            zeros += (to_bits(element) & ~element_traits<T>::sign_mask) == 0 ? 1u : 0u;
        });
    } else {
        // The sum has an element's highest bit if it is not zero. The bits of several words are counted together.
        constexpr std::uint32_t magnitudes = sizeof(T) == 2 ? 0x7fff7fff : 0x7f7f7f7f;
        constexpr unsigned together = 8 * sizeof(T);
        zeros = runs * per_words16<T>;
        COLLPROBE_UNROLL
        for (unsigned begin = 0; begin < 4 * runs; begin += together) {
            std::uint32_t found = 0;
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < together; ++i) {
                const std::uint32_t word = words[(begin + i) / 4].w[(begin + i) % 4] & magnitudes;
                found |= ((word + magnitudes) & ~magnitudes) >> i;
            }
            zeros -= set_bits(found);
        }
    }
    return zeros;
}

} // namespace collprobe::detail
