// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/rendezvous.hpp>
#include <collprobe/comm/local/order.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::local::detail {

using collprobe::detail::make_ref;
using collprobe::detail::ref;

class group_state;

/// A group and all groups that were split from it, directly or not, as long as they are alive. If a rank ends, all of
/// them must fail; else a peer would wait in one of them.
class group_tree : public collprobe::detail::ref_counted {
public:
    /// Tells `member` at once if the group tree has failed already.
    void join(group_state* member);

    COLLPROBE_COLD_INLINE void leave(group_state* member) noexcept
    {
        const std::lock_guard lock(guard_);
        for (entry& one : members_) {
            if (one.member == member) one.member = nullptr;
        }
    }

    /// Fails every member because of ranks of the first group.
    COLLPROBE_COLD_INLINE void fail(std::string message, std::vector<int> first_group_ranks)
    {
        const std::lock_guard lock(guard_);
        if (failed_) return;
        failed_ = true;
        message_ = std::move(message);
        culprits_ = std::move(first_group_ranks);
        for (const entry& one : members_) {
            if (one.member != nullptr) tell(*one.member);
        }
    }

    /// Translates the culprits of an error of the communicator `name` to ranks of the first group; empty if there was
    /// no such communicator lately. (All ranks may have dropped a failed communicator before one of them asks.)
    std::vector<int> first_group_ranks(const std::string& name, const std::vector<int>& culprits);

private:
    struct entry {
        group_state* member; ///< null when it has ended
        std::string name;
        std::vector<int> first_group_ranks;
    };
    static constexpr std::size_t most_ended = 16;

    void tell(group_state& member);

    std::mutex guard_;
    std::vector<entry> members_; ///< those that live, and the last ones that have ended
    bool failed_ = false;
    std::string message_;
    std::vector<int> culprits_;
};

/// The state that the handles of all ranks of a communicator share. A device that needs more state derives its own.
class group_state : public collprobe::detail::ref_counted {
public:
    /// `ancestors[r]` is the number of rank r in the first group, from which this group descends.
    group_state(
        std::string name, std::int64_t timeout_ms, reduction_order combine_in, ref<group_tree> kin,
        std::vector<int> ancestors)
        : meet(static_cast<int>(ancestors.size()), std::move(name), timeout_ms),
          order(combine_in),
          relatives(std::move(kin)),
          first_group_ranks(std::move(ancestors)),
          parts_(first_group_ranks.size())
    {
        relatives->join(this);
    }

    virtual ~group_state() { relatives->leave(this); }

    /// One rank's share of a split: blocks until all ranks are here. The new group may be null. It is an `Own`, as
    /// this group is.
    template <class Own>
    std::pair<ref<Own>, int> split(int rank, int color, int key, call_site where)
    {
        const auto make = [this](std::string name, std::vector<int> ancestors) -> group_state* {
            return new Own(std::move(name), meet.timeout_ms(), order, relatives, std::move(ancestors));
        };
        const std::pair<ref<group_state>, int> made = split_by(make, rank, color, key, where);
        return {ref<Own>(static_cast<Own*>(made.first.get())), made.second};
    }

    /// Fails the group because the stream of `rank` had failed before it reached the collective. The peers get this
    /// as the cause.
    COLLPROBE_COLD_INLINE void could_not_take_part(int rank, collective what, const std::exception_ptr& cause) noexcept
    {
        lose_rank(rank, std::string(" could not take part in ") + collprobe::name(what)
                + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause));
    }

    /// Fails the group because `rank` could not put its part of a collective on its stream.
    COLLPROBE_COLD_INLINE void could_not_enqueue(int rank, const std::string& cause)
    {
        lose_rank(rank, " could not enqueue: " + cause);
    }
    /// Fails the group because of `rank`, for the reason `why`, which follows its name.
    COLLPROBE_COLD_INLINE void lose_rank(int rank, const std::string& why)
    {
        meet.fail({status::peer_failure, collprobe::detail::list_ranks({rank}) + why, {rank}});
    }

    collprobe::detail::rendezvous meet;
    const reduction_order order;
    const ref<group_tree> relatives;
    const std::vector<int> first_group_ranks;

private:
    struct alignas(64) part {
        std::uint64_t calls = 0;
        int color = 0;
        int key = 0;
        int child_rank = -1;
        ref<group_state> child;
    };

    /// Makes the group `name` from ranks that have these numbers in the first group.
    using maker = collprobe::detail::function_ref<group_state*(std::string name, std::vector<int> ancestors)>;
    std::pair<ref<group_state>, int> split_by(maker make, int rank, int color, int key, call_site where);
    void make_parts(maker make, std::uint64_t call);

    std::vector<part> parts_;
};

COLLPROBE_COLD_INLINE std::pair<ref<group_state>, int> group_state::split_by(
    maker make, int rank, int color, int key, call_site where)
{
    part& own = parts_[static_cast<std::size_t>(rank)];
    const std::uint64_t call = own.calls++;
    own.color = color;
    own.key = key;
    meet.enter_on_host(rank, call, collective::split, where, [&, this] { make_parts(make, call); });
    std::pair<ref<group_state>, int> result(own.child, own.child_rank);
    own.child = {};
    meet.leave_on_host(call);
    return result;
}

COLLPROBE_COLD_INLINE void group_state::make_parts(maker make, std::uint64_t call)
{
    // By color, key and old rank; an insertion sort of at most a few hundred ranks.
    std::vector<int> sorted;
    const auto before = [&](int a, int b) {
        const part& x = parts_[static_cast<std::size_t>(a)];
        const part& y = parts_[static_cast<std::size_t>(b)];
        if (x.color != y.color) return x.color < y.color;
        return x.key != y.key ? x.key < y.key : a < b;
    };
    for (int rank = 0; rank < meet.size(); ++rank) {
        if (parts_[static_cast<std::size_t>(rank)].color == no_color) continue;
        auto at = sorted.end();
        while (at != sorted.begin() && before(rank, *(at - 1))) --at;
        sorted.insert(at, rank);
    }
    for (std::size_t first = 0, last = 0; first < sorted.size(); first = last) {
        const int color = parts_[static_cast<std::size_t>(sorted[first])].color;
        std::vector<int> ancestors;
        for (last = first; last < sorted.size(); ++last) {
            const auto rank = static_cast<std::size_t>(sorted[last]);
            if (parts_[rank].color != color) break;
            ancestors.push_back(first_group_ranks[rank]);
        }
        const std::string name
            = meet.name() + "/split" + std::to_string(call) + ".color" + std::to_string(color);
        const ref<group_state> child(make(name, std::move(ancestors)));
        for (std::size_t at = first; at < last; ++at) {
            part& member = parts_[static_cast<std::size_t>(sorted[at])];
            member.child = child;
            member.child_rank = static_cast<int>(at - first);
        }
    }
}

COLLPROBE_COLD_INLINE void group_tree::join(group_state* member)
{
    const std::lock_guard lock(guard_);
    std::size_t ended = 0;
    for (const entry& one : members_) ended += one.member == nullptr ? 1 : 0;
    for (auto at = members_.begin(); ended > most_ended; ++at) {
        if (at->member != nullptr) continue;
        members_.erase(at); // the oldest one
        break;
    }
    members_.push_back({member, member->meet.name(), member->first_group_ranks});
    if (failed_) tell(*member);
}

COLLPROBE_COLD_INLINE void group_tree::tell(group_state& member)
{
    std::vector<int> members_among_culprits;
    for (std::size_t rank = 0; rank < member.first_group_ranks.size(); ++rank) {
        for (const int culprit : culprits_) {
            if (member.first_group_ranks[rank] != culprit) continue;
            members_among_culprits.push_back(static_cast<int>(rank));
        }
    }
    member.meet.fail({status::peer_failure, message_, std::move(members_among_culprits)});
}

COLLPROBE_COLD_INLINE std::vector<int> group_tree::first_group_ranks(
    const std::string& name, const std::vector<int>& culprits)
{
    std::vector<int> result;
    const std::lock_guard lock(guard_);
    for (std::size_t left = members_.size(); left > 0; --left) {
        const entry& one = members_[left - 1];
        if (one.name != name) continue;
        for (const int culprit : culprits) {
            // Another group may have the same name and more ranks.
            if (culprit < 0 || static_cast<std::size_t>(culprit) >= one.first_group_ranks.size()) return {};
            result.push_back(one.first_group_ranks[static_cast<std::size_t>(culprit)]);
        }
        break;
    }
    return result;
}

} // namespace collprobe::local::detail
