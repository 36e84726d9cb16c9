// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/simd/rounding.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The correctly rounded sum. Integers wrap. A sum of narrower floating point is computed in float and rounded again.
/// The result is the correctly rounded sum too, because float has at least 2p + 2 significand bits for p = 11 and
/// less, and a subnormal sum is exact (S. Figueroa, "When is double rounding innocuous?", 1995).
template <element T>
COLLPROBE_HD T add(T a, T b) noexcept
{
    if constexpr (std::is_floating_point_v<T>) {
        return rounded_sum(a, b);
    } else if constexpr (floating_element<T>) {
        return T(rounded_sum(static_cast<float>(a), static_cast<float>(b)));
    } else {
        // In 64 unsigned bits: a narrow type would be promoted to int, where overflow is undefined.
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    }
}

} // namespace collprobe::detail
