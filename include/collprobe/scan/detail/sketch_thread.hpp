// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/chunk.hpp>
#include <collprobe/scan/detail/sketch_rows.hpp>

/// The sketch as the threads of a GPU compute it. A thread owns neighbouring bins, those of sixteen bytes, for a part
/// of the buffer, and keeps them in registers. Neighbouring threads read neighbouring words, and no operation is
/// atomic. The parts are added up in their order. So the bits depend on the buffer alone; they are not those of the
/// host.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The bins of a thread.
template <floating_element T>
struct thread_bins {
    static constexpr unsigned count = per_words16<T>;

    double sums[count] = {};
    double energies[count] = {};

    /// `signs`: from that of the first element on.
    COLLPROBE_HD void add(const words16& words, std::uint64_t signs) noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < count; ++e) {
            const double x = widen(element_of<T>(words, e));
            energies[e] = multiply_add(x, x, energies[e]);
            const std::uint64_t minus = signs >> e & 1;
            sums[e] = rounded_sum(sums[e], bit_cast<double>(bit_cast<std::uint64_t>(x) ^ minus << 63));
        }
    }
    /// To the sketch of a part, from bin `column` on.
    COLLPROBE_HD void store(double* part, std::uint64_t bins, std::uint64_t column) const noexcept
    {
        COLLPROBE_UNROLL
        for (unsigned e = 0; e < count; ++e) {
            const std::uint64_t bin = (column + e) & (bins - 1);
            part[bin] = sums[e];
            part[bins + bin] = energies[e];
        }
    }
};

/// The sketch beside the accumulators of a read on a GPU, for rows that a run of a chunk has whole. So a thread's
/// sixteen bytes have the same bins in each run. A part is what the threads of a row take in of a slot.
template <floating_element T>
struct sketched {
    /// Fewer than `read_slots`, because each leaves a sketch: of narrow elements one block on each of an H100's
    /// multiprocessors, of others two.
    static constexpr unsigned most_slots = sizeof(T) < 4 ? 132 : 264;

    static bool fits(const sketch_source<T>& of) noexcept
    {
        return sizeof(T) >= 2 && of.bins * sizeof(T) <= round_bytes;
    }
    static std::uint64_t parts_of(const sketch_source<T>& of) noexcept
    {
        const std::uint64_t bytes = of.data.size_bytes();
        const std::uint64_t chunks = bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
        return lesser(chunks, most_slots) * (round_bytes / (of.bins * sizeof(T)));
    }

    struct thread {
        const sketch_source<T>& from;
        double* parts;
        thread_bins<T> bins{};

        COLLPROBE_HD thread(const sketch_source<T>& source, double* memory) noexcept : from(source), parts(memory) {}
        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < chunk_runs; ++k) {
                const std::uint64_t index = from.first + (at.byte + k * round_bytes) / sizeof(T);
                const unsigned shift = index % 64;
                std::uint64_t signs = sketch_signs(from.seed, index / 64) >> shift;
                if (shift + thread_bins<T>::count > 64)
                    signs |= sketch_signs(from.seed, index / 64 + 1) << (64 - shift);
                bins.add(words[k], signs);
            }
        }
        COLLPROBE_HD void end_slot(unsigned slot, unsigned lane) const noexcept
        {
            const auto row = static_cast<unsigned>(from.bins * sizeof(T)); // bytes
            const unsigned part = slot * (round_bytes / row) + lane * 16 / row;
            const std::uint64_t column = from.first + lane * 16 / sizeof(T);
            bins.store(parts + part * 2 * from.bins, from.bins, column & (from.bins - 1));
        }
    };
};

/// The sums of each part where rows are longer. A body for `for_each` with `indices()` indices.
template <floating_element T>
struct sketch_parts {
    sketch_source<T> from;
    double* parts; ///< a sketch for each part

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
        const byte_source source{
            reinterpret_cast<const unsigned char*>(from.data.data()), from.data.count() * sizeof(T)};
        thread_bins<T> mine;
        COLLPROBE_NO_UNROLL
        for (std::uint64_t row = part * step; row < last; ++row) {
            const std::uint64_t begin = larger(from.begin_of(row), column);
            const std::uint64_t end = lesser(from.end_of(row), column + bins_each);
            if (begin >= end) continue;
            // Where the row's first place would be: before the data, perhaps.
            const auto offset = static_cast<std::int64_t>(from.index(row, column) * sizeof(T));
            words16 words[1];
            if (end - begin == bins_each && offset % 16 == 0) source.load(words, static_cast<std::uint64_t>(offset));
            else
                words[0] = load_some(source.data + offset, static_cast<unsigned>((begin - column) * sizeof(T)),
                    static_cast<unsigned>((end - column) * sizeof(T)));
            mine.add(words[0], from.signs(row, column) >> column % 64);
        }
        mine.store(parts + part * 2 * from.bins, from.bins, column);
    }
};

/// Adds up the parts. A body for `sum_each`, for each number of a sketch.
struct join_sketch_parts {
    const double* parts;
    std::uint64_t count; ///< the number of parts; with 0 the sketch is zero
    std::uint64_t numbers; ///< the number of values of a sketch
    double* sketch;
    static constexpr unsigned lanes = 8; ///< on a GPU

    COLLPROBE_HD double part(std::uint64_t number, std::uint64_t lane, std::uint64_t of_lanes) const noexcept
    {
        double sum = 0;
        for (std::uint64_t each = lane; each < count; each += of_lanes)
            sum = rounded_sum(sum, parts[each * numbers + number]);
        return sum;
    }
    COLLPROBE_HD void store(std::uint64_t number, double sum) const noexcept { sketch[number] = sum; }
};

} // namespace collprobe::detail
