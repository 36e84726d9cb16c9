// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

/// The abilities that a communicator may have beyond its rank, its size and its collectives. Each is a member that a
/// communicator has or has not, a concept that tells which, and a function that also works without it. No other file
/// asks whether a communicator has one (cmake/check_headers.py).
///
/// | member | what it does | without it |
/// |--------|--------------|------------|
/// | `name()` | names the communicator in messages | it has no name |
/// | `timeout_ms()` | milliseconds that it waits for a peer; negative: for ever | 30 s |
/// | `device_scope()` | a guard that makes its device current for the calling thread | there is no device to choose |
/// | `check(where)` | throws the failure, if any; never blocks | nothing fails between calls |
/// | `synchronize(stream, where)` | blocks the host until the stream is done, at most the time-out | the stream's own |
/// | `abort(reason)` | ends the communicator, on all ranks that it can reach | it cannot be ended |
/// | `collectives_enqueue_at_once()` | whether a collective called now is on its stream on return | it is |
/// | `group_scope(where)` | an object until whose `end(where)` collectives are collected | they are made one by one |
/// | `follow_group(follower)` | has `follower` told when the open group ends; false if it cannot | it cannot |
/// | `check_buffer(view, argument, call, stream, where)` | throws the error of `call` for it | `call` throws it |
/// | `refuse(why, call, stream)` | tells the peers that this rank does not make `call` | they wait for it |
/// | `part_of(count, type)` | the next calls make up one of `count` elements; 0: none | peers cannot compare it |
/// | `quantisation_calls()` | what a quantised communicator tells the parts of a step | nothing is quantised |
/// | `next_step(stream, where)` | the next call is the first of another step | steps are alike |
/// | `base()` | the communicator that an adaptor wraps | it is the innermost |
///
/// An adaptor passes on all except `group_scope` and `follow_group`: some have work behind each call, which in a group
/// would come before the call.
namespace collprobe::inline COLLPROBE_ABI {

struct quantised_calls; // core/record/quantisation.hpp

// clang-format off
template <class C> concept has_name = communicator<C> && requires(const C& comm) { std::string(comm.name()); };
template <class C> concept has_timeout = communicator<C> && requires(const C& comm) { { comm.timeout_ms() } -> std::convertible_to<std::int64_t>; };
template <class C> concept has_device_scope = communicator<C> && requires(const C& comm) { comm.device_scope(); };
template <class C> concept has_check = communicator<C> && requires(const C& comm) { comm.check(call_site{}); };
template <class C> concept has_synchronize = communicator<C> && requires(const C& comm, stream_ref_of<C> on) { comm.synchronize(on, call_site{}); };
template <class C> concept has_timed_synchronize = has_synchronize<C> && requires(const C& comm, stream_ref_of<C> on) { comm.synchronize(on, std::int64_t{}, call_site{}); };
template <class C> concept has_abort = communicator<C> && requires(const C& comm, const std::string& reason) { comm.abort(reason); };
template <class C> concept has_groups = communicator<C> && requires(const C& comm) { { comm.collectives_enqueue_at_once() } -> std::convertible_to<bool>; };
template <class C> concept has_group_scope = communicator<C> && requires(const C& comm) { comm.group_scope(call_site{}).end(call_site{}); };
template <class C> concept has_follow_group = communicator<C> && requires(const C& comm, group_follower& one) { { comm.follow_group(one) } -> std::convertible_to<bool>; };
template <class C, class T> concept has_check_buffer = communicator<C> && requires(const C& comm, view<T> data, stream_ref_of<C> on) { comm.check_buffer(data, "", collective::all_reduce, on, call_site{}); };
template <class C> concept has_refuse = communicator<C> && requires(const C& comm, const error& why, stream_ref_of<C> on) { comm.refuse(why, collective::all_reduce, on); };
template <class C> concept has_part_of = communicator<C> && requires(C& comm) { comm.part_of(std::uint64_t{}, element_type{}); };
template <class C> concept has_quantisation_calls = communicator<C> && requires(C& comm) { { comm.quantisation_calls() } -> std::same_as<quantised_calls&>; };
template <class C> concept has_next_step = communicator<C> && requires(C& comm, stream_ref_of<C> on) { comm.next_step(on, call_site{}); };
template <class C> concept has_base = communicator<C> && requires(C& comm) { requires communicator<std::remove_cvref_t<decltype(comm.base())>>; };
// clang-format on

namespace detail {

template <communicator C>
std::string name_of(const C& comm)
{
    if constexpr (has_name<C>) return std::string(comm.name());
    else return {};
}

template <communicator C>
std::int64_t timeout_of(const C& comm) noexcept
{
    if constexpr (has_timeout<C>) return comm.timeout_ms();
    else return 30'000;
}

/// Needed around allocations and launches of code that works on any device.
template <communicator C>
[[nodiscard]] auto enter_device(const C& comm)
{
    if constexpr (has_device_scope<C>) {
        return comm.device_scope();
    } else {
        struct nothing_to_leave {
            ~nothing_to_leave() {} // a guard in the eyes of compilers, which warn of unused variables
        };
        return nothing_to_leave{};
    }
}

template <communicator C>
void throw_failure_of([[maybe_unused]] const C& comm, [[maybe_unused]] call_site where)
{
    if constexpr (has_check<C>) comm.check(where);
}

/// Blocks the caller until the work in front of `done` is over, however long that takes.
/// \throws error the communicator's failure; then the work may stay on its stream for ever.
template <communicator C, class Event>
void await([[maybe_unused]] const C& comm, const Event& done, [[maybe_unused]] call_site where)
{
    if constexpr (has_check<C>) {
        while (!finished_by(deadline::in_ms(100), done)) comm.check(where);
    } else {
        (void)finished_by(deadline::never(), done);
    }
}

template <communicator C>
void synchronize([[maybe_unused]] const C& comm, stream_ref_of<C> stream, call_site where)
{
    if constexpr (has_synchronize<C>) comm.synchronize(stream, where);
    else stream.synchronize(where);
}

template <communicator C>
void abort([[maybe_unused]] const C& comm, [[maybe_unused]] const std::string& reason)
{
    if constexpr (has_abort<C>) comm.abort(reason);
}

template <communicator C>
bool enqueues_at_once([[maybe_unused]] const C& comm)
{
    if constexpr (has_groups<C>) return comm.collectives_enqueue_at_once();
    else return true;
}

template <communicator C>
bool follow_group([[maybe_unused]] const C& comm, [[maybe_unused]] group_follower& follower)
{
    if constexpr (has_follow_group<C>) return comm.follow_group(follower);
    else return false;
}

/// Makes the calls of `work` as one, if the communicator can.
template <communicator C, class Work>
void as_one_group([[maybe_unused]] const C& comm, [[maybe_unused]] call_site where, const Work& work)
{
    if constexpr (has_group_scope<C>) {
        auto group = comm.group_scope(where);
        work();
        group.end(where);
    } else {
        work();
    }
}

template <communicator C, class T>
void check_buffer([[maybe_unused]] const C& comm, [[maybe_unused]] view<T> buffer,
    [[maybe_unused]] const char* argument, [[maybe_unused]] collective call,
    [[maybe_unused]] stream_ref_of<C> stream, [[maybe_unused]] call_site where)
{
    if constexpr (has_check_buffer<C, T>) comm.check_buffer(buffer, argument, call, stream, where);
}

template <communicator C>
void tell_refusal([[maybe_unused]] const C& comm, [[maybe_unused]] const error& why, [[maybe_unused]] collective call,
    [[maybe_unused]] stream_ref_of<C> stream)
{
    if constexpr (has_refuse<C>) comm.refuse(why, call, stream);
}

/// During its life the communicator treats calls as parts of one call of `count` elements. Without it, ranks with
/// different counts or types would not be noticed if their messages had equal sizes.
template <communicator C>
class parts_of_one {
public:
    parts_of_one(C& comm, std::uint64_t count, element_type type) noexcept : comm_(comm) { say(count, type); }
    parts_of_one(const parts_of_one&) = delete;
    ~parts_of_one() { say(0, {}); }

private:
    void say([[maybe_unused]] std::uint64_t count, [[maybe_unused]] element_type type) noexcept
    {
        if constexpr (has_part_of<C>) comm_.part_of(count, type);
    }
    C& comm_;
};

/// Null if nothing is quantised.
template <communicator C>
quantised_calls* quantisation_calls_of([[maybe_unused]] C& comm) noexcept
{
    if constexpr (has_quantisation_calls<C>) return &comm.quantisation_calls();
    else return nullptr;
}

template <communicator C>
void next_step([[maybe_unused]] C& comm, [[maybe_unused]] stream_ref_of<C> stream, [[maybe_unused]] call_site where)
{
    if constexpr (has_next_step<C>) comm.next_step(stream, where);
}

/// The communicator under all adaptors. An adaptor sends its own messages over it, because the adaptors beneath must
/// not treat these as the caller's.
template <communicator C>
auto& innermost(C& comm) noexcept
{
    if constexpr (has_base<C>) return innermost(comm.base());
    else return comm;
}

} // namespace detail
} // namespace collprobe
