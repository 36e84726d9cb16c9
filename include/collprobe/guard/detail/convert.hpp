// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/core/widen.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A body for `for_each` over the elements of `destination`. Rounds the elements that `source` has once, to nearest,
/// ties to even, and zeroes the rest.
template <floating_element From, floating_element To>
struct convert_body {
    view<const From> source;
    view<To> destination;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        destination[index] = index < source.count() ? static_cast<To>(widen(source[index])) : To{};
    }
};

} // namespace collprobe::detail
