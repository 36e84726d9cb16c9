// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/detail/group.hpp>
#include <collprobe/comm/local/order.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/order/hooks.hpp>

/// The part that ranks as threads of one process have in common, on any device: the calls of a rank with the checks
/// of their arguments, and the group.
namespace collprobe::inline COLLPROBE_ABI::local {

/// The time-out, the name and the order of additions of the ranks of a process.
struct options {
    /// How long a rank waits for another rank in a collective; a negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "local";
    /// The order in which reductions combine the ranks. On a device: `linear`.
    reduction_order order = reduction_order::linear;
};

namespace detail {

/// The common part of the handles of a rank. `Self` is the communicator that derives from this class. `State` is the
/// state that the ranks share, a `group_state`.
template <class Self, class Device, class State>
class basic_communicator : public collectives<Self, Device> {
public:
    using stream_ref = typename Device::stream_ref;

    // A move copies: the object that is moved from is the same rank still.
    basic_communicator(const basic_communicator&) noexcept = default;
    basic_communicator& operator=(const basic_communicator&) noexcept = default;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return state_->meet.size(); }
    const std::string& name() const noexcept { return state_->meet.name(); }
    /// `options::timeout_ms` of the group.
    std::int64_t timeout_ms() const noexcept { return state_->meet.timeout_ms(); }

    /// \throws error `invalid_argument`; the communicator's failure.
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        state_->meet.require_usable(rank_, call.what, call.where);
        const Self& self = static_cast<const Self&>(*this);
        const collprobe::detail::caller who(self, call.what, call.where);
        who.require_right(call);
        self.require_fit(on, who);
        order_hooks::call(on, rank_, call, false);
        const order_hooks::silent inner_work;
        self.enqueue(on, call, Self::template mover_of<T>(call.what));
    }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty for
    /// `no_color`. It has the parent's order and time-out, its own failures, and a name like "local/split3.color1"
    /// for the fourth split of "local".
    /// Stream behaviour: blocks the calling thread until all ranks call. No stream takes part.
    /// \throws error `invalid_argument` for a color below -1; `timeout` naming the ranks that did not call; or the
    ///   communicator's failure.
    std::optional<Self> split(int color, int key, call_site where = call_site::current()) const
    {
        state_->meet.require_usable(rank_, collective::split, where);
        if (color < no_color) {
            collprobe::detail::caller(static_cast<const Self&>(*this), "split", where)
                .refuse("color " + std::to_string(color) + " is below no_color");
        }
        auto [child, child_rank] = state_->template split<State>(rank_, color, key, where);
        if (!child) return std::nullopt;
        Self part(static_cast<const Self&>(*this)); // this rank is in the part
        part.state_ = std::move(child);
        part.rank_ = child_rank;
        return part;
    }

    /// Fails the communicator on all ranks: they get `peer_failure` with the reason and this rank as the culprit.
    /// Calls in which all ranks have already met still complete. No effect on a communicator that has failed.
    void fail(const std::string& reason) const { state_->lose_rank(rank_, " gave up: " + reason); }

protected:
    using state_ref = ref<State>;

    basic_communicator(state_ref state, int rank) noexcept : state_(std::move(state)), rank_(rank) {}

    state_ref state_;
    int rank_ = 0;
};

/// n ranks of one process that share a communicator. Create it on one thread, and give each rank's thread its
/// `communicator(rank)`. The handles keep the shared state alive; the group itself may be destroyed before them.
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
        if (settings.order > Communicator::last_order) {
            refuse(std::string("order is ") + local::name(settings.order) + ": not one of this communicator's");
        }
        std::vector<int> all;
        for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
        state_ = make_ref<state_type>(std::move(settings.name), settings.timeout_ms,
            settings.order, make_ref<group_tree>(), std::move(all));
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

    /// Says that the thread of `rank` has ended because of `cause`. Fails this group and all groups that were split
    /// from it, so that no peer waits for the rank. If `cause` is itself a consequence, the culprits are the ranks
    /// that it names.
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
    ref<state_type> state_;
};

} // namespace detail
} // namespace collprobe::local
