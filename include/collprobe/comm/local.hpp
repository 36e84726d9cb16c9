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
#include <collprobe/comm/detail/local_check.hpp>
#include <collprobe/comm/detail/local_group.hpp>
#include <collprobe/comm/detail/local_moves.hpp>
#include <collprobe/comm/local_order.hpp>
#include <collprobe/device/host.hpp>
#include <collprobe/element.hpp>
#include <collprobe/error.hpp>
#include <collprobe/view.hpp>

/// Ranks as threads of one process, with real collectives between them, on the CPU.
///
/// Errors. Every one is a `collprobe::error`, and the first one is final: from then on every call on
/// every rank throws it, and work that waits in a stream fails with it. Nobody is left waiting.
/// - A bad argument throws `invalid_argument` at the call on that rank; the others get `peer_failure`.
/// - Different calls, types, counts, operations or roots give all ranks `mismatch`. The culprits are
///   the ranks outside the largest group that agrees; where two groups are the largest (always with
///   two ranks that differ) nobody can say who is right, and all ranks are named.
/// - A rank that does not come within `options::timeout_ms` gives `timeout`; the culprits are those
///   who are missing. The time runs from when a rank's own stream has reached the collective.
/// - Work on a rank's stream that fails before a collective gives the others `peer_failure`.
/// A collective that fails has written nothing; one in which all ranks have met always completes.
/// A failed communicator leaves those that it was split from, or that were split from it, as they are
/// (so does NCCL's abort); only `run` fails them all, because there the rank itself is gone.
namespace collprobe::local {

struct options {
    /// How long a rank waits for another one in a collective; a negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "local";
    /// In which order reductions combine the ranks.
    reduction_order order = reduction_order::linear;
};

inline constexpr int max_ranks = 256;

/// One rank's handle of a group: cheap to copy and to move, also while its work is queued. Copies are
/// the same rank. Used by one host thread at a time.
///
/// Collectives return once enqueued and never block or synchronise the calling thread; they allocate
/// nothing. Those of one communicator run one after the other in call order, even on different
/// streams (NCCL's do, too): on another stream the later call waits, in that stream, for the earlier.
/// All ranks get the same bits.
///
/// Arithmetic, the same for every order: each combination rounds to the element type. Integers wrap.
/// An integer average is the wrapped sum divided by n, truncated towards zero; a floating-point one is
/// the sum of the values times 1/n, each product and 1/n rounded to the element type (NCCL's
/// PreMulSum). min and max prefer a number to a NaN, give NaN if there is nothing else, and order
/// -0 < +0. Subnormal numbers count, also in a program that flushes them elsewhere.
class communicator {
public:
    using device = host::device;
    using stream_ref = host::stream_ref;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return state_->meet.size(); }
    const std::string& name() const noexcept { return state_->meet.name(); }
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
        enqueue(on, {collective::all_reduce, type_of<T>, operation, -1, send.count()}, send.data(),
            receive.data(), where, &detail::move_all_reduce<T>);
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
        enqueue(on, {collective::reduce_scatter, type_of<T>, operation, -1, receive.count()}, send.data(),
            receive.data(), where, &detail::move_reduce_scatter<T>);
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
        enqueue(on, {collective::all_gather, type_of<T>, reduction::sum, -1, send.count()}, send.data(),
            receive.data(), where, &detail::move_all_gather<T>);
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
        enqueue(on, {collective::all_to_all, type_of<T>, reduction::sum, -1, send.count() / parts()},
            send.data(), receive.data(), where, &detail::move_all_to_all<T>);
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
        if (root < 0 || root >= size()) {
            check.fail("root " + std::to_string(root) + " is not a rank: there are " + std::to_string(size()));
        }
        check.buffer(receive, "receive");
        if (rank_ == root) {
            check.buffer(send, "send");
            check.shape(send, 1, receive, 1, "equal counts");
            check.placement(send, receive, send.data() == receive.data());
        }
        enqueue(on, {collective::broadcast, type_of<T>, reduction::sum, root, receive.count()}, send.data(),
            receive.data(), where, &detail::move_broadcast<T>);
    }

    /// Work behind it on any rank's stream runs after the work before it on every rank's.
    /// Stream and errors: as for `all_reduce`.
    void barrier(stream_ref on, call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::barrier, where);
        enqueue(on, {collective::barrier}, nullptr, nullptr, where, nullptr);
    }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty
    /// for `no_color`. It has the parent's order and time-out, its own failures, and a name like
    /// "local/split3.color1" for the fourth split of "local".
    /// Blocks the calling thread until all ranks call. No stream takes part.
    /// \throws error `invalid_argument` for a color below -1, which fails the communicator;
    ///   `timeout` naming the ranks that did not call; or the communicator's failure.
    std::optional<communicator> split(int color, int key, call_site where = call_site::current()) const
    {
        const argument_check check(state_->meet, rank_, collective::split, where);
        if (color < no_color) check.fail("color " + std::to_string(color) + " is below no_color");
        auto [child, child_rank] = state_->split(rank_, color, key, where);
        if (!child) return std::nullopt;
        return communicator(std::move(child), child_rank);
    }

    /// Fails the communicator on all ranks: they get `peer_failure`, this rank as the culprit and the
    /// reason. Calls in which all ranks have already met still complete. No effect on a failed one.
    void abort(const std::string& reason) const
    {
        state_->meet.fail({status::peer_failure,
            collprobe::detail::list_ranks({rank_}) + " aborted: " + reason, {rank_}});
    }

private:
    friend class group;
    using argument_check = collprobe::detail::argument_check;
    using group_ref = detail::ref<detail::group_state>;
    using posting = collprobe::detail::posting;
    using call_description = collprobe::detail::call_description;

    template <class T>
    static constexpr element_type type_of = element_traits<T>::type;

    communicator(group_ref state, int rank) noexcept : state_(std::move(state)), rank_(rank) {}

    std::uint64_t parts() const noexcept { return static_cast<std::uint64_t>(size()); }
    template <class T>
    const T* own_part(view<T> whole) const noexcept
    {
        return whole.part(static_cast<std::uint64_t>(rank_) * (whole.count() / parts()), whole.count()).data();
    }

    /// One rank's part in a collective, in its stream.
    struct task {
        group_ref state;
        int rank;
        std::uint64_t call;
        posting own;
        call_site where;
        void (*move)(const detail::group_state&, int rank);

        void operator()() const
        {
            state->meet.enter(rank, call, own, where);
            if (move != nullptr) move(*state, rank);
            state->meet.leave(rank, call);
        }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            const std::string who = collprobe::detail::list_ranks({rank});
            const std::string what = collprobe::name(own.what.call);
            state->meet.fail({status::peer_failure,
                who + " could not take part in " + what
                    + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
                {rank}});
        }
    };

    void enqueue(stream_ref on, const call_description& what, const void* send, void* receive,
        call_site where, void (*move)(const detail::group_state&, int)) const
    {
        const std::uint64_t call = state_->meet.next_call(rank_);
        try {
            on.enqueue(task{state_, rank_, call, {what, send, receive}, where, move});
        } catch (const std::exception& cause) {
            // The number is taken and nobody will come for it.
            state_->meet.fail({status::peer_failure,
                collprobe::detail::list_ranks({rank_}) + " could not enqueue: " + cause.what(), {rank_}});
            throw;
        }
    }

    group_ref state_;
    int rank_ = 0;
};

/// n ranks of one process that share a communicator. Create it on one thread, give each rank's thread
/// `communicator(rank)`. The handles keep what they need alive; the group itself may go first.
class group {
public:
    /// \throws error `invalid_argument` unless 1 <= ranks <= 256 and the time-out is not 0.
    /// Cost: some hundred bytes a rank.
    explicit group(int ranks, options settings = {}, call_site where = call_site::current())
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
        state_ = detail::make_ref<detail::group_state>(std::move(settings.name), settings.timeout_ms,
            settings.order, detail::make_ref<detail::family>(), std::move(all));
    }

    int size() const noexcept { return state_->meet.size(); }
    const std::string& name() const noexcept { return state_->meet.name(); }

    /// The handle of `rank`.
    /// \throws error `invalid_argument` unless 0 <= rank < size().
    local::communicator communicator(int rank, call_site where = call_site::current()) const
    {
        if (rank < 0 || rank >= size()) {
            throw error(status::invalid_argument,
                "rank " + std::to_string(rank) + " is not between 0 and " + std::to_string(size() - 1),
                {.call = "communicator", .communicator = name(), .where = where});
        }
        return local::communicator(state_, rank);
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
    detail::ref<detail::group_state> state_;
};

static_assert(full_communicator<communicator, float>);

} // namespace collprobe::local

#include <collprobe/comm/local_run.hpp>
