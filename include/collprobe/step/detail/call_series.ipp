// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/call_series.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_COLD_INLINE view<const series_place> call_series::find(view<const probed_call> calls, bool has_places)
{
    ++step_;
    if (!order_.see(calls, has_places)) {
        if (calls.size() > largest_) largest_ = calls.size();
        places_.resize(calls.size());
        fresh_.clear();
        fresh_calls_.clear();
        auto at = known_.begin();
        order_.for_each_sorted([&, this](std::uint32_t c, std::uint64_t identity, std::uint64_t order) {
            const known next{identity, order, {}};
            while (at != known_.end() && at->before(next)) ++at;
            if (at != known_.end() && !next.before(*at)) {
                places_[c] = at->at;
                used_[at->at.slot] = step_;
            } else {
                places_[c] = {};
                fresh_.push_back(next);
                fresh_calls_.push_back(c);
            }
        });
        make_room(fresh_.size());
        for (series_place& each : places_) {
            if (each.number != 0) continue;
            each = {++begun_, unused_.back()};
            unused_.pop_back();
        }
        for (std::size_t i = 0; i < fresh_.size(); ++i) fresh_[i].at = places_[fresh_calls_[i]];
        known_.insert(known_.end(), fresh_.begin(), fresh_.end());
        std::sort(known_.begin(), known_.end(), [](const known& a, const known& b) { return a.before(b); });
    }
    for (const series_place& each : places_) used_[each.slot] = step_;
    return {places_.data(), places_.size()};
}

COLLPROBE_COLD_INLINE void call_series::make_room(std::size_t more)
{
    const std::size_t most = 4 * largest_ + 32;
    if (known_.size() + more > most) {
        // Those of this step are known at most `largest_` times, so there are enough others.
        const std::size_t leave = known_.size() + more - most;
        std::vector<std::uint64_t> ages;
        for (const known& each : known_) ages.push_back(used_[each.at.slot]);
        std::nth_element(ages.begin(), ages.begin() + static_cast<std::ptrdiff_t>(leave - 1), ages.end());
        const std::uint64_t last = ages[leave - 1];
        std::size_t of_last = leave;
        for (const known& each : known_) of_last -= used_[each.at.slot] < last ? 1 : 0;
        const auto gone = std::remove_if(known_.begin(), known_.end(), [&, this](const known& each) {
            const std::uint64_t age = used_[each.at.slot];
            const bool leaves = age < last || (age == last && of_last > 0);
            if (leaves && age == last) --of_last;
            if (leaves) unused_.push_back(each.at.slot);
            return leaves;
        });
        known_.erase(gone, known_.end());
    }
    const std::size_t slots = used_.size();
    if (unused_.size() < more) used_.resize(slots + more - unused_.size());
    for (std::size_t slot = used_.size(); slot > slots; --slot) unused_.push_back(static_cast<std::uint32_t>(slot - 1));
}

COLLPROBE_COLD_INLINE std::vector<std::uint64_t> call_series::numbers() const
{
    std::vector<std::uint64_t> by_slot(slots());
    for (const known& each : known_) by_slot[each.at.slot] = each.at.number;
    return by_slot;
}

COLLPROBE_COLD_INLINE void call_series::clear()
{
    known_.clear();
    order_.clear();
    places_.clear();
    unused_.clear();
    for (std::size_t slot = used_.size(); slot > 0; --slot) unused_.push_back(static_cast<std::uint32_t>(slot - 1));
}

COLLPROBE_COLD_INLINE void call_series::reset()
{
    const std::uint64_t begun = begun_;
    *this = {};
    begun_ = begun;
}

COLLPROBE_COLD_INLINE void call_series::save(std::vector<std::uint64_t>& words, std::uint64_t first) const
{
    words.push_back(known_.size());
    for (const known& each : known_) {
        const std::uint64_t saved[] = {each.identity, each.order, each.at.number - first, each.at.slot};
        words.insert(words.end(), saved, saved + 4);
    }
}

COLLPROBE_COLD_INLINE bool call_series::restore(view<const std::uint64_t> words)
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
    for (std::size_t slot = used_.size(); slot > 0; --slot) {
        if (slot > taken.size() || !taken[slot - 1]) unused_.push_back(static_cast<std::uint32_t>(slot - 1));
    }
    return true;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
