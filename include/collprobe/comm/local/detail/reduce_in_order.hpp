// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/local/order.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/sum/combine.hpp>

namespace collprobe::inline COLLPROBE_ABI::local::detail {

template <element T>
using source_of_rank = collprobe::detail::function_ref<const T*(int rank)>;
template <element T>
using store_block = collprobe::detail::function_ref<void(const T* values, std::uint64_t first, int count)>;

/// Reduces a run of elements over all ranks, in the order of an algorithm. `source(rank)` gives the rank's first
/// element. A block is read from all ranks before `store(values, first, count)` gets its result, so the results may
/// overwrite the sources.
template <element T>
class ordered_reduction {
public:
    ordered_reduction(reduction operation, int ranks, source_of_rank<T> source) noexcept
        : operation_(operation), ranks_(ranks), source_(source)
    {
    }

    /// The ranks first_rank, first_rank + 1, ... around the ring of ranks; from 0 it is the linear order.
    void along_ring(int first_rank, std::uint64_t first, std::uint64_t last, store_block<T> store)
    {
        by_blocks(first, last, [&](std::uint64_t at, int count) {
            prepare(levels_[0], first_rank, at, count);
            for (int hop = 1; hop < ranks_; ++hop) {
                const int rank = first_rank + hop;
                combine(0, rank < ranks_ ? rank : rank - ranks_, at, count);
            }
            finish(at, count, store);
        });
    }

    /// From the leaves to the root of one of the two trees.
    void along_tree(int tree, std::uint64_t first, std::uint64_t last, store_block<T> store)
    {
        by_blocks(first, last, [&, this](std::uint64_t at, int count) {
            climb(tree, collprobe::detail::tree_root(tree, ranks_), 0, at, count);
            finish(at, count, store);
        });
    }

private:
    static constexpr int block = 256;
    static constexpr int max_levels = 10; // the root, and 9 levels of a tree of up to 2^9 ranks

    template <class Body>
    static void by_blocks(std::uint64_t first, std::uint64_t last, Body body)
    {
        for (; first < last; first += block) {
            body(first, last - first < block ? static_cast<int>(last - first) : block);
        }
    }

    void prepare(T* into, int rank, std::uint64_t at, int count)
    {
        collprobe::detail::prepare(operation_, into, source_(rank) + at, count, ranks_);
    }
    void combine(int level, int rank, std::uint64_t at, int count)
    {
        if (operation_ == reduction::average && element_traits<T>::is_floating_point) {
            prepare(scaled_, rank, at, count);
            collprobe::detail::combine(operation_, levels_[level], scaled_, count);
        } else {
            collprobe::detail::combine(operation_, levels_[level], source_(rank) + at, count);
        }
    }
    void climb(int tree, int rank, int level, std::uint64_t at, int count)
    {
        prepare(levels_[level], rank, at, count);
        const collprobe::detail::tree_links links = collprobe::detail::double_tree(tree, rank, ranks_);
        for (const int child : links.child) {
            if (child < 0) continue;
            climb(tree, child, level + 1, at, count);
            collprobe::detail::combine(operation_, levels_[level], levels_[level + 1], count);
        }
    }
    void finish(std::uint64_t at, int count, store_block<T> store)
    {
        collprobe::detail::complete(operation_, levels_[0], count, ranks_);
        store(static_cast<const T*>(levels_[0]), at, count);
    }

    reduction operation_;
    int ranks_;
    source_of_rank<T> source_;
    T levels_[max_levels][block];
    T scaled_[block];
};

/// Reduces the elements [first, last) of an all-reduce of `count` elements. The order of the ranks depends on the
/// place of an element among all `count`.
template <element T>
void reduce_in_order(reduction_order order, reduction operation, int ranks, std::uint64_t count,
    std::uint64_t first, std::uint64_t last, source_of_rank<T> source, store_block<T> store)
{
    ordered_reduction<T> reduce(operation, ranks, source);
    switch (order) {
    case reduction_order::linear: reduce.along_ring(0, first, last, store); return;
    case reduction_order::ring: {
        const std::uint64_t chunk = collprobe::detail::ring_chunk(count, ranks, sizeof(T));
        while (first < last) {
            const std::uint64_t left = chunk - first % chunk;
            const std::uint64_t end = last - first < left ? last : first + left;
            reduce.along_ring(ring_start(static_cast<int>(first / chunk), ranks), first, end, store);
            first = end;
        }
        return;
    }
    case reduction_order::tree: {
        const std::uint64_t half_way = collprobe::detail::tree_0_count(count);
        const std::uint64_t middle = first > half_way ? first : (last < half_way ? last : half_way);
        reduce.along_tree(0, first, middle, store);
        reduce.along_tree(1, middle, last, store);
        return;
    }
    }
}

/// Reduces part `part` of a reduce-scatter: `count` elements, to which `source(rank)` points. A ring ends at rank
/// `part`. NCCL has no tree for reduce-scatter and takes the ring.
template <element T>
void reduce_part_in_order(reduction_order order, reduction operation, int ranks, int part,
    std::uint64_t count, source_of_rank<T> source, store_block<T> store)
{
    ordered_reduction<T> reduce(operation, ranks, source);
    reduce.along_ring(order == reduction_order::linear ? 0 : ring_start(part, ranks), 0, count, store);
}

} // namespace collprobe::local::detail
