// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/order/stream.hpp>
#if COLLPROBE_STREAM_ORDER
#include <collprobe/order/stream_order.hpp>
#endif

/// What the library's own copies, collectives and events report to the installed checker of stream order, if there is
/// one. With COLLPROBE_STREAM_ORDER=0 all of this is empty: optimised code has nothing of it.
namespace collprobe::inline COLLPROBE_ABI::order_hooks {

#if COLLPROBE_STREAM_ORDER
using point = order_point;
#else
struct point {
    static constexpr bool recorded() noexcept { return false; }
};
#endif

/// Lives while the library does the inner work of a call that is told as a whole: the thread tells nothing but
/// allocations. The inner streams of a call are behind the call's stream, and it is behind them when the call ends.
class silent {
public:
    silent() noexcept { change_depth(1); }
    silent(const silent&) = delete;
    silent& operator=(const silent&) = delete;
    ~silent() { change_depth(-1); }

    /// How many live on the calling thread.
    static int& depth() noexcept
    {
        static thread_local int objects = 0;
        return objects;
    }

private:
    static void change_depth([[maybe_unused]] int by) noexcept
    {
#if COLLPROBE_STREAM_ORDER
        depth() += by;
#endif
    }
};

/// Calls `tell(stream_order&)` with the installed checker, if there is one and the thread is not silent.
template <class Tell>
void if_checked([[maybe_unused]] const Tell& tell)
{
#if COLLPROBE_STREAM_ORDER
    if (silent::depth() == 0) stream_order::tell_installed(tell);
#endif
}
/// The same for destructors and queries, and also on a silent thread if `always`. The checker keeps in its list what
/// its `on_hazard` throws.
template <class Tell>
void if_checked_noexcept([[maybe_unused]] const Tell& tell, [[maybe_unused]] bool always = false) noexcept
{
#if COLLPROBE_STREAM_ORDER
    try {
        if (always || silent::depth() == 0) stream_order::tell_installed(tell);
    } catch (...) {
    }
#endif
}

/// A stream of any device, as the checker identifies it.
template <class Stream>
order_stream stream_of(const Stream& on)
{
    order_stream stream;
    if constexpr (requires { on.id().thread; }) {
        const auto id = on.id();
        stream.number = id.number;
        stream.thread = id.thread;
        stream.space = stream_space::of_cuda(on.device());
        stream.capture = on.capture_number();
        // In a capture no stream waits for the default stream.
        const bool waits = stream.capture == 0 && !on.is_default() && on.blocking();
        stream.kind = on.is_default() ? stream_kind::legacy
            : waits                   ? stream_kind::blocking
                                      : stream_kind::independent;
    } else {
        stream.number = on.id();
        stream.space = stream_space::of_host();
    }
    return stream;
}

/// A point for the work that is on the stream now, for a host that waits for it.
template <class Stream>
point now(const Stream& on) noexcept
{
    point here;
    if_checked_noexcept([&](auto& to) { to.look(here, stream_of(on)); });
    return here;
}
/// `handle`: by which foreign calls wait for the event; null if there is none.
template <class Stream>
void record(point& event, const Stream& on, const void* handle = nullptr)
{
    event = {}; // without a checker the event stands for no point
    if_checked([&](auto& to) {
        to.record(event, stream_of(on));
        if (handle != nullptr) to.set_event(handle, event);
    });
}
template <class Stream>
void wait(const Stream& on, const point& event, call_site where)
{
    if_checked([&](auto& to) {
        // If it stands for no point, no checker was installed when it was recorded.
        if (event.recorded()) to.wait(stream_of(on), event, where);
    });
}
/// Reports, if `done`, that the calling thread knows that `event` was reached.
inline void reached(const point& event, bool done = true) noexcept
{
    if_checked_noexcept([&](auto& to) {
        if (done) to.reached(event);
    });
}
template <class Stream>
void access(const Stream& on, const char* what, memory_range read, memory_range write, call_site where)
{
    if_checked([&](auto& to) { to.launch(stream_of(on), {read}, {write}, what, where); });
}
/// `deferrable`: whether an open group may delay the call.
template <class Stream>
void call(const Stream& on, int rank, const collective_call& made, bool deferrable)
{
    if_checked([&](auto& to) {
        to.collective(stream_of(on), {made.bytes_sent(rank)}, {made.bytes_received()}, name(made.what), deferrable,
            made.where);
    });
}
inline void group_begin() noexcept
{
    if_checked_noexcept([](auto& to) { to.group_begin(); });
}
/// The end of the group has enqueued its collectives, or has failed.
inline void group_end(bool enqueued)
{
    if_checked([&](auto& to) { to.group_end(enqueued); });
}
inline void allocated(const void* memory, std::uint64_t bytes) noexcept
{
    if_checked_noexcept([&](auto& to) { to.allocate({memory, bytes}); }, true);
}
/// `watch`: whether the bytes are unused until `allocated`.
inline void released(const void* memory, std::uint64_t bytes, bool watch) noexcept
{
    if_checked_noexcept([&](auto& to) { to.release({memory, bytes}, watch, call_site{}); }, true);
}
template <class Stream>
void stream_ended(const Stream& stream) noexcept
{
    if_checked_noexcept([&](auto& to) { to.stream_ended(stream_of(stream)); });
}

/// A point of the calling thread, behind which the threads begin that it starts.
inline point thread_now() noexcept
{
    point here;
    if_checked_noexcept([&](auto& to) { to.record_thread(here); });
    return here;
}
/// Lives while a thread makes calls that begins behind `begin`. Who joins the thread has reached its `end` then.
class thread_calls {
public:
    thread_calls(const point& begin, point& end) noexcept : end_(end)
    {
        if_checked_noexcept([&](auto& to) { to.thread_began(begin); });
    }
    thread_calls(const thread_calls&) = delete;
    thread_calls& operator=(const thread_calls&) = delete;
    ~thread_calls()
    {
        if_checked_noexcept([&](auto& to) { to.thread_ended(end_); });
    }

private:
    point& end_;
};

} // namespace collprobe::order_hooks
