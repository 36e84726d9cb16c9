// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/function_ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What must be equal on all ranks of one collective. A member that a call does not use keeps its
/// default, so that whole descriptions compare.
struct call_description {
    collective call = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    std::uint64_t count = 0;
    std::uint64_t whole = 0; ///< count of what this call does a part of; 0 if it is a call of its own

    /// Of `count` elements.
    std::uint64_t bytes() const noexcept { return count * static_cast<std::uint64_t>(bytes_of(type)); }
    bool has_data() const noexcept { return call != collective::barrier && call != collective::split; }
    bool reduces() const noexcept
    {
        return call == collective::all_reduce || call == collective::reduce_scatter;
    }
    friend bool operator==(const call_description&, const call_description&) = default;
};

/// "rank 7", or "ranks 0-6, 9".
std::string list_ranks(const std::vector<int>& ranks);

/// What an exception says.
std::string message_of(const std::exception_ptr& cause);

/// "all_reduce of float, count 8, sum"; with a reference of the same call only what differs from it.
std::string describe(const call_description& what, const call_description* reference = nullptr);

/// How the ranks of one collective disagree.
struct disagreement {
    std::string message; ///< "ranks 0-6: all_reduce of float, count 8, sum; rank 7: count 7"
    std::vector<int> culprits; ///< ascending; empty if all agree
};

/// Groups the ranks by what they called. The culprits are those outside the largest group; where two
/// groups are the largest nobody can say which is right, and all ranks are (so always with two ranks).
/// `description_of(rank)` gives what a rank called.
disagreement compare_calls(int ranks, function_ref<call_description(int)> description_of);

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/detail/call.ipp>
#endif
