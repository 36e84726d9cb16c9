// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/config.hpp>

#if COLLPROBE_STREAM_ORDER
#include <collprobe/detail/stream_order_sink.hpp>
#else

/// What the device and communicator layers tell the checker of stream order (guard/stream_order.hpp). Here
/// it is nothing, and costs nothing; with COLLPROBE_STREAM_ORDER=1 it is detail/stream_order_sink.hpp. Each use
/// is a line of its own that begins with `order_hooks::`, so that a test can take them out and compare.
namespace collprobe::order_hooks {

struct point {};
struct fork_join {};
struct forked {
    constexpr explicit forked(const fork_join&) noexcept {}
};

// clang-format off
template <class... Ignored> constexpr point now(const Ignored&...) noexcept { return {}; }
template <class... Ignored> constexpr void record(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void wait(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void reached(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void access(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void collective(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void group_begin(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void group_end(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void allocated(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void released(const Ignored&...) noexcept {}
template <class... Ignored> constexpr void stream_ended(const Ignored&...) noexcept {}
// clang-format on

} // namespace collprobe::order_hooks

#endif
