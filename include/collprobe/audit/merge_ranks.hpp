// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/step_audit.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/merged_steps.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Equal wherever the same blocks are judged.
struct merge_options {
    double false_alarms_per_step = 1e-4; ///< of the statistical checks, as of `probe_options`
    double lateness_floor_ns = 50'000; ///< `lateness_options::floor_ns`
    bool times = true; ///< judge who comes late; a tenth of the false alarms is for that
    bool sums = true; ///< check sums and averages of calls that have sketches
    double sigmas = 8; ///< `conservation_options::sigmas`
    rounding_order order = rounding_order::linear; ///< of the communicator that made the calls
};

/// Judges what the ranks of a communicator measured apart: makes of their blocks the record that `probed` with the part
/// `audit` makes after its ranks have exchanged messages. So records can be written by each rank and merged later, or
/// travel in any other way.
///
/// Sums are checked of floating-point calls with sketches, but not if inputs are multiplied first. Of such a call the
/// moments of the inputs are those of what is summed. If a factor is not known, the call counts as no gradient. Of an
/// all-gather the whole result is compared between the ranks, not each shard with its owner's.
/// If a rank lacks the input of a call, or its result, the call has none; what other ranks sent is still searched for
/// NaN and infinity. Steps may be missing: `stale` means the bits of the last judged call at this place.
/// Preconditions: no concurrent use. Steps come in their order.
/// Cost: as `probed::poll`; of a call with sketches a comparison and two additions a bin and rank. It allocates only if
/// a step is larger than any before.
class merge_ranks {
public:
    /// \throws error `invalid_argument` for less than 1 rank, or options out of range.
    explicit merge_ranks(int ranks, const merge_options& options = {}, call_site where = call_site::current());

    int ranks() const noexcept { return steps_.ranks(); }
    const merge_options& options() const noexcept { return options_; }

    /// Fills `out`. If that is the same object each time, its memory is reused.
    /// \throws error `invalid_argument` unless there is a block for each call and rank; then nothing changes.
    void judge(const merged_step& step, step_record& out, call_site where = call_site::current());

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { steps_.forget(); }

private:
    static const merge_options& checked(int ranks, const merge_options& options, call_site where);
    void audit_calls(const merged_step& step, step_record& out);
    template <floating_element T>
    void check_sum(const merged_step& step, std::size_t call);

    merge_options options_;
    detail::merged_steps steps_;
    detail::step_audit audit_;
    detail::rounded_terms terms_;
    std::vector<detail::audit_finding> findings_; ///< of all ranks about one call
    std::vector<double> sum_of_inputs_; ///< sketches
    std::vector<double> sum_of_results_;
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/audit/detail/merge_ranks.ipp>
#endif
