// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// The largest value that an exchange carries.
inline constexpr std::uint64_t max_value_bytes = std::uint64_t{64} * 1024;

template <class T>
inline constexpr bool is_plain
    = std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_pointer_v<T>;

/// Whether T is a view, a span or a string_view: the exchange carries the elements that it points to, not the
/// pointer.
template <class T>
inline constexpr bool is_borrowed
    = requires { typename T::element_type; } || requires { typename T::traits_type; };

template <class T>
inline constexpr bool is_view = false;
template <class E>
inline constexpr bool is_view<view<E>> = is_plain<E>;

/// The type of a forwarding reference to a variable of plain bytes, or to a view of such elements.
template <class T>
concept exchangeable = is_view<std::remove_cvref_t<T>>
    || (std::is_lvalue_reference_v<T> && is_plain<std::remove_reference_t<T>>
        && !is_borrowed<std::remove_reference_t<T>>);

template <class T>
view<std::uint8_t> memory_of(T& value)
{
    if constexpr (is_view<std::remove_const_t<T>>) {
        return {reinterpret_cast<std::uint8_t*>(value.data()), value.size_bytes()};
    } else {
        return {reinterpret_cast<std::uint8_t*>(&value), sizeof value};
    }
}

} // namespace collprobe::bootstrap::detail
