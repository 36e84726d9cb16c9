// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Texts for the enumerators of an enumeration, which count up from 0 to `last`, in their order.
template <auto last>
struct name_list {
    static constexpr std::size_t count = static_cast<std::size_t>(last) + 1;

    template <class... Text>
    constexpr name_list(Text... texts) noexcept : of{texts...}
    {
        static_assert(sizeof...(Text) == count, "each enumerator has one name");
    }
    /// "unknown" of a number that is no enumerator.
    constexpr const char* operator[](decltype(last) value) const noexcept
    {
        return static_cast<std::size_t>(value) < count ? of[static_cast<std::size_t>(value)] : "unknown";
    }

    const char* of[count];
};

/// The `name_list` of an enumeration that has one.
template <class E>
inline constexpr int names_of = 0;

template <class E>
concept named_enumeration = std::is_enum_v<E> && requires(E value) { names_of<E>[value]; };

/// The name of an enumerator.
constexpr const char* name(named_enumeration auto value) noexcept { return names_of<decltype(value)>[value]; }

} // namespace collprobe
