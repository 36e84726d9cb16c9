// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/step/merged_steps.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Equal wherever the same blocks are judged.
struct merge_options {
    double false_alarms_per_step = 1e-4; ///< of the statistical checks, as of `probe_options`
    double lateness_floor_ns = 50'000; ///< that of a `lateness_watch`
    bool sums = true; ///< check sums and averages of calls that have sketches
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
    COLLPROBE_COLD_INLINE explicit merge_ranks(
        int ranks, const merge_options& options = {}, call_site where = call_site::current())
        : sums_(checked(ranks, options, where).sums),
          steps_(ranks, options.false_alarms_per_step, options.lateness_floor_ns),
          audit_(ranks),
          of_ranks_(static_cast<std::size_t>(ranks))
    {
    }

    int ranks() const noexcept { return steps_.ranks(); }

    /// Fills `out`. If that is the same object each time, its memory is reused.
    /// \throws error `invalid_argument` unless there is a block for each call and rank; then nothing changes.
    COLLPROBE_COLD_INLINE void judge(const merged_step& step, step_record& out, call_site where = call_site::current())
    {
        detail::require(step.blocks.size() == step.calls.size() * of_ranks_.size(), "merge_ranks::judge",
            "a step has one block for each call and rank", where);
        steps_.judge(step, out);
        audit_calls(step, out);
        out.settle_findings();
    }

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { steps_.forget(); }

private:
    COLLPROBE_COLD_INLINE static const merge_options& checked(
        int ranks, const merge_options& options, call_site where)
    {
        const auto check = [&where](bool condition, const char* message) {
            detail::require(condition, "merge_ranks", message, where);
        };
        check(ranks >= 1, "a communicator has at least 1 rank");
        check(detail::is_rate(options.false_alarms_per_step), "false_alarms_per_step must lie between 0 and 1");
        const double floor = options.lateness_floor_ns;
        check(is_finite(floor) && floor >= 0 && floor < 0x1p53, "lateness_floor_ns must be 0 to 2^53");
        return options;
    }
    COLLPROBE_COLD_INLINE void audit_calls(const merged_step& step, step_record& out)
    {
        audit_.begin(out);
        for (std::size_t c = 0; c < step.calls.size(); ++c) {
            if (!detail::is_audited(out.calls[c]) || !steps_.has_results(c)) continue;
            const bool is_replicated = steps_.calls()[c].is_replicated();
            for (std::size_t r = 0; r < of_ranks_.size(); ++r) {
                const rank_block& block = steps_.block_of(step, c, static_cast<int>(r));
                const auto& of = rank_call_layout::measurement(block.bytes);
                of_ranks_[r] = {is_replicated ? of.entry.result.digest : 0, {}};
            }
            with_floating_type(step.calls[c].type, [&]<class T>(T) { check_sum<T>(step, c); });
            audit_.judge_results(of_ranks_, static_cast<std::uint32_t>(step.calls[c].bins), static_cast<int>(c), out);
        }
        audit_.end(out);
    }
    template <floating_element T>
    void check_sum(const merged_step& step, std::size_t call);

    bool sums_;
    detail::merged_steps steps_;
    detail::audit_judge audit_;
    std::vector<detail::audit_entry> of_ranks_; ///< about one call
    std::vector<double> sum_of_inputs_; ///< sketches
    std::vector<double> sum_of_results_;
};

namespace detail {

/// Adds in the order in which `local` and most communicators do.
inline void add_numbers(const double* numbers, bool is_first, std::vector<double>& into) noexcept
{
    for (std::size_t i = 0; i < into.size() && is_first; ++i) into[i] = numbers[i];
    for (std::size_t i = 0; i < into.size() && !is_first; ++i) into[i] += numbers[i];
}

} // namespace detail

/// Not inlined: see `gradual_underflow`.
template <floating_element T>
[[gnu::noinline]] void merge_ranks::check_sum(const merged_step& step, std::size_t c)
{
    const merged_call& call = step.calls[c];
    if (!sums_ || call.bins == 0 || !steps_.calls()[c].is_gradient()) return;
    const detail::gradual_underflow as_ieee_has_it;
    const rank_call_layout layout{call.bins};
    const bool is_part = call.call == collective::reduce_scatter;
    sum_of_inputs_.resize(layout.sketch_numbers());
    sum_of_results_.resize(layout.sketch_numbers());
    for (int r = 0; r < ranks(); ++r) {
        const rank_block& block = steps_.block_of(step, c, r);
        if (to_bits(block.scale) != to_bits(1.0)) return; // the products are rounded, too
        detail::add_numbers(layout.input_sketch(block.bytes), r == 0, sum_of_inputs_);
        if (is_part) detail::add_numbers(layout.result_sketch(block.bytes), r == 0, sum_of_results_);
    }
    const std::uint64_t rows = (call.count + call.bins - 1) / call.bins;
    detail::conservation_judge judge{sum_of_inputs_.data(), sum_of_results_.data(), call.bins,
        detail::conservation_bound::of<T>(call.operation, rounding_order::linear, ranks(), rows)};
    for (int r = 0; r < ranks(); ++r) {
        detail::conservation_result& to = of_ranks_[static_cast<std::size_t>(r)].sum;
        if (!is_part) judge.result = layout.result_sketch(steps_.block_of(step, c, r).bytes);
        if (is_part && r > 0) to = of_ranks_[0].sum; // the verdict is about all parts together
        else to = judge.finish(detail::reduce_blocks(judge, call.bins));
    }
}

} // namespace collprobe
