// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <collprobe/comm/local/detail/group.hpp>

namespace collprobe::inline COLLPROBE_ABI::local::detail {

COLLPROBE_COLD_INLINE group_state::group_state(std::string name, std::int64_t timeout_ms,
    reduction_order combine_in, ref<group_tree> kin, std::vector<int> ancestors)
    : meet(static_cast<int>(ancestors.size()), std::move(name), timeout_ms),
      order(combine_in),
      relatives(std::move(kin)),
      first_group_ranks(std::move(ancestors)),
      parts_(first_group_ranks.size())
{
    relatives->join(this);
}

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

COLLPROBE_COLD_INLINE void group_state::could_not_take_part(
    int rank, collective what, const std::exception_ptr& cause) noexcept
{
    meet.fail({status::peer_failure,
        collprobe::detail::list_ranks({rank}) + " could not take part in " + collprobe::name(what)
            + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
        {rank}});
}

COLLPROBE_COLD_INLINE void group_state::could_not_enqueue(int rank, const std::string& cause)
{
    meet.fail({status::peer_failure, collprobe::detail::list_ranks({rank}) + " could not enqueue: " + cause,
        {rank}});
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

COLLPROBE_COLD_INLINE void group_tree::leave(group_state* member) noexcept
{
    const std::lock_guard lock(guard_);
    for (entry& one : members_) {
        if (one.member == member) one.member = nullptr;
    }
}

COLLPROBE_COLD_INLINE void group_tree::fail(std::string message, std::vector<int> first_group_ranks)
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

} // namespace collprobe::inline COLLPROBE_ABI::local::detail
