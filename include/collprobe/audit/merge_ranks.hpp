// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/simd/gradual_underflow.hpp>
#include <collprobe/step/detail/captured_steps.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/step_parts.hpp>
#include <collprobe/step/observation.hpp>
#include <collprobe/step/probe_options.hpp>
#include <collprobe/step/rank_call.hpp>

/// Steps whose ranks measured apart, without messages.
namespace collprobe::inline COLLPROBE_ABI {

/// A call of a step, as all its ranks made it.
struct merged_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    reduction operation = reduction::sum; ///< `sum`, if the ranks multiply their inputs first: `rank_block::scale`
    std::uint64_t count = 0; ///< elements that each rank sends; of a broadcast those that it gets
    std::uint64_t result_count = 0; ///< elements that each rank gets
    /// Index of the call in its step, seen or not; or, of all calls of a step, `no_index`: then its site tells the call
    /// from others, as in `probed`. It is compared with calls of earlier steps at the same index, or site, of one form.
    std::uint64_t bucket = 0;
    std::uint64_t bins = 0; ///< of the sketches in the ranks' blocks of this call; 0: there are none
    bool has_shards = false; ///< the blocks of this all-gather have the digests of its shards
    call_site site = {}; ///< its name must stay valid as long as the record
};

/// What one rank measured of a call.
struct rank_block {
    /// `rank_call_layout` describes them; aligned for doubles. Null: the rank measured nothing. `entry.input` has
    /// statistics of floating-point inputs; of other shards that are gathered only the digest counts.
    const unsigned char* bytes = nullptr;
    bool has_input = false; ///< the block has statistics of the input
    bool has_result = false; ///< the block has the result: of integers only its digest
    double scale = 1; ///< the factor by which the rank's input is multiplied before the sum; NaN: it is not known
};

/// The calls of a step that are to be judged.
struct merged_step {
    std::uint64_t step = 0;
    std::uint64_t first_call = 0; ///< as in `step_record`
    std::uint64_t unread_calls = 0; ///< calls since the last judged step that are not among `calls`
    std::uint64_t unseen_calls = 0; ///< calls of this step alone that are not among `calls`; `no_index`: not known
    view<const merged_call> calls = {};
    view<const rank_block> blocks = {}; ///< that of rank r about call c is c * ranks + r
    /// By rank, as in `probed::end_step`, of numbers in host memory; empty: no rank told any.
    view<const step_observation> observations = {};
    bool repeats = true; ///< false: the calls are not those of earlier steps, so nothing is compared with these
    bool follows = false; ///< the last judged step was the one before: no call lies between them
};

/// Judges what the ranks of a communicator measured apart: makes of their blocks the messages that the ranks of a
/// `probed` with the part `audit` exchange in the mode `gather`, and judges them by the same checks. So records can be
/// written by each rank and merged later, or travel in any other way, and be judged again with other options.
///
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
    COLLPROBE_COLD_INLINE explicit merge_ranks(int ranks, const probe_options& options = {},
        const audit_options& audited = {}, call_site where = call_site::current())
        : ranks_(checked(ranks, options, where)), options_(audited),
          layout_{.part_bytes = parts::entry_bytes, .statistics = options.statistics,
              .times = options.times && options.statistics && options.results},
          has_results_(options.statistics && options.results),
          judge_(ranks, options, report_mode::gather, layout_.times), parts_(1, audit(audited, where)),
          terms_(detail::terms_of(audited.conservation.order, ranks))
    {
    }

    int ranks() const noexcept { return ranks_; }

    /// Fills `out`. If that is the same object each time, its memory is reused.
    /// \throws error `invalid_argument` unless there is a block for each call and rank, and an observation of each rank
    ///   or none; then nothing changes.
    COLLPROBE_COLD_INLINE void judge(const merged_step& step, step_record& out, call_site where = call_site::current())
    {
        const auto n = static_cast<std::size_t>(ranks_);
        const auto check = [&where](bool condition, const char* message) {
            detail::require(condition, "merge_ranks::judge", message, where);
        };
        check(step.blocks.size() == step.calls.size() * n, "a step has one block for each call and rank");
        check(step.observations.empty() || step.observations.size() == n, "a step has an observation of each rank");
        if (!step.follows) judge_.forget_end();
        if (!step.repeats) judge_.forget_calls();
        const bool by_site = describe_calls(step);
        write_messages(step);
        const detail::gathered_step messages(bytes(), ranks_, calls_.size(), layout_);
        judge_.judge(messages, calls_, {}, {}, out);
        parts_.judge(messages, ~std::uint64_t{0}, calls_, judge_.series(), out);
        for (std::size_t c = 0; c < calls_.size(); ++c)
            if (!is_measured_[c]) out.calls[c].audit = {};
        out.unread_calls = step.unread_calls;
        out.first_call = step.first_call;
        // The index of a call moves where one before it is missing.
        judge_.finish(calls_, by_site, true, step.repeats ? step.unseen_calls : no_index, out);
    }

    /// Forgets all steps, as after a restart from a checkpoint.
    void forget() { judge_.forget(); }

private:
    using parts = detail::step_parts<audit>;

    COLLPROBE_COLD_INLINE static int checked(int ranks, const probe_options& options, call_site where)
    {
        const auto check = [&where](bool condition, const char* message) {
            detail::require(condition, "merge_ranks", message, where);
        };
        check(ranks >= 1, "a communicator has at least 1 rank");
        detail::check_judging(options, ranks, check);
        return ranks;
    }
    const rank_block& block_of(const merged_step& step, std::size_t call, int rank) const noexcept
    {
        return step.blocks[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
    }
    unsigned char* bytes() noexcept { return reinterpret_cast<unsigned char*>(words_.data()); }
    unsigned char* message_of(int rank) noexcept
    {
        return bytes() + static_cast<std::uint64_t>(rank) * layout_.bytes(calls_.size());
    }
    detail::audit_entry& audited(std::size_t call, int rank) noexcept
    {
        return *reinterpret_cast<detail::audit_entry*>(layout_.parts_of(message_of(rank), call));
    }

    /// Returns whether the calls are known by their sites.
    COLLPROBE_COLD_INLINE bool describe_calls(const merged_step& step)
    {
        calls_.clear();
        places_.clear();
        is_measured_.clear();
        bool by_site = true;
        for (std::size_t c = 0; c < step.calls.size(); ++c) {
            const merged_call& call = step.calls[c];
            bool has_blocks = true, has_input = true, has_result = true, has_unknown_scale = false;
            for (int r = 0; r < ranks_; ++r) {
                const rank_block& block = block_of(step, c, r);
                has_blocks = has_blocks && block.bytes != nullptr;
                has_input = has_input && block.has_input;
                has_result = has_result && block.has_result;
                has_unknown_scale = has_unknown_scale || !is_finite(block.scale);
            }
            const bool has_statistics = has_blocks && layout_.statistics && is_floating(call.type);
            by_site = by_site && call.bucket == no_index;
            places_.push_back(call.bucket == no_index ? detail::place_of(call.site) : call.bucket);
            is_measured_.push_back(has_blocks && (has_result || call.has_shards));
            calls_.push_back({.call = call.call, .type = call.type, .operation = call.operation, .count = call.count,
                .has_input = has_input && has_statistics, .has_result = has_result && has_statistics && has_results_,
                .site = call.site, .result_count = call.result_count, .has_unknown_scale = has_unknown_scale,
                .place = places_.back()});
        }
        return by_site;
    }
    COLLPROBE_COLD_INLINE void write_messages(const merged_step& step)
    {
        words_.assign(static_cast<std::size_t>(ranks_) * (layout_.bytes(calls_.size()) / sizeof(std::uint64_t)), 0);
        for (int r = 0; r < ranks_; ++r) {
            const step_observation seen = step.observations.empty() ? step_observation()
                                                                    : step.observations[static_cast<std::size_t>(r)];
            const detail::write_header write{
                message_of(r), layout_, places_.data(), false, seen, {step.step, 1, 0, 0, nullptr}, nullptr};
            for (std::uint64_t i = 0; i <= calls_.size(); ++i) write(i);
            for (std::size_t c = 0; c < calls_.size(); ++c) write_entry(block_of(step, c, r), calls_[c], c, r);
        }
        for (std::size_t c = 0; c < calls_.size(); ++c)
            if (is_measured_[c]) audit_call(step, c);
    }
    void write_entry(const rank_block& block, const detail::probed_call& call, std::size_t c, int rank)
    {
        if (block.bytes == nullptr || !layout_.statistics || !is_floating(call.type)) return;
        const rank_measurement& of = rank_call_layout::measurement(block.bytes);
        detail::call_entry& entry = layout_.entry(message_of(rank), c);
        if (block.has_input) entry.input = of.entry.input;
        if (block.has_result && has_results_) entry.result = of.entry.result;
        if (is_finite(block.scale) && to_bits(block.scale) != to_bits(1.0)) { // the statistics of the product
            entry.input.absolute_maximum *= detail::absolute(block.scale);
            entry.input.sum *= block.scale;
            entry.input.sum_of_squares = entry.input.sum_of_squares * block.scale * block.scale;
            entry.result.dot *= block.scale;
        }
        if (layout_.times) layout_.times_of(message_of(rank), c) = {of.input_done, of.result_begun};
    }
    /// Writes what the audit's checks find of a call that all ranks measured.
    COLLPROBE_COLD_INLINE void audit_call(const merged_step& step, std::size_t c)
    {
        const rank_call_layout layout{step.calls[c].bins, static_cast<std::uint64_t>(ranks_)};
        owners_.clear();
        for (int r = 0; r < ranks_; ++r) {
            const detail::call_entry& entry = rank_call_layout::measurement(block_of(step, c, r).bytes).entry;
            owners_.push_back(entry.input.digest);
            if (calls_[c].is_replicated() && !step.calls[c].has_shards) audited(c, r).digest = entry.result.digest;
        }
        for (int r = 0; step.calls[c].has_shards && r < ranks_; ++r) {
            const detail::compare_shards compare{owners_.data(), 1, layout.shard_digests(block_of(step, c, r).bytes),
                layout.shards, &audited(c, r).shards};
            compare.store(0, compare.part(0, 0, 1));
        }
        with_floating_type(step.calls[c].type, [&]<class T>(T) { check_sum<T>(step, c); });
    }
    template <floating_element T>
    void check_sum(const merged_step& step, std::size_t call);

    int ranks_;
    audit_options options_;
    detail::message_layout layout_;
    bool has_results_;
    detail::step_judge judge_;
    parts parts_;
    detail::rounded_terms terms_;
    std::vector<detail::probed_call> calls_;
    std::vector<std::uint64_t> places_; ///< of the calls
    std::vector<bool> is_measured_; ///< by call: all ranks' blocks have the result, or its shards
    std::vector<std::uint64_t> words_; ///< the messages
    std::vector<std::uint64_t> owners_; ///< digests of a call's shards
    std::vector<double> sum_of_inputs_; ///< sketches
    std::vector<double> sum_of_results_;
};

/// Not inlined: see `gradual_underflow`.
template <floating_element T>
[[gnu::noinline]] void merge_ranks::check_sum(const merged_step& step, std::size_t c)
{
    const merged_call& call = step.calls[c];
    if (!options_.sums || call.bins == 0 || !calls_[c].is_sum()) return;
    const detail::gradual_underflow as_ieee_has_it;
    const rank_call_layout layout{call.bins};
    const bool is_part = call.call == collective::reduce_scatter;
    sum_of_inputs_.assign(layout.sketch_numbers(), 0);
    sum_of_results_.assign(layout.sketch_numbers(), 0);
    // In the order in which `local` and most communicators do.
    const auto add = [](const double* numbers, int rank, std::vector<double>& into) {
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = rank == 0 ? numbers[i] : into[i] + numbers[i];
    };
    for (int r = 0; r < ranks_; ++r) {
        const rank_block& block = block_of(step, c, r);
        if (!block.has_input || to_bits(block.scale) != to_bits(1.0)) return; // products are rounded, too
        add(layout.input_sketch(block.bytes), r, sum_of_inputs_);
        if (is_part) add(layout.result_sketch(block.bytes), r, sum_of_results_);
    }
    const std::uint64_t rows = (call.count + call.bins - 1) / call.bins;
    detail::conservation_judge judge{sum_of_inputs_.data(), sum_of_results_.data(), call.bins,
        detail::conservation_bound::of<T>(call.operation, options_.conservation.order, ranks_, rows, terms_)};
    for (int r = 0; r < ranks_; ++r) {
        if (!is_part) judge.result = layout.result_sketch(block_of(step, c, r).bytes);
        audited(c, r).sum = is_part && r > 0 ? audited(c, 0).sum // the verdict is about all parts together
                                             : judge.finish(detail::reduce_blocks(judge, call.bins));
    }
}

} // namespace collprobe
