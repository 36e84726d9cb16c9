// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The alarms of one step. Reuses its memory.
class alarm_list {
public:
    void clear() noexcept { used_ = 0; }

    /// Adds `next`, which has no ranks yet, for one rank, or with -1 for no known rank. Equal findings about several
    /// ranks become one alarm, those of a number also over calls: with the strongest evidence and the largest rate.
    /// `lasts`: reason to take the rank out.
    void add(alarm_record next, int rank, bool lasts)
    {
        const std::size_t at = find(next, rank >= 0, lasts);
        const bool is_new = at == used_;
        if (is_new) {
            ++used_;
            if (raised_.size() < used_) raised_.resize(used_);
            lasting_.resize(raised_.size());
            lasting_[at] = lasts;
            raised_[at].ranks.clear();
        }
        alarm_record& into = raised_[at];
        const double rate = std::max(is_new ? 0 : into.false_alarms_per_step, next.false_alarms_per_step);
        if (is_new || strength(next) > strength(into)) {
            next.ranks.swap(into.ranks);
            into = std::move(next);
        }
        into.false_alarms_per_step = rate;
        if (rank < 0) return;
        const auto place = std::lower_bound(into.ranks.begin(), into.ranks.end(), rank);
        if (place == into.ranks.end() || *place != rank) into.ranks.insert(place, rank);
    }

    /// Completes the alarms by what depends on all findings: too many named ranks, and the source to restore from.
    view<const alarm_record> settle(int ranks)
    {
        for (std::size_t i = 0; i < used_; ++i) {
            alarm_record& each = raised_[i];
            const bool are_many = static_cast<int>(each.ranks.size()) > blame_limit(ranks);
            if (is_of_number(each.what) && (are_many || ranks == 2)) {
                each.ranks.clear();
                if (each.where != damage::none) each.where = damage::unknown;
            } else if (lasting_[i] && !are_many) {
                each.action = advice::quarantine;
            }
            if (each.action != advice::resync) continue;
            if (!each.ranks.empty()) each.source = source_for(each, ranks);
            if (each.source < 0 && each.what != finding::value_differs && each.what != finding::non_finite)
                each.action = advice::skip;
        }
        return {raised_.data(), used_};
    }

private:
    std::size_t find(const alarm_record& next, bool is_named, bool lasts) const noexcept
    {
        for (std::size_t i = 0; i < used_; ++i) {
            const alarm_record& each = raised_[i];
            if (each.what == next.what && each.where == next.where && each.action == next.action && lasting_[i] == lasts
                && each.ranks.empty() != is_named && (is_of_number(next.what) || each.call == next.call)
                && (next.what != finding::call_missing || is_same(each.other, next.other)))
                return i;
        }
        return used_;
    }
    static double strength(const alarm_record& of) noexcept
    {
        return absolute(of.statistic) / (of.threshold > 0 ? of.threshold : 1);
    }
    static bool names(const alarm_record& raised, int rank) noexcept
    {
        return std::binary_search(raised.ranks.begin(), raised.ranks.end(), rank);
    }

    /// The lowest rank that no alarm names, but for its numbers; if there is none, the lowest that this one does not.
    int source_for(const alarm_record& wanted, int ranks) const noexcept
    {
        int second = -1;
        for (int rank = 0; rank < ranks; ++rank) {
            if (names(wanted, rank)) continue;
            bool is_clean = true;
            for (std::size_t i = 0; i < used_; ++i)
                is_clean = is_clean && (is_of_number(raised_[i].what) || !names(raised_[i], rank));
            if (is_clean) return rank;
            if (second < 0) second = rank;
        }
        return second;
    }

    std::vector<alarm_record> raised_; // the first `used_` belong to this step
    std::vector<bool> lasting_; // of each alarm
    std::size_t used_ = 0;
};

} // namespace collprobe::detail
