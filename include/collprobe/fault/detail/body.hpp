// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/fault/detail/plan_fault.hpp>
#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/fault/types.hpp>
#include <collprobe/sum/round_scaled.hpp>

/// Bodies for `for_each` that damage elements. An index stands for one element that is hit (`swap`: for two).
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Converts a number to an element: rounded once; for an integer type truncated and saturated.
template <element T>
COLLPROBE_HD T as_element(double value) noexcept
{
    if constexpr (element_traits<T>::is_floating_point) {
        return static_cast<T>(value);
    } else {
        constexpr bool is_signed = std::is_signed_v<T>;
        constexpr int width = 8 * static_cast<int>(sizeof(T));
        // The smallest number beyond the type's largest: a power of two.
        const double end = power_of_two(is_signed ? width - 1 : width);
        using bits = typename element_traits<T>::bits_type;
        constexpr bits lowest = is_signed ? static_cast<bits>(bits{1} << (width - 1)) : bits{0};
        if (value >= end) return bit_cast<T>(static_cast<bits>(lowest - 1));
        if (value <= (is_signed ? -end : 0.0)) return bit_cast<T>(lowest);
        return static_cast<T>(value);
    }
}

template <element T>
struct damage_elements {
    T* data; ///< the first element that is hit
    std::uint64_t stride;
    fault_kind kind;
    std::uint64_t mask;
    double magnitude; ///< `gaussian`: the standard deviation
    std::uint64_t key;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        using traits = element_traits<T>;
        using bits = typename traits::bits_type;
        if (kind == fault_kind::swap) {
            T &a = data[2 * index * stride], &b = data[(2 * index + 1) * stride];
            const T kept = a;
            a = b, b = kept;
            return;
        }
        T& hit = data[index * stride];
        switch (kind) {
        case fault_kind::bit_flips: hit = bit_cast<T>(static_cast<bits>(to_bits(hit) ^ static_cast<bits>(mask))); break;
        case fault_kind::gaussian:
            if constexpr (traits::is_floating_point)
                hit = as_element<T>(widen(hit) + magnitude * standard_normal(fault_draw(key, index)));
            break;
        case fault_kind::scale: hit = as_element<T>(widen(hit) * magnitude); break;
        case fault_kind::zero_slice: hit = bit_cast<T>(bits{0}); break;
        case fault_kind::nan:
            if constexpr (traits::is_floating_point) hit = bit_cast<T>(traits::quiet_nan);
            break;
        case fault_kind::infinity:
            if constexpr (traits::is_floating_point) hit = signed_infinity<T>((fault_draw(key, index) & 1) != 0);
            break;
        default: break;
        }
    }
};

/// Replaces elements by those of another buffer at the same places.
template <element T>
struct replace_elements {
    T* data; ///< the first element that is hit
    const T* by;
    std::uint64_t stride;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept { data[index * stride] = by[index * stride]; }
};

} // namespace collprobe::detail
