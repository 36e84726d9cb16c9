// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
__attribute__((noinline)) T add_one_by_one(const std::vector<T>& terms, const summation_order& order)
{
    using standard = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const std::size_t last = order.empty() ? 0 : order.back().into;
    if constexpr (in == accumulation::exact) {
        exact_oracle<T> sum;
        for (const T term : terms) sum.add(term);
        return sum.round();
    } else if constexpr (in == accumulation::native) {
        std::vector<T> sums = terms;
        for (const addition& step : order) {
            sums[step.into] = T(plus(static_cast<standard>(sums[step.into]), static_cast<standard>(sums[step.from])));
        }
        return sums[last];
    } else {
        using wide = std::conditional_t<in == accumulation::float32, float, double>;
        std::vector<wide> sums;
        for (const T term : terms) sums.push_back(static_cast<wide>(term));
        for (const addition& step : order) sums[step.into] = plus(sums[step.into], sums[step.from]);
        volatile wide sum = sums[last];
        return T(sum);
    }
}

/// The sum of one element's terms in an order, addition by addition.
template <accumulation in, floating_element T>
T ordered_oracle(const std::vector<T>& terms, const summation_order& order)
{
    const detail::gradual_underflow as_ieee_has_it;
    return add_one_by_one<in>(terms, order);
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
