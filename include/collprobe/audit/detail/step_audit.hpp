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

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether a call is one that the audit checks.
bool is_audited(const call_record& call) noexcept;

/// Each rank has its own part of the result, so a wrong sum cannot be distinguished from damage behind the reduction.
void leave_open(call_record& judged) noexcept;

/// A result that is not finite, of finite inputs, is no sum of theirs, although it could not be checked.
void note_overflow(call_record& judged) noexcept;

/// Sets how certain the suspects of sums are, from suspect `first` on. A residual above the limit is not chance, but
/// unfavourable data can cause it by rounding alone. A residual above 4 n times the limit cannot be rounding: u sqrt((n
/// - 1) sum of m E) bounds rounding without any model of the data.
/// Precondition: the calls have the bins of their checksums, but for integers.
/// What the step itself says of results that the audit finds wrong, without a rank, is dropped.
void state_certainty(std::size_t first, double sigmas, step_record& record);

/// Judges the audited calls of a step: `begin`, then the calls in their order, then `end`.
/// Precondition: the record is complete but for the audit.
class step_audit {
public:
    explicit step_audit(int ranks) : judge_(ranks) {}

    /// The sum tells more than the majority: what the step says of results that differ is replaced.
    void begin(step_record& record);
    /// An all-gather, by the reports of all receivers.
    void judge_shards(const std::vector<receiver_report>& reports, int call_index, step_record& record);
    /// Any other call, by the findings of all ranks. `bins`: of the checksum, of a floating-point sum; else any.
    void judge_results(
        view<const audit_finding> findings, std::uint32_t bins, int call_index, step_record& record);
    void end(double sigmas, step_record& record) { state_certainty(first_, sigmas, record); }

private:
    audit_judge judge_;
    std::size_t first_ = 0; ///< suspect of this audit
};

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/audit/detail/step_audit.ipp>
#endif
