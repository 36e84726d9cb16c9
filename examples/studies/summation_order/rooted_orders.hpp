// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/sum/order.hpp>

/// The orders of MPI libraries that sum/order.hpp does not have, for n ranks. In a rooted tree each rank adds to its
/// own value the sums of its children, one after the other; rank 0 is the root.
/// Source: found by `inspect` in Open MPI 4.1.4 and MPICH 4.0.2, see bench/results/inspection.md.
namespace summation {

using namespace collprobe;

/// Adds the children of `rank` to it. `children(rank)` lists them in the sequence in which they are added.
template <class Children>
void add_children(summation_order& order, int rank, const Children& children)
{
    for (const int child : children(rank)) {
        add_children(order, child, children);
        order.push_back({static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(child)});
    }
}

/// The children of rank r are k r + 1 to k r + k, in this sequence.
inline summation_order k_ary_order(int n, int k)
{
    summation_order order;
    add_children(order, 0, [&](int rank) {
        std::vector<int> children;
        for (int child = k * rank + 1; child <= k * rank + k && child < n; ++child) children.push_back(child);
        return children;
    });
    return order;
}

/// The children of a rank r of level l are r + 2^l and r + 2^(l + 1), where level l has 2^l ranks from 2^l - 1 on.
inline summation_order level_binary_order(int n)
{
    summation_order order;
    add_children(order, 0, [&](int rank) {
        int power = 1;
        while (2 * power <= rank + 1) power *= 2;
        std::vector<int> children;
        for (const int child : {rank + power, rank + 2 * power}) {
            if (child < n) children.push_back(child);
        }
        return children;
    });
    return order;
}

/// The ranks of a subtree follow each other. Its last rank adds the right half of the others, and is added to the left
/// half, which is larger by one if the number is odd.
inline summation_order in_order_binary_order(int n)
{
    summation_order order;
    const auto add = [&](const auto& self, int first, int ranks) -> void {
        const int root = first + ranks - 1;
        const int right = (ranks - 1) / 2;
        const int left = ranks - 1 - right;
        const auto add_part = [&](int from, int size) {
            if (size == 0) return;
            self(self, from, size);
            order.push_back({static_cast<std::uint32_t>(root), static_cast<std::uint32_t>(from + size - 1)});
        };
        add_part(first + left, right);
        add_part(first, left);
    };
    add(add, 0, n);
    return order;
}

/// The children of rank r are r + j k^i for 0 < j < k and all i for which k^(i + 1) divides r, the largest first.
inline summation_order k_nomial_order(int n, int k)
{
    summation_order order;
    add_children(order, 0, [&](int rank) {
        std::vector<int> children;
        for (int step = 1; step < n && rank % (step * k) == 0; step *= k) {
            for (int j = 1; j < k && rank + j * step < n; ++j) children.insert(children.begin(), rank + j * step);
        }
        return children;
    });
    return order;
}

/// The k-nomial tree whose subtrees have ranks that follow each other, the largest first. It has k^m ranks, of which
/// those beyond n are left out.
inline summation_order k_nomial_preorder_order(int n, int k)
{
    summation_order order;
    int power = 1;
    while (power < n) power *= k;
    const auto add = [&](const auto& self, int rank, int ranks) -> void {
        int child = rank + 1;
        for (int size = ranks / k; size >= 1; size /= k) {
            for (int j = 1; j < k; ++j, child += size) {
                if (child >= n) return;
                self(self, child, size);
                order.push_back({static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(child)});
            }
        }
    };
    add(add, 0, power);
    return order;
}

/// Ranks 1 to n - 1 are cut into k chains of equal length, the first ones longer by one if need be. Rank 0 adds to its
/// value the chains, each summed from its end.
inline summation_order chains_order(int n, int k)
{
    summation_order order;
    int first = 1;
    for (int chain = 0; chain < k && first < n; ++chain) {
        const int length = (n - 1) / k + (chain < (n - 1) % k ? 1 : 0);
        for (int rank = first + length - 1; rank > first; --rank) {
            order.push_back({static_cast<std::uint32_t>(rank - 1), static_cast<std::uint32_t>(rank)});
        }
        order.push_back({0, static_cast<std::uint32_t>(first)});
        first += length;
    }
    return order;
}

} // namespace summation
