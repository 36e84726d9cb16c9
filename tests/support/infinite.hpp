// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/element.hpp>

namespace collprobe::testing {

template <element T>
constexpr bool is_infinite(T value) noexcept
{
    return !is_finite(value) && !is_nan(value);
}

} // namespace collprobe::testing
