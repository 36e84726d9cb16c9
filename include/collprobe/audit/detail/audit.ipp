// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <collprobe/audit/audit.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Each rank has its own part of the result, so a wrong sum cannot be distinguished from damage behind the reduction.
COLLPROBE_COLD_INLINE void leave_open(call_record& judged) noexcept
{
    damage& where = judged.audit.where;
    if (judged.call == collective::reduce_scatter && where == damage::reduce) where = damage::unknown;
}

/// Whether a call is one that the audit checks.
COLLPROBE_COLD_INLINE bool is_audited(const call_record& call) noexcept { return call.call != collective::all_to_all; }

} // namespace detail

COLLPROBE_COLD_INLINE void audit::judge(const part_entries<entry>& entries, step_record& record)
{
    const auto ranks = static_cast<std::size_t>(entries.ranks());
    if (!judge_) {
        judge_.emplace(entries.ranks());
        findings_.resize(ranks);
        reports_.resize(ranks);
    }
    // The sum tells more than the majority: what the step says of results that differ is replaced.
    std::erase_if(record.suspects, [](const suspect& found) { return found.what == finding::result_differs; });
    const std::size_t first = record.suspects.size();
    for (int c = 0; c < entries.calls(); ++c) {
        call_record& call = record.calls[static_cast<std::size_t>(c)];
        if (!detail::is_audited(call)) continue;
        // A gather with a digest was one of codes.
        if (is_by_shards(call.call, record.mode) && entries(c, 0).digest == 0) {
            for (std::size_t r = 0; r < ranks; ++r) reports_[r].word = entries(c, static_cast<int>(r)).shards;
            detail::judge_gather_audit(detail::judge_gather(reports_), c, call, record.suspects);
            continue;
        }
        const bool known = entries.has_result_digest(c) && is_replicated(call.call);
        for (std::size_t r = 0; r < ranks; ++r) {
            const int rank = static_cast<int>(r);
            const entry& of = entries(c, rank);
            findings_[r] = {known ? entries.result_digest(c, rank) : of.digest, of.sum};
        }
        judge_->judge(view<const detail::audit_finding>(findings_), c, call, record.suspects);
        detail::leave_open(call);
    }
    state_certainty(first, record);
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
        out.sum_checked = keys.checked != 0;
        out.residual = detail::bit_cast<double>(keys.residual);
        out.residual_limit = out.sum_checked ? 1 : 0;
        out.conserved = out.residual <= 1;
        if (!call.results_agree) {
            out.where = damage::unknown;
            if (agreed_before) {
                record.suspects.push_back({.call = index, .what = finding::result_differs, .statistic = 2});
            }
        } else if (!out.conserved) {
            out.where = damage::reduce;
        }
        if (!out.conserved) {
            record.suspects.push_back(
                {.call = index, .what = finding::sum_differs, .statistic = out.residual, .threshold = 1});
        }
        detail::leave_open(call);
    }
    state_certainty(first, record);
}

/// Sets how certain the suspects of sums are. A residual above the limit is not chance, but unfavourable data can cause
/// it by rounding alone. A residual above 4 n times the limit cannot be rounding: u sqrt((n - 1) sum of m E) bounds
/// rounding without any model of the data.
COLLPROBE_COLD_INLINE void audit::state_certainty(std::size_t first, step_record& record) const
{
    const auto is_floating = [](element_type type) {
        bool floating = false;
        with_floating_type(type, [&](auto) { floating = true; });
        return floating;
    };
    double bins = 0;
    for (call_record& call : record.calls) {
        if (!call.audit.checked || !call.audit.sum_checked || !is_floating(call.type)) continue;
        call.audit.bins = detail::bins_for<float>({.count = call.count}, options_.conservation);
        bins += call.audit.bins;
    }
    const double of_a_bin = detail::error_function_complement(options_.conservation.sigmas * 0.70710678118654752440);
    for (std::size_t i = first; i < record.suspects.size(); ++i) {
        suspect& found = record.suspects[i];
        if (found.what != finding::sum_differs) continue;
        if (!is_floating(record.calls[static_cast<std::size_t>(found.call)].type)) continue;
        found.exact = found.statistic > 4.0 * record.ranks * found.threshold;
        found.false_alarms_per_step = bins * of_a_bin;
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
