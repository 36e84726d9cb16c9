// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/detail/column_sum.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The places of the terms of a sum: `outer` times `inner` rows of elements, each row contiguous. Term k is row (k /
/// inner, k % inner). (After an exchange each leaf of each rank is a row; the rank is the outer index.)
template <floating_element T>
struct term_rows {
    const T* first = nullptr;
    std::uint64_t inner = 1;
    std::uint64_t outer_stride = 0; ///< elements from one outer index to the next
    std::uint64_t inner_stride = 0;

    COLLPROBE_HD const T* operator()(std::uint64_t k) const noexcept
    {
        return inner == 1 ? first + k * outer_stride : first + k / inner * outer_stride + k % inner * inner_stride;
    }
};

/// The rows from element `by` on.
template <floating_element T, class Rows>
struct shifted_rows {
    Rows rows;
    std::uint64_t by;

    COLLPROBE_HD const T* operator()(std::uint64_t k) const noexcept { return rows(k) + by; }
};

} // namespace detail

/// result[i] = the sum of element i over the rows, in the order of the rows, divided by `divisor`. A body for
/// `for_each`, on the host and in a kernel. An index is a block of `width` elements: call it with `blocks()` of them.
///
/// Shapes: `result` may be one of the rows, because a block is read before it is written.
/// Preconditions: terms >= 1; divisor >= 1. On the host subnormal numbers count, as on every host stream. Kernels read
/// rows, and write a result, that are 16-byte aligned in words of 16 bytes.
/// Non-finite terms follow IEEE 754 for each addition; with `accumulation::exact` they follow `exact_sum`.
/// Cost: one read of each row, one write. `exact` reads a column again, alone, if the exponents of its terms differ
/// by more than one double (for double: a pair) can hold: 45 - log2(terms) bits for bfloat16, 29 - log2(terms) for
/// float; for half never up to 8192 terms. Such a column costs 3 to 7 ns a term on a CPU, or 10 ns if 128 bits do not
/// hold it either. For double it costs 13 ns a term, and 300 ns for the rounding.
template <accumulation in, floating_element T, int width, class Rows = detail::term_rows<T>>
struct sum_rows {
    Rows rows; ///< rows(k) points to the elements of term k
    std::uint64_t terms = 1;
    T* result = nullptr;
    std::uint64_t count = 0;
    std::uint32_t divisor = 1;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return count / width + (count % width != 0 ? 1 : 0); }
    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        if constexpr (COLLPROBE_VECTORS != 0) detail::vectorised([&, this] { sum_block(block * width); });
        else sum_block(block * width);
    }

private:
    COLLPROBE_HD void sum_block(std::uint64_t first) const noexcept
    {
        const std::uint64_t left = count - first;
        const int here = left < width ? static_cast<int>(left) : width;
        const detail::columns<T, detail::shifted_rows<T, Rows>> of{{rows, first}, terms, divisor, here};
        T sums[width];
        detail::sum_columns<in, width>(of, sums);
        if constexpr (detail::on_device && sizeof(sums) % 16 == 0) {
            if (here == width && reinterpret_cast<std::uintptr_t>(result) % 16 == 0) {
                auto* const to = reinterpret_cast<unsigned char*>(result + first);
                for (std::size_t at = 0; at < sizeof(sums); at += 16) {
                    std::uint32_t words[4];
                    std::memcpy(words, reinterpret_cast<const unsigned char*>(sums) + at, 16);
                    detail::store_16(to + at, words);
                }
                return;
            }
        }
        if constexpr (!detail::on_device) {
            std::memcpy(static_cast<void*>(result + first), sums, static_cast<std::size_t>(here) * sizeof(T));
        } else {
            for (int i = 0; i < width; ++i) {
                if (i < here) result[first + static_cast<std::uint64_t>(i)] = sums[i];
            }
        }
    }
};

} // namespace collprobe
