// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Judges the steps of a run again by their records, made here or read from JSON lines: each becomes the record of a
/// probe with these options, bit for bit. Judged again is what rates, `tolerance`, `groups` and `lateness_floor_ns`
/// decide: unusual numbers, evidence, and which lateness counts. All else stays, also findings of other kinds by parts:
/// an audit's sketches are in no record. Records of a summary without totals (above 16,384 ranks) stay as they are.
/// Steps come in their order, from the first one of the run; what records lack is not learnt from: steps that were
/// lost, a state given to `restore_evidence`. Calls are told apart by their names, else their lines (files without
/// their folders). With the floor 0 a machine whose ranks outnumber its processors is known by records made with 0.
/// Preconditions: no concurrent use. Cost: of the statistical checks of `probed::poll`.
class judge_again {
public:
    /// Of the options those named above count, and whether there are times: `statistics`, `results` and `times`.
    /// \throws error `invalid_argument` for less than 1 rank, or options out of range.
    explicit judge_again(int ranks, const probe_options& options = {}, call_site where = call_site::current())
        : ranks_(detail::checked_to_judge(ranks, options, "judge_again", where)),
          has_times_(options.statistics && options.results && options.times),
          has_floor_(options.lateness_floor_ns > 0), floor_ns_(detail::lateness_floor_of(options)),
          judge_(ranks, options, report_mode::gather, has_times_)
    {
    }

    /// \throws error `invalid_argument` for a record of other ranks, with times where the options have none, or of an
    ///   older version that does not tell which calls sum gradients; then nothing changes.
    COLLPROBE_COLD_INLINE void judge(step_record& record, call_site where = call_site::current())
    {
        check(record, where);
        if (record.losses.empty()) return;
        calls_.clear();
        for (const call_record& of : record.calls)
            calls_.push_back({.call = of.call, .type = of.type, .operation = of.operation, .count = of.count,
                .has_input = of.is_gradient, .site = of.site, .is_observed = of.is_observed,
                .place = detail::place_of(of.site)});
        if (record.mode == report_mode::summary) { // no memory for each call: it has no ranks' numbers
            calls_.insert(calls_.begin(), detail::whole_gradient(calls_));
            calls_.resize(calls_[0].has_input ? 1 : 0);
        }
        std::erase_if(record.findings, [](const finding& each) { return is_of_rate(each.what); });
        record.evidence_by_rank.clear();
        record.silent_evidence = 0;
        const bool is_crowded = !has_floor_ && record.lateness.floor >= detail::arrivals_measure::never_late;
        if (!is_crowded) set_floor(record.lateness, floor_ns_);
        judge_.judge_again(calls_, record);
    }

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { judge_.forget(); }

private:
    COLLPROBE_COLD_INLINE void check(const step_record& record, const call_site& where) const
    {
        bool fits = record.ranks == ranks_;
        bool has_gradient = false;
        const auto take = [&, this](const auto& list) {
            fits = fits && (list.empty() || list.size() == detail::at_rank(ranks_));
        };
        const auto take_ranks = [&, this](const std::vector<int>& list) {
            for (const int rank : list) fits = fits && rank >= 0 && rank < ranks_;
        };
        take(record.losses), take(record.gradient_norms), take(record.nonfinite_by_rank);
        take(record.cosine.leave_one_out), take(record.cosine.pairwise), take(record.lateness_by_rank);
        take_ranks(record.left_out);
        for (const auto* const cosines : {&record.cosine.leave_one_out, &record.cosine.pairwise})
            for (const double cosine : *cosines) fits = fits && !(detail::absolute(cosine) > 1.01);
        for (const finding& each : record.findings) {
            take_ranks(each.ranks);
            fits = fits && each.call >= -1 && each.call < static_cast<int>(record.calls.size());
        }
        for (const call_record& of : record.calls) {
            take(of.inputs);
            has_gradient = has_gradient || of.is_gradient;
            fits = fits && !(of.is_gradient && of.inputs.empty() && record.mode == report_mode::gather);
        }
        const auto require = [&where](bool is_met, const char* message) {
            detail::require(is_met, "judge_again::judge", message, where);
        };
        require(fits, "the record is not one that a probe of so many ranks makes");
        require(has_times_ || (record.lateness.calls == 0 && record.lateness_by_rank.empty()),
            "the record has times, and the options say that it has none");
        require(has_gradient || record.gradient_norms.empty(),
            "the record does not tell which calls sum gradients: an older version wrote it");
    }

    int ranks_;
    bool has_times_;
    bool has_floor_; ///< the options have one
    double floor_ns_; ///< of lateness
    detail::step_judge judge_;
    std::vector<detail::probed_call> calls_;
};

} // namespace collprobe
