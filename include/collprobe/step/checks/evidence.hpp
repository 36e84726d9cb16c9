// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/step/checks/check_context.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The ranks that are unlike the others over the run, by numbers of the whole step and by the norms of its calls.
class evidence_check {
public:
    evidence_check(int ranks, const exchangeability_options& options) : watch_(ranks, options), values_(at_rank(ranks))
    {
        forget();
    }

    COLLPROBE_COLD_INLINE void forget()
    {
        watch_.reset();
        for (const evident_number& each : whole) watch_.add(each.what, each.shares);
    }
    void make_room(std::size_t slots)
    {
        while (watch_.metrics() < of_first_call + slots) watch_.add(finding_kind::gradient_norm, {});
    }
    std::size_t slots() const noexcept { return watch_.metrics() - of_first_call; }
    /// The slot has another series now, the `number`-th of the run, from 1 on.
    COLLPROBE_COLD_INLINE void replace(std::size_t slot, std::uint64_t number)
    {
        const double share = 0.25 * weight_of_start(number);
        watch_.replace(of_first_call + slot, finding_kind::gradient_norm, {share, share, 0, 0});
    }
    std::vector<std::uint64_t> state() const { return watch_.state(); }
    /// Another check of the same options with the evidence of such a state.
    /// \throws error `invalid_argument` for a state that is none, or that of another check.
    COLLPROBE_COLD_INLINE evidence_check restored(view<const std::uint64_t> state, const call_site& where) const
    {
        evidence_check known(static_cast<int>(values_.size()), watch_.options());
        known.watch_.restore(state, where);
        return known;
    }

    void begin_step(std::uint64_t step) { watch_.begin_step(step); }
    /// `norms`: logarithms by rank, of one call; NaN by bits where a rank is left out.
    void add_norms(view<const double> norms, std::size_t slot, int call)
    {
        watch_.judge(of_first_call + slot, norms, 0, call);
    }
    /// Behind all calls: judges what is known of the whole step, then names the ranks, and completes the record.
    COLLPROBE_COLD_INLINE void judge(const rank_marks& marks, step_record& out)
    {
        judge_number(of_loss, out.losses, marks.left_out);
        judge_number(of_norm, out.gradient_norms, marks.left_out);
        if (!out.gradient_norms.empty()) judge_cosines(marks, out.cosine.leave_one_out);
        for (std::size_t r = 0; r < out.nonfinite_by_rank.size(); ++r)
            values_[r] = static_cast<double>(out.nonfinite_by_rank[r]);
        if (!out.nonfinite_by_rank.empty()) watch_.judge(of_nonfinite, values_);
        if (!out.lateness_by_rank.empty() && is_finite(out.lateness.floor)) {
            const double floor = out.lateness.floor;
            for (std::size_t r = 0; r < values_.size(); ++r)
                values_[r] = lateness_beyond(floor, out.lateness_by_rank[r].latest);
            watch_.judge(of_lateness, values_, 2 * floor);
        }
        out.silent_evidence = watch_.silent();
        out.evidence_by_rank.assign(watch_.by_rank().begin(), watch_.by_rank().end());
        const double odds_needed = 1 / watch_.options().false_alarms_per_run;
        const double steps_needed = watch_.options().steps_between_alarms;
        for (const exchangeability_watch::named_rank& named : watch_.named()) {
            const bool by_odds = named.evidence.odds >= odds_needed;
            out.add({.ranks = ranks_of(named.rank),
                .call = named.evidence.call,
                .what = finding_kind::unlike,
                .statistic = by_odds ? named.evidence.odds : named.evidence.recurrence,
                .threshold = by_odds ? odds_needed : steps_needed,
                .false_alarms_per_step = by_odds ? watch_.options().false_alarms_per_run : 1 / steps_needed,
                .evidence = named.evidence});
        }
    }

private:
    /// The numbers of the whole step, in this order; behind them the norms of the calls, by slot.
    enum evident : std::size_t { of_loss, of_norm, of_cosine, of_nonfinite, of_lateness, of_first_call };
    struct evident_number {
        finding_kind what;
        side_shares shares;
    };
    /// The shares add up to 1, with 1/4 for those of the calls, of which there may be any number.
    static constexpr evident_number whole[of_first_call] = {
        {finding_kind::loss, {0.125, 0.0625, 0.03125, 0.03125}},
        {finding_kind::gradient_norm, {0.125, 0.0625, 0.03125, 0.03125}},
        {finding_kind::cosine, {0.03125, 0.0625, 0.03125, 0}},
        {finding_kind::non_finite, {0.0625, 0, 0, 0}},
        {finding_kind::late, {0.0625, 0, 0, 0}},
    };
    static_assert([](double sum = 0.25) {
        for (const auto& [what, of] : whole) sum += of.largest + of.smallest + of.farthest + of.nearest;
        return sum <= 1;
    }());

    void judge_number(evident metric, const std::vector<double>& numbers, const std::vector<bool>& is_out)
    {
        if (numbers.empty()) return;
        for (std::size_t r = 0; r < values_.size(); ++r) values_[r] = is_out[r] ? not_a_number() : numbers[r];
        watch_.judge(metric, values_);
    }
    /// Differences in the rounding of sums are none: ranks whose gradients are the same but for a factor are alike.
    void judge_cosines(const rank_marks& marks, const std::vector<double>& cosines)
    {
        if (cosines.empty()) return;
        for (std::size_t r = 0; r < values_.size(); ++r) {
            const double units = cosines[r] * 0x1p20;
            const bool is_known = is_finite(units) && !marks.without_direction[r];
            values_[r] = is_known ? static_cast<double>(static_cast<std::int64_t>(units + (units < 0 ? -0.5 : 0.5)))
                                  : not_a_number();
        }
        watch_.judge(of_cosine, values_);
    }

    exchangeability_watch watch_;
    std::vector<double> values_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
