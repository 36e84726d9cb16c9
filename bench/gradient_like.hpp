// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::bench {

/// Elements like those of a gradient: mean 0, no zeros, no NaN; integers take all values. A body for `for_each`.
template <element T>
struct fill_like_gradient {
    T* to;
    std::uint64_t seed = 0;
    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        const std::uint64_t bits = detail::mix64(seed + index + 1);
        if constexpr (floating_element<T>) {
            double sum = -2.0;
            for (int shift = 0; shift < 64; shift += 16) sum += static_cast<double>((bits >> shift) & 0xffff) / 65536.0;
            to[index] = T(sum * 0.01 + 1e-6);
        } else {
            to[index] = static_cast<T>(bits);
        }
    }
};

} // namespace collprobe::bench
