// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The alarms of one step. Reuses its memory.
class alarm_list {
public:
    void clear() noexcept { used_ = 0; }

    /// Adds a finding for one of its ranks, or with -1 for no known rank. Equal findings about several ranks become one
    /// alarm, those of a number also over calls: with the strongest evidence and the largest rate. `lasts`: reason to
    /// take the rank out.
    void add(const finding& next, int rank, bool lasts)
    {
        const std::size_t at = find(next, lasts);
        const bool is_new = at == used_;
        if (is_new) {
            ++used_;
            if (raised_.size() < used_) raised_.resize(used_);
            lasting_.resize(raised_.size());
            lasting_[at] = lasts;
            raised_[at].ranks.clear();
        }
        finding& into = raised_[at];
        const double rate = is_new ? 0 : into.false_alarms_per_step;
        const int other = is_new || into.other_rank == next.other_rank ? next.other_rank : -1; // of all ranks, or none
        if (is_new || strength(next) > strength(into)) {
            ranks_.swap(into.ranks);
            into = next;
            into.ranks.swap(ranks_);
        }
        into.other_rank = other;
        into.false_alarms_per_step = rate > next.false_alarms_per_step ? rate : next.false_alarms_per_step;
        if (rank >= 0) into.add(rank);
    }

    /// Completes the alarms by what depends on all findings: too many named ranks, and the source to restore from.
    view<const finding> settle(int ranks)
    {
        for (std::size_t i = 0; i < used_; ++i) {
            finding& each = raised_[i];
            const bool are_many = static_cast<int>(each.ranks.size()) > blame_limit(ranks);
            if (is_of_number(each.what) && (are_many || ranks == 2)) {
                each.ranks.clear();
                if (each.where != damage::none) each.where = damage::unknown;
            } else if (lasting_[i] && !are_many) {
                each.action = advice::quarantine;
            }
            if (each.action != advice::resync) continue;
            if (each.is_named()) each.source = source_for(each, ranks);
            if (each.source < 0 && each.what != finding_kind::value_differs && each.what != finding_kind::non_finite)
                each.action = advice::skip;
        }
        return {raised_.data(), used_};
    }

private:
    std::size_t find(const finding& next, bool lasts) const noexcept
    {
        for (std::size_t i = 0; i < used_; ++i) {
            const finding& each = raised_[i];
            if (each.what == next.what && each.where == next.where && each.action == next.action && lasting_[i] == lasts
                && each.is_named() == next.is_named() && (is_of_number(next.what) || is_same_place(each, next)))
                return i;
        }
        return used_;
    }
    static double strength(const finding& of) noexcept
    {
        return absolute(of.statistic) / (of.threshold > 0 ? of.threshold : 1);
    }

    /// The lowest rank that no alarm names, but for its numbers; if there is none, the lowest that this one does not.
    int source_for(const finding& wanted, int ranks) const noexcept
    {
        int second = -1;
        for (int rank = 0; rank < ranks; ++rank) {
            if (wanted.names(rank)) continue;
            bool is_clean = true;
            for (std::size_t i = 0; i < used_; ++i)
                is_clean = is_clean && (is_of_number(raised_[i].what) || !raised_[i].names(rank));
            if (is_clean) return rank;
            if (second < 0) second = rank;
        }
        return second;
    }

    std::vector<finding> raised_; // the first `used_` belong to this step
    std::vector<bool> lasting_; // of each alarm
    std::vector<int> ranks_; // of an alarm that gets other evidence
    std::size_t used_ = 0;
};

} // namespace collprobe::detail
