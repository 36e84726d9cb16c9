// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/accumulator.hpp>

namespace collprobe::testing {

/// The accumulator of the example in scan/README.md: how many magnitudes are above a limit.
template <floating_element T>
struct above {
    struct taken {
        std::uint64_t count = 0;
        COLLPROBE_HD constexpr void merge(const taken& next) noexcept { count += next.count; }
    };
    double limit;

    COLLPROBE_HD void add(taken& into, T element, std::uint64_t) const noexcept
    {
        if (collprobe::detail::absolute(collprobe::detail::widen(element)) > limit) ++into.count;
    }
};

} // namespace collprobe::testing
