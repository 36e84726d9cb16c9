// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

#if COLLPROBE_STREAM_ORDER
#include <collprobe/order/sink.hpp>
#else

/// What the device and communicator layers tell the checker of stream order (order/stream_order.hpp). Here
/// it is nothing, and costs nothing; with COLLPROBE_STREAM_ORDER=1 it is order/sink.hpp. Each use
/// is a statement on a line of its own, so that a test can take them out and compare.
namespace collprobe::inline COLLPROBE_ABI::order_hooks {

/// Whether they do something. Calls stand behind `if constexpr (active)`, so that no code at all comes of them.
constexpr bool active = false;

struct point {};

/// A member of something that has a point, where the hooks are on. Off it is the T itself: an empty member more,
/// which takes no room, would still change the code.
template <class T>
using with_point = T;

struct none {};
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

} // namespace collprobe::order_hooks

#endif
