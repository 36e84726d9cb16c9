// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Judges the steps of a run again by their records, as they were made or read from JSON lines: each becomes the record
/// of a probe with these options, bit for bit. Judged again is what rates, `tolerance`, `groups` and `lateness_floor_ns`
/// decide: unusual numbers, evidence, and which lateness counts. All else stays, with what parts found: an audit's
/// sketches are in no record.
///
/// Steps come in their order, from the first one of the run; what records lack is not learnt from: steps that were
/// lost, a state given to `restore_evidence`. Calls are told apart by their names, else their lines (files without
/// their folders). With the floor 0 a machine whose ranks outnumber its processors is known by records made with 0.
/// Records of a summary without totals (more than 16,384 ranks) stay as they are.
/// Preconditions: no concurrent use. Cost: of the statistical checks of `probed::poll`.
class judge_again {
public:
    /// Of the options those named above count, and whether there are times: `statistics`, `results` and `times`.
    /// \throws error `invalid_argument` for less than 1 rank, or options out of range.
    explicit judge_again(int ranks, const probe_options& options = {}, call_site where = call_site::current())
        : ranks_(ranks), options_(options), has_times_(options.statistics && options.results && options.times)
    {
        const auto check
            = [&](bool is_met, const char* message) { detail::require(is_met, "judge_again", message, where); };
        check(ranks >= 1, "a communicator has at least 1 rank");
        detail::check_judging(options, ranks, check);
    }

    int ranks() const noexcept { return ranks_; }

    /// \throws error `invalid_argument` for a record of other ranks or mode, with times where the options have none, or
    ///   of an older version that does not tell which calls sum gradients; then nothing changes.
    COLLPROBE_COLD_INLINE void judge(step_record& record, call_site where = call_site::current())
    {
        check(record, where);
        if (record.losses.empty()) return;
        if (!judge_) judge_.emplace(ranks_, options_, report_mode::gather, has_times_);
        calls_.clear();
        for (const call_record& of : record.calls)
            calls_.push_back({.call = of.call, .type = of.type, .operation = of.operation, .count = of.count,
                .has_input = of.is_gradient, .site = of.site, .is_observed = of.is_observed,
                .place = detail::place_of(of.site)});
        if (record.mode == report_mode::summary) {
            calls_.insert(calls_.begin(), detail::whole_gradient(calls_));
            calls_.resize(calls_[0].has_input ? 1 : 0);
        }
        std::erase_if(record.findings, [](const finding& each) { return is_of_rate(each.what); });
        record.evidence_by_rank.clear();
        record.silent_evidence = 0;
        const bool is_crowded = !(options_.lateness_floor_ns > 0) && record.lateness.floor >= detail::never_late;
        if (!is_crowded) set_floor(record.lateness, detail::lateness_floor_of(options_));
        judge_->judge_again(calls_, record);
    }

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { judge_.reset(); }

private:
    COLLPROBE_COLD_INLINE void check(const step_record& record, const call_site& where)
    {
        const auto check = [&where](bool is_met, const char* message) {
            detail::require(is_met, "judge_again::judge", message, where);
        };
        const auto fits = [this](const auto& list) { return list.empty() || list.size() == detail::at_rank(ranks_); };
        const auto are_ranks = [this](const std::vector<int>& list) {
            for (const int rank : list)
                if (rank < 0 || rank >= ranks_) return false;
            return true;
        };
        bool is_whole = record.ranks == ranks_ && fits(record.losses) && fits(record.gradient_norms)
            && fits(record.cosine.leave_one_out) && fits(record.cosine.pairwise) && fits(record.nonfinite_by_rank)
            && fits(record.lateness_by_rank) && are_ranks(record.left_out);
        for (const finding& each : record.findings) is_whole = is_whole && are_ranks(each.ranks);
        bool has_gradient = false;
        for (const call_record& of : record.calls) {
            has_gradient = has_gradient || of.is_gradient;
            const bool has_inputs = !of.is_gradient || record.mode != report_mode::gather || !of.inputs.empty();
            is_whole = is_whole && fits(of.inputs) && has_inputs;
        }
        check(is_whole, "the record is not one of so many ranks");
        check(has_times_ || record.lateness.calls == 0, "the record has times, and the options say that there are none");
        check(has_gradient || record.gradient_norms.empty(),
            "the record does not tell which calls sum gradients: an older version wrote it");
    }

    int ranks_;
    probe_options options_;
    bool has_times_;
    std::optional<detail::step_judge> judge_; ///< made for the first step
    std::vector<detail::probed_call> calls_;
};

} // namespace collprobe
