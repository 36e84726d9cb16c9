// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/sum_in_order.hpp>

/// Orders in two levels, and the orders of a message's elements by their place.
namespace summation {

using namespace collprobe;

/// Two levels: each group of terms that follow each other is added in a linear order, then the groups' sums in the
/// order `across`, in which group g is term g. Groups are the ranks of a node, or the leaves of a rank.
/// Preconditions: `sizes` has across.size() + 1 sizes, each at least 1.
inline summation_order two_level_order(const std::vector<int>& sizes, const summation_order& across)
{
    summation_order order;
    std::vector<std::uint32_t> first;
    std::uint32_t next = 0;
    for (const int size : sizes) {
        first.push_back(next++);
        for (int k = 1; k < size; ++k) order.push_back({first.back(), next++});
    }
    for (const addition& step : across) order.push_back({first[step.into], first[step.from]});
    return order;
}

/// The order of a message's elements from `first` on, up to the `first` of the next in a list.
struct placed_order {
    std::uint64_t first = 0;
    summation_order order;
};

/// The orders of a ring all-reduce of `count` elements, a chunk each (`ring_chunk`): those of the elements from `first`
/// up to `end` alone, because there are n orders of n - 1 additions.
inline std::vector<placed_order> ring_orders(
    int n, std::uint64_t count, int element_bytes, std::uint64_t first = 0, std::uint64_t end = ~std::uint64_t{0})
{
    const std::uint64_t chunk = detail::ring_chunk(count, n, element_bytes);
    std::vector<placed_order> orders;
    for (int c = 0; c < n; ++c) {
        const std::uint64_t begin = static_cast<std::uint64_t>(c) * chunk;
        if (c > 0 && (begin >= count || begin >= end)) break;
        if (begin + chunk <= first && begin + chunk < count) continue;
        orders.push_back({begin, rotated_order(n, ring_start(c, n))});
    }
    return orders;
}

/// Those of a tree all-reduce: tree 0 has the first half of the elements.
inline std::vector<placed_order> tree_orders(int n, std::uint64_t count)
{
    std::vector<placed_order> orders;
    orders.push_back({0, tree_order(n, 0)});
    if (count > 1) orders.push_back({detail::tree_0_count(count), tree_order(n, 1)});
    return orders;
}

/// `collprobe::sum_in_order` for a part of a message whose elements have an order by their place, as those of a ring have.
/// Shapes: the rows and the result begin with the message's element `place`. `orders`: by ascending `first`, from 0 on.
template <accumulation in, floating_element T>
void sum_in_order(const T* const* rows, const std::vector<placed_order>& orders, T* result, std::uint64_t place,
    std::uint64_t count)
{
    const std::uint64_t end = place + count;
    for (std::size_t k = 0; k < orders.size(); ++k) {
        const std::uint64_t next = k + 1 < orders.size() ? orders[k + 1].first : end;
        const std::uint64_t first = orders[k].first > place ? orders[k].first : place;
        const std::uint64_t last = next < end ? next : end;
        if (first >= last) continue;
        std::vector<const T*> from(rows, rows + orders[k].order.size() + 1);
        for (const T*& row : from) row += first - place;
        collprobe::sum_in_order<in>(from.data(), orders[k].order, result + (first - place), last - first);
    }
}

} // namespace summation
