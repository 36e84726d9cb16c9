// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The rules for alarms. Equal on all ranks.
struct alarm_options {
    /// A number of a step (loss, norm, largest magnitude, direction, arrival) that is unlike those of the other ranks
    /// alarms if at most this share of healthy steps has one so unlike. In (0, 1). From
    /// `probe_options::false_alarms_per_step` on each such finding alarms.
    double false_alarms_per_step = 1e-7;
};

/// Turns the findings of a step into alarms: the ranks, the evidence, and the advice.
///
/// Numbers of a step alarm by `alarm_options`. All other findings alarm at once, with the rates that they state.
/// Equal findings of a call make one alarm, and those of a number one for all calls, with the strongest evidence.
/// Names: exact evidence names all ranks that it shows. Numbers name at most a quarter of the ranks, at most ten, and
/// none of two. If more ranks are out, the alarm names none, and its damage is unknown.
/// The advice to take a rank out (`quarantine`) rests on what lasts: exact findings that may blame a rank name it in 4
/// of the last 20 judged steps; or the evidence over the run has it as unlike the others (not by arrival), and such a
/// finding names it now, or a number did in 32 steps. An alarm with more ranks than numbers may name takes none out.
/// Preconditions: no concurrent use. The same records in the same order give the same alarms on every rank.
/// Cost: 8 bytes a rank; a healthy step costs O(ranks + calls). A step allocates only if it has more alarms, or alarms
/// with more ranks, than any before.
class alarms {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    explicit alarms(int ranks, const alarm_options& options = {}, const call_site& where = call_site::current())
        : ranks_(ranks), options_(options)
    {
        const bool fits = detail::is_rate(options.false_alarms_per_step);
        if (ranks < 1) detail::refuse("alarms", "cannot watch " + std::to_string(ranks) + " ranks", where);
        if (!fits) detail::refuse("alarms", "false_alarms_per_step must lie between 0 and 1", where);
        exact_.resize(static_cast<std::size_t>(ranks));
        rare_.resize(exact_.size());
    }

    int ranks() const noexcept { return ranks_; }
    const alarm_options& options() const noexcept { return options_; }

    /// The alarms of a step, in the order of its findings: these, regrouped, with `action` and `source`. Valid until
    /// the next call. A step that is judged twice in a row counts once.
    /// Precondition: the findings are settled, as a probe leaves them (`step_record::settle_findings`).
    /// Errors: `status::invalid_argument` for a record of other ranks; then nothing changes.
    view<const finding> judge(const step_record& record, const call_site& where = call_site::current())
    {
        const auto refuse = [&where](const std::string& what) { detail::refuse("alarms::judge", what, where); };
        if (record.ranks != ranks_)
            refuse("a record of " + std::to_string(record.ranks) + " ranks, not of " + std::to_string(ranks_));
        for (const finding& found : record.findings)
            for (const int rank : found.ranks)
                if (rank < 0 || rank >= ranks_) refuse("there is no rank " + std::to_string(rank));
        used_ = 0;
        unseen_calls_ = record.unprobed_calls + record.unread_calls;
        if (record.forgot) reset(); // a rank may have lost the record of an earlier step
        for (std::size_t r = 0; r < exact_.size() && record.step != step_; ++r) exact_[r] <<= 1, rare_[r] <<= 1;
        step_ = record.step;
        const bool sum_is_wrong = has_wrong_sum(record);
        for (const finding& found : record.findings) {
            const bool is_rare = found.false_alarms_per_step <= options_.false_alarms_per_step;
            if (is_of_number(found.what) && !is_rare) continue;
            if (found.what == finding_kind::cosine && sum_is_wrong) continue;
            if (!found.is_named()) add(found, -1, false);
            for (const int rank : found.ranks) add(found, rank, lasts(found, rank, record));
        }
        settle();
        return {raised_.data(), used_};
    }

    /// Calls of the last step that no check has looked at: no alarm can come from them.
    std::uint64_t unseen_calls() const noexcept { return unseen_calls_; }

    /// Forgets the steps so far, as after a restart from a checkpoint.
    void reset() noexcept
    {
        exact_.assign(exact_.size(), 0);
        rare_.assign(rare_.size(), 0);
        used_ = 0;
    }

private:
    /// Whether an audit found the result of a reduction wrong. If so, the cosine of a gradient with that result says
    /// nothing about the gradient.
    static bool has_wrong_sum(const step_record& record) noexcept
    {
        for (const call_record& judged : record.calls) {
            const bool sums = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
            if (sums && judged.audit.checked && !(judged.results_agree && judged.audit.conserved)) return true;
        }
        return false;
    }
    bool lasts(const finding& found, int named, const step_record& record) noexcept
    {
        if (found.what == finding_kind::late) return false;
        const auto rank = static_cast<std::size_t>(named);
        const bool is_blame = found.exact && facts_of(found.what).may_blame;
        if (is_blame) exact_[rank] |= 1;
        if (is_of_number(found.what)) rare_[rank] |= 1;
        if (is_blame && std::popcount(exact_[rank] & last_20_steps) >= 4) return true;
        if (rank >= record.evidence_by_rank.size() || !(is_blame || rare_[rank] != 0)) return false;
        return record.evidence_by_rank[rank].unlike && record.evidence_by_rank[rank].metric != finding_kind::late;
    }

    /// Adds a finding for one of its ranks, or with -1 for no known rank. Equal findings about several ranks become one
    /// alarm, those of a number also over calls: with the strongest evidence and the largest rate.
    /// `is_lasting`: reason to take the rank out.
    void add(const finding& next, int rank, bool is_lasting)
    {
        const std::size_t at = find(next, is_lasting);
        const bool is_new = at == used_;
        if (is_new) {
            ++used_;
            if (raised_.size() < used_) raised_.resize(used_);
            lasting_.resize(raised_.size());
            lasting_[at] = is_lasting;
            raised_[at].ranks.clear();
        }
        finding& into = raised_[at];
        const double rate = is_new ? 0 : into.false_alarms_per_step;
        const int other = is_new || into.other_rank == next.other_rank ? next.other_rank : -1; // of all ranks, or none
        if (is_new || next.strength() > into.strength()) {
            kept_ranks_.swap(into.ranks);
            into = next;
            into.ranks.swap(kept_ranks_);
        }
        into.other_rank = other;
        into.false_alarms_per_step = rate > next.false_alarms_per_step ? rate : next.false_alarms_per_step;
        if (rank >= 0) into.add(rank);
    }

    /// Completes the alarms by what depends on all findings: too many named ranks, and the source to restore from.
    void settle()
    {
        for (std::size_t i = 0; i < used_; ++i) {
            finding& each = raised_[i];
            const bool are_many = static_cast<int>(each.ranks.size()) > detail::blame_limit(ranks_);
            if (is_of_number(each.what) && (are_many || ranks_ == 2)) {
                each.ranks.clear();
                if (each.where != damage::none) each.where = damage::unknown;
            } else if (lasting_[i] && !are_many) {
                each.action = advice::quarantine;
            }
            if (each.action != advice::resync) continue;
            if (each.is_named()) each.source = source_for(each);
            if (each.source < 0 && each.what != finding_kind::value_differs && each.what != finding_kind::non_finite)
                each.action = advice::skip;
        }
    }
    std::size_t find(const finding& next, bool is_lasting) const noexcept
    {
        for (std::size_t i = 0; i < used_; ++i) {
            const finding& each = raised_[i];
            if (each.what == next.what && each.where == next.where && each.action == next.action
                && lasting_[i] == is_lasting && each.is_named() == next.is_named()
                && (is_of_number(next.what) || detail::is_same_place(each, next)))
                return i;
        }
        return used_;
    }

    /// The lowest rank that no alarm names, but for its numbers; if there is none, the lowest that this one does not.
    int source_for(const finding& wanted) const noexcept
    {
        int second = -1;
        for (int rank = 0; rank < ranks_; ++rank) {
            if (wanted.names(rank)) continue;
            bool is_clean = true;
            for (std::size_t i = 0; i < used_; ++i)
                is_clean = is_clean && (is_of_number(raised_[i].what) || !raised_[i].names(rank));
            if (is_clean) return rank;
            if (second < 0) second = rank;
        }
        return second;
    }

    static constexpr std::uint32_t last_20_steps = (1u << 20) - 1;
    int ranks_;
    alarm_options options_;
    std::vector<std::uint32_t> exact_, rare_; // by rank: bit i is a step with such a finding, i judged steps ago
    std::uint64_t step_ = ~std::uint64_t{0};
    std::uint64_t unseen_calls_ = 0;
    std::vector<finding> raised_; // of a step the first `used_`
    std::vector<bool> lasting_; // of each alarm
    std::vector<int> kept_ranks_; // of an alarm that gets other evidence
    std::size_t used_ = 0;
};

} // namespace collprobe
