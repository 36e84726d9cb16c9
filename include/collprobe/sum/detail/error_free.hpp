// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>
#include <collprobe/simd/rounding.hpp>

/// Error-free transforms: a floating-point sum together with its rounding error. They hold under `-ffast-math` and
/// `--use_fast_math`. On the CPU subnormal numbers must not be flushed to zero (`gradual_underflow` ensures
/// that where the library calls these transforms).
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A number as the unevaluated sum of two: `high` is the rounded value, `low` is its error.
template <class Float>
struct two_terms {
    Float high;
    Float low;
};

/// a + b = high + low exactly; high = a + b rounded to nearest. Six operations, no branch.
/// Precondition: a + b does not overflow. If it does, `high` is infinite and `low` is not finite. In rare cases only
/// `low` is not finite: an operand is the largest number, and an intermediate step overflows.
/// Source: D. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B; S. Boldo, S. Graillat, J.-M. Muller, "On
/// the robustness of the 2Sum and Fast2Sum algorithms" (2017).
template <class Float>
COLLPROBE_HD inline two_terms<Float> two_sum(Float a, Float b, const hidden<Float>& hide = hidden<Float>{}) noexcept
{
    const Float high = hide(rounded_sum(a, b));
    const Float from_b = hide(rounded_difference(high, a));
    const Float from_a = hide(rounded_difference(high, from_b));
    const Float lost_b = hide(rounded_difference(b, from_b));
    const Float lost_a = hide(rounded_difference(a, from_a));
    return {high, hide(rounded_sum(lost_a, lost_b))};
}

} // namespace collprobe::detail
