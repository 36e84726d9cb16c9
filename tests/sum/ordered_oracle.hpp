// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/order.hpp>

#include "exact_oracle.hpp"

namespace collprobe::testing {

/// One operation of the processor, whatever the flags of the build.
template <class Float>
Float plus(Float a, Float b)
{
    volatile Float x = a, y = b;
    volatile Float sum = x + y;
    return sum;
}

// Not inlined: every operation must stay inside the scope that sets the floating-point mode.
template <accumulation in, floating_element T>
__attribute__((noinline)) T add_one_by_one(
    const std::vector<T>& terms, const summation_order& order, std::uint32_t divisor)
{
    if constexpr (in == accumulation::exact) {
        exact_oracle<T> sum;
        for (const T term : terms) sum.add(term);
        return sum.round(divisor);
    } else {
        // Sums of 8 and 16 bits are added in float, which is wide enough for the second rounding to do no harm, and
        // divided in double, which is for a quotient.
        using wide = std::conditional_t<in == accumulation::float64 || std::is_same_v<T, double>, double, float>;
        using widest = std::conditional_t<in == accumulation::native && sizeof(T) <= 2, double, wide>;
        std::vector<wide> sums;
        for (const T term : terms) sums.push_back(static_cast<wide>(term));
        for (const addition& step : order) {
            const wide sum = plus(sums[step.into], sums[step.from]);
            sums[step.into] = in == accumulation::native ? static_cast<wide>(T(sum)) : sum;
        }
        volatile widest sum = sums[order.empty() ? 0 : order.back().into];
        volatile widest over = static_cast<widest>(divisor);
        if (divisor != 1) sum = sum / over;
        return T(static_cast<widest>(sum));
    }
}

/// The sum of one element's terms in an order, addition by addition, over a divisor.
template <accumulation in, floating_element T>
T ordered_oracle(const std::vector<T>& terms, const summation_order& order, std::uint32_t divisor = 1)
{
    const detail::gradual_underflow as_ieee_has_it;
    return add_one_by_one<in>(terms, order, divisor);
}

/// Equal bits; of NaN only that both are, unless the sum is exact.
template <accumulation in, floating_element T>
bool same_sum(T a, T b)
{
    return to_bits(a) == to_bits(b) || (in != accumulation::exact && is_nan(a) && is_nan(b));
}

/// Calls `use` with each accumulator that holds T, as an integral constant.
template <floating_element T, class Use>
void for_each_accumulation(Use&& use)
{
    use(std::integral_constant<accumulation, accumulation::native>{});
    if constexpr (holds<T>(accumulation::float32)) use(std::integral_constant<accumulation, accumulation::float32>{});
    use(std::integral_constant<accumulation, accumulation::float64>{});
    use(std::integral_constant<accumulation, accumulation::exact>{});
}

} // namespace collprobe::testing
