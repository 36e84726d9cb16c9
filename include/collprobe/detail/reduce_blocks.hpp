// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

constexpr std::uint64_t blocks_of(std::uint64_t count, std::uint64_t block) noexcept
{
    return count / block + (count % block != 0 ? 1 : 0);
}

/// The partial of `blocks` >= 1 fixed blocks from `first_block` on, out of `count` elements in all.
///
/// Block b covers the elements from `b * Reducer::block` on. Blocks merge pairwise in a tree that depends on the
/// number of blocks alone: the left part holds the largest power of two below `blocks`. So rounding errors grow with
/// log(blocks), and the bits of the result depend on the blocks alone. Threads get the same bits if each takes a
/// subtree (2^k blocks from a multiple of 2^k on, the last one shorter) and the same rule merges the subtrees.
/// Allocates nothing.
template <class Reducer>
typename Reducer::partial reduce_block_range(
    const Reducer& reducer, std::uint64_t first_block, std::uint64_t blocks, std::uint64_t count)
{
    if (blocks == 1) {
        const std::uint64_t first = first_block * Reducer::block;
        const std::uint64_t rest = count - first;
        typename Reducer::partial result = Reducer::identity();
        reducer.run(result, first, rest < Reducer::block ? rest : Reducer::block);
        return result;
    }
    std::uint64_t half = 1;
    while (half < blocks - half) half *= 2;
    typename Reducer::partial result = reduce_block_range(reducer, first_block, half, count);
    const typename Reducer::partial right
        = reduce_block_range(reducer, first_block + half, blocks - half, count);
    Reducer::merge(result, right);
    return result;
}

/// The partial of all `count` elements, on the calling thread; the identity if there are none.
template <class Reducer>
typename Reducer::partial reduce_blocks(const Reducer& reducer, std::uint64_t count)
{
    if (count == 0) return Reducer::identity();
    return reduce_block_range(reducer, 0, blocks_of(count, Reducer::block), count);
}

} // namespace collprobe::detail
