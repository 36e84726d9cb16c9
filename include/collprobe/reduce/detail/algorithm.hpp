// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/reduction_extras.hpp>
#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What the choice of an algorithm depends on. Equal on all ranks.
struct reduction_case {
    reduction_algorithm asked = reduction_algorithm::automatic;
    bool scatters = false;
    bool with_gram = false;
    bool order_matters = false; ///< the accumulator rounds
    std::uint64_t bytes = 0; ///< of all leaves of a rank
    std::uint64_t one_shot_bytes = 0;
    std::uint64_t ranks = 1;
    std::uint64_t ranks_per_node = 0; ///< 0 if it is not known
};

/// The algorithm of a reduction under a contract.
///
/// `two_level` is the cheapest wherever there are several nodes of several ranks. With m nodes of g ranks, elements of
/// b bytes and L leaves it sends (w/b + 1) (S/g) (m-1)/m bytes across the nodes. An exchange sends (L + 1) S (m-1)/m,
/// which is more, since an exact partial sum has w <= L g b bytes. Its messages are g + m - 2 for every g m - 1.
/// Source: the model in bench/cost_model.md, "Many nodes".
///
/// If the accumulator rounds, the choice must not depend on the size: the bits of an element would.
constexpr reduction_algorithm algorithm_for(const reduction_case& of) noexcept
{
    using enum reduction_algorithm;
    const bool takes_any = of.asked == automatic || of.asked == two_level;
    if (!of.scatters && !takes_any) return of.asked;
    // The Gram matrix needs all terms of an element on one rank.
    if (of.with_gram) return exchange;
    if (of.asked == two_level) return two_level;
    const bool several_nodes = of.ranks_per_node > 1 && of.ranks_per_node < of.ranks;
    const bool in_two_levels = of.asked == automatic && several_nodes;
    if (of.scatters || (in_two_levels && of.order_matters)) return in_two_levels ? two_level : exchange;
    // With 2 ranks `one_shot` sends no more for larger buffers either, but `exchange` halves the additions.
    if (of.ranks == 1 || of.bytes <= of.one_shot_bytes / of.ranks) return one_shot;
    return in_two_levels ? two_level : exchange;
}

} // namespace collprobe::detail
