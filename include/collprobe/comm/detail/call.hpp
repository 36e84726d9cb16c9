// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
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
    std::array<char, 24> text{}; ///< of the name or the file's name its end, as much as fits, and a zero
    std::uint32_t hash = 0; ///< of all of it
    std::uint32_t line = 0;

    static call_place of(const call_site& where, bool lines) noexcept;
    friend bool operator==(const call_place&, const call_place&) = default;
};

/// The properties of a call that must be equal on all ranks, as a message between them. A member that a call does not
/// use keeps its default, so that whole descriptions can be compared.
struct call_description {
    std::uint64_t count = 0;
    std::uint64_t leaves = 1;
    std::uint64_t number = 0; ///< of the rank's calls before
    call_place place{};
    std::int32_t root = -1;
    collective what = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    std::uint8_t unused = 0;

    /// Without its number and its place.
    static call_description of(const collective_call& call, int size) noexcept
    {
        return {.count = agreed_count(call, size),
            .leaves = call.leaves,
            .root = call.root,
            .what = call.what,
            .type = call.type,
            .operation = call.operation};
    }
    friend bool operator==(const call_description&, const call_description&) = default;
};

/// "rank 7", or "ranks 0-6, 9".
COLLPROBE_COLD_INLINE std::string list_ranks(const std::vector<int>& ranks)
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

/// The message of an exception.
COLLPROBE_COLD_INLINE std::string message_of(const std::exception_ptr& cause)
{
    try {
        std::rethrow_exception(cause);
    } catch (const std::exception& known) {
        return known.what();
    } catch (...) {
        return "an exception that is no std::exception";
    }
}

/// "all_reduce of float, count 8, sum". With a reference of the same call, only the differences from the reference.
COLLPROBE_COLD_INLINE std::string describe(const call_description& call, const call_description* reference = nullptr)
{
    if (reference != nullptr && reference->what != call.what) reference = nullptr;
    std::string text;
    const auto add = [&](const std::string& part) {
        if (!text.empty()) text += ", ";
        text += part;
    };
    if (reference == nullptr) add(name(call.what));
    if (call.what != collective::barrier) {
        const bool reduces = call.what == collective::all_reduce || call.what == collective::reduce_scatter;
        if (reference == nullptr) text += std::string(" of ") + name(call.type);
        else if (reference->type != call.type) add(name(call.type));
        if (reference == nullptr || reference->count != call.count) add("count " + std::to_string(call.count));
        if (reference == nullptr ? call.leaves != 1 : reference->leaves != call.leaves) {
            add("leaves " + std::to_string(call.leaves));
        }
        if (reduces && (reference == nullptr || reference->operation != call.operation)) add(name(call.operation));
        if (call.root >= 0 && (reference == nullptr || reference->root != call.root)) {
            add("root " + std::to_string(call.root));
        }
    }
    if (reference == nullptr ? call.place != call_place() : reference->place != call.place) {
        const std::string place = call.place.text.data();
        if (call.place.line != 0) add(place + ":" + std::to_string(call.place.line));
        else add(place.empty() ? "without a name" : "named '" + place + "'");
        const bool same_text = reference != nullptr && reference->place.text == call.place.text;
        if (same_text && reference->place.line == call.place.line) text += ", which begins in another way";
    }
    if (reference != nullptr && reference->number != call.number) {
        add("after " + std::to_string(call.number) + " calls, not " + std::to_string(reference->number));
    }
    return text;
}

/// The disagreement of the ranks of one collective.
struct call_mismatch {
    std::string message; ///< "ranks 0-6: all_reduce of float, count 8, sum; rank 7: count 7"
    std::vector<int> culprits; ///< ascending; empty if all agree
};

/// Groups the ranks by their calls. The culprits are the ranks outside the largest group. If two groups are the
/// largest (always so with two ranks that differ), all ranks are culprits. `description_of(rank)` gives the call of a
/// rank.
COLLPROBE_COLD_INLINE call_mismatch compare_calls(int ranks, function_ref<call_description(int)> description_of)
{
    bool agree = true;
    for (int rank = 1; rank < ranks && agree; ++rank) agree = description_of(rank) == description_of(0);
    if (agree) return {};

    // A group is named by its lowest rank.
    std::vector<int> group_of(static_cast<std::size_t>(ranks));
    std::vector<int> size_of(static_cast<std::size_t>(ranks));
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
    call_mismatch result;
    result.message = list_ranks(members_of(reference)) + ": " + describe(expected);
    for (int group = 0; group < ranks; ++group) {
        if (group == reference || size_of[static_cast<std::size_t>(group)] == 0) continue;
        result.message
            += "; " + list_ranks(members_of(group)) + ": " + describe(description_of(group), &expected);
    }
    for (int rank = 0; rank < ranks; ++rank) {
        if (tie || group_of[static_cast<std::size_t>(rank)] != reference) result.culprits.push_back(rank);
    }
    return result;
}

inline call_place call_place::of(const call_site& where, bool lines) noexcept
{
    call_place place;
    const char* text = where.name;
    if (*text == '\0' && lines) {
        text = where.file;
        place.line = where.line;
        // Without folders, which may differ between machines.
        for (const char* at = where.file; *at != '\0'; ++at) {
            if (*at == '/') text = at + 1;
        }
    }
    std::size_t length = 0;
    for (; text[length] != '\0'; ++length)
        place.hash = (place.hash ^ static_cast<unsigned char>(text[length])) * 0x01000193u; // as FNV-1a
    // The end of a long name says more: "..attn.c_proj.weight".
    const std::size_t most = place.text.size() - 1;
    const std::size_t cut = length > most ? length - most : 0;
    for (std::size_t at = 0; at + cut < length; ++at) place.text[at] = cut != 0 && at < 2 ? '.' : text[at + cut];
    return place;
}

} // namespace collprobe::detail
