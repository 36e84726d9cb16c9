// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The name of an enumerator; "unknown" of a number that is none. `names`: those of all enumerators, which count up
/// from 0 to `last`, in their order.
template <auto last, std::size_t count>
constexpr const char* name_of(decltype(last) value, const char* const (&names)[count]) noexcept
{
    static_assert(count == static_cast<std::size_t>(last) + 1, "each enumerator has one name");
    const auto index = static_cast<std::size_t>(value);
    return index < count ? names[index] : "unknown";
}

} // namespace collprobe::detail
