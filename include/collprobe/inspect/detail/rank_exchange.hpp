// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/core/record/inspection.hpp>

/// Tells all ranks what one rank has observed.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The orders that one rank sees.
struct order_list {
    int kind = 0; ///< a number for their name
    std::vector<inspection::order_of_elements> orders;
};

/// As lines of text.
inline std::string text_of(const order_list& list)
{
    std::string text = std::to_string(list.kind) + '\n';
    for (const auto& each : list.orders) {
        text += std::to_string(each.first) + ' ' + std::to_string(each.elements) + ' ' + each.brackets + '\n';
    }
    return text;
}

inline order_list order_list_of(const std::string& text)
{
    order_list list;
    std::size_t at = 0;
    const auto until = [&](char end) {
        const std::size_t from = at;
        at = text.find(end, from) + 1;
        return text.substr(from, at - 1 - from);
    };
    list.kind = std::stoi(until('\n'));
    while (at < text.size()) {
        const std::uint64_t first = std::stoull(until(' '));
        const std::uint64_t elements = std::stoull(until(' '));
        list.orders.push_back({until('\n'), first, elements});
    }
    return list;
}

/// The orders of all ranks (`lists` is by rank), each once, with the ranks that see it; by their first element.
inline std::vector<inspection::order_of_elements> merged(const std::vector<order_list>& lists)
{
    std::vector<inspection::order_of_elements> all;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
        for (const auto& own : lists[rank].orders) {
            auto same = std::find_if(all.begin(), all.end(), [&](const auto& each) {
                return each.first == own.first && each.elements == own.elements && each.brackets == own.brackets;
            });
            if (same == all.end()) {
                const auto at = std::upper_bound(all.begin(), all.end(), own,
                    [](const auto& a, const auto& b) { return a.first < b.first; });
                same = all.insert(at, own);
            }
            same->ranks.push_back(static_cast<int>(rank));
        }
    }
    return all;
}

/// All-gathers of what the host has. Collective: all ranks make the same calls.
class rank_exchange {
public:
    virtual ~rank_exchange() = default;

    /// `size` bytes of each rank, in the order of the ranks. `size` is equal on all ranks.
    virtual std::vector<std::uint8_t> bytes(const void* own, std::size_t size) = 0;
    /// The value of each rank.
    template <class Value>
    std::vector<Value> all(const Value& own)
    {
        static_assert(std::is_trivially_copyable_v<Value>);
        const std::vector<std::uint8_t> told = bytes(&own, sizeof own);
        std::vector<Value> values(told.size() / sizeof own);
        std::memcpy(values.data(), told.data(), told.size());
        return values;
    }
    /// The orders of each rank.
    std::vector<order_list> orders(const order_list& own)
    {
        std::string text = text_of(own);
        std::uint64_t longest = 0;
        for (const std::uint64_t each : all(static_cast<std::uint64_t>(text.size()))) longest = std::max(longest, each);
        text.resize(longest, '\0');
        const std::vector<std::uint8_t> told = bytes(text.data(), text.size());
        std::vector<order_list> lists;
        for (std::size_t from = 0; from < told.size(); from += text.size()) {
            const std::string padded(told.begin() + static_cast<std::ptrdiff_t>(from),
                told.begin() + static_cast<std::ptrdiff_t>(from + text.size()));
            lists.push_back(order_list_of(padded.substr(0, padded.find('\0'))));
        }
        return lists;
    }
};

} // namespace collprobe::detail
