// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/fixed_array.hpp>

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

    bool has_data() const noexcept { return call != collective::barrier && call != collective::split; }
    bool reduces() const noexcept
    {
        return call == collective::all_reduce || call == collective::reduce_scatter;
    }
    friend bool operator==(const call_description&, const call_description&) = default;
};

/// "rank 7", or "ranks 0-6, 9".
inline std::string list_ranks(const std::vector<int>& ranks)
{
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t first = 0; first < ranks.size();) {
        std::size_t last = first;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        if (first != 0) text += ", ";
        text += std::to_string(ranks[first]);
        if (last != first) (text += '-') += std::to_string(ranks[last]);
        first = last + 1;
    }
    return text;
}

/// What an exception says.
inline std::string message_of(const std::exception_ptr& cause)
{
    try {
        std::rethrow_exception(cause);
    } catch (const std::exception& known) {
        return known.what();
    } catch (...) {
        return "an exception that is no std::exception";
    }
}

/// "all_reduce of float, count 8, sum"; with a reference of the same call only what differs from it.
inline std::string describe(const call_description& what, const call_description* reference = nullptr)
{
    if (reference != nullptr && reference->call != what.call) reference = nullptr;
    std::string text;
    const auto add = [&](const std::string& part) {
        if (!text.empty()) text += ", ";
        text += part;
    };
    if (reference == nullptr) add(name(what.call));
    if (!what.has_data()) return text;
    if (reference == nullptr) text += std::string(" of ") + name(what.type);
    else if (reference->type != what.type) add(name(what.type));
    if (reference == nullptr || reference->count != what.count) add("count " + std::to_string(what.count));
    if (reference == nullptr ? what.whole != 0 : reference->whole != what.whole) {
        add("as part of " + std::to_string(what.whole));
    }
    if (what.reduces() && (reference == nullptr || reference->operation != what.operation)) {
        add(name(what.operation));
    }
    if (what.call == collective::broadcast && (reference == nullptr || reference->root != what.root)) {
        add("root " + std::to_string(what.root));
    }
    return text;
}

/// How the ranks of one collective disagree.
struct disagreement {
    std::string message; ///< "ranks 0-6: all_reduce of float, count 8, sum; rank 7: count 7"
    std::vector<int> culprits; ///< ascending; empty if all agree
};

/// Groups the ranks by what they called. The culprits are those outside the largest group; where two
/// groups are the largest nobody can say which is right, and all ranks are (so always with two ranks).
/// `description_of(rank)` gives what a rank called.
template <class DescriptionOf>
disagreement compare_calls(int ranks, DescriptionOf description_of)
{
    bool agree = true;
    for (int rank = 1; rank < ranks && agree; ++rank) agree = description_of(rank) == description_of(0);
    if (agree) return {};

    // A group goes by its lowest rank.
    const fixed_array<int> group_of(static_cast<std::size_t>(ranks));
    const fixed_array<int> size_of(static_cast<std::size_t>(ranks));
    int largest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        int group = 0;
        while (group < rank && !(description_of(group) == description_of(rank))) ++group;
        group_of[static_cast<std::size_t>(rank)] = group;
        const int size = ++size_of[static_cast<std::size_t>(group)];
        if (size > largest) largest = size;
    }
    int reference = -1;
    bool tie = false;
    for (int group = 0; group < ranks; ++group) {
        if (size_of[static_cast<std::size_t>(group)] != largest) continue;
        if (reference >= 0) tie = true;
        else reference = group;
    }
    const auto members_of = [&](int group) {
        std::vector<int> members;
        for (int rank = 0; rank < ranks; ++rank) {
            if (group_of[static_cast<std::size_t>(rank)] == group) members.push_back(rank);
        }
        return members;
    };
    const call_description expected = description_of(reference);
    disagreement result;
    result.message = list_ranks(members_of(reference)) + ": " + describe(expected);
    for (int group = 0; group < ranks; ++group) {
        if (group == reference || size_of[static_cast<std::size_t>(group)] == 0) continue;
        result.message += "; " + list_ranks(members_of(group)) + ": " + describe(description_of(group), &expected);
    }
    for (int rank = 0; rank < ranks; ++rank) {
        if (tie || group_of[static_cast<std::size_t>(rank)] != reference) result.culprits.push_back(rank);
    }
    return result;
}

} // namespace collprobe::detail
