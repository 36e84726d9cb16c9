// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/detail/board.hpp>
#include <collprobe/comm/local/order.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/mutex.hpp>
#include <collprobe/detail/ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::local::detail {

using collprobe::detail::board_failure;
using collprobe::detail::make_ref;
using collprobe::detail::posting;
using collprobe::detail::ref;

class group_state;

/// A group and all that were split from it, directly or not: whoever is alive. When a rank is gone
/// all of them must fail, or a peer would wait in one of them.
class family : public collprobe::detail::ref_counted {
public:
    /// Tells `member` at once if the family has failed already.
    void join(group_state* member);
    void leave(group_state* member) noexcept;
    /// Fails every member because of ranks of the first group.
    void fail(std::string message, std::vector<int> first_group_ranks);
    /// Translates the culprits of an error of the communicator `name` to ranks of the first group;
    /// empty if no such communicator is alive.
    std::vector<int> first_group_ranks(const std::string& name, const std::vector<int>& culprits);

private:
    void tell(group_state& member);

    collprobe::detail::mutex guard_;
    std::vector<group_state*> members_;
    bool failed_ = false;
    std::string message_;
    std::vector<int> culprits_;
};

/// What the handles of all ranks of a communicator share. A device that needs more derives its own.
class group_state : public collprobe::detail::ref_counted {
public:
    /// `ancestors[r]` is what rank r is called in the group that this one descends from.
    group_state(std::string name, std::int64_t timeout_ms, reduction_order combine_in, ref<family> kin,
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

    /// One rank's share of a split: blocks until all ranks are here. The new group may be null; it is
    /// an `Own`, as this one is.
    template <class Own>
    std::pair<ref<Own>, int> split(int rank, int color, int key, call_site where)
    {
        part& own = parts_[static_cast<std::size_t>(rank)];
        const std::uint64_t call = own.calls++;
        own.color = color;
        own.key = key;
        meet.enter_on_host(rank, call, collective::split, where, [&] { make_parts<Own>(call); });
        std::pair<ref<Own>, int> result(static_cast<Own*>(own.child.get()), own.child_rank);
        own.child = {};
        meet.leave_on_host(call);
        return result;
    }

    /// What the peers are told of a rank whose stream had failed before it reached the collective.
    void could_not_take_part(int rank, collective what, const std::exception_ptr& cause) noexcept
    {
        meet.fail({status::peer_failure,
            collprobe::detail::list_ranks({rank}) + " could not take part in " + collprobe::name(what)
                + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
            {rank}});
    }
    /// And of one that could not put its part of a collective on its stream.
    void could_not_enqueue(int rank, const std::string& cause)
    {
        meet.fail({status::peer_failure,
            collprobe::detail::list_ranks({rank}) + " could not enqueue: " + cause, {rank}});
    }

    collprobe::detail::board meet;
    const reduction_order order;
    const ref<family> relatives;
    const std::vector<int> first_group_ranks;

private:
    struct alignas(64) part {
        std::uint64_t calls = 0;
        int color = 0;
        int key = 0;
        int child_rank = -1;
        ref<group_state> child;
    };

    template <class Own>
    void make_parts(std::uint64_t call)
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
            const ref<group_state> child(
                new Own(name, meet.timeout_ms(), order, relatives, std::move(ancestors)));
            for (std::size_t at = first; at < last; ++at) {
                part& member = parts_[static_cast<std::size_t>(sorted[at])];
                member.child = child;
                member.child_rank = static_cast<int>(at - first);
            }
        }
    }

    collprobe::detail::fixed_array<part> parts_;
};

inline void family::join(group_state* member)
{
    const collprobe::detail::lock_guard lock(guard_);
    members_.push_back(member);
    if (failed_) tell(*member);
}

inline void family::leave(group_state* member) noexcept
{
    const collprobe::detail::lock_guard lock(guard_);
    for (group_state*& other : members_) {
        if (other != member) continue;
        other = members_.back();
        members_.pop_back();
        return;
    }
}

inline void family::fail(std::string message, std::vector<int> first_group_ranks)
{
    const collprobe::detail::lock_guard lock(guard_);
    if (failed_) return;
    failed_ = true;
    message_ = std::move(message);
    culprits_ = std::move(first_group_ranks);
    for (group_state* const member : members_) tell(*member);
}

inline void family::tell(group_state& member)
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

inline std::vector<int> family::first_group_ranks(const std::string& name, const std::vector<int>& culprits)
{
    std::vector<int> result;
    const collprobe::detail::lock_guard lock(guard_);
    for (group_state* const member : members_) {
        if (member->meet.name() != name) continue;
        for (const int culprit : culprits) {
            // Another group may have the same name and more ranks.
            if (culprit < 0 || culprit >= member->meet.size()) return {};
            result.push_back(member->first_group_ranks[static_cast<std::size_t>(culprit)]);
        }
        break;
    }
    return result;
}

} // namespace collprobe::local::detail
