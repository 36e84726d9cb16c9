// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/write_message.hpp>
#include <collprobe/step/step_observation.hpp>
#include <collprobe/step/part.hpp>
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

namespace detail {

/// Makes of the ranks' blocks the messages that the ranks of a `probed` with this part exchange in the mode `gather`,
/// and judges them as it does. Options, errors and preconditions: as `merge_ranks`.
template <class Part>
class merged_steps {
public:
    merged_steps(int ranks, const probe_options& options, Part part, call_site where)
        : ranks_(checked_to_judge(ranks, options, "merge_ranks", where)),
          has_results_(options.statistics && options.results),
          layout_{.part_bytes = sizeof(typename Part::entry), .statistics = options.statistics,
              .times = options.times && has_results_},
          judge_(ranks, options, report_mode::gather, layout_.times), part_(std::move(part))
    {
    }

    int ranks() const noexcept { return ranks_; }
    const rank_block& block_of(const merged_step& step, std::size_t call, int rank) const noexcept
    {
        return step.blocks[call * at_rank(ranks_) + at_rank(rank)];
    }
    /// What the part has of a call on a rank.
    typename Part::entry& entry(std::size_t call, int rank) noexcept
    {
        return *reinterpret_cast<typename Part::entry*>(layout_.parts_of(message_of(rank), call));
    }
    /// Of the step that is judged.
    const probed_call& call(std::size_t call) const noexcept { return calls_[call]; }
    /// Whether all ranks' blocks have the result, or its shards.
    bool is_measured(std::size_t call) const noexcept { return is_measured_[call]; }

    /// `write_entries(c)`: writes the part's entries of a call that is measured.
    void judge(const merged_step& step, step_record& out, call_site where,
        function_ref<void(std::size_t)> write_entries)
    {
        const auto check = [&where](bool condition, const char* message) {
            require(condition, "merge_ranks::judge", message, where);
        };
        const std::size_t told = step.observations.size();
        check(step.blocks.size() == step.calls.size() * at_rank(ranks_), "a step has one block for each call and rank");
        check(told == 0 || told == at_rank(ranks_), "a step has an observation of each rank, or none");
        if (!step.follows) judge_.forget_end();
        if (!step.repeats) judge_.forget_calls();
        const bool by_site = describe_calls(step);
        write_messages(step);
        for (std::size_t c = 0; c < calls_.size(); ++c)
            if (is_measured_[c]) write_entries(c);
        const gathered_step messages(message_of(0), ranks_, calls_.size(), layout_);
        judge_.judge(messages, calls_, {}, {}, out);
        out.forgot = std::exchange(forgot_, false) || out.forgot;
        part_.judge(part_entries<typename Part::entry>(messages, calls_, judge_.series(), 0), out);
        out.unread_calls = step.unread_calls;
        out.first_call = step.first_call;
        out.repeats = step.repeats;
        // The index of a call moves where one before it is missing.
        judge_.finish(calls_, by_site, true, step.repeats ? step.unseen_calls : no_index, out);
    }
    void forget()
    {
        judge_.forget();
        forgot_ = true;
    }

private:
    unsigned char* message_of(int rank) noexcept
    {
        return reinterpret_cast<unsigned char*>(words_.data()) + at_rank(rank) * layout_.bytes(calls_.size());
    }

    /// Returns whether the calls are known by their sites.
    bool describe_calls(const merged_step& step)
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
            places_.push_back(call.bucket == no_index ? place_of(call.site) : call.bucket);
            is_measured_.push_back(has_blocks && (has_result || call.has_shards));
            calls_.push_back({.call = call.call, .type = call.type, .operation = call.operation, .count = call.count,
                .has_input = has_input && has_statistics, .has_result = has_result && has_statistics && has_results_,
                .site = call.site, .result_count = call.result_count, .has_unknown_scale = has_unknown_scale,
                .place = places_.back()});
        }
        return by_site;
    }
    void write_messages(const merged_step& step)
    {
        words_.assign(at_rank(ranks_) * (layout_.bytes(calls_.size()) / sizeof(std::uint64_t)), 0);
        for (int r = 0; r < ranks_; ++r) {
            const write_header write{message_of(r), layout_, places_.data(), false,
                step.observations.empty() ? step_observation() : step.observations[at_rank(r)],
                {step.step, 1, 0, 0, nullptr}, nullptr};
            for (std::uint64_t i = 0; i <= calls_.size(); ++i) write(i);
            for (std::size_t c = 0; c < calls_.size(); ++c) write_call(block_of(step, c, r), c, r);
        }
    }
    void write_call(const rank_block& block, std::size_t c, int rank)
    {
        if (block.bytes == nullptr || !layout_.statistics || !is_floating(calls_[c].type)) return;
        const rank_measurement& of = rank_call_layout::measurement(block.bytes);
        call_entry& entry = layout_.entry(message_of(rank), c);
        if (block.has_input) entry.input = of.entry.input;
        if (block.has_result && has_results_) entry.result = of.entry.result;
        if (is_finite(block.scale) && to_bits(block.scale) != to_bits(1.0)) { // the statistics of the product
            entry.input.absolute_maximum *= absolute(block.scale);
            entry.input.sum *= block.scale;
            entry.input.sum_of_squares = entry.input.sum_of_squares * block.scale * block.scale;
            entry.result.dot *= block.scale;
        }
        if (layout_.times) layout_.times_of(message_of(rank), c) = {of.input_done, of.result_begun};
    }

    int ranks_;
    bool has_results_; ///< by the options
    bool forgot_ = false; ///< since the last step
    message_layout layout_;
    step_judge judge_;
    Part part_;
    std::vector<probed_call> calls_;
    std::vector<std::uint64_t> places_; ///< of the calls
    std::vector<bool> is_measured_;
    std::vector<std::uint64_t> words_; ///< the messages
};

} // namespace detail
} // namespace collprobe
