// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/alarm/detail/rules.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The alarms of one step. Equal findings about several ranks become one alarm. Reuses its memory.
class alarm_list {
public:
    void clear() noexcept { used_ = 0; }

    /// Adds `next`, which has no ranks yet, for one rank, or with -1 for no known rank. Statistical findings of one
    /// check make one alarm for all calls, with the call of the strongest evidence. `first`: the advice if too many
    /// ranks are named to take them out.
    void add(const alarm_record& next, int rank, advice first)
    {
        alarm_record* into = find(next, rank >= 0, first);
        if (into == nullptr) {
            if (used_ == raised_.size()) {
                raised_.emplace_back();
                first_.emplace_back();
            }
            first_[used_] = first;
            into = &raised_[used_++];
            into->ranks.clear();
            take_evidence(*into, next);
            into->step = next.step;
            into->what = next.what;
            into->where = next.where;
            into->false_alarms_per_step = next.false_alarms_per_step;
            into->strikes = next.strikes;
            into->action = next.action;
            into->source = -1;
        } else {
            if (is_stronger(next, *into)) take_evidence(*into, next);
            if (next.strikes > into->strikes) into->strikes = next.strikes;
            if (next.false_alarms_per_step > into->false_alarms_per_step)
                into->false_alarms_per_step = next.false_alarms_per_step;
        }
        if (rank >= 0) insert(into->ranks, rank);
    }

    /// Completes the alarms by what depends on all findings: too many named ranks, and the source to restore from.
    view<const alarm_record> settle(int ranks)
    {
        for (std::size_t i = 0; i < used_; ++i) {
            alarm_record& each = raised_[i];
            const bool many = static_cast<int>(each.ranks.size()) > blame_limit(ranks);
            if (many && each.action == advice::quarantine) each.action = first_[i];
            if (is_statistical(each.what) && (many || ranks == 2)) {
                each.ranks.clear();
                each.where = damage::unknown;
                each.action = advice::recheck;
            }
        }
        for (std::size_t i = 0; i < used_; ++i) {
            alarm_record& each = raised_[i];
            if (each.action != advice::resync) continue;
            if (!each.ranks.empty()) each.source = source_for(each, ranks);
            if (each.source < 0 && each.what != finding::replica_differs) each.action = advice::skip;
        }
        return {raised_.data(), used_};
    }

private:
    alarm_record* find(const alarm_record& next, bool named, advice first) noexcept
    {
        for (std::size_t i = 0; i < used_; ++i) {
            alarm_record& each = raised_[i];
            if (each.what == next.what && each.where == next.where && each.action == next.action && first_[i] == first
                && each.ranks.empty() != named && (is_statistical(next.what) || each.call == next.call)) {
                return &each;
            }
        }
        return nullptr;
    }
    static bool is_stronger(const alarm_record& a, const alarm_record& b) noexcept
    {
        const double x = absolute(a.statistic);
        const double y = absolute(b.statistic);
        return a.threshold > 0 && b.threshold > 0 ? x * b.threshold > y * a.threshold : x > y;
    }
    static void take_evidence(alarm_record& into, const alarm_record& from) noexcept
    {
        into.call = from.call;
        into.site = from.site;
        into.statistic = from.statistic;
        into.threshold = from.threshold;
        into.evidence = from.evidence;
        into.by_length = from.by_length;
    }
    static void insert(std::vector<int>& ranks, int rank)
    {
        std::size_t at = ranks.size();
        while (at > 0 && ranks[at - 1] > rank) --at;
        if (at == 0 || ranks[at - 1] != rank) ranks.insert(ranks.begin() + static_cast<std::ptrdiff_t>(at), rank);
    }

    /// The lowest rank that no exact check names in this step; if there is none, the lowest that this alarm does not
    /// name.
    int source_for(const alarm_record& wanted, int ranks) const noexcept
    {
        int second = -1;
        for (int rank = 0; rank < ranks; ++rank) {
            if (names(wanted, rank)) continue;
            if (second < 0) second = rank;
            bool clean = true;
            for (std::size_t i = 0; i < used_ && clean; ++i) {
                clean = is_statistical(raised_[i].what) || raised_[i].what == finding::late || !names(raised_[i], rank);
            }
            if (clean) return rank;
        }
        return second;
    }
    static bool names(const alarm_record& raised, int rank) noexcept
    {
        for (const int named : raised.ranks) {
            if (named == rank) return true;
        }
        return false;
    }

    std::vector<alarm_record> raised_; // the first `used_` belong to this step
    std::vector<advice> first_; // the first advice of each alarm, even if the alarm advises something else by now
    std::size_t used_ = 0;
};

} // namespace collprobe::detail
