// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether two runs of bytes share one.
inline bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) noexcept
{
    const auto a_first = reinterpret_cast<std::uintptr_t>(a);
    const auto b_first = reinterpret_cast<std::uintptr_t>(b);
    return a_bytes != 0 && b_bytes != 0 && a_first < b_first + b_bytes && b_first < a_first + a_bytes;
}
template <class A, class B>
bool overlap(view<A> a, view<B> b) noexcept
{
    return overlap(a.data(), a.size_bytes(), b.data(), b.size_bytes());
}

} // namespace collprobe::detail
