// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/core/config.hpp>
#include <collprobe/core/view.hpp>

/// Medians without `<algorithm>`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The values around the middle of a sorted sequence of n: those at n/2 - 1, n/2 and n/2 + 1.
template <class T>
struct middle_of_sorted {
    T below = 0;
    T at = 0;
    T above = 0;
};
using middle_values = middle_of_sorted<double>;

/// Moves the k-th smallest value to place k, smaller values before it and larger values after it. Allocates nothing;
/// gives the same permutation on all platforms.
/// Precondition: finite values, k < n.
/// Cost: O(n) on average.
template <class T>
void select(view<T> values, std::size_t k) noexcept
{
    const auto swap = [values](std::size_t a, std::size_t b) noexcept {
        const T kept = values[a];
        values[a] = values[b];
        values[b] = kept;
    };
    std::size_t low = 0;
    std::size_t high = values.size() - 1;
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (values[middle] < values[low]) swap(middle, low);
        if (values[high] < values[low]) swap(high, low);
        if (values[high] < values[middle]) swap(high, middle);
        const T pivot = values[middle];
        std::size_t i = low;
        std::size_t j = high;
        for (;;) {
            while (values[i] < pivot) ++i;
            while (pivot < values[j]) --j;
            if (i >= j) break;
            swap(i, j);
            ++i;
            --j;
        }
        // values[low .. j] <= pivot <= values[j + 1 .. high]; j < high because the pivot was below `high`.
        if (k <= j) high = j;
        else low = j + 1;
    }
}

/// The middle values. Reorders `values`.
/// Precondition: at least one value, all finite.
template <class T>
middle_of_sorted<T> middle_of(view<T> values) noexcept
{
    const std::size_t k = values.size() / 2;
    select(values, k);
    middle_of_sorted<T> result;
    result.below = result.at = result.above = values[k];
    for (std::size_t i = 0; i < k; ++i)
        if (i == 0 || values[i] > result.below) result.below = values[i];
    for (std::size_t i = k + 1; i < values.size(); ++i)
        if (i == k + 1 || values[i] < result.above) result.above = values[i];
    return result;
}

inline double median_of(const middle_values& middle, std::size_t count) noexcept
{
    return count % 2 == 1 ? middle.at : 0.5 * middle.below + 0.5 * middle.at;
}

/// The median of the other count - 1 values when `value`, one of them, is removed.
/// Precondition: count >= 2.
inline double median_without(double value, const middle_values& middle, std::size_t count) noexcept
{
    if (count % 2 == 0) return value < middle.at ? middle.at : middle.below;
    if (value < middle.at) return 0.5 * middle.at + 0.5 * middle.above;
    if (value > middle.at) return 0.5 * middle.below + 0.5 * middle.at;
    return 0.5 * middle.below + 0.5 * middle.above;
}

} // namespace collprobe::detail
