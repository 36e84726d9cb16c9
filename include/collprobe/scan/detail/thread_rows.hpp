// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/device/slots.hpp>
#include <collprobe/scan/detail/sketch_rows.hpp>
#include <collprobe/scan/detail/sketch_thread.hpp>
#include <collprobe/scan/detail/thread_scan.hpp>

/// One GPU thread's work where a buffer is read once for its statistics and its sketch: sixteen bytes of each row of a
/// part, as in `sketch_parts`. So a thread keeps its bins in registers, and its bytes have the same place in each
/// period of the digest. Counts, extrema, digest and sketch have the bits of separate reads. Moments and dot are added
/// up in another order: separate kernels add along the buffer, and no thread can go both ways in one read.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a block reads at a time: 4096 bytes of each row of a part.
template <element T>
struct row_strip {
    static constexpr std::uint64_t width = round_bytes / sizeof(T);
    /// Signs that lie ready for a block; the rows that they are for.
    static constexpr unsigned sign_words = 1024;
    static constexpr unsigned words_of_row = width / 64;
    static constexpr unsigned chunk = sign_words / words_of_row;

    sketch_source<T> from;
    std::uint64_t first_row;
    std::uint64_t last_row;
    std::uint64_t column; ///< of the first element

    /// Whether rows are cut into such strips, with at most as many parts as a workspace has slots for.
    static constexpr bool fits(std::uint64_t bins) noexcept
    {
        const std::uint64_t row_bytes = bins * sizeof(T);
        return row_bytes >= 2 * round_bytes && row_bytes <= 32 * round_bytes;
    }
    /// Whether every thread's sixteen bytes are aligned, in memory and among the digest's words.
    static bool aligned(const sketch_source<T>& from) noexcept
    {
        return reinterpret_cast<std::uintptr_t>(from.data.data()) % 16 == 0
            && from.first_column() * sizeof(T) % 16 == 0;
    }
    COLLPROBE_HD static std::uint64_t strips(const sketch_source<T>& from) noexcept
    {
        return from.parts() * (from.bins / width);
    }
    COLLPROBE_HD static row_strip of(const sketch_source<T>& from, std::uint64_t index) noexcept
    {
        const std::uint64_t rows = from.rows();
        const std::uint64_t step = from.rows_per_part();
        const std::uint64_t strips_of_row = from.bins / width;
        const std::uint64_t first = (index >> log2_of_power(strips_of_row)) * step;
        return {from, first, rows - first < step ? rows : first + step, (index & (strips_of_row - 1)) * width};
    }

    COLLPROBE_HD std::uint64_t part() const noexcept { return first_row / from.rows_per_part(); }
    /// Index in the data of the strip's first place, which may lie before the data: modulo 2^64.
    COLLPROBE_HD std::uint64_t origin() const noexcept { return first_row * from.bins - from.first_column(); }
    COLLPROBE_HD std::uint64_t elements() const noexcept
    {
        std::uint64_t missing = 0;
        if (first_row == 0) missing += clipped(from.begin_of(0));
        if (last_row == from.rows()) missing += width - clipped(from.end_of(last_row - 1));
        return (last_row - first_row) * width - missing;
    }
    /// The period of the digest that row `row` of the strip begins in; modulo 2^64.
    COLLPROBE_HD std::uint64_t period(std::uint64_t row) const noexcept
    {
        const std::uint64_t byte = (row * from.bins + column - from.first_column()) * sizeof(T);
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(byte) >> log2_of_power(digest_period_bytes));
    }

private:
    COLLPROBE_HD std::uint64_t clipped(std::uint64_t end) const noexcept
    {
        return end <= column ? 0 : end - column < width ? end - column : width;
    }
};

/// A thread's place in a strip.
template <element T>
struct strip_lane {
    static constexpr unsigned per_vector = per_words16<T>;

    const row_strip<T>& strip;
    std::uint64_t column;
    unsigned place; ///< of its sixteen bytes in a period of the digest: 0 to 511

    COLLPROBE_HD strip_lane(const row_strip<T>& of, unsigned lane) noexcept
        : strip(of), column(of.column + lane * per_vector),
          place(static_cast<unsigned>(byte(0) / 16 % (digest_period_bytes / 16)))
    {
    }
    /// In the data, modulo 2^64.
    COLLPROBE_HD std::uint64_t byte(std::uint64_t row) const noexcept
    {
        return (row * strip.from.bins + column - strip.from.first_column()) * sizeof(T);
    }
    /// 1 if its bytes are in the period behind that of the strip's row.
    COLLPROBE_HD unsigned period() const noexcept
    {
        const auto begin = static_cast<std::uint64_t>(strip.period(0)) * digest_period_bytes;
        return byte(0) - begin < digest_period_bytes ? 0 : 1;
    }
    /// Its elements [begin, end) of a row.
    COLLPROBE_HD unsigned begin_of(std::uint64_t row) const noexcept { return clipped(strip.from.begin_of(row)); }
    COLLPROBE_HD unsigned end_of(std::uint64_t row) const noexcept { return clipped(strip.from.end_of(row)); }
    COLLPROBE_HD bool has_all(std::uint64_t row) const noexcept
    {
        return begin_of(row) == 0 && end_of(row) == per_vector;
    }

private:
    COLLPROBE_HD unsigned clipped(std::uint64_t end) const noexcept
    {
        return end <= column ? 0 : end - column < per_vector ? static_cast<unsigned>(end - column) : per_vector;
    }
};

/// The bytes [begin, end) of sixteen; the others are zero. This is rare: see `load_bytes`.
COLLPROBE_HD inline words16 load_some(const unsigned char* from, unsigned begin, unsigned end) noexcept
{
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    COLLPROBE_NO_UNROLL
    for (unsigned i = 16; i > 0; --i) {
        high = high << 8 | low >> 56;
        low = low << 8 | (i > begin && i <= end ? from[i - 1] : 0u);
    }
    return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
        static_cast<std::uint32_t>(high >> 32)}};
}

/// Adds what a `thread_scan` takes in to bins as well. `signs`: the word of the first vector; the next vectors' follow
/// by rows.
template <element T>
struct bins_of_numbers {
    thread_bins<T>& bins;
    const std::uint64_t* signs;
    unsigned shift;

    /// An element that is not finite makes the same of its bin, whenever it is added: the sums do not overflow.
    template <unsigned n>
    COLLPROBE_HD void nonfinite(const words16 (&words)[n]) const noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < n; ++k) {
            COLLPROBE_UNROLL
            for (unsigned e = 0; e < bins.count; ++e) {
                const T element = element_of<T>(words[k], e);
                if (!is_finite(element)) number(k, e, widen(element));
            }
        }
    }
    COLLPROBE_HD void number(unsigned k, unsigned e, double x) const noexcept
    {
        const std::uint64_t minus = signs[k * row_strip<T>::words_of_row] >> (shift + e) & 1;
        add_number_to_bin<T>(x, minus, bins.sums[e], bins.energies[e]);
    }
};

/// Reads the rows [row, last), at most `chunk` of them, into statistics and bins. `signs`: the words of the strip in
/// these rows. `factors`: of the period of each row, and from `chunk` on of the period behind.
template <element T, scan_features features>
COLLPROBE_HD inline void scan_rows(thread_scan<T, features>& scan, thread_bins<T>& bins, const scan_input<T>& input,
    const strip_lane<T>& lane, std::uint64_t row, std::uint64_t last, const std::uint64_t* signs,
    const digest_factors* factors, rare_counts& rare) noexcept
{
    // As in `scan_rounds`; with a fourth vector the kernels of 16 bits would spill registers.
    constexpr unsigned batch = features.dot ? 2 : sizeof(T) == 2 ? 3 : 4;
    const row_strip<T>& strip = lane.strip;
    const bool has_other = features.dot && input.other.data != nullptr;
    const unsigned odd = lane.place / block_threads;
    const auto row_bytes = static_cast<unsigned>(strip.from.bins * sizeof(T));
    const auto in_strip = static_cast<unsigned>(lane.column - strip.column);
    const unsigned shift = in_strip % 64;
    signs += in_strip / 64;
    factors += lane.period() * row_strip<T>::chunk;
    auto offset = static_cast<std::uint32_t>((row - strip.first_row) * strip.from.bins + lane.column);
    std::uint64_t byte = lane.byte(row);
    const auto take = [&]<unsigned n>() {
        words16 words[n];
        words16 other[n] = {};
        COLLPROBE_UNROLL
        for (unsigned k = 0; k < n; ++k)
            words[k] = load_aligned(input.source.data + byte + k * std::uint64_t{row_bytes});
        if constexpr (features.dot) {
            if (has_other) input.other.load(other, byte, row_bytes);
        }
        if constexpr (sizeof(T) == 8) { // sums may overflow, so that the place of an infinity counts
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < n; ++k) bins.add(words[k], signs[k * row_strip<T>::words_of_row] >> shift);
            scan.template take<n>(words, other, has_other, offset, odd, factors, rare);
        } else {
            scan.template take<n>(
                words, other, has_other, offset, odd, factors, rare, bins_of_numbers<T>{bins, signs, shift});
        }
    };
    // Only the first and the last row of a buffer can be incomplete.
    const auto rows = static_cast<unsigned>(last - row);
    const unsigned begin_of_whole = row == 0 && !strip.from.is_whole(0) ? 1 : 0;
    const unsigned end_of_whole = last == strip.from.rows() && !strip.from.is_whole(last - 1) ? rows - 1 : rows;
    COLLPROBE_NO_UNROLL
    for (unsigned i = 0, taken = 1; i < rows; i += taken) {
        taken = 1;
        if (i >= begin_of_whole && i + batch <= end_of_whole) {
            take.template operator()<batch>();
            taken = batch;
        } else if (lane.has_all(row + i)) {
            take.template operator()<1>();
        } else {
            const unsigned begin = lane.begin_of(row + i);
            const unsigned end = lane.end_of(row + i);
            // Zeros change no bin.
            bins.add(load_some(input.source.data + byte, begin * sizeof(T), end * sizeof(T)), *signs >> shift);
            COLLPROBE_NO_UNROLL
            for (unsigned e = begin; e < end; ++e) {
                const std::uint64_t index = byte / sizeof(T) + e;
                const T element = input.source.template at<T>(index);
                if constexpr (features.dot) {
                    if (has_other) scan.take_product(element, input.other.template at<T>(index));
                }
                scan.take_element(element, index, offset + e, rare);
            }
        }
        signs += taken * row_strip<T>::words_of_row;
        factors += taken;
        offset += taken * static_cast<std::uint32_t>(strip.from.bins);
        byte += std::uint64_t{taken} * row_bytes;
    }
}

/// Reads the strip once more, mostly from the second-level cache: as the other `sum_shifted`.
template <element T>
COLLPROBE_HD inline void sum_shifted(shifted_sums& sums, const byte_source& source, const strip_lane<T>& lane,
    double factor, double pivot) noexcept
{
    COLLPROBE_NO_UNROLL
    for (std::uint64_t row = lane.strip.first_row; row < lane.strip.last_row; ++row) {
        const std::uint64_t byte = lane.byte(row);
        const unsigned begin = lane.begin_of(row);
        const unsigned end = lane.end_of(row);
        const words16 words = lane.has_all(row)
            ? load_aligned(source.data + byte)
            : load_some(source.data + byte, begin * sizeof(T), end * sizeof(T));
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < per_words16<T>; ++e) {
            const T element = element_of<T>(words, e);
            if (e < begin || e >= end || !is_finite(element)) continue;
            const double x = widen(element);
            sums.add((std::is_same_v<T, double> ? x * factor : x) - pivot);
        }
    }
}

} // namespace collprobe::detail
