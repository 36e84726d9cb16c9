// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/detail/gather_verdict.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether a call is one that the audit checks.
COLLPROBE_COLD_INLINE bool is_audited(const call_record& call) noexcept { return call.call != collective::all_to_all; }

/// Each rank has its own part of the result, so a wrong sum cannot be distinguished from damage behind the reduction.
COLLPROBE_COLD_INLINE void leave_open(call_record& judged) noexcept
{
    damage& where = judged.audit.where;
    if (judged.call == collective::reduce_scatter && where == damage::reduce) where = damage::unknown;
}

/// A result that is not finite, of finite inputs, is no sum of theirs, although it could not be checked.
COLLPROBE_COLD_INLINE void note_overflow(call_record& judged) noexcept
{
    const bool reduces = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
    if (reduces && judged.result_nonfinite != 0 && judged.nonfinite == 0) judged.audit.conserved = false;
    if (!judged.audit.conserved && judged.audit.where == damage::none) judged.audit.where = damage::reduce;
}

/// Sets how certain the findings of sums are, from finding `first` on. A residual above the limit is not chance, but
/// unfavourable data can cause it by rounding alone. A residual above 4 n times the limit cannot be rounding: u sqrt((n
/// - 1) sum of m E) bounds rounding without any model of the data.
/// Precondition: the calls have the bins of their checksums, but for integers.
/// What the step itself says of results that the audit finds wrong, without a rank, is dropped.
COLLPROBE_COLD_INLINE void state_certainty(std::size_t first, double sigmas, step_record& record)
{
    double bins = 0;
    for (const call_record& call : record.calls) {
        if (call.audit.checked && call.audit.sum_checked) bins += call.audit.bins;
    }
    const double of_a_bin = error_function_complement(sigmas * 0.70710678118654752440);
    for (std::size_t i = first; i < record.findings.size(); ++i) {
        finding& found = record.findings[i];
        if (found.what != finding_kind::sum_differs) continue;
        if (!is_floating(record.calls[static_cast<std::size_t>(found.call)].type)) continue;
        found.exact = found.statistic > 4.0 * record.ranks * found.threshold;
        found.false_alarms_per_step = bins * of_a_bin;
    }
    // What the lengths prove of a result, the audit says with more detail.
    std::size_t at = 0;
    std::erase_if(record.findings, [&](const finding& found) {
        if (at++ >= first || !found.by_length) return false;
        bool is_said = false;
        for (std::size_t i = first; i < record.findings.size(); ++i) {
            finding& own = record.findings[i];
            if (own.call != found.call || own.what != found.what) continue;
            own.exact = is_said = true; // the lengths may prove what the checksum only makes likely
            own.false_alarms_per_step = 0;
        }
        return is_said;
    });
}

/// Judges the audited calls of a step: `begin`, then the calls in their order, then `end`.
/// Precondition: the record is complete but for the audit.
class step_audit {
public:
    explicit step_audit(int ranks) : judge_(ranks) {}

    /// The sum tells more than the majority: what the step says of results that differ is replaced.
    COLLPROBE_COLD_INLINE void begin(step_record& record)
    {
        std::erase_if(record.findings, [](const finding& found) { return found.what == finding_kind::result_differs; });
        first_ = record.findings.size();
    }

    /// An all-gather, by the reports of all receivers.
    COLLPROBE_COLD_INLINE void judge_shards(
        const std::vector<receiver_report>& reports, int call_index, step_record& record)
    {
        call_record& call = record.calls[static_cast<std::size_t>(call_index)];
        judge_gather_audit(judge_gather(reports), call_index, call, record.findings);
    }

    /// Any other call, by the findings of all ranks. `bins`: of the checksum, of a floating-point sum; else any.
    COLLPROBE_COLD_INLINE void judge_results(
        view<const audit_finding> findings, std::uint32_t bins, int call_index, step_record& record)
    {
        call_record& call = record.calls[static_cast<std::size_t>(call_index)];
        judge_.judge(findings, call_index, call, record.findings);
        if (call.audit.sum_checked && is_floating(call.type)) call.audit.bins = bins;
        leave_open(call);
        note_overflow(call);
    }

    void end(double sigmas, step_record& record) { state_certainty(first_, sigmas, record); }

private:
    audit_judge judge_;
    std::size_t first_ = 0; ///< finding of this audit
};

} // namespace collprobe::detail
