// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/slots.hpp>
#include <collprobe/scan/detail/block_sums.hpp>
#include <collprobe/scan/detail/scan_range.hpp>
#include <collprobe/scan/detail/words.hpp>
#include <collprobe/scan/digest.hpp>

/// One GPU thread's work on its part of a slot. Thread t of 256 takes in bytes 16 t to 16 t + 15 of each round of
/// 4096 bytes, whatever the alignment of the buffer. So a sum always has the same terms in the same order, and a
/// thread keeps the digest keys of its four words.
///
/// Cost: 8 instructions a float, 15 with the digest; the memory of an H200 leaves time for 24 (counted in the code
/// for sm_90; bench/results/kernel_resources.md has all types). On GPUs with few double-precision units these limit
/// the speed: three operations an element.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The parts of a scan that the caller wants.
struct scan_features {
    bool moments; ///< counts, extrema, sum, sum of absolute values; if false, squares and the values they need
    bool digest;
    bool copy; ///< every byte is written to a second buffer
    bool dot; ///< the dot product with a second buffer of the same type, if there is one
    bool no_values = false; ///< only bytes: the scan does not look at their values
    bool rows = false; ///< the vectors of a batch have the same place in their periods of the digest: see `scan_rows`
};

template <element T>
struct scan_input {
    byte_source source;
    byte_source other; ///< the second buffer of the dot product; null if there is none
    unsigned char* destination = nullptr; ///< the destination of the copy
};

/// Rare counts, kept once for each block: a thread that finds such an element adds to them. A slot has less than 2^32
/// elements.
struct rare_counts {
    static constexpr std::uint32_t none_yet = 0xffffffff;

    std::uint32_t nan;
    std::uint32_t positive_infinity;
    std::uint32_t negative_infinity;
    std::uint32_t first_nonfinite; ///< counted from the first element of the slot

    COLLPROBE_HD static constexpr rare_counts none() noexcept { return {0, 0, 0, none_yet}; }

    /// `kinds`: number of NaN, and of infinities of either sign from bit 8 and 16 on.
    COLLPROBE_HD void add(std::uint32_t kinds, std::uint32_t first) noexcept
    {
        add_to(nan, kinds & 0xff);
        add_to(positive_infinity, kinds >> 8 & 0xff);
        add_to(negative_infinity, kinds >> 16);
        lower_to(first_nonfinite, first);
    }
};

/// The factors by which the two sums of the digest multiply the words of a round: those of its period.
struct digest_factors {
    std::uint64_t first;
    std::uint64_t second;

    COLLPROBE_HD static digest_factors of_round(std::uint64_t round) noexcept
    {
        digest_state unit;
        unit.add_sums(round / 2, {1, 1});
        return {unit.first, unit.second};
    }
};

/// Sums of x 2^-scale - pivot over finite elements, of the numbers, their magnitudes and their squares.
struct shifted_sums {
    double sum = 0;
    double magnitudes = 0;
    double squares = 0;

    COLLPROBE_HD void merge(const shifted_sums& next) noexcept
    {
        sum += next.sum;
        magnitudes += next.magnitudes;
        squares += next.squares;
    }
    COLLPROBE_HD void add(double d) noexcept
    {
        sum += d;
        magnitudes += absolute(d);
        squares = multiply_add(d, d, squares);
    }
};

/// Those around a mean, of which the magnitudes are of no use.
struct centred_sums {
    double sum = 0;
    double squares = 0;

    COLLPROBE_HD static centred_sums of(const shifted_sums& all) noexcept { return {all.sum, all.squares}; }
    COLLPROBE_HD void merge(const centred_sums& next) noexcept
    {
        sum += next.sum;
        squares += next.squares;
    }
};

/// The multipliers of the digest for each word of a period: the word's key, and the key times the weight of its place.
/// Each thread has four words in either half of the period. Threads beside each other read sixteen bytes beside each
/// other, so the banks of shared memory have no conflicts.
struct digest_multipliers {
    static constexpr unsigned words_of_round = round_bytes / 4;
    static_assert(digest_period == 2 * words_of_round && words_of_round == 4 * block_threads);

    struct alignas(16) keys {
        std::uint32_t of[4];
    };
    struct alignas(16) weighted_keys {
        std::uint64_t of[2];
    };
    keys key[2][block_threads]; ///< half, thread
    weighted_keys weighted[2][2][block_threads]; ///< half, first or last two words, thread

    /// Fills in the words of a thread.
    COLLPROBE_HD void fill(unsigned lane) noexcept
    {
        COLLPROBE_NO_UNROLL
        for (unsigned half = 0; half < 2; ++half) {
            keys four;
            weighted_keys pair[2];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned word = half * words_of_round + 4 * lane + i;
                four.of[i] = digest_key(word);
                pair[i / 2].of[i % 2] = digest_key(word) * digest_weight(word);
            }
            key[half][lane] = four;
            weighted[half][0][lane] = pair[0];
            weighted[half][1][lane] = pair[1];
        }
    }
};

/// Sums of the digest, with the factors of the rounds applied.
struct digest_totals {
    std::uint64_t first = 0;
    std::uint64_t second = 0;

    COLLPROBE_HD void merge(const digest_totals& next) noexcept
    {
        first += next.first;
        second += next.second;
    }
};

/// Extrema, and counts of elements of a slot, which are less than 2^32.
template <element T>
struct range_totals {
    scan_extrema<T> range;
    std::uint32_t zero = 0;
    std::uint32_t small = 0; ///< zeros and subnormals

    COLLPROBE_HD void merge(const range_totals& next) noexcept
    {
        range.merge(next.range);
        zero += next.zero;
        small += next.small;
    }
};

/// Who else wants the numbers that a thread takes in: nobody.
struct no_listener {
    template <class Words>
    COLLPROBE_HD void nonfinite(const Words&) const noexcept
    {
    }
    COLLPROBE_HD void number(unsigned, unsigned, double) const noexcept {}
};

template <element T, scan_features features>
class thread_scan {
public:
    static constexpr unsigned per_vector = per_words16<T>;
    static constexpr unsigned per_round = per_vector * block_threads;

    shifted_sums sums;
    range_totals<T> counts;
    digest_totals digest;
    double dot = 0;

    /// `multipliers`: used if a digest is wanted. `lane`: whose multipliers. `stride`: elements from a vector to the
    /// next.
    COLLPROBE_HD explicit thread_scan(
        const digest_multipliers* multipliers, unsigned lane, std::uint32_t stride = per_round) noexcept
        : multipliers_(multipliers), lane_(lane), stride_(stride)
    {
    }

    /// Takes in `n` vectors: vector k of the round whose factors are `factors[k]`. `odd`: 1 if the first round is the
    /// second half of a period, else 0. `offset`: the place in the slot of the first vector's first element; each
    /// further vector is one round on. `other`: the vectors of the second buffer, if a dot product is wanted and
    /// `has_other`. `listener`: gets element e of vector k as a number; those that are not finite before, and as zeros.
    template <unsigned n, class Listener = no_listener>
    COLLPROBE_HD void take(words16 (&words)[n], const words16 (&other)[n], bool has_other, std::uint32_t offset,
        [[maybe_unused]] unsigned odd, const digest_factors* factors, rare_counts& rare,
        const Listener& listener = {}) noexcept
    {
        if constexpr (features.digest) {
            add_digest(words, odd, factors);
        }
        if constexpr (features.dot) {
            if (has_other) {
                COLLPROBE_UNROLL
                for (unsigned k = 0; k < n; ++k) add_products(words[k], other[k]);
            }
        }
        if constexpr (features.no_values) {
        } else if constexpr (!floating_element<T>) {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n; ++k) add_integers(words[k]);
        } else {
            scan_range<T> range;
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n; ++k) range.add(words[k]);
            bool small = range.has_small();
            if (range.has_nonfinite()) {
                range = scan_range<T>{};
                listener.nonfinite(words);
                take_out_nonfinite(words, range, offset, rare);
                small = true;
            } else if constexpr (std::is_same_v<T, double>) {
                COLLPROBE_UNROLL
                for (unsigned k = 0; k < n; ++k) {
                    range.add(element_of<T>(words[k], 0));
                    range.add(element_of<T>(words[k], 1));
                }
            }
            counts.range.merge(range.extrema());
            if constexpr (features.moments) {
                if (small) {
                    COLLPROBE_UNROLL
                    for (unsigned k = 0; k < n; ++k) count_small(words[k]);
                }
            }
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n; ++k) add_numbers(words[k], k, listener);
        }
    }

    /// Takes in one element of a vector that extends beyond the buffer.
    COLLPROBE_HD void take_element(T element, std::uint64_t index, std::uint32_t offset, rare_counts& rare) noexcept
    {
        if constexpr (features.digest) {
            digest_state one;
            one.add(index * sizeof(T), element);
            digest.first += one.first;
            digest.second += one.second;
        }
        if constexpr (features.no_values) return;
        if constexpr (floating_element<T>) {
            if (!is_finite(element)) return rare.add(kind_of(element), offset);
        }
        if constexpr (features.moments) {
            counts.zero += is_zero(element) ? 1u : 0u;
            counts.small += is_zero(element) || is_subnormal(element) ? 1u : 0u;
        }
        counts.range.add(element);
        const double x = widen(element);
        if constexpr (features.moments) {
            sums.sum += x;
            sums.magnitudes += absolute(x);
        }
        sums.squares = multiply_add(x, x, sums.squares);
    }

    COLLPROBE_HD void take_product(T element, T other) noexcept
    {
        dot = multiply_add(widen(element), widen(other), dot);
    }

    /// Moves integer sums of at most 256 vectors, which are exact until then, to the other sums.
    COLLPROBE_HD void settle() noexcept
    {
        if constexpr (is_byte_integer) {
            sums.sum += static_cast<double>(integer_sum_);
            sums.magnitudes
                += element_traits<T>::is_signed_type ? integer_magnitudes_ : static_cast<double>(integer_sum_);
            sums.squares += static_cast<double>(integer_squares_);
            integer_sum_ = integer_magnitudes_ = 0;
            integer_squares_ = 0;
        }
    }

private:
    static constexpr bool is_byte_integer = !floating_element<T> && sizeof(T) == 1;

    const digest_multipliers* multipliers_;
    unsigned lane_;
    std::uint32_t stride_;
    std::int32_t integer_sum_ = 0; // of 8-bit integers
    std::int32_t integer_magnitudes_ = 0;
    std::uint32_t integer_squares_ = 0;

    COLLPROBE_HD static std::uint32_t kind_of(T element) noexcept
    {
        return is_nan(element) ? 1 : is_negative(element) ? 1u << 16 : 1u << 8;
    }

    /// Counts the non-finite elements and makes them zero; takes the range of the rest. This case is rare, so the
    /// code is small: a loop looks at one word at the front at a time. The words rotate to the front, and are in
    /// their places at the end.
    template <unsigned n>
    COLLPROBE_HD void take_out_nonfinite(
        words16 (&words)[n], scan_range<T>& range, std::uint32_t offset, rare_counts& rare) noexcept
    {
        constexpr unsigned turn = sizeof(T) == 8 ? 2 : 1; // words
        constexpr unsigned elements = 4 * turn / sizeof(T);
        std::uint32_t cleared = 0;
        std::uint32_t kinds = 0;
        std::uint32_t first = rare_counts::none_yet;
        COLLPROBE_NO_UNROLL
        for (unsigned at = 0; at < 4 * n; at += turn) {
            words16 front{{words[0].w[0], words[0].w[1], 0, 0}};
            COLLPROBE_UNROLL
            for (unsigned e = 0; e < elements; ++e) {
                const T x = element_of<T>(front, e);
                if (is_finite(x)) {
                    range.add(x);
                } else {
                    kinds += kind_of(x);
                    const std::uint32_t place = offset + at / 4 * stride_ + at % 4 / turn * elements + e;
                    first = smaller(first, place);
                    ++cleared;
                    clear_element<T>(front, e);
                }
            }
            COLLPROBE_UNROLL
            for (unsigned i = 0; i + turn < 4 * n; ++i) words[i / 4].w[i % 4] = words[(i + turn) / 4].w[(i + turn) % 4];
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < turn; ++i) words[n - 1].w[4 - turn + i] = front.w[i];
        }
        rare.add(kinds, first);
        if constexpr (features.moments) {
            // A cleared element is about to be counted as a zero.
            counts.zero -= cleared;
            counts.small -= cleared;
        }
    }

    /// Products modulo 2^64. The multipliers are the thread's own for all periods. They are read from memory each
    /// time: six loads a batch save 24 registers. `odd`: the first round is the second half of a period.
    template <unsigned n>
    COLLPROBE_HD void add_digest(
        const words16 (&words)[n], [[maybe_unused]] unsigned odd, const digest_factors* factors) noexcept
    {
        constexpr unsigned alternate = features.rows ? 1 : 2; // halves of a period
        std::uint64_t first[n] = {};
        std::uint64_t second[n] = {};
        COLLPROBE_UNROLL
        for (unsigned half = 0; half < (n < 2 ? n : alternate); ++half) {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                const std::uint32_t key = multipliers_->key[half ^ odd][lane_].of[i];
                const std::uint64_t weighted = multipliers_->weighted[half ^ odd][i / 2][lane_].of[i % 2];
                COLLPROBE_UNROLL
                for (unsigned k = half; k < n; k += alternate) {
                    first[k] += std::uint64_t{words[k].w[i]} * key;
                    second[k] += words[k].w[i] * weighted;
                }
            }
        }
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < n; ++k) {
            digest.first += factors[k].first * first[k];
            digest.second += factors[k].second * second[k];
        }
    }

    COLLPROBE_HD void add_products(const words16& words, const words16& other) noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_vector; ++e) take_product(element_of<T>(words, e), element_of<T>(other, e));
    }

    COLLPROBE_HD void count_small(const words16& words) noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_vector; ++e) {
            const T x = element_of<T>(words, e);
            counts.zero += is_zero(x) ? 1u : 0u;
            counts.small += (to_bits(x) & element_traits<T>::exponent_mask) == 0 ? 1u : 0u;
        }
    }

    /// Sums over pairs first. So half of the additions wait for no other, and the rounding error of the long sum
    /// grows with a fraction of its terms.
    template <class Listener = no_listener>
    COLLPROBE_HD void add_numbers(
        const words16& words, [[maybe_unused]] unsigned k = 0, const Listener& listener = {}) noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_vector; e += 2) {
            const double x = widen(element_of<T>(words, e));
            const double y = widen(element_of<T>(words, e + 1));
            if constexpr (features.moments) {
                sums.sum += x + y;
                sums.magnitudes += magnitude(x) + magnitude(y);
            }
            sums.squares = multiply_add(y, y, multiply_add(x, x, sums.squares));
            listener.number(k, e, x);
            listener.number(k, e + 1, y);
        }
    }

    COLLPROBE_HD void add_integers(const words16& words) noexcept
    {
        counts.range.add(words);
        if constexpr (is_byte_integer) {
            COLLPROBE_UNROLL
            for (unsigned i = 0; i < 4; ++i) add_bytes(words.w[i]);
        } else {
            if constexpr (features.moments) {
                COLLPROBE_UNROLL
                for (unsigned e = 0; e < per_vector; ++e) counts.zero += is_zero(element_of<T>(words, e)) ? 1u : 0u;
            }
            add_numbers(words);
        }
    }

    /// Four integers of 8 bits: sums of their products with 1, with their sign and with themselves.
    COLLPROBE_HD void add_bytes(std::uint32_t word) noexcept
    {
        const std::uint32_t nonzero = (((word & 0x7f7f7f7f) + 0x7f7f7f7f) | word) & 0x80808080;
        constexpr std::uint32_t ones = 0x01010101;
        counts.zero += 4 - set_bits(nonzero);
        if constexpr (element_traits<T>::is_signed_type) {
            const std::uint32_t signs = (word >> 7 & ones) * 0xfe + ones; // each is 1 or -1
            const auto numbers = static_cast<std::int32_t>(word);
            integer_sum_ = add_byte_products(numbers, static_cast<std::int32_t>(ones), integer_sum_);
            integer_magnitudes_ = add_byte_products(numbers, static_cast<std::int32_t>(signs), integer_magnitudes_);
            integer_squares_ = static_cast<std::uint32_t>(
                add_byte_products(numbers, numbers, static_cast<std::int32_t>(integer_squares_)));
        } else {
            integer_sum_ = static_cast<std::int32_t>(
                add_byte_products(word, ones, static_cast<std::uint32_t>(integer_sum_)));
            integer_squares_ = add_byte_products(word, word, integer_squares_);
        }
    }
};

/// Reads the vectors of thread `lane` in `rounds` whole rounds, several in flight at a time, and then `rest`
/// elements, less than a round. The first is element `first` of the buffer and `offset` of the slot, at the start of
/// a period. `factors`: one for each of these rounds.
template <element T, scan_features features>
COLLPROBE_HD inline void scan_rounds(thread_scan<T, features>& scan, const scan_input<T>& input, std::uint64_t first,
    std::uint32_t offset, unsigned rounds, unsigned rest, unsigned lane, const digest_factors* factors,
    rare_counts& rare) noexcept
{
    constexpr unsigned per_vector = per_words16<T>;
    constexpr unsigned per_round = per_vector * block_threads;
    // The number of vectors in flight together, which does not influence the result.
    constexpr unsigned batch = features.dot ? 2 : 4;
    const bool has_other = features.dot && input.other.data != nullptr;
    std::uint64_t byte = first * sizeof(T) + lane * 16;
    offset += lane * per_vector;
    unsigned round = 0;
    COLLPROBE_NO_UNROLL
    for (; round + batch <= rounds; round += batch) {
        words16 words[batch];
        words16 other[batch] = {};
        input.source.load(words, byte, round_bytes);
        if constexpr (features.dot) {
            if (has_other) input.other.load(other, byte, round_bytes);
        }
        if constexpr (features.copy) store_words(input.destination + byte, words, round_bytes);
        scan.template take<batch>(words, other, has_other, offset, 0, factors + round, rare);
        byte += batch * round_bytes;
        offset += batch * per_round;
    }
    const unsigned before = lane * per_vector; // in `rest`
    COLLPROBE_NO_UNROLL
    for (; round < rounds || (round == rounds && before + per_vector <= rest); ++round) {
        words16 words[1];
        words16 other[1] = {};
        input.source.load(words, byte);
        if constexpr (features.dot) {
            if (has_other) input.other.load(other, byte);
        }
        if constexpr (features.copy) store_words(input.destination + byte, words, round_bytes);
        scan.template take<1>(words, other, has_other, offset, round % 2, factors + round, rare);
        byte += round_bytes;
        offset += per_round;
    }
    if (round == rounds && before < rest) {
        COLLPROBE_NO_UNROLL
        for (unsigned i = 0; i < rest - before; ++i) {
            const std::uint64_t index = byte / sizeof(T) + i;
            const T element = input.source.template at<T>(index);
            if constexpr (features.dot) {
                if (has_other) scan.take_product(element, input.other.template at<T>(index));
            }
            if constexpr (features.copy) {
                for (unsigned b = 0; b < sizeof(T); ++b)
                    input.destination[byte + i * sizeof(T) + b] = input.source.data[byte + i * sizeof(T) + b];
            }
            scan.take_element(element, index, offset + i, rare);
        }
    }
    scan.settle();
}

/// Reads the same part of the same slot once more, mostly from the second-level cache: one vector of each thread in
/// flight is enough for that.
template <element T>
COLLPROBE_HD inline void sum_shifted(shifted_sums& sums, const byte_source& source, std::uint64_t first,
    std::uint32_t count, unsigned lane, double factor, double pivot) noexcept
{
    constexpr unsigned per_vector = per_words16<T>;
    constexpr unsigned per_round = per_vector * block_threads;
    const auto add = [&](T element) {
        if (!is_finite(element)) return;
        const double x = widen(element);
        sums.add((std::is_same_v<T, double> ? x * factor : x) - pivot);
    };
    std::uint64_t byte = first * sizeof(T) + lane * 16;
    const unsigned before = lane * per_vector;
    std::uint32_t left = count > before ? count - before : 0; // elements from this thread's next vector on
    COLLPROBE_NO_UNROLL
    for (; left >= per_vector; left -= left < per_round ? left : per_round) {
        words16 words[1];
        source.load(words, byte);
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_vector; ++e) add(element_of<T>(words[0], e));
        byte += round_bytes;
    }
    COLLPROBE_NO_UNROLL
    for (std::uint32_t i = 0; i < left; ++i) add(source.template at<T>(byte / sizeof(T) + i));
}

} // namespace collprobe::detail
