// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/element.hpp>
#include <collprobe/record.hpp>

namespace collprobe::detail {

/// What must be equal on all ranks of one collective. A member that a call does not use keeps its
/// default, so that whole descriptions compare.
struct call_description {
    collective call = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    std::uint64_t count = 0;

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
        if (last != first) text += "-" + std::to_string(ranks[last]);
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

    std::vector<std::vector<int>> groups;
    for (int rank = 0; rank < ranks; ++rank) {
        std::size_t at = 0;
        while (at < groups.size() && !(description_of(groups[at].front()) == description_of(rank))) ++at;
        if (at == groups.size()) groups.emplace_back();
        groups[at].push_back(rank);
    }
    std::size_t largest = 0;
    bool tie = false;
    for (std::size_t at = 1; at < groups.size(); ++at) {
        if (groups[at].size() == groups[largest].size()) tie = true;
        if (groups[at].size() > groups[largest].size()) {
            largest = at;
            tie = false;
        }
    }
    const call_description reference = description_of(groups[largest].front());
    disagreement result;
    result.message = list_ranks(groups[largest]) + ": " + describe(reference);
    std::vector<bool> innocent(static_cast<std::size_t>(ranks), false);
    for (std::size_t at = 0; at < groups.size(); ++at) {
        if (at == largest) continue;
        result.message += "; " + list_ranks(groups[at]) + ": ";
        result.message += describe(description_of(groups[at].front()), &reference);
    }
    if (!tie) {
        for (const int rank : groups[largest]) innocent[static_cast<std::size_t>(rank)] = true;
    }
    for (int rank = 0; rank < ranks; ++rank) {
        if (!innocent[static_cast<std::size_t>(rank)]) result.culprits.push_back(rank);
    }
    return result;
}

} // namespace collprobe::detail
