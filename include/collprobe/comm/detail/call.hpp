// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/function_ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The call that other calls are parts of, as one number for messages between ranks: 0 for none.
struct whole_call {
    static constexpr int type_bits = 8;

    std::uint64_t bits = 0;

    constexpr whole_call() = default;
    constexpr explicit whole_call(std::uint64_t number) noexcept : bits(number) {}
    constexpr whole_call(std::uint64_t count, element_type type) noexcept
        : bits(count == 0 ? 0 : count << type_bits | static_cast<std::uint64_t>(type))
    {
    }
    constexpr std::uint64_t count() const noexcept { return bits >> type_bits; }
    constexpr element_type type() const noexcept { return static_cast<element_type>(bits & ((1u << type_bits) - 1)); }
    friend bool operator==(const whole_call&, const whole_call&) = default;
};

/// The properties that must be equal on all ranks of one collective. A member that a call does not use keeps its
/// default, so that whole descriptions can be compared.
struct call_description {
    collective call = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    std::uint64_t count = 0;
    whole_call whole{}; ///< that this call is a part of

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
