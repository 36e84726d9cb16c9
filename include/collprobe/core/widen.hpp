// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/target.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The exact value, whatever the build does to subnormal numbers on a GPU.
template <element T>
COLLPROBE_HD inline double widen(T value) noexcept
{
    if constexpr (std::is_same_v<T, float>) return exact_double(value);
    else if constexpr (on_device && std::is_same_v<T, float16>) return exact_double(float_of_half_bits(value.bits));
    else if constexpr (floating_element<T> && sizeof(T) < sizeof(float)) return exact_double(static_cast<float>(value));
    else return static_cast<double>(value);
}

} // namespace collprobe::detail
