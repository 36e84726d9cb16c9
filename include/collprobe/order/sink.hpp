// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

#if COLLPROBE_STREAM_ORDER

#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/mutex.hpp>
#include <collprobe/order/stream.hpp>

/// The hooks of order/hooks.hpp with COLLPROBE_STREAM_ORDER=1: they report to the installed checker, if there is one.
/// Hooks that run in destructors and in queries throw nothing.
namespace collprobe::inline COLLPROBE_ABI::detail::order_hooks {

constexpr bool active = true;

using point = order_point;

/// A T that carries a point, which is copied and moved with it.
template <class T>
struct with_point {
    T value;
    point own{};

    with_point(T initial) noexcept : value(initial) {}
    with_point& operator=(T other) noexcept
    {
        value = other;
        return *this;
    }
    operator T() const noexcept { return value; }
    operator point&() noexcept { return own; }
    operator const point&() const noexcept { return own; }
};

/// An empty range of bytes.
struct none {
    operator memory_range() const noexcept { return {}; }
};

/// The receiver of the hooks' reports.
class sink {
public:
    /// `handle`: by which foreign calls wait for the event; null if there is none.
    virtual void record(order_point& point, const order_stream& on, const void* handle) = 0;
    virtual void look(order_point& point, const order_stream& on) = 0;
    /// `asked`: whether the program asked for the wait, and not the library.
    virtual void wait(const order_stream& on, const order_point& point, bool asked, call_site where) = 0;
    virtual void reached(const order_point& point) = 0;
    virtual void access(
        const order_stream& on, memory_range read, memory_range write, const char* what, call_site where) = 0;
    virtual void collective(const order_stream& on, std::uint64_t communicator, memory_range read, memory_range write,
        const char* what, bool deferrable, call_site where) = 0;
    virtual void group_begin() = 0;
    virtual void group_end(bool enqueued) = 0;
    virtual void allocated(memory_range bytes) = 0;
    virtual void released(memory_range bytes, bool watch) = 0;
    virtual void stream_ended(const order_stream& stream) = 0;
    virtual void record_thread(order_point& point) = 0;
    virtual void thread_began(const order_point& parent) = 0;
    virtual void thread_ended(order_point& last) = 0;

protected:
    ~sink() = default;
};

/// The sink of this process; null if none is installed.
inline std::atomic<sink*>& installed() noexcept
{
    static std::atomic<sink*> one{nullptr};
    return one;
}

/// Lives while a thread uses the installed sink. To uninstall it, a thread waits until no object of this class lives.
class in_call {
public:
    in_call() noexcept { count().fetch_add(1); }
    in_call(const in_call&) = delete;
    in_call& operator=(const in_call&) = delete;
    ~in_call() { count().fetch_sub(1); }

    static std::atomic<std::uint64_t>& count() noexcept
    {
        static std::atomic<std::uint64_t> calls{0};
        return calls;
    }
};

/// A stream of any device, as the checker identifies it.
template <class Stream>
order_stream stream_of(const Stream& on)
{
    order_stream stream;
    if constexpr (requires { on.id().thread; }) {
        const auto id = on.id();
        stream.number = id.number;
        stream.thread = id.thread;
        stream.space = 2 + static_cast<std::uint32_t>(on.device());
        stream.capture = on.capture_number();
        // In a capture no stream waits for the default stream.
        const bool waits = stream.capture == 0 && !on.is_default() && on.blocking();
        stream.kind = on.is_default() ? stream_kind::legacy
            : waits                   ? stream_kind::blocking
                                      : stream_kind::independent;
    } else {
        stream.number = on.id();
        stream.space = 1;
    }
    return stream;
}

namespace detail {

/// How many objects of a class live on the calling thread.
template <class Of>
int& lives() noexcept
{
    static thread_local int objects = 0;
    return objects;
}
template <class Of>
class while_alive {
public:
    while_alive() noexcept { ++lives<Of>(); }
    while_alive(const while_alive&) = delete;
    while_alive& operator=(const while_alive&) = delete;
    ~while_alive() { --lives<Of>(); }
};

} // namespace detail

/// Lives while the library does the inner work of a call that is told as a whole: the thread tells nothing but
/// allocations. The inner streams of a call are behind the call's stream, and it is behind them when the call ends.
class silent : detail::while_alive<silent> {};
/// Lives while the library waits without being asked: such a wait is never reported as redundant.
class unasked : detail::while_alive<unasked> {};

namespace detail {

template <class Tell>
void tell_always(Tell&& tell_it)
{
    if (installed().load(std::memory_order_relaxed) == nullptr) return;
    const in_call here;
    if (sink* const to = installed().load()) tell_it(*to);
}
template <class Tell>
void tell(Tell&& tell_it)
{
    if (lives<silent>() == 0) tell_always(tell_it);
}
template <class Tell>
void tell_always_quietly(Tell&& tell_it) noexcept
{
    try {
        tell_always(tell_it);
    } catch (...) { // the checker keeps the hazard in its list
    }
}
template <class Tell>
void tell_quietly(Tell&& tell_it) noexcept
{
    if (lives<silent>() == 0) tell_always_quietly(tell_it);
}

} // namespace detail

/// A point for the work that is on the stream now, for a host that waits for it.
template <class Stream>
point now(const Stream& on) noexcept
{
    point here;
    detail::tell_quietly([&](sink& to) { to.look(here, stream_of(on)); });
    return here;
}
template <class Stream>
void record(point& event, const Stream& on, const void* handle = nullptr)
{
    event = {}; // without a sink the event stands for no point
    detail::tell([&](sink& to) { to.record(event, stream_of(on), handle); });
}
template <class Stream>
void wait(const Stream& on, const point& event, call_site where)
{
    if (!event.recorded()) return; // no sink was installed when the event was recorded
    detail::tell([&](sink& to) { to.wait(stream_of(on), event, detail::lives<unasked>() == 0, where); });
}
/// Reports, if `done`, that the calling thread knows that `point` was reached.
inline void reached(const point& event, bool done = true) noexcept
{
    if (!done || !event.recorded()) return;
    detail::tell_quietly([&](sink& to) { to.reached(event); });
}
template <class Stream>
void access(const Stream& on, const char* what, memory_range read, memory_range write, call_site where)
{
    detail::tell([&](sink& to) { to.access(stream_of(on), read, write, what, where); });
}
/// `communicator`: an address that identifies the communicator in this process, which may hold several of its ranks.
/// `with`: its `collective_call`. `deferrable`: whether an open group may delay the call.
template <class Stream, class Arguments>
void call(const Stream& on, const void* communicator, int rank, const Arguments& with, bool deferrable, call_site where)
{
    // Addresses have 48 bits.
    const std::uint64_t handle
        = reinterpret_cast<std::uintptr_t>(communicator) ^ static_cast<std::uint64_t>(rank) << 48;
    detail::tell([&](sink& to) {
        to.collective(stream_of(on), handle, with.bytes_sent(rank), with.bytes_received(), name(with.what), deferrable,
            where);
    });
}
inline void group_begin() noexcept
{
    detail::tell_quietly([](sink& to) { to.group_begin(); });
}
/// Lives while a group is closed. The end of the group enqueues its collectives, unless it throws.
class group_end {
public:
    group_end() = default;
    group_end(const group_end&) = delete;
    group_end& operator=(const group_end&) = delete;
    ~group_end() noexcept(false)
    {
        const bool enqueued = std::uncaught_exceptions() == exceptions_;
        if (enqueued) detail::tell([](sink& to) { to.group_end(true); });
        else detail::tell_quietly([](sink& to) { to.group_end(false); });
    }

private:
    int exceptions_ = std::uncaught_exceptions();
};
inline void allocated(const void* memory, std::uint64_t bytes) noexcept
{
    detail::tell_always_quietly([&](sink& to) { to.allocated({memory, bytes}); });
}
/// `watch`: whether the bytes are unused until `allocated`.
inline void released(const void* memory, std::uint64_t bytes, bool watch) noexcept
{
    detail::tell_always_quietly([&](sink& to) { to.released({memory, bytes}, watch); });
}
template <class Stream>
void stream_ended(const Stream& stream) noexcept
{
    detail::tell_quietly([&](sink& to) { to.stream_ended(stream_of(stream)); });
}

/// Stands for threads that begin after its beginning and are over when it ends. The threads find it by an address that
/// they share. To pass the object to them would change the code of the callers, even if the hooks are off.
class fork_join {
public:
    explicit fork_join(const void* address) noexcept : address_(address)
    {
        detail::tell_quietly([&](sink& to) { to.record_thread(begin_); });
        const collprobe::detail::lock_guard lock(guard());
        next_ = std::exchange(newest(), this);
    }
    fork_join(const fork_join&) = delete;
    fork_join& operator=(const fork_join&) = delete;
    ~fork_join()
    {
        {
            const collprobe::detail::lock_guard lock(guard());
            fork_join** link = &newest();
            while (*link != this) link = &(*link)->next_;
            *link = next_;
        }
        for (const point& each : ends_) reached(each);
    }

private:
    friend class forked;
    static collprobe::detail::mutex& guard() noexcept
    {
        static collprobe::detail::mutex one;
        return one;
    }
    static fork_join*& newest() noexcept
    {
        static fork_join* one = nullptr;
        return one;
    }
    static fork_join& of(const void* address) noexcept
    {
        const collprobe::detail::lock_guard lock(guard());
        fork_join* found = newest();
        while (found->address_ != address) found = found->next_;
        return *found;
    }

    const void* address_;
    fork_join* next_ = nullptr;
    point begin_;
    std::vector<point> ends_;
};

/// Lives while one of these threads makes calls.
class forked {
public:
    explicit forked(const void* address) noexcept : from_(fork_join::of(address))
    {
        detail::tell_quietly([&](sink& to) { to.thread_began(from_.begin_); });
    }
    forked(const forked&) = delete;
    forked& operator=(const forked&) = delete;
    ~forked()
    {
        detail::tell_quietly([&](sink& to) {
            point last;
            to.thread_ended(last);
            const collprobe::detail::lock_guard lock(fork_join::guard());
            from_.ends_.push_back(last);
        });
    }

private:
    fork_join& from_;
};

} // namespace collprobe::detail::order_hooks

namespace collprobe::inline COLLPROBE_ABI {
namespace order_hooks = detail::order_hooks;
}

#endif
