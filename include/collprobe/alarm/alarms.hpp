// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/alarm/detail/calls.hpp>
#include <collprobe/alarm/detail/list.hpp>
#include <collprobe/alarm/detail/rules.hpp>
#include <collprobe/alarm/detail/strikes.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The rules for alarms of a check, and for the advice to take a rank out. Equal on all ranks.
struct alarm_options {
    /// A statistical check alarms if it names the same rank in `strikes` of the last `window` judged steps (up to 64).
    /// With 1 it alarms each time.
    int strikes = 2;
    int window = 20;
    /// A strike that is 1000 times rarer than the threshold alarms alone, if all ranks could be compared.
    bool strong_alone = true;
    /// Adapts to metrics with heavy tails. If the other ranks collect strikes faster than the record's rate, more
    /// strikes are required until the stated rate holds, and a single-step alarm needs 2.5 times the excess.
    bool learn = true;
    int quarantine = 4; ///< strikes in the window after which the advice is to take a rank out
};

/// Turns the findings of a step into alarms: the ranks, the evidence, and the advice.
///
/// Exact checks, the check of sums, that of lateness and the evidence over the run alarm at once. The loss, the norm
/// and the direction of a gradient alarm by strikes (`alarm_options`). By these a healthy step alarms with a
/// probability of at most `false_alarms_per_step()`, 2.9e-7 by default, if the verdicts of steps are independent.
/// Names: exact evidence names all ranks that it shows. Statistics name at most a quarter of the ranks, at most ten,
/// and none of two. If more ranks are out, the alarm names none, and its damage is unknown.
/// Window: counted in judged steps. Steps may be missing; a step that is judged again counts once. alarm/README.md has
/// the advice, the derivation of the rate, and the effect of `learn`.
/// Preconditions: no concurrent use. The same records in the same order give the same alarms on every rank.
/// Cost: 480 bytes a rank. A step costs O(calls + suspects). It
/// allocates only if it has more alarms, or alarms with more ranks, than any step before.
class alarms {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    explicit alarms(int ranks, const alarm_options& options = {}, const call_site& where = call_site::current())
        : ranks_(ranks),
          options_(checked(ranks, options, where)),
          records_(ranks, detail::check_count, options.window)
    {
        set_rate(step_record().false_alarms_per_step);
    }

    int ranks() const noexcept { return ranks_; }
    const alarm_options& options() const noexcept { return options_; }
    /// Upper bound on the probability of a statistical alarm in a healthy step, at the rate by which the last record
    /// was judged (`step_record::false_alarms_per_step`). The check of sums, that of lateness and the evidence over the
    /// run are not counted: their alarms say their own rates.
    double false_alarms_per_step() const noexcept
    {
        const bool strong = options_.strong_alone && options_.strikes > 1;
        const double rate = stated_ + (strong ? strong_rate() : 0);
        return rate < suspects_ ? rate : suspects_;
    }

    /// The alarms of a step, in the order of the suspects. Findings about the same call make one alarm. Valid until the
    /// next call.
    /// Errors: `status::invalid_argument` for a record of another number of ranks; then nothing changes.
    view<const alarm_record> judge(const step_record& record, const call_site& where = call_site::current())
    {
        require(record.ranks, record.suspects, where);
        raised_.clear();
        unseen_calls_ = record.unprobed_calls + record.unread_calls;
        take(record);
        return raised_.settle(ranks_);
    }

    /// Calls of the last step that no check has looked at (`step_record::unprobed_calls` and `unread_calls`): no alarm
    /// can come from them.
    std::uint64_t unseen_calls() const noexcept { return unseen_calls_; }

    /// Forgets all strikes, as after a restart from a checkpoint.
    void reset() noexcept
    {
        records_.clear();
        raised_.clear();
    }

private:
    static alarm_options checked(int ranks, const alarm_options& options, const call_site& where)
    {
        const auto check = [&where](bool condition, const std::string& what) {
            if (!condition) detail::refuse("alarms", what, where);
        };
        check(ranks >= 1, "cannot watch " + std::to_string(ranks) + " ranks");
        check(options.window >= 1 && options.window <= 64, "window must be 1 to 64");
        check(options.strikes >= 1 && options.strikes <= options.window, "strikes must be 1 to window");
        check(options.quarantine >= 1 && options.quarantine <= options.window, "quarantine must be 1 to window");
        return options;
    }
    void require(int ranks, const std::vector<suspect>& suspects, const call_site& where) const
    {
        const auto refuse = [&where](const std::string& what) { detail::refuse("alarms::judge", what, where); };
        if (ranks != ranks_) {
            refuse("a record of " + std::to_string(ranks) + " ranks, where " + std::to_string(ranks_) + " are watched");
        }
        for (const suspect& found : suspects) {
            if (found.rank < -1 || found.rank >= ranks_) refuse("there is no rank " + std::to_string(found.rank));
        }
    }

    /// The probability that a healthy step has any statistical suspect.
    void set_rate(double suspects) noexcept
    {
        suspects_ = suspects;
        strong_ = detail::strong_excess(ranks_, suspects);
        const double rate = (ranks_ == 2 ? 2 : 1) * detail::strike_rate(suspects, options_.strikes, options_.window);
        stated_ = rate < suspects ? rate : suspects;
    }
    double strong_rate() const noexcept { return suspects_ * 1e-3; }

    void take(const step_record& record)
    {
        if (record.forgot) records_.clear(); // a rank may have lost the record of an earlier step
        if (record.false_alarms_per_step > 0 && record.false_alarms_per_step != suspects_)
            set_rate(record.false_alarms_per_step);
        records_.begin(record.step);
        // A rank left out for its NaN leaves fewer ranks to compare with, for which the excess was not computed.
        bool all_finite = true;
        for (const suspect& found : record.suspects) all_finite = all_finite && found.what != finding::non_finite;
        const bool wrong_sum = detail::has_wrong_sum(record);
        detail::compared_ranks compared(record);
        for (const suspect& found : record.suspects) {
            if (detail::is_statistical(found.what)) {
                if (found.what == finding::cosine && wrong_sum) continue;
                judge_statistical(record.step, found, all_finite && compared.of(found) == ranks_);
                continue;
            }
            const auto call = static_cast<std::size_t>(found.call);
            const bool audited = found.call >= 0 && call < record.calls.size() && record.calls[call].audit.checked;
            judge_exact(record.step, found, audited ? record.calls[call].audit.where : damage::none);
        }
    }

    void judge_exact(std::uint64_t step, const suspect& found, damage audited)
    {
        const int strikes = records_.strike(static_cast<int>(found.what), found.rank);
        raise(step, found, detail::place_of(found, audited), strikes, found.false_alarms_per_step);
    }
    void judge_statistical(std::uint64_t step, const suspect& found, bool all_compared)
    {
        const int what = static_cast<int>(found.what);
        const int strikes = records_.strike(what, found.rank);
        const int needed = strikes_needed(what, found.rank);
        double excess = found.by_history ? detail::strong_history : strong_;
        if (needed > options_.strikes) excess *= detail::strong_heavy;
        const bool strong = options_.strong_alone && all_compared
            && detail::absolute(found.statistic) >= excess * found.threshold;
        if (strikes < needed && !strong) return;
        raise(step, found, detail::place_of(found, damage::none), strikes,
            strikes < needed ? strong_rate() : stated_);
    }
    void raise(std::uint64_t step, const suspect& found, damage where, int strikes, double rate)
    {
        const bool out = found.rank >= 0 && detail::is_blame(found.what) && strikes >= options_.quarantine;
        alarm_record next;
        next.step = step;
        next.call = found.call;
        next.site = found.site;
        next.what = found.what;
        next.where = where;
        next.statistic = found.statistic;
        next.threshold = found.threshold;
        next.false_alarms_per_step = rate;
        next.strikes = strikes;
        const advice first = detail::first_advice(found);
        next.action = out ? advice::quarantine : first;
        next.evidence = found.evidence;
        next.by_length = found.by_length;
        raised_.add(next, found.rank, first);
    }
    /// The number of strikes at which the stated rate holds, over three checks, with the measured rate of strikes.
    int strikes_needed(int what, int rank) const noexcept
    {
        int needed = options_.strikes;
        if (!options_.learn || needed == 1) return needed;
        const double expected = suspects_ / ranks_;
        const double seen = records_.rate_of_others(what, rank, expected);
        if (!(seen > expected)) return needed;
        while (needed < options_.window && 3 * ranks_ * detail::strike_rate(seen, needed, options_.window) > stated_)
            ++needed;
        return needed;
    }

    int ranks_;
    alarm_options options_;
    detail::strike_book records_;
    double suspects_ = 0; // steps with a statistical suspect
    double strong_ = 0;
    double stated_ = 0; // rate of the strikes
    std::uint64_t unseen_calls_ = 0;
    detail::alarm_list raised_;
};

} // namespace collprobe
