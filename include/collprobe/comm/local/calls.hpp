// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/detail/check.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/order.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/order/hooks.hpp>

/// What ranks as threads of one process have in common, whatever device they compute on: the calls of
/// a rank with the checks of their arguments, and the group.
namespace collprobe::inline COLLPROBE_ABI::local {

/// How the ranks of a process wait for each other, and in which order they add.
struct options {
    /// How long a rank waits for another one in a collective; a negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "local";
    /// In which order reductions combine the ranks.
    reduction_order order = reduction_order::linear;
};

/// The calls of one rank. `Self` is the communicator that derives from this: its
/// `enqueue<Call, T>(on, what, send, receive, where)` does what has been checked here. `State` is what
/// the ranks share, a `detail::group_state`.
template <class Self, class Device, class State>
class basic_communicator {
public:
    using device = Device;
    using stream_ref = typename Device::stream_ref;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return state_->meet.size(); }
    const std::string& name() const noexcept { return state_->meet.name(); }
    /// `options::timeout_ms` of the group.
    std::int64_t timeout_ms() const noexcept { return state_->meet.timeout_ms(); }
    reduction_order order() const noexcept { return state_->order; }

    /// Element i of every rank's `receive` becomes the reduction of element i of all ranks' `send`.
    /// Shapes: `send.count() == receive.count()`, equal on all ranks, 0 allowed; `receive` is `send`
    /// or disjoint from it.
    /// Stream: enqueued on `on`; both buffers must stay as they are until the stream is past it.
    /// \throws error `invalid_argument`, or the communicator's failure; later failures go to the stream.
    /// Cost: the ranks share the work: each reads and writes count / n elements of n buffers.
    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::all_reduce, where);
        check.operation(operation);
        check.buffer(send, "send");
        check.buffer(receive, "receive");
        check.shape(send, 1, receive, 1, "equal counts");
        check.placement(send, receive, send.data() == receive.data());
        if constexpr (order_hooks::active) order_hooks::call(on, state_, *this, "all_reduce", send, receive, where);
        enqueue<collective::all_reduce, T>(on, send.count(), operation, -1, send.data(), receive.data(), where);
    }

    /// Rank r's `receive` becomes part r of the reduction of all ranks' `send`.
    /// Shapes: `send.count() == size() * receive.count()`, equal on all ranks, 0 allowed; `receive` is
    /// part r of `send` or disjoint from it. With the order `tree` it is the ring's, as in NCCL.
    /// Stream and errors: as for `all_reduce`.
    /// Cost: each rank reads receive.count() elements of n buffers and writes as many once.
    template <element T>
    void reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::reduce_scatter, where);
        check.operation(operation);
        check.buffer(send, "send");
        check.buffer(receive, "receive");
        check.shape(send, parts(), receive, 1, "size() times as many to send as to receive");
        check.placement(send, receive, receive.data() == own_part(send));
        if constexpr (order_hooks::active) order_hooks::call(on, state_, *this, "reduce_scatter", send, receive, where);
        enqueue<collective::reduce_scatter, T>(
            on, receive.count(), operation, -1, send.data(), receive.data(), where);
    }

    /// Part r of every rank's `receive` becomes rank r's `send`.
    /// Shapes: `receive.count() == size() * send.count()`, equal on all ranks, 0 allowed; `send` is
    /// part r of `receive` or disjoint from it.
    /// Stream and errors: as for `all_reduce`. Cost: each rank reads and writes receive.count() elements.
    template <element T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::all_gather, where);
        check.buffer(send, "send");
        check.buffer(receive, "receive");
        check.shape(send, 1, receive, parts(), "size() times as many to receive as to send");
        check.placement(send, receive, send.data() == own_part(receive));
        if constexpr (order_hooks::active) order_hooks::call(on, state_, *this, "all_gather", send, receive, where);
        enqueue<collective::all_gather, T>(
            on, send.count(), reduction::sum, -1, send.data(), receive.data(), where);
    }

    /// Part s of rank r's `receive` becomes part r of rank s's `send`.
    /// Shapes: `send.count() == receive.count()`, a multiple of `size()`, equal on all ranks, 0 allowed;
    /// the two are disjoint.
    /// Stream and errors: as for `all_reduce`. Cost: each rank reads and writes receive.count() elements.
    template <element T>
    void all_to_all(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::all_to_all, where);
        check.buffer(send, "send");
        check.buffer(receive, "receive");
        check.shape(send, parts(), receive, parts(), "equal counts that are a multiple of size()");
        check.placement(send, receive, false);
        if constexpr (order_hooks::active) order_hooks::call(on, state_, *this, "all_to_all", send, receive, where);
        enqueue<collective::all_to_all, T>(
            on, send.count() / parts(), reduction::sum, -1, send.data(), receive.data(), where);
    }

    /// Every rank's `receive` becomes the `send` of rank `root`; the other ranks' `send` is ignored.
    /// Shapes: `receive.count()` is equal on all ranks and the root's `send.count()`, 0 allowed; on the
    /// root `receive` is `send` or disjoint from it.
    /// Stream and errors: as for `all_reduce`. Cost: each rank reads and writes receive.count() elements.
    template <element T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref on,
        call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::broadcast, where);
        check.root(root);
        check.buffer(receive, "receive");
        if (rank_ == root) {
            check.buffer(send, "send");
            check.shape(send, 1, receive, 1, "equal counts");
            check.placement(send, receive, send.data() == receive.data());
        }
        if constexpr (order_hooks::active) order_hooks::broadcast(on, state_, *this, root, send, receive, where);
        enqueue<collective::broadcast, T>(
            on, receive.count(), reduction::sum, root, send.data(), receive.data(), where);
    }

    /// Work behind it on any rank's stream runs after the work before it on every rank's.
    /// Stream and errors: as for `all_reduce`.
    void barrier(stream_ref on, call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::barrier, where);
        if constexpr (order_hooks::active) order_hooks::barrier(on, state_, *this, where);
        // Of no element: the type is what a description without data has.
        enqueue<collective::barrier, std::uint8_t>(on, 0, reduction::sum, -1, nullptr, nullptr, where);
    }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty
    /// for `no_color`. It has the parent's order and time-out, its own failures, and a name like
    /// "local/split3.color1" for the fourth split of "local".
    /// Blocks the calling thread until all ranks call. No stream takes part.
    /// \throws error `invalid_argument` for a color below -1, which fails the communicator;
    ///   `timeout` naming the ranks that did not call; or the communicator's failure.
    std::optional<Self> split(int color, int key, call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::split, where);
        if (color < no_color) check.fail("color " + std::to_string(color) + " is below no_color");
        auto [child, child_rank] = state_->template split<State>(rank_, color, key, where);
        if (!child) return std::nullopt;
        Self part(static_cast<const Self&>(*this)); // where this rank is, it is in the part
        part.state_ = std::move(child);
        part.rank_ = child_rank;
        return part;
    }

    /// Fails the communicator on all ranks: they get `peer_failure`, this rank as the culprit and the
    /// reason. Calls in which all ranks have already met still complete. No effect on a failed one.
    void abort(const std::string& reason) const
    {
        state_->meet.fail({status::peer_failure,
            collprobe::detail::list_ranks({rank_}) + " aborted: " + reason, {rank_}});
    }
    /// The calls of this handle from now on are parts of one of `count` elements, 0 for none: ranks that disagree
    /// on it get `mismatch`, as on counts. For adaptors that make several calls of one.
    void part_of(std::uint64_t count) noexcept { whole_ = count; }
    /// What a bad argument of this rank in a `call` on a stream does: fails the communicator. For adaptors with rules
    /// of their own, before they throw `why`.
    void refuse(const error& why, collective, stream_ref) const
    {
        state_->meet.fail({status::peer_failure,
            collprobe::detail::list_ranks({rank_}) + " gave a bad argument: " + why.what(), {rank_}});
    }

protected:
    using argument_check = collprobe::detail::argument_check;
    using arguments = collprobe::detail::arguments;
    using call_description = collprobe::detail::call_description;
    using state_ref = detail::ref<State>;

    basic_communicator(state_ref state, int rank) noexcept : state_(std::move(state)), rank_(rank) {}

    state_ref state_;
    int rank_ = 0;
    std::uint64_t whole_ = 0;

private:
    template <collective Call, class T>
    void enqueue(stream_ref on, std::uint64_t count, reduction operation, int root, const void* send,
        void* receive, call_site where) const
    {
        const arguments own{{Call, element_traits<T>::type, operation, root, count, whole_}, send, receive};
        static_cast<const Self&>(*this).template enqueue<Call, T>(on, own, where);
    }
    std::uint64_t parts() const noexcept { return static_cast<std::uint64_t>(size()); }
    template <class T>
    const T* own_part(view<T> whole) const noexcept
    {
        return whole.part(static_cast<std::uint64_t>(rank_) * (whole.count() / parts()), whole.count()).data();
    }
};

/// n ranks of one process that share a communicator. Create it on one thread, give each rank's thread
/// `communicator(rank)`. The handles keep what they need alive; the group itself may go first.
template <class Communicator>
class basic_group {
public:
    using communicator_type = Communicator;
    static constexpr int max_ranks = Communicator::max_ranks;

    /// \throws error `invalid_argument` unless 1 <= ranks <= max_ranks and the time-out is not 0.
    /// Cost: some hundred bytes a rank.
    explicit basic_group(int ranks, options settings = {}, call_site where = call_site::current())
    {
        const auto refuse = [&](const std::string& message) {
            throw error(status::invalid_argument, message,
                {.call = "local::group", .communicator = settings.name, .where = where});
        };
        if (ranks < 1 || ranks > max_ranks) {
            refuse("ranks is " + std::to_string(ranks) + ", not between 1 and " + std::to_string(max_ranks));
        }
        if (settings.timeout_ms == 0) refuse("timeout_ms is 0: no rank could wait for another");
        if (settings.order > reduction_order::tree) refuse("order is no reduction_order");
        std::vector<int> all;
        for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
        state_ = detail::make_ref<state_type>(std::move(settings.name), settings.timeout_ms,
            settings.order, detail::make_ref<detail::group_tree>(), std::move(all));
    }

    int size() const noexcept { return state_->meet.size(); }
    const std::string& name() const noexcept { return state_->meet.name(); }

    /// The handle of `rank`.
    /// \throws error `invalid_argument` unless 0 <= rank < size().
    Communicator communicator(int rank, call_site where = call_site::current()) const
    {
        if (rank < 0 || rank >= size()) {
            throw error(status::invalid_argument,
                "rank " + std::to_string(rank) + " is not between 0 and " + std::to_string(size() - 1),
                {.call = "communicator", .communicator = name(), .where = where});
        }
        return Communicator(state_, rank);
    }

    /// Says that the thread of `rank` is gone because of `cause`: fails this group and all that were
    /// split from it, so that no peer waits for the rank. Where `cause` is itself a consequence, the
    /// culprits are those that it names.
    void fail(int rank, const std::exception_ptr& cause) const
    {
        std::vector<int> culprits{rank};
        try {
            std::rethrow_exception(cause);
        } catch (const error& known) {
            auto named = state_->relatives->first_group_ranks(known.communicator(), known.culprits());
            if (!named.empty()) culprits = std::move(named);
        } catch (...) {
        }
        state_->relatives->fail(collprobe::detail::list_ranks({rank})
                + " threw: " + collprobe::detail::message_of(cause),
            std::move(culprits));
    }

private:
    using state_type = typename Communicator::state_type;
    detail::ref<state_type> state_;
};

} // namespace collprobe::local
