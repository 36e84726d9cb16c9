// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

/// A communicator is n ranks that compute together: `rank()`, `size()`, and `make<T>(call, stream)`, which makes one
/// collective with elements of T. Everything else comes from `collectives`, from which it derives: the typed calls, and
/// a default for whatever it may say beside. A wrapper derives from `adaptor` and hides `make`. README.md has examples.
namespace collprobe::inline COLLPROBE_ABI {

class group_follower; // comm/group_follower.hpp
struct quantised_calls; // core/record/quantisation.hpp

/// A communicator is a handle that is cheap to move. One host thread at a time uses it. All ranks make the same calls
/// in the same order.
/// Stream behaviour: every collective is enqueued on its stream argument and returns. The result is there when the
/// stream has passed the collective; the buffers must not change until then.
template <class C>
concept communicator = requires(C& comm, const collective_call& call, typename C::device::stream_ref on) {
    { std::as_const(comm).rank() } noexcept -> std::same_as<int>; ///< 0 <= rank < size
    { std::as_const(comm).size() } noexcept -> std::same_as<int>;
    comm.template make<float>(call, on);
};

/// The type by which a communicator takes its stream.
template <class C>
using stream_ref_of = typename C::device::stream_ref;

/// What a communicator's calls return: void, or what a wrapper tells of the call.
template <class C, class T>
using outcome_of = decltype(std::declval<C&>().template make<T>(
    std::declval<const collective_call&>(), std::declval<stream_ref_of<C>>()));

namespace detail {

/// A guard that does nothing.
struct nothing_to_leave {
    ~nothing_to_leave() {} // a guard in the eyes of compilers, which warn of unused variables
    void end(call_site = {}) noexcept {}
};

/// A type of which results can be: an element of the library, or another library's of the same layout.
template <class T>
concept result_element = element<element_for<T>> && !std::is_const_v<T>;

/// An argument of a wrong call. Any other parameter that fits is a better one.
struct any_argument {
    template <class... T>
    constexpr any_argument(const T&...) noexcept
    {
    }
};

} // namespace detail

/// The calls of a communicator, each in three forms:
///
///     comm.all_reduce(send, receive, operation, stream);        // views; `send` also a container
///     comm.all_reduce(values, operation, stream);               // in place, where the collective has such a form
///     comm.all_reduce(send, receive, count, operation, stream); // pointers and a count, as NCCL takes them
///
/// The type of the elements is that of `receive`. `operation` is a `reduction` or an `ncclRedOp_t`. Last comes the
/// caller's line (`call_site`), for messages and records. A call returns what `make` returns.
/// Shapes: counts are elements and equal on all ranks, 0 allowed.
/// \throws error `invalid_argument` for a wrong argument; `unsupported` for a collective that the communicator does not
///   have; the communicator's failure.
template <class Self, class Device>
class collectives {
    using any = detail::any_argument;

public:
    using device = Device;
    using stream_ref = typename Device::stream_ref;

    /// Element i of every rank's `receive` becomes the reduction of element i of all ranks' `send`.
    /// Shapes: `send.count() == receive.count()`; `receive` is `send` or disjoint from it.
    template <detail::result_element T>
    decltype(auto) all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction_argument operation,
        stream_ref on, call_site where = call_site::current())
    {
        return reduce<T>(collective::all_reduce, send, receive, operation, on, where);
    }
    template <detail::result_element T>
    decltype(auto) all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction_argument operation,
        stream_ref on, const reduction_extras& extras, call_site where = call_site::current())
    {
        return reduce<T>(collective::all_reduce, send, receive, operation, on, where, extras.leaves);
    }
    template <detail::result_element T>
    decltype(auto) all_reduce(
        view<T> values, reduction_argument operation, stream_ref on, call_site where = call_site::current())
    {
        return reduce<T>(collective::all_reduce, values, values, operation, on, where);
    }
    template <detail::result_element T>
    decltype(auto) all_reduce(const std::type_identity_t<T>* send, T* receive, std::uint64_t count,
        reduction_argument operation, stream_ref on, call_site where = call_site::current())
    {
        return all_reduce({send, count}, view(receive, count), operation, on, where);
    }
    template <bool right = false>
    auto all_reduce(any, any = {}, any = {}, any = {}, any = {}, any = {}, any = {})
    {
        static_assert(right,
            "all_reduce takes (send, receive, operation, stream) or (values, operation, stream) of views, or (send, "
            "receive, count, operation, stream) of pointers; all to one type of element, and receive not to const");
    }

    /// Rank r's `receive` becomes part r of the reduction of all ranks' `send`.
    /// Shapes: `send.count() == size() * receive.count()`; `receive` is part r of `send` or disjoint from it. In place:
    /// `values` is `send`. With pointers: `count` is that of `receive`.
    template <detail::result_element T>
    decltype(auto) reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive,
        reduction_argument operation, stream_ref on, call_site where = call_site::current())
    {
        return reduce<T>(collective::reduce_scatter, send, receive, operation, on, where);
    }
    template <detail::result_element T>
    decltype(auto) reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive,
        reduction_argument operation, stream_ref on, const reduction_extras& extras,
        call_site where = call_site::current())
    {
        return reduce<T>(collective::reduce_scatter, send, receive, operation, on, where, extras.leaves);
    }
    template <detail::result_element T>
    decltype(auto) reduce_scatter(
        view<T> values, reduction_argument operation, stream_ref on, call_site where = call_site::current())
    {
        return reduce<T>(collective::reduce_scatter, values, own_part(values), operation, on, where);
    }
    template <detail::result_element T>
    decltype(auto) reduce_scatter(const std::type_identity_t<T>* send, T* receive, std::uint64_t count,
        reduction_argument operation, stream_ref on, call_site where = call_site::current())
    {
        return reduce_scatter({send, count * ranks()}, view(receive, count), operation, on, where);
    }
    template <bool right = false>
    auto reduce_scatter(any, any = {}, any = {}, any = {}, any = {}, any = {}, any = {})
    {
        static_assert(right,
            "reduce_scatter takes (send, receive, operation, stream) or (values, operation, stream) of views, or "
            "(send, receive, count of receive, operation, stream) of pointers; all to one type of element, and receive "
            "not to const");
    }

    /// Part r of every rank's `receive` becomes rank r's `send`.
    /// Shapes: `receive.count() == size() * send.count()`; `send` is part r of `receive` or disjoint from it. In place:
    /// `values` is `receive`. With pointers: `count` is that of `send`.
    template <detail::result_element T>
    decltype(auto) all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current())
    {
        return start<T>(collective::all_gather, send, receive, reduction::sum, -1, on, where);
    }
    template <detail::result_element T>
    decltype(auto) all_gather(view<T> values, stream_ref on, call_site where = call_site::current())
    {
        return start<T>(collective::all_gather, own_part(values), values, reduction::sum, -1, on, where);
    }
    template <detail::result_element T>
    decltype(auto) all_gather(const std::type_identity_t<T>* send, T* receive, std::uint64_t count, stream_ref on,
        call_site where = call_site::current())
    {
        return all_gather({send, count}, view(receive, count * ranks()), on, where);
    }
    template <bool right = false>
    auto all_gather(any, any = {}, any = {}, any = {}, any = {}, any = {}, any = {})
    {
        static_assert(right,
            "all_gather takes (send, receive, stream) or (values, stream) of views, or (send, receive, count of send, "
            "stream) of pointers; all to one type of element, and receive not to const");
    }

    /// Part s of rank r's `receive` becomes part r of rank s's `send`.
    /// Shapes: `send.count() == receive.count()`, a multiple of `size()`; disjoint. With pointers: `count` is that of a
    /// part.
    template <detail::result_element T>
    decltype(auto) all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current())
    {
        return start<T>(collective::all_to_all, send, receive, reduction::sum, -1, on, where);
    }
    template <detail::result_element T>
    decltype(auto) all_to_all(const std::type_identity_t<T>* send, T* receive, std::uint64_t count, stream_ref on,
        call_site where = call_site::current())
    {
        return all_to_all({send, count * ranks()}, view(receive, count * ranks()), on, where);
    }
    template <bool right = false>
    auto all_to_all(any, any = {}, any = {}, any = {}, any = {}, any = {}, any = {})
    {
        static_assert(right,
            "all_to_all takes (send, receive, stream) of views, or (send, receive, count of a part, stream) of "
            "pointers; all to one type of element, and receive not to const");
    }

    /// Every rank's `receive` becomes the `send` of rank `root`; the other ranks' `send` is ignored.
    /// Shapes: `receive.count()` is the root's `send.count()`; on the root `receive` is `send` or disjoint from it.
    template <detail::result_element T>
    decltype(auto) broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref on,
        call_site where = call_site::current())
    {
        return start<T>(collective::broadcast, send, receive, reduction::sum, root, on, where);
    }
    template <detail::result_element T>
    decltype(auto) broadcast(view<T> values, int root, stream_ref on, call_site where = call_site::current())
    {
        return start<T>(collective::broadcast, values, values, reduction::sum, root, on, where);
    }
    template <detail::result_element T>
    decltype(auto) broadcast(const std::type_identity_t<T>* send, T* receive, std::uint64_t count, int root,
        stream_ref on, call_site where = call_site::current())
    {
        return broadcast({send, count}, view(receive, count), root, on, where);
    }
    template <bool right = false>
    auto broadcast(any, any = {}, any = {}, any = {}, any = {}, any = {}, any = {})
    {
        static_assert(right,
            "broadcast takes (send, receive, root, stream) or (values, root, stream) of views, or (send, receive, "
            "count, root, stream) of pointers; all to one type of element, and receive not to const");
    }

    /// Work behind the barrier on any rank's stream runs after the work before it on every rank's stream.
    void barrier(stream_ref on, call_site where = call_site::current())
    {
        if (!Self::has_collective(collective::barrier)) refuse_missing(collective::barrier, where);
        self().template make<std::uint8_t>({.where = where}, on);
    }

    // What a communicator may say beside: the defaults. One that knows better hides them.

    /// Whether it has a collective.
    static constexpr bool has_collective(collective) noexcept { return true; }
    /// Names the communicator in messages.
    std::string name() const { return {}; }
    /// Milliseconds that it waits for a peer; negative: for ever.
    std::int64_t timeout_ms() const noexcept { return 30'000; }
    /// A guard that makes its device current for the calling thread.
    auto device_scope(call_site = {}) const noexcept { return detail::nothing_to_leave(); }
    /// Throws the failure, if there is one; never blocks.
    void check(call_site = {}) const {}
    /// Throws the error that `call` would throw for a buffer. For code that reads the buffer before the call.
    template <class T>
    void check_buffer(view<T>, const char* /*argument*/, collective /*call*/, stream_ref, call_site = {}) const
    {
    }
    /// Blocks the host until the stream is done, at most the time-out.
    void synchronize(stream_ref on, call_site where = call_site::current()) const { on.synchronize(where); }
    void synchronize(stream_ref on, std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        on.synchronize(timeout_ms, where);
    }
    /// Makes later calls throw `peer_failure` with the reason, on this rank and on those that it can reach.
    void fail(const std::string& /*reason*/) const {}
    /// Whether a collective called now is on its stream when it returns. Code with work behind a call must ask.
    bool enqueues_at_once() const noexcept { return true; }
    /// An object until whose `end(where)` collectives may be collected.
    auto group_scope(call_site = {}) const noexcept { return detail::nothing_to_leave(); }
    /// Has `follower` told when the open group ends; false if it cannot.
    bool follow_group(group_follower& /*follower*/) const noexcept { return false; }
    /// What a quantised communicator tells the parts of a step; null: nothing is quantised.
    quantised_calls* quantisation_calls() noexcept { return nullptr; }
    /// Says that the next call is the first of another step.
    void next_step(stream_ref, call_site = {}) {}
    /// The communicator under all wrappers. A wrapper sends its own messages over it, because the wrappers beneath must
    /// not treat these as the caller's.
    Self& innermost() noexcept { return self(); }
    /// Whether elements of T can be reduced, as far as the types tell.
    template <element T>
    static constexpr bool reduces = true;

private:
    Self& self() noexcept { return static_cast<Self&>(*this); }
    std::uint64_t ranks() noexcept { return static_cast<std::uint64_t>(self().size()); }
    [[noreturn]] void refuse_missing(collective what, call_site where)
    {
        detail::caller(self(), what, where).fail(status::unsupported, "the communicator does not have this collective");
    }
    template <class T>
    view<T> own_part(view<T> values) noexcept
    {
        const std::uint64_t count = values.count() / ranks();
        return values.part(static_cast<std::uint64_t>(self().rank()) * count, count);
    }

    template <class T>
    decltype(auto) reduce(collective what, view<const T> send, view<T> receive, reduction operation, stream_ref on,
        call_site where, std::uint64_t leaves = 1)
    {
        static_assert(Self::template reduces<T>,
            "the communicator cannot reduce elements of this type: of a reproducible one, the contract does not hold "
            "for it");
        return start<T>(what, send, receive, operation, -1, on, where, leaves);
    }
    template <class T>
    decltype(auto) start(collective what, view<const T> send, view<T> receive, reduction operation, int root,
        stream_ref on, call_site where, std::uint64_t leaves = 1)
    {
        if (!Self::has_collective(what)) refuse_missing(what, where);
        return self().template make<T>({what, element_traits<T>::type, operation, root, send.data(), send.count(),
                                           receive.data(), receive.count(), where, leaves},
            on);
    }
};

/// A communicator around another one, to which it passes on everything. Derive from it and hide `make`, which calls
/// `adaptor::make` where the wrapped communicator makes the call. The result is a communicator, so adaptors stack. It
/// does not pass on `group_scope` and `follow_group`: a wrapper may have work behind each call, which in a group would
/// come before the call.
template <class Self, communicator Comm>
class adaptor : public collectives<Self, typename Comm::device> {
    static_assert(std::is_move_constructible_v<Comm>, "a communicator that cannot be moved cannot be wrapped");

public:
    using stream_ref = stream_ref_of<Comm>;

    /// Takes the communicator over. Use braces: `probed comm(reproducible(world));` declares a function.
    explicit adaptor(Comm comm) : comm_(std::move(comm)) {}

    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref on)
    {
        return comm_.template make<T>(call, on);
    }

    int rank() const noexcept { return comm_.rank(); }
    int size() const noexcept { return comm_.size(); }
    static constexpr bool has_collective(collective what) noexcept { return Comm::has_collective(what); }
    decltype(auto) name() const { return comm_.name(); }
    std::int64_t timeout_ms() const noexcept { return comm_.timeout_ms(); }
    auto device_scope() const { return comm_.device_scope(); }
    void check(call_site where = call_site::current()) const { comm_.check(where); }
    template <class T>
    void check_buffer(view<T> buffer, const char* argument, collective call, stream_ref on,
        call_site where = call_site::current()) const
    {
        comm_.check_buffer(buffer, argument, call, on, where);
    }
    void synchronize(stream_ref on, call_site where = call_site::current()) const { comm_.synchronize(on, where); }
    void synchronize(stream_ref on, std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        comm_.synchronize(on, timeout_ms, where);
    }
    void fail(const std::string& reason) const { comm_.fail(reason); }
    bool enqueues_at_once() const { return comm_.enqueues_at_once(); }
    quantised_calls* quantisation_calls() noexcept { return comm_.quantisation_calls(); }
    void next_step(stream_ref on, call_site where = call_site::current()) { comm_.next_step(on, where); }
    auto& innermost() noexcept { return comm_.innermost(); }
    template <element T>
    static constexpr bool reduces = Comm::template reduces<T>;
    /// A part of the wrapped communicator, not wrapped, if it can be split.
    auto split(int color, int key, call_site where = call_site::current())
        requires requires(Comm& comm) { comm.split(color, key, where); }
    {
        return comm_.split(color, key, where);
    }
    /// The wrapped communicator.
    Comm& base() noexcept { return comm_; }
    const Comm& base() const noexcept { return comm_; }

protected:
    Comm comm_;
};

namespace detail {

/// Makes a call within a wrapper's `around(forward)`, where `forward()` runs `make` once. Returns what `make` returned.
template <class Make, class Around>
auto made_within(const Make& make, const Around& around)
{
    if constexpr (std::is_void_v<decltype(make())>) {
        around(make);
    } else {
        decltype(make()) outcome{};
        around([&] { outcome = make(); });
        return outcome;
    }
}

} // namespace detail
} // namespace collprobe
