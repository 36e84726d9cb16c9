// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/step/merged_steps.hpp>
#include <collprobe/step/probe_options.hpp>
#include <collprobe/step/rank_call.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Judges what the ranks of a communicator measured apart: makes of their blocks the messages that the ranks of a
/// `probed` with the part `audit` exchange in the mode `gather`, and judges them by the same checks.
/// Sums are checked of floating-point calls with sketches, but not if inputs are multiplied first. Of such a call the
/// moments of the inputs are those of what is summed. If a factor is not known, the call counts as no gradient. Without
/// digests of its shards an all-gather is compared as a whole between the ranks, not each shard with its owner's.
/// If a rank lacks the input of a call, or its result, the call has none; what other ranks sent is still searched for
/// NaN and infinity. Steps may be missing: `stale` means the bits of the last judged call at this place.
/// Not judged: what needs more than a block, as values that are expected to be equal, samples, weights of an average.
/// Preconditions: no concurrent use. Steps come in their order.
/// Cost: as `probed::poll`; of a call with sketches a comparison and two additions a bin and rank. It allocates only if
/// a step is larger than any before.
class merge_ranks {
public:
    /// Of the options those count by which a step is judged, and which of `statistics`, `results`, `times` there are;
    /// of the audit's `sums` and the order of rounding. `lateness_floor_ns` 0 is 50 us.
    /// \throws error `invalid_argument` for less than 1 rank, or options out of range.
    explicit merge_ranks(int ranks, const probe_options& options = {},
        const audit_options& audited = {}, call_site where = call_site::current())
        : steps_(ranks, options, audit(audited, where), where), options_(audited),
          terms_(detail::terms_of(audited.conservation.order, ranks))
    {
    }

    int ranks() const noexcept { return steps_.ranks(); }

    /// Fills `out`. If that is the same object each time, its memory is reused.
    /// \throws error `invalid_argument` unless there is a block for each call and rank, and an observation of each rank
    ///   or none; then nothing changes.
    COLLPROBE_COLD_INLINE void judge(const merged_step& step, step_record& out, call_site where = call_site::current())
    {
        steps_.judge(step, out, where, [&, this](std::size_t call) { audit_call(step, call); });
        for (std::size_t c = 0; c < out.calls.size(); ++c)
            if (!steps_.is_measured(c)) out.calls[c].audit = {};
    }

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { steps_.forget(); }

private:
    /// Writes what the audit's checks find of a call that all ranks measured.
    COLLPROBE_COLD_INLINE void audit_call(const merged_step& step, std::size_t c)
    {
        const merged_call& call = step.calls[c];
        const rank_call_layout layout{call.bins, static_cast<std::uint64_t>(ranks())};
        owners_.clear();
        for (int r = 0; r < ranks(); ++r) {
            const detail::call_entry& entry = rank_call_layout::measurement(steps_.block_of(step, c, r).bytes).entry;
            owners_.push_back(entry.input.digest);
            if (steps_.call(c).is_replicated() && !call.has_shards) steps_.entry(c, r).digest = entry.result.digest;
        }
        for (int r = 0; call.has_shards && r < ranks(); ++r) {
            const std::uint64_t* const received = layout.shard_digests(steps_.block_of(step, c, r).bytes);
            const detail::compare_shards compare{
                owners_.data(), 1, received, layout.shards, &steps_.entry(c, r).shards};
            compare.store(0, compare.part(0, 0, 1));
        }
        if (options_.sums && call.bins != 0 && steps_.call(c).is_sum())
            with_floating_type(call.type, [&, this]<class T>(T) { check_sum<T>(step, c); });
    }
    template <floating_element T>
    void check_sum(const merged_step& step, std::size_t call);

    detail::merged_steps<audit> steps_;
    audit_options options_;
    detail::rounded_terms terms_;
    std::vector<std::uint64_t> owners_; ///< digests of a call's shards
    std::vector<double> sum_of_inputs_; ///< sketches
    std::vector<double> sum_of_results_;
};

/// Not inlined: see `gradual_underflow`.
template <floating_element T>
[[gnu::noinline]] void merge_ranks::check_sum(const merged_step& step, std::size_t c)
{
    const merged_call& call = step.calls[c];
    const detail::gradual_underflow as_ieee_has_it;
    const rank_call_layout layout{call.bins};
    const bool is_part = call.call == collective::reduce_scatter;
    sum_of_inputs_.resize(layout.sketch_numbers());
    sum_of_results_.resize(layout.sketch_numbers());
    // In the order in which `local` and most communicators do.
    const auto add = [](const double* numbers, int rank, std::vector<double>& into) {
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = rank == 0 ? numbers[i] : into[i] + numbers[i];
    };
    for (int r = 0; r < ranks(); ++r) {
        const rank_block& block = steps_.block_of(step, c, r);
        if (!block.has_input || to_bits(block.scale) != to_bits(1.0)) return; // products are rounded, too
        add(layout.input_sketch(block.bytes), r, sum_of_inputs_);
        if (is_part) add(layout.result_sketch(block.bytes), r, sum_of_results_);
    }
    const std::uint64_t rows = (call.count + call.bins - 1) / call.bins;
    detail::conservation_judge judge{sum_of_inputs_.data(), sum_of_results_.data(), call.bins,
        detail::conservation_bound::of<T>(call.operation, options_.conservation.order, ranks(), rows, terms_)};
    for (int r = 0; r < ranks(); ++r) {
        if (!is_part) judge.result = layout.result_sketch(steps_.block_of(step, c, r).bytes);
        steps_.entry(c, r).sum = is_part && r > 0 ? steps_.entry(c, 0).sum // the verdict is about all parts together
                                                  : judge.finish(detail::reduce_blocks(judge, call.bins));
    }
}

} // namespace collprobe
