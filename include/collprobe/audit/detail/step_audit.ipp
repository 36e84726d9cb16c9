// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/audit/detail/step_audit.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_COLD_INLINE bool is_audited(const call_record& call) noexcept { return call.call != collective::all_to_all; }

COLLPROBE_COLD_INLINE void leave_open(call_record& judged) noexcept
{
    damage& where = judged.audit.where;
    if (judged.call == collective::reduce_scatter && where == damage::reduce) where = damage::unknown;
}

COLLPROBE_COLD_INLINE void note_overflow(call_record& judged) noexcept
{
    const bool reduces = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
    if (reduces && judged.result_nonfinite != 0 && judged.nonfinite == 0) judged.audit.conserved = false;
    if (!judged.audit.conserved && judged.audit.where == damage::none) judged.audit.where = damage::reduce;
}

COLLPROBE_COLD_INLINE void state_certainty(std::size_t first, double sigmas, step_record& record)
{
    double bins = 0;
    for (const call_record& call : record.calls) {
        if (call.audit.checked && call.audit.sum_checked) bins += call.audit.bins;
    }
    const double of_a_bin = error_function_complement(sigmas * 0.70710678118654752440);
    for (std::size_t i = first; i < record.suspects.size(); ++i) {
        suspect& found = record.suspects[i];
        if (found.what != finding::sum_differs) continue;
        if (!is_floating(record.calls[static_cast<std::size_t>(found.call)].type)) continue;
        found.exact = found.statistic > 4.0 * record.ranks * found.threshold;
        found.false_alarms_per_step = bins * of_a_bin;
    }
    // What the lengths prove of a result, the audit says with more detail.
    std::size_t at = 0;
    std::erase_if(record.suspects, [&](const suspect& found) {
        if (at++ >= first || !found.by_length) return false;
        bool is_said = false;
        for (std::size_t i = first; i < record.suspects.size(); ++i) {
            suspect& own = record.suspects[i];
            if (own.call != found.call || own.what != found.what) continue;
            own.exact = is_said = true; // the lengths may prove what the checksum only makes likely
            own.false_alarms_per_step = 0;
        }
        return is_said;
    });
}

COLLPROBE_COLD_INLINE void step_audit::begin(step_record& record)
{
    std::erase_if(record.suspects, [](const suspect& found) { return found.what == finding::result_differs; });
    first_ = record.suspects.size();
}

COLLPROBE_COLD_INLINE void step_audit::judge_shards(
    const std::vector<receiver_report>& reports, int call_index, step_record& record)
{
    call_record& call = record.calls[static_cast<std::size_t>(call_index)];
    judge_gather_audit(judge_gather(reports), call_index, call, record.suspects);
}

COLLPROBE_COLD_INLINE void step_audit::judge_results(
    view<const audit_finding> findings, std::uint32_t bins, int call_index, step_record& record)
{
    call_record& call = record.calls[static_cast<std::size_t>(call_index)];
    judge_.judge(findings, call_index, call, record.suspects);
    if (call.audit.sum_checked && is_floating(call.type)) call.audit.bins = bins;
    leave_open(call);
    note_overflow(call);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
