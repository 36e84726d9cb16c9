// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <collprobe/core/config.hpp>
#include <collprobe/core/view.hpp>

/// Medians.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The values around the middle of a sorted sequence of n: those at n/2 - 1, n/2 and n/2 + 1.
template <class T>
struct middle_of_sorted {
    T below = 0;
    T at = 0;
    T above = 0;
};
using middle_values = middle_of_sorted<double>;

/// The middle values. What `values` holds afterwards is not stated.
/// Precondition: at least one value, all finite. Cost: O(n) on average, no allocation.
template <class T>
middle_of_sorted<T> middle_of(view<T> values) noexcept
{
    T* const first = values.data();
    std::size_t count = values.size(), middle = count / 2;
    // Of many first the part on one side of a pivot, again and again: no branches that would be mispredicted.
    while (count > 32) {
        const T a = first[0], b = first[middle], c = first[count - 1];
        const T pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        std::size_t below = 0, above = 0, kept = 0;
        for (std::size_t i = 0; i < count; ++i) below += first[i] < pivot, above += pivot < first[i];
        if (below < middle && middle + 1 < count - above) return {pivot, pivot, pivot};
        const bool is_below = middle + 1 < below;
        if ((!is_below && middle <= count - above) || (is_below ? below : above) > count / 16 * 15) break;
        const auto keep = [&](auto is_in) {
            for (std::size_t i = 0; i < count; ++i) kept += is_in(first[kept] = first[i]) ? 1 : 0;
        };
        if (is_below) keep([pivot](T value) { return value < pivot; });
        else keep([pivot](T value) { return pivot < value; });
        middle -= is_below ? 0 : count - above;
        count = kept;
    }
    T* const at = first + middle;
    T* const last = first + count;
    std::nth_element(first, at, last);
    return {at == first ? *at : *std::max_element(first, at), *at,
        at + 1 == last ? *at : *std::min_element(at + 1, last)};
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
