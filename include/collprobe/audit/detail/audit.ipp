// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/audit/audit.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

COLLPROBE_COLD_INLINE void audit::judge(const part_entries<entry>& entries, step_record& record)
{
    const auto ranks = static_cast<std::size_t>(entries.ranks());
    if (!judge_) {
        judge_.emplace(entries.ranks());
        findings_.resize(ranks);
        reports_.resize(ranks);
    }
    judge_->begin(record);
    for (int c = 0; c < entries.calls(); ++c) {
        const call_record& call = record.calls[static_cast<std::size_t>(c)];
        if (!detail::is_audited(call)) continue;
        const bool by_shards = is_by_shards(call.call, record.mode) && entries(c, 0).digest == 0;
        const bool is_partial = call.is_on_some_ranks();
        // A gather with a digest was one of codes.
        if (by_shards && !is_partial) {
            for (std::size_t r = 0; r < ranks; ++r) reports_[r].word = entries(c, static_cast<int>(r)).shards;
            judge_->judge_shards(reports_, c, record);
            continue;
        }
        const bool known = entries.has_result_digest(c) && is_replicated(call.call);
        const bool has_sum = !is_partial || (call.call == collective::all_reduce && call.without_input == 0);
        int holder = -1; // a rank without a result stands for none: it is given that of another rank
        for (std::size_t r = 0; r < ranks; ++r) {
            const int rank = static_cast<int>(r);
            const entry& of = entries(c, rank);
            findings_[r] = {known ? entries.result_digest(c, rank) : of.digest, {}};
            if (has_sum) findings_[r].sum = of.sum;
            if (holder < 0 && findings_[r].digest != detail::digest_of_nothing) holder = rank;
        }
        for (detail::audit_finding& each : findings_) {
            if (call.result_count != 0 && holder >= 0 && each.digest == detail::digest_of_nothing)
                each = findings_[static_cast<std::size_t>(holder)];
        }
        judge_->judge_results(findings_, bins_of(call), c, record);
        detail::settle_observed(record.calls[static_cast<std::size_t>(c)]);
    }
    judge_->end(options_.conservation.sigmas, record);
}

COLLPROBE_COLD_INLINE void audit::judge_summary(const part_summaries<summary>& summaries, step_record& record) const
{
    const std::size_t first = record.suspects.size();
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        call_record& call = record.calls[c];
        if (!detail::is_audited(call)) continue;
        const summary& keys = summaries[static_cast<int>(c)];
        const bool agreed_before = call.results_agree;
        call_audit& out = detail::begin_audit(call);
        const int index = static_cast<int>(c);
        call.results_agree = agreed_before && keys.digest == ~keys.digest_complement;
        out.majority = call.results_agree;
        out.sum_checked = keys.residual != 0;
        out.residual = out.sum_checked ? detail::bit_cast<double>(keys.residual - 1) : 0;
        out.residual_limit = out.sum_checked ? 1 : 0;
        if (call.is_observed && out.residual > 1) out.sum_checked = false; // it may be weighted on purpose
        // A rank that could not check its sum while others could received a value that is not finite.
        const bool all_checked = keys.unchecked == 0;
        out.conserved = !out.sum_checked || (all_checked && out.residual <= 1);
        if (out.sum_checked && is_floating(call.type)) out.bins = bins_of(call);
        if (!call.results_agree) {
            out.where = damage::unknown;
            if (agreed_before) {
                record.suspects.push_back({.call = index, .what = finding::result_differs, .statistic = 2});
            }
        } else if (!out.conserved) {
            out.where = all_checked ? damage::reduce : damage::unknown;
        }
        if (!out.conserved) {
            record.suspects.push_back(
                {.call = index, .what = finding::sum_differs, .statistic = out.residual, .threshold = 1});
        }
        detail::leave_open(call);
        detail::note_overflow(call);
    }
    detail::state_certainty(first, options_.conservation.sigmas, record);
}

} // namespace collprobe::inline COLLPROBE_ABI
