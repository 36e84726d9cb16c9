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
using collprobe::detail::posted_call;
using collprobe::detail::ref;

class group_state;

/// A group and all groups that were split from it, directly or not, as long as they are alive. If a rank ends, all of
/// them must fail; else a peer would wait in one of them.
class group_tree : public collprobe::detail::ref_counted {
public:
    /// Tells `member` at once if the group tree has failed already.
    void join(group_state* member);
    void leave(group_state* member) noexcept;
    /// Fails every member because of ranks of the first group.
    void fail(std::string message, std::vector<int> first_group_ranks);
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
    group_state(std::string name, std::int64_t timeout_ms, reduction_order combine_in, ref<group_tree> kin,
        std::vector<int> ancestors);
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
    void could_not_take_part(int rank, collective what, const std::exception_ptr& cause) noexcept;
    /// Fails the group because `rank` could not put its part of a collective on its stream.
    void could_not_enqueue(int rank, const std::string& cause);

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

} // namespace collprobe::local::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/local/detail/group.ipp>
#endif
