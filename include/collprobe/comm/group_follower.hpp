// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The base of an object with work to enqueue behind the collectives of a group, once the group has ended. The object
/// may be moved while it follows a group. A group belongs to a thread; so does a follower until the group ends.
class group_follower {
protected:
    /// `enqueued`: whether the group's collectives are on their streams now. If not, they never will be.
    using group_ended = void (*)(group_follower& self, bool enqueued) noexcept;

    explicit group_follower(group_ended ended) noexcept : ended_(ended) {}
    group_follower(group_follower&& other) noexcept : ended_(other.ended_), followers_(other.followers_)
    {
        if (followers_ != nullptr) std::replace(followers_->begin(), followers_->end(), &other, this);
        other.followers_ = nullptr;
    }
    group_follower& operator=(group_follower&&) = delete;
    ~group_follower() { leave(); }

private:
    friend class group_followers;
    void leave() noexcept
    {
        if (followers_ != nullptr) std::erase(*followers_, this);
        followers_ = nullptr;
    }
    group_ended ended_;
    std::vector<group_follower*>* followers_ = nullptr; ///< the list that it is in
};

/// The followers of the group that a thread has open. Stays at its address while it has one.
class group_followers {
public:
    void add(group_follower& one)
    {
        if (one.followers_ == &all_) return;
        one.leave();
        all_.push_back(&one);
        one.followers_ = &all_;
    }
    void tell(bool enqueued) noexcept
    {
        while (!all_.empty()) {
            group_follower& one = *all_.back();
            one.leave();
            one.ended_(one, enqueued);
        }
    }

private:
    std::vector<group_follower*> all_;
};

} // namespace collprobe
