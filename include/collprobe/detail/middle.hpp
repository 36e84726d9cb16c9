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

/// The middle values. Reorders `values`.
/// Precondition: at least one value, all finite. Cost: O(n) on average, no allocation.
template <class T>
middle_of_sorted<T> middle_of(view<T> values) noexcept
{
    T* const first = values.data();
    T* const at = first + values.size() / 2;
    T* const last = first + values.size();
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
