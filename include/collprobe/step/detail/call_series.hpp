// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/message.hpp>

/// Which call of a step is which call of the last one.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The calls of a step by `probed_call::identity`; equal ones in the order of the step.
class sorted_calls {
public:
    /// True if the step has the calls of the last one, in their order.
    bool see(view<const probed_call> calls, bool has_places)
    {
        bool as_before = identities_.size() == calls.size();
        identities_.resize(calls.size());
        for (std::size_t c = 0; c < calls.size(); ++c) {
            const std::uint64_t now = calls[c].identity(has_places);
            as_before = as_before && identities_[c] == now;
            identities_[c] = now;
        }
        return as_before;
    }
    /// Gives `use(call, identity, order)` each call, ascending by identity; `order`: among those of the same identity.
    void for_each_sorted(const auto& use)
    {
        sorted_.resize(identities_.size());
        for (std::size_t c = 0; c < sorted_.size(); ++c) sorted_[c] = static_cast<std::uint32_t>(c);
        std::sort(sorted_.begin(), sorted_.end(), [this](std::uint32_t a, std::uint32_t b) {
            return identities_[a] != identities_[b] ? identities_[a] < identities_[b] : a < b;
        });
        std::uint64_t order = 0;
        for (std::size_t i = 0; i < sorted_.size(); ++i) {
            const std::uint64_t identity = identities_[sorted_[i]];
            order = i > 0 && identities_[sorted_[i - 1]] == identity ? order + 1 : 0;
            use(sorted_[i], identity, order);
        }
    }
    void clear() noexcept { identities_.clear(); }

private:
    std::vector<std::uint64_t> identities_; ///< of the last step
    std::vector<std::uint32_t> sorted_; ///< calls
};

/// Knows the calls of a step again in later steps. A call is the same if its place in the program is (its name, else
/// its line), its kind, type, operation and count, and its order among the calls of its step for which all that is the
/// same. So a step that has more calls than another, or fewer, moves nothing.
/// Bounded: it knows four times the calls of the largest step, and 32. Series not seen for longest go first.
/// A template for the reason of `basic_step_judge`.
template <class = void>
class basic_call_series {
public:
    /// Gives each call its series. `has_places`: the ranks agree on the places in the program; if they do not, these
    /// tell nothing. Cost: O(calls) if the step is as the last one, else O(known * log(known)). Valid until the next
    /// call.
    view<const series_place> find(view<const probed_call> calls, bool has_places)
    {
        ++step_;
        if (!order_.see(calls, has_places)) {
            if (calls.size() > largest_) largest_ = calls.size();
            places_.resize(calls.size());
            fresh_.clear();
            auto at = known_.begin();
            order_.for_each_sorted([&, this](std::uint32_t c, std::uint64_t identity, std::uint64_t order) {
                const known next{identity, order, {0, c}};
                while (at != known_.end() && at->before(next)) ++at;
                const bool is_known = at != known_.end() && !next.before(*at);
                places_[c] = is_known ? at->at : series_place();
                if (is_known) used_[at->at.slot] = step_;
                else fresh_.push_back(next);
            });
            make_room(fresh_.size());
            for (series_place& each : places_) {
                if (each.number != 0) continue;
                each = {++begun_, unused_.back()};
                unused_.pop_back();
            }
            for (known& each : fresh_) each.at = places_[each.at.slot];
            known_.insert(known_.end(), fresh_.begin(), fresh_.end());
            std::sort(known_.begin(), known_.end(), [](const known& a, const known& b) { return a.before(b); });
        }
        for (const series_place& each : places_) used_[each.slot] = step_;
        return {places_.data(), places_.size()};
    }

    /// All slots are below it.
    std::size_t slots() const noexcept { return used_.size(); }

    /// By slot: the number of its series; 0 if none has it.
    std::vector<std::uint64_t> numbers() const
    {
        std::vector<std::uint64_t> by_slot(slots());
        for (const known& each : known_) by_slot[each.at.slot] = each.at.number;
        return by_slot;
    }

    /// Knows no call of earlier steps any more.
    void clear()
    {
        known_.clear();
        order_.clear();
        places_.clear();
        unused_.clear();
        add_unused(0);
    }

    /// As new, but for the numbers of series that begin.
    void reset()
    {
        const std::uint64_t begun = begun_;
        *this = {};
        begun_ = begun;
    }

    /// The series that have begun: the number of the last one.
    std::uint64_t begun() const noexcept { return begun_; }

    /// 8-byte words, of which `restore` makes such series again: in the same slots, with new numbers, each less its
    /// old one by as much as the others. `first` is subtracted from the numbers.
    void save(std::vector<std::uint64_t>& words, std::uint64_t first) const
    {
        words.push_back(known_.size());
        for (const known& each : known_) {
            const std::uint64_t saved[] = {each.identity, each.order, each.at.number - first, each.at.slot};
            words.insert(words.end(), saved, saved + 4);
        }
    }

    /// False for words that `save` cannot have written; then nothing changes.
    bool restore(view<const std::uint64_t> words)
    {
        if (words.size() % 4 != 1 || words[0] != words.size() / 4) return false;
        std::vector<known> read;
        std::vector<bool> taken;
        std::uint64_t last = 0;
        for (std::size_t at = 1; at < words.size(); at += 4) {
            const std::uint64_t slot = words[at + 3];
            if (slot >= std::uint64_t{1} << 24) return false;
            if (words[at + 2] == 0 || words[at + 2] > std::uint64_t{1} << 62) return false;
            read.push_back({words[at], words[at + 1], {begun_ + words[at + 2], static_cast<std::uint32_t>(slot)}});
            if (read.size() > 1 && !read[read.size() - 2].before(read.back())) return false;
            if (slot >= taken.size()) taken.resize(slot + 1);
            if (taken[slot]) return false;
            taken[slot] = true;
            if (words[at + 2] > last) last = words[at + 2];
        }
        clear();
        known_ = std::move(read);
        begun_ += last;
        if (used_.size() < taken.size()) used_.resize(taken.size());
        for (std::uint64_t& each : used_) each = step_;
        unused_.clear();
        add_unused(0, taken);
        return true;
    }

private:
    struct known {
        std::uint64_t identity;
        std::uint64_t order; ///< among those of a step with this identity
        series_place at;

        bool before(const known& other) const noexcept
        {
            return identity < other.identity || (identity == other.identity && order < other.order);
        }
    };

    void make_room(std::size_t more)
    {
        const std::size_t most = 4 * largest_ + 32;
        if (known_.size() + more > most) {
            // Those of this step are known at most `largest_` times, so there are enough others.
            const std::size_t leave = known_.size() + more - most;
            std::sort(known_.begin(), known_.end(), [this](const known& a, const known& b) {
                const std::uint64_t age[] = {used_[a.at.slot], used_[b.at.slot]};
                return age[0] != age[1] ? age[0] < age[1] : a.before(b);
            });
            const auto gone = known_.begin() + static_cast<std::ptrdiff_t>(leave);
            for (auto each = known_.begin(); each != gone; ++each) unused_.push_back(each->at.slot);
            known_.erase(known_.begin(), gone); // the caller sorts the others
        }
        const std::size_t slots = used_.size();
        if (unused_.size() < more) used_.resize(slots + more - unused_.size());
        add_unused(slots);
    }
    void add_unused(std::size_t first, const std::vector<bool>& taken = {})
    {
        for (std::size_t slot = used_.size(); slot > first; --slot)
            if (slot > taken.size() || !taken[slot - 1]) unused_.push_back(static_cast<std::uint32_t>(slot - 1));
    }

    std::vector<known> known_; ///< ascending by identity and order
    std::vector<std::uint64_t> used_; ///< by slot: the last step with it
    std::vector<std::uint32_t> unused_; ///< slots, the next one last
    sorted_calls order_;
    std::vector<known> fresh_; ///< at first with the call as slot
    std::vector<series_place> places_;
    std::size_t largest_ = 0; ///< calls in a step
    std::uint64_t step_ = 0;
    std::uint64_t begun_ = 0;
};

using call_series = basic_call_series<>;

} // namespace collprobe::detail
