// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/order_sensitivity.hpp>
#include <collprobe/sum/order.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

COLLPROBE_COLD_INLINE std::vector<summation_order> sample_orders(int terms, int orders)
{
    std::vector<summation_order> tried;
    if (orders > 0) tried.push_back(linear_order(terms));
    if (orders > 1) tried.push_back(pairwise_order(terms));
    for (int k = 2; k < orders; ++k) {
        std::vector<int> permutation(static_cast<std::size_t>(terms));
        for (int i = 0; i < terms; ++i) permutation[static_cast<std::size_t>(i)] = i;
        std::uint64_t state = static_cast<std::uint64_t>(k);
        for (int i = terms - 1; i > 0; --i) {
            state = mix64(state + 0x9e3779b97f4a7c15u);
            std::swap(permutation[static_cast<std::size_t>(i)],
                permutation[static_cast<std::size_t>(state % static_cast<std::uint64_t>(i + 1))]);
        }
        tried.push_back(permuted_order(permutation));
    }
    return tried;
}

} // namespace detail

} // namespace collprobe::inline COLLPROBE_ABI
