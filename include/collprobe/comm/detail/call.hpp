// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/function_ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The place of a call as a value for messages between ranks: its name, or, with `lines`, its file and line.
struct call_place {
    std::array<char, 24> text{}; ///< of the name or the file's name as much as fits, and a zero
    std::uint32_t hash = 0; ///< of all of it
    std::uint32_t line = 0;

    static call_place of(const call_site& where, bool lines) noexcept;
    friend bool operator==(const call_place&, const call_place&) = default;
};

/// The properties that must be equal on all ranks of one collective. A member that a call does not use keeps its
/// default, so that whole descriptions can be compared.
struct call_description {
    collective call = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    std::uint64_t count = 0;
    std::uint64_t leaves = 1;
    std::uint64_t number = 0; ///< of the rank's calls before
    call_place place{};

    /// The size of `count` elements, in bytes.
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

/// The message of an exception.
std::string message_of(const std::exception_ptr& cause);

/// "all_reduce of float, count 8, sum". With a reference of the same call, only the differences from the reference.
std::string describe(const call_description& what, const call_description* reference = nullptr);

/// The disagreement of the ranks of one collective.
struct disagreement {
    std::string message; ///< "ranks 0-6: all_reduce of float, count 8, sum; rank 7: count 7"
    std::vector<int> culprits; ///< ascending; empty if all agree
};

/// Groups the ranks by their calls. The culprits are the ranks outside the largest group. If two groups are the
/// largest (always so with two ranks that differ), all ranks are culprits. `description_of(rank)` gives the call of a
/// rank.
disagreement compare_calls(int ranks, function_ref<call_description(int)> description_of);

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/detail/call.ipp>
#endif
