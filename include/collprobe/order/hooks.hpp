// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

#if COLLPROBE_STREAM_ORDER
#include <collprobe/order/sink.hpp>
#else

/// The calls by which the device and communicator layers report to the checker of stream order
/// (order/stream_order.hpp). This file makes them empty and free; with COLLPROBE_STREAM_ORDER=1 order/sink.hpp takes
/// its place. Each use is a statement on a line of its own, so that a test can remove them and compare.
namespace collprobe::inline COLLPROBE_ABI::detail::order_hooks {

/// Whether the hooks are on. Calls are inside `if constexpr (active)`, so that they generate no code when off.
constexpr bool active = false;

struct point {};

/// A member that also carries a point if the hooks are on. If they are off it is T itself; even an empty additional
/// member, which takes no room, would change the code.
template <class T>
using with_point = T;

struct none {};
struct silent {
    constexpr silent() noexcept {}
};
struct group_end {
    constexpr group_end() noexcept {}
};
struct fork_join {
    constexpr explicit fork_join(const void*) noexcept {}
};
struct forked {
    constexpr explicit forked(const void*) noexcept {}
};

// clang-format off
template <class... Ignored> constexpr point now(const Ignored&...) noexcept { return {}; }
template <class... Ignored> constexpr void record(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void wait(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void reached(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void access(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void call(const Ignored&...) noexcept {}
constexpr void group_begin() noexcept {}
template <class... Ignored> constexpr void allocated(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void released(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void stream_ended(const Ignored&...) noexcept {}
// clang-format on

} // namespace collprobe::detail::order_hooks

namespace collprobe::inline COLLPROBE_ABI {
namespace order_hooks = detail::order_hooks;
}

#endif
