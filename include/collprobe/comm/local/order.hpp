// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/names.hpp>
#include <collprobe/sum/order.hpp>

namespace collprobe::inline COLLPROBE_ABI::local {

/// The order in which `local` combines the n values of an element. Every combination rounds to the element type, as
/// in the algorithm that has this order.
enum class reduction_order : std::uint8_t {
    linear, ///< ((x0 + x1) + x2) + ...: by rank
    ring, ///< NCCL's ring: the starting rank rotates from chunk to chunk, see `ring_chunk`
    tree, ///< NCCL's double binary tree: each half of the elements has a tree, see `tree_links`
};

constexpr const char* name(reduction_order order) noexcept
{
    return name_list<reduction_order::tree>{"linear", "ring", "tree"}[order];
}

} // namespace collprobe::local
