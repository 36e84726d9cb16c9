// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

#if COLLPROBE_STREAM_ORDER

#include <atomic>

#include <collprobe/detail/wait.hpp>
#include <collprobe/order/sink.hpp>
#include <collprobe/order/stream_order.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Forwards the hooks' reports to a checker.
class order_bridge final : public order_hooks::sink {
public:
    std::atomic<stream_order*> checker{nullptr};
    mutex guard; ///< of `exchange` and `displaced`
    stream_order* displaced = nullptr; ///< it has given way to `checker`

    /// From no checker to one, or back. Waits until no call is reporting to the last one.
    void exchange(stream_order* next) noexcept
    {
        if (next == nullptr) {
            order_hooks::installed().store(nullptr);
            for (unsigned round = 0; order_hooks::in_call::count().load() != 0; ++round) back_off(round);
        }
        checker.store(next);
        if (next != nullptr) order_hooks::installed().store(this);
    }

    static order_bridge& instance() noexcept
    {
        static order_bridge one;
        return one;
    }

    void record(order_point& point, const order_stream& on, const void* handle) override
    {
        to().record(point, on);
        if (handle != nullptr) to().set_event(order_object(handle), point);
    }
    void look(order_point& point, const order_stream& on) override { to().look(point, on); }
    void wait(const order_stream& on, const order_point& point, bool asked, call_site where) override
    {
        if (asked) to().wait(on, point, where);
        else to().follow(on, point);
    }
    void reached(const order_point& point) override { to().reached(point); }
    void access(
        const order_stream& on, memory_range read, memory_range write, const char* what, call_site where) override
    {
        to().launch(on, {read}, {write}, what, where);
    }
    void collective(const order_stream& on, std::uint64_t communicator, memory_range read, memory_range write,
        const char* what, bool deferrable, call_site where) override
    {
        to().collective(on, order_object(communicator), {read}, {write}, what, deferrable, where);
    }
    void group_begin() override { to().group_begin(); }
    void group_end(bool enqueued) override { to().group_end(enqueued); }
    void allocated(memory_range bytes) override { to().allocate(bytes); }
    void released(memory_range bytes, bool watch) override { to().release(bytes, watch, call_site{}); }
    void stream_ended(const order_stream& stream) override { to().stream_ended(stream); }
    void record_thread(order_point& point) override { to().record_thread(point); }
    void thread_began(const order_point& parent) override { to().thread_began(parent); }
    void thread_ended(order_point& last) override { to().thread_ended(last); }

    stream_order& to() const noexcept { return *checker.load(std::memory_order_acquire); }
};

} // namespace detail

inline void stream_order::install(call_site where)
{
    detail::order_bridge& bridge = detail::order_bridge::instance();
    const detail::lock_guard lock(bridge.guard);
    stream_order* const other = bridge.checker.load();
    if (other != nullptr && (other == this || !other->settings_.gives_way)) {
        detail::refuse("stream_order::install", "another checker is installed", where);
    }
    if (other != nullptr) bridge.exchange(nullptr);
    bridge.displaced = other;
    bridge.exchange(this);
}
inline void stream_order::uninstall() noexcept
{
    detail::order_bridge& bridge = detail::order_bridge::instance();
    const detail::lock_guard lock(bridge.guard);
    if (bridge.displaced == this) bridge.displaced = nullptr;
    if (!installed()) return;
    bridge.exchange(nullptr);
    if (stream_order* const last = std::exchange(bridge.displaced, nullptr)) bridge.exchange(last);
}
template <class Tell>
void stream_order::tell_installed(const Tell& tell_it)
{
    order_hooks::detail::tell([&](order_hooks::sink& to) { tell_it(static_cast<detail::order_bridge&>(to).to()); });
}
inline bool stream_order::installed() const noexcept
{
    return detail::order_bridge::instance().checker.load() == this;
}

} // namespace collprobe

#endif
