// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/sum/detail/column_sum.hpp>
#include <collprobe/sum/detail/error_free.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/sum_rows.hpp>

/// Sums over rows in two steps: partial sums of some rows each, which travel, and their sum. Partial sums of one number
/// are made and added by `sum_rows`. Those of several numbers are stored as planes: of each of `parts` equal parts of
/// the elements all first numbers, then all second numbers and so on, so that a part is one message.
/// All of them are bodies for `for_each`: call them with `blocks()` indices.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Parts of `length` elements in blocks of `width`. The last block of a part may be short.
template <int width>
struct part_blocks {
    std::uint64_t length;

    COLLPROBE_HD std::uint64_t in_a_part() const noexcept { return length / width + (length % width != 0 ? 1 : 0); }
    COLLPROBE_HD std::uint64_t part_of(std::uint64_t block) const noexcept { return block / in_a_part(); }
    COLLPROBE_HD std::uint64_t first_of(std::uint64_t block) const noexcept { return block % in_a_part() * width; }
    COLLPROBE_HD int count_of(std::uint64_t first) const noexcept
    {
        return length - first < width ? static_cast<int>(length - first) : width;
    }
};

/// The compensated sums of the rows as planes of two numbers: the sum, and what its additions lost.
template <floating_element T, int width>
struct sum_rows_to_pairs {
    using wide = compensated_type<T>;

    term_rows<T> rows;
    std::uint64_t terms;
    wide* result;
    std::uint64_t length; ///< elements of a part
    std::uint64_t parts;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return parts * part_blocks<width>{length}.in_a_part(); }
    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        sum_block(block);
    }

private:
    // Not inlined: the sum must stay inside the scope that sets the floating-point mode.
    COLLPROBE_HOST_NOINLINE COLLPROBE_HD void sum_block(std::uint64_t block) const noexcept
    {
        const part_blocks<width> in{length};
        const std::uint64_t part = in.part_of(block);
        const std::uint64_t first = in.first_of(block);
        const int here = in.count_of(first);
        const columns<T, shifted_rows<T>> of{{rows, part * length + first}, terms, 1, here};
        wide sum[width];
        wide lost[width];
        sum_and_lost(of, sum, lost);
        wide* const to = result + 2 * part * length + first;
        for (int i = 0; i < width; ++i) {
            if (i < here) to[i] = sum[i];
        }
        for (int i = 0; i < width; ++i) {
            if (i < here) to[length + static_cast<std::uint64_t>(i)] = lost[i];
        }
    }
};

/// Adds compensated sums, one plane of pairs after the other, divides and rounds to T.
template <floating_element T, int width>
struct sum_rows_of_pairs {
    using wide = compensated_type<T>;

    const wide* pairs; ///< `terms` times `count` sums, then `count` lost parts
    std::uint64_t terms;
    T* result;
    std::uint64_t count;
    std::uint32_t divisor;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return part_blocks<width>{count}.in_a_part(); }
    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        sum_block(block * width);
    }

private:
    COLLPROBE_HOST_NOINLINE COLLPROBE_HD void sum_block(std::uint64_t first) const noexcept
    {
        const hidden<wide> hide;
        const int here = part_blocks<width>{count}.count_of(first);
        wide sum[width];
        wide lost[width];
        for (int i = 0; i < width; ++i) {
            sum[i] = i < here ? pairs[first + static_cast<std::uint64_t>(i)] : 0;
            lost[i] = i < here ? pairs[count + first + static_cast<std::uint64_t>(i)] : 0;
        }
        for (std::uint64_t k = 1; k < terms; ++k) {
            const wide* const from = pairs + 2 * k * count + first;
            for (int i = 0; i < width; ++i) {
                const wide next_sum = i < here ? from[i] : 0;
                const wide next_lost = i < here ? from[count + static_cast<std::uint64_t>(i)] : 0;
                const two_terms<wide> next = hidden_two_sum(sum[i], next_sum, hide);
                sum[i] = next.high;
                lost[i] = hide(rounded_sum(hide(rounded_sum(lost[i], next_lost)), next.low));
            }
        }
        for (int i = 0; i < width; ++i) {
            if (i < here) {
                result[first + static_cast<std::uint64_t>(i)]
                    = narrowed<T>(quotient(compensated(sum[i], lost[i]), divisor));
            }
        }
    }
};

/// The exact sums of the rows as planes of words (`exact_sum::write`). An index is an element.
template <floating_element T>
struct sum_rows_to_words {
    term_rows<T> rows;
    std::uint64_t terms;
    std::uint32_t* result;
    std::uint64_t length; ///< elements of a part
    std::uint64_t parts;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return parts * length; }
    COLLPROBE_HD void operator()(std::uint64_t i) const noexcept
    {
        exact_sum<T> sum;
        for (std::uint64_t k = 0; k < terms; ++k) sum.add(rows(k)[i]);
        sum.write(result + i / length * exact_sum<T>::words * length + i % length, length);
    }
};

/// Adds exact sums in words, divides and rounds once. An index is an element.
template <floating_element T>
struct sum_rows_of_words {
    const std::uint32_t* from; ///< `terms` times `exact_sum::words` planes of `count` words
    std::uint64_t terms;
    T* result;
    std::uint64_t count;
    std::uint32_t divisor;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return count; }
    COLLPROBE_HD void operator()(std::uint64_t i) const noexcept
    {
        exact_sum<T> sum;
        for (std::uint64_t k = 0; k < terms; ++k) sum.add_words(from + k * exact_sum<T>::words * count + i, count);
        result[i] = sum.round(divisor);
    }
};

/// Adds rows of doubles whose sum is known to be exact, divides and rounds once. A NaN is the one of `exact_sum`.
template <floating_element T, int width>
struct sum_rows_of_exact_doubles {
    const double* rows; ///< `terms` of `count`
    std::uint64_t terms;
    T* result;
    std::uint64_t count;
    std::uint32_t divisor;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return part_blocks<width>{count}.in_a_part(); }
    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        sum_block(block * width);
    }

private:
    COLLPROBE_HOST_NOINLINE COLLPROBE_HD void sum_block(std::uint64_t first) const noexcept
    {
        const int here = part_blocks<width>{count}.count_of(first);
        const columns<double, shifted_rows<double>> of{{{rows, 1, count, 0}, first}, terms, 1, here};
        double sums[width];
        sum_plainly<double, width>(of, sums);
        for (int i = 0; i < width; ++i) {
            if (i < here) result[first + static_cast<std::uint64_t>(i)] = rounded(sums[i]);
        }
    }
    COLLPROBE_HD T rounded(double sum) const noexcept
    {
        if (is_nan(sum)) return quiet_nan<T>();
        return divisor == 1 || !is_finite(sum) ? narrowed<T>(sum) : rounded_once<T>(sum, divisor);
    }
};

} // namespace collprobe::detail
