// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/scan/detail/sketch_kernel.hpp>
#include <collprobe/simd/barrier.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/simd/vector.hpp>

/// A buffer as rows with as many elements as a sketch has bins: the cut into rows, and the sums on the CPU.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Rows up to this size together stay in the second-level cache, beside their bins.
inline constexpr std::uint64_t sketch_tile_bytes = 256 * 1024;
/// The largest number of parts of a buffer that a GPU sums separately.
inline constexpr std::uint64_t most_sketch_parts = 128;

/// The signs of elements 64 `word` to 64 `word` + 63; a set bit is a minus.
COLLPROBE_HD constexpr std::uint64_t sketch_signs(std::uint64_t seed, std::uint64_t word) noexcept
{
    return mix64(seed + (word + 1) * 0x9e3779b97f4a7c15u);
}

/// A run of elements that begins with element `first` of its buffer. Row r holds the elements with index r * bins to
/// r * bins + bins - 1; the first and the last row may be incomplete. They are summed from the first to the last; on a
/// GPU by parts. This order depends on count, bins and `first` alone.
template <floating_element T>
struct sketch_source {
    view<const T> data;
    std::uint64_t first = 0;
    std::uint64_t bins = 0;
    std::uint64_t seed = 0;

    /// The column of the first element. (Bins are a power of two, because a GPU needs a hundred instructions for a
    /// 64-bit division.)
    COLLPROBE_HD std::uint64_t first_column() const noexcept { return first & (bins - 1); }
    COLLPROBE_HD std::uint64_t rows() const noexcept
    {
        return data.empty() ? 0 : ((first_column() + data.count() - 1) >> log2_of_power(bins)) + 1;
    }
    /// The sums of a part are written and read once more, so a part must be long compared with its sums.
    COLLPROBE_HD std::uint64_t rows_per_part() const noexcept
    {
        const std::uint64_t shared_out = (rows() + most_sketch_parts - 1) / most_sketch_parts;
        const std::uint64_t least = 128 / sizeof(T);
        return shared_out < least ? least : shared_out;
    }
    COLLPROBE_HD std::uint64_t parts() const noexcept { return (rows() + rows_per_part() - 1) / rows_per_part(); }

    /// The columns [begin, end) of row `row`, counted from the row of the first element.
    COLLPROBE_HD std::uint64_t begin_of(std::uint64_t row) const noexcept { return row == 0 ? first_column() : 0; }
    COLLPROBE_HD std::uint64_t end_of(std::uint64_t row) const noexcept
    {
        const std::uint64_t left = first_column() + data.count() - row * bins;
        return left < bins ? left : bins;
    }
    COLLPROBE_HD bool is_whole(std::uint64_t row) const noexcept { return begin_of(row) == 0 && end_of(row) == bins; }
    /// Index in `data` of a column of a row.
    /// Precondition: the row has that column.
    COLLPROBE_HD std::uint64_t index(std::uint64_t row, std::uint64_t column) const noexcept
    {
        return row * bins + column - first_column();
    }
    COLLPROBE_HD std::uint64_t signs(std::uint64_t row, std::uint64_t column) const noexcept
    {
        return sketch_signs(seed, (first - first_column()) / 64 + row * (bins / 64) + column / 64);
    }
};

/// Adds one element, whose sign is a minus if `minus` is 1, and its square.
COLLPROBE_HD inline void add_to_bin(double x, std::uint64_t minus, double& sum, double& energy) noexcept
{
    energy = rounded_sum(energy, rounded_product(x, x));
    sum = rounded_sum(sum, bit_cast<double>(bit_cast<std::uint64_t>(x) ^ minus << 63));
}

/// Adds sums in float of 64 columns, if all bins are plain. The portable path.
template <floating_element T>
bool add_in_float(const T* data, std::uint64_t stride, std::uint64_t rows, const std::uint64_t* words, double* sums,
    double* energies) noexcept
{
    if constexpr (sizeof(T) >= 4) {
        return false;
    } else {
        float sum[64] = {};
        float energy[64] = {};
        for (std::uint64_t r = 0; r < rows; ++r, data += stride) {
            for (unsigned c = 0; c < 64; ++c) {
                const float x = static_cast<float>(data[c]);
                energy[c] = fused_sum(x, x, energy[c]);
                sum[c] += bit_cast<float>(
                    bit_cast<std::uint32_t>(x) ^ static_cast<std::uint32_t>(words[r] >> c & 1) << 31);
            }
        }
        for (unsigned c = 0; c < 64; ++c)
            if (!is_plain_bin(sum[c], energy[c])) return false;
        for (unsigned c = 0; c < 64; ++c) {
            sums[c] += sum[c];
            energies[c] += energy[c];
        }
        return true;
    }
}

/// Sums of the rows [row, row + rows) of 64 columns from `column` on. Elements of less than 32 bits are added up in
/// float, row by row, and these sums in double: at most `sketch_tile` rows. If a bin is not plain, all is done in
/// double. Precondition: there is a row, and rows have all these columns.
template <floating_element T>
void add_word_of_columns(isa path, const sketch_source<T>& from, std::uint64_t row,
    std::uint64_t rows, std::uint64_t column, double* sums, double* energies) noexcept
{
    std::uint64_t words[sketch_tile<T>];
    std::uint64_t r = 0;
    do words[r] = from.signs(row + r, column);
    while (++r < rows);
    const T* const data = from.data.data() + from.index(row, column);
    const bool done = COLLPROBE_ON_ISA(path, add_in_float(data, from.bins, rows, words, sums, energies),
        add_columns(data, from.bins, rows, words, sums, energies));
    if (done) return;
    for (r = 0; r < rows; ++r)
        for (unsigned c = 0; c < 64; ++c)
            add_to_bin(widen(data[r * from.bins + c]), words[r] >> c & 1, sums[c], energies[c]);
}

/// Adds an incomplete row.
template <floating_element T>
void add_piece_of_row(
    isa path, const sketch_source<T>& from, std::uint64_t row, double* sums, double* energies) noexcept
{
    const std::uint64_t end = from.end_of(row);
    std::uint64_t column = from.begin_of(row);
    while (column < end) {
        if (column % 64 == 0 && end - column >= 64) {
            add_word_of_columns(path, from, row, 1, column, sums + column, energies + column);
            column += 64;
        } else {
            const std::uint64_t minus = from.signs(row, column) >> column % 64 & 1;
            add_to_bin(widen(from.data[from.index(row, column)]), minus, sums[column], energies[column]);
            ++column;
        }
    }
}

/// Adds the rows [row, last) to a sketch, `2 * bins` numbers, to which all rows before them were added. `in_cache`:
/// they have just been read.
template <floating_element T>
[[gnu::noinline]] void add_rows(isa path, const sketch_source<T>& from, std::uint64_t row, std::uint64_t last,
    bool in_cache, double* sketch) noexcept
{
    double* const sums = sketch;
    double* const energies = sketch + from.bins;
    if (row == 0)
        for (std::uint64_t i = 0; i < 2 * from.bins; ++i) sketch[i] = 0;
    while (row < last) {
        if (!from.is_whole(row)) {
            add_piece_of_row(path, from, row++, sums, energies);
            continue;
        }
        std::uint64_t rows = 1;
        while ((row + rows) % sketch_tile<T> != 0 && row + rows < last && from.is_whole(row + rows)) ++rows;
        const std::uint64_t bytes = rows * from.bins * sizeof(T);
        const auto* next = reinterpret_cast<const unsigned char*>(from.data.data() + from.index(row, 0)) + bytes;
        for (std::uint64_t column = 0; column < from.bins; column += 64) {
            // Rows are as many streams. Memory is read fastest in one: the next rows, into the cache.
            if (!in_cache && bytes <= sketch_tile_bytes)
                for (std::size_t line = 0; line < rows * sizeof(T); ++line, next += 64)
                    __builtin_prefetch(next);
            add_word_of_columns(path, from, row, rows, column, sums + column, energies + column);
        }
        row += rows;
    }
}

} // namespace collprobe::detail
