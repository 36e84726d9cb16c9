// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/simd/vector.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

/// Squares and, with a second buffer, products. Lanes as in `scan_lanes` and as in `dot`: there element i has lane i
/// mod 8.
template <class T, bool with_dot>
struct result_lanes {
    static constexpr std::uint64_t step = sizeof(T) < 4 ? 64 / sizeof(T) : 16; // at least a cache line

    const T* other;
    doubles squares[vectors_of_8] = {};
    doubles products[vectors_of_8] = {};

    [[gnu::always_inline]] explicit result_lanes(const T* second) noexcept : other(second) {}

    [[gnu::always_inline]] void add_range(const T*) noexcept
    {
        if constexpr (with_dot) prefetch_ahead<step * sizeof(T)>(other);
    }
    [[gnu::always_inline]] void add_sums(const T* data) noexcept
    {
        COLLPROBE_UNROLL_VECTORS
        for (std::uint64_t i = 0; i < step; i += 16) add_pair<0>(data + i, with_dot ? other + i : nullptr);
        if constexpr (with_dot) other += step;
    }
    [[gnu::always_inline]] void finish(result_sums& out) const noexcept
    {
        __builtin_memcpy(out.squares, squares, sizeof out.squares);
        __builtin_memcpy(out.products, products, sizeof out.products);
        if constexpr (std::is_same_v<T, bfloat16>) {
            double lanes[8];
            __builtin_memcpy(lanes, products, sizeof lanes);
            for (unsigned i = 0; i < 4; ++i) {
                out.products[2 * i] = lanes[i];
                out.products[2 * i + 1] = lanes[4 + i];
            }
        }
    }

private:
    /// Vector `k` of the first and the second eight of sixteen elements; of bfloat16, of the even and the odd ones.
    template <int k>
    [[gnu::always_inline]] void add_pair(const T* data, const T* second) noexcept
    {
        const doubles x = load_doubles<k>(data);
        const doubles y = load_doubles<k + vectors_of_8>(data);
        squares[k] = sum_with_product(squares[k], x, x);
        squares[k] = sum_with_product(squares[k], y, y);
        if constexpr (with_dot) {
            const doubles u = load_doubles<k>(second);
            const doubles v = load_doubles<k + vectors_of_8>(second);
            if constexpr (!std::is_same_v<T, bfloat16>) {
                products[k] = sum_with_product(products[k], x, u);
                products[k] = sum_with_product(products[k], y, v);
            } else {
                const doubles even = x * u;
                const doubles odd = y * v;
                products[0] += even; // elements 0, 2, 4 and 6, then 8 and on
                products[1] += odd;
            }
        }
        if constexpr (k + 1 < vectors_of_8) add_pair<k + 1>(data, second);
    }
    /// Exact products have the same bits with an FMA or without: see `scan_lanes`.
    [[gnu::always_inline]] static doubles sum_with_product(doubles sum, doubles x, doubles y) noexcept
    {
        if constexpr (squares_are_exact<T> && vectors_of_8 > 1) return sum + x * y;
        else return sum + hidden(x * y);
    }
};

/// Takes in the leading elements that fill whole steps, and returns their number. `first_byte`: as of `scan`.
template <class T, bool with_dot>
[[gnu::noinline]] std::uint64_t scan_result(const T* data, const T* other, std::uint64_t count, result_sums& out,
    digest_state& digest, std::uint64_t first_byte) noexcept
{
    using lanes_of = result_lanes<T, with_dot>;
    const std::uint64_t whole = count - count % lanes_of::step;
    if (whole == 0) return 0;
    lanes_of lanes(other);
    add_steps<true>(lanes, data, whole, digest, first_byte);
    lanes.finish(out);
    return whole;
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
