// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/sketch_rows.hpp>
#include <collprobe/scan/detail/words.hpp>

/// The sketch as the threads of a GPU compute it. A thread owns the neighbouring bins of sixteen bytes, for one part
/// of the rows. Neighbouring threads read neighbouring words, no operation is atomic, and the bits are those of the
/// CPU.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The bins of a thread: those of sixteen bytes of a row.
template <element T>
struct thread_bins {
    static constexpr unsigned count = per_words16<T>;

    sketch_sum<T> sums[count] = {};
    double energies[floating_element<T> ? count : 1] = {};

    COLLPROBE_HD void add(T value, unsigned e, std::uint64_t minus) noexcept
    {
        if constexpr (floating_element<T>) add_to_bin(value, minus, sums[e], energies[e]);
        else add_to_bin(value, minus, sums[e]);
    }
    /// `signs`: from that of the first element on.
    COLLPROBE_HD void add(const words16& words, std::uint64_t signs) noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < count; ++e) add(element_of<T>(words, e), e, signs >> e & 1);
    }
    /// To the sketch of a part.
    COLLPROBE_HD void store(sketch_sum<T>* part, std::uint64_t bins, std::uint64_t column) const noexcept
    {
        sketch_sum<T>* const to = part + column;
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < count; ++e) {
            to[e] = sums[e];
            if constexpr (floating_element<T>) to[bins + e] = energies[e];
        }
    }
};

/// The sums of each part. A body for `for_each` with `indices()` indices.
template <element T>
struct sketch_parts {
    sketch_source<T> from;
    sketch_sum<T>* parts; ///< a sketch for each part

    static constexpr unsigned bins_each = per_words16<T>;

    COLLPROBE_HD std::uint64_t indices() const noexcept { return from.parts() * (from.bins / bins_each); }
    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const std::uint64_t threads_of_row = from.bins / bins_each;
        const std::uint64_t part = index >> log2_of_power(threads_of_row);
        const std::uint64_t column = (index & (threads_of_row - 1)) * bins_each;
        const std::uint64_t rows = from.rows();
        const std::uint64_t step = from.rows_per_part();
        const std::uint64_t last = rows - part * step < step ? rows : (part + 1) * step;
        thread_bins<T> mine;
        std::uint64_t row = part * step;
        // Rows are multiples of sixteen bytes, so all are aligned like the first, which may begin before the data.
        const bool aligned
            = (reinterpret_cast<std::uintptr_t>(from.data.data()) - from.first_column() * sizeof(T)) % 16 == 0;
        if (row < last && !from.is_whole(row)) add_checked(mine, row++, column);
        if (aligned) {
            constexpr unsigned in_flight = 4;
            for (; row + in_flight <= last && from.is_whole(row + in_flight - 1); row += in_flight) {
                words16 words[in_flight];
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < in_flight; ++i) words[i] = load(row + i, column);
                COLLPROBE_UNROLL
                for (unsigned i = 0; i < in_flight; ++i)
                    mine.add(words[i], from.signs(row + i, column) >> column % 64);
            }
        }
        COLLPROBE_NO_UNROLL
        for (; row < last; ++row) add_checked(mine, row, column);
        mine.store(parts + part * sketch_numbers<T>(from.bins), from.bins, column);
    }

private:
    COLLPROBE_HD words16 load(std::uint64_t row, std::uint64_t column) const noexcept
    {
        return load_aligned(reinterpret_cast<const unsigned char*>(from.data.data() + from.index(row, column)));
    }
    /// Adds elements one by one, for incomplete rows and for any alignment.
    COLLPROBE_HD void add_checked(thread_bins<T>& mine, std::uint64_t row, std::uint64_t column) const noexcept
    {
        const std::uint64_t begin = from.begin_of(row);
        const std::uint64_t end = from.end_of(row);
        const std::uint64_t signs = from.signs(row, column) >> column % 64;
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < bins_each; ++e) {
            if (column + e < begin || column + e >= end) continue;
            mine.add(from.data[from.index(row, column + e)], e, signs >> e & 1);
        }
    }
};

/// Adds up the parts in their order. A body for `for_each`, called for each number of a sketch.
template <element T>
struct join_sketch_parts {
    const sketch_sum<T>* parts;
    std::uint64_t count; ///< the number of parts; with 0 the sketch is zero
    std::uint64_t numbers; ///< the number of values of a sketch
    sketch_sum<T>* sketch;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        sketch_sum<T> sum = 0;
        for (std::uint64_t part = 0; part < count; ++part) {
            const sketch_sum<T> next = parts[part * numbers + index];
            if constexpr (floating_element<T>) sum = rounded_sum(sum, next);
            else sum += next;
        }
        sketch[index] = sum;
    }
};

} // namespace collprobe::detail
