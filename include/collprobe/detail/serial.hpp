// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A number, from 1 on, that `Of` has once in the process.
template <class Of>
std::uint64_t next_serial() noexcept
{
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// That of the calling thread.
inline std::uint64_t& number_of_thread() noexcept
{
    static thread_local std::uint64_t own = next_serial<struct any_thread>();
    return own;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
