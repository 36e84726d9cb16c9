// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A borrowed buffer of any element type that should be equal on every rank: weights, optimizer state, a result.
/// Several of them, of different types, make a list: `std::vector<replica> all{view(weights), view(momentum)}`.
struct replica {
    void* data = nullptr;
    std::uint64_t count = 0; ///< elements
    element_type type = element_type::float32;

    constexpr replica() = default;
    template <element T>
        requires(!std::is_const_v<T>)
    constexpr replica(view<T> buffer) noexcept
        : data(buffer.data()), count(buffer.count()), type(element_traits<T>::type)
    {
    }

    std::uint64_t size_bytes() const noexcept { return count * static_cast<std::uint64_t>(bytes_of(type)); }
    view<std::uint8_t> bytes() const noexcept { return {static_cast<std::uint8_t*>(data), size_bytes()}; }
    /// The elements. Precondition: `type` is that of T.
    template <element T>
    view<T> as() const noexcept
    {
        return {static_cast<T*>(data), count};
    }
};

} // namespace collprobe
