// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
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
    /// Index of the call in its step, seen or not. A call is compared with those of earlier steps that have the same
    /// index and form.
    std::uint64_t bucket = 0;
    std::uint64_t bins = 0; ///< of the sketches in the ranks' blocks of this call; 0: there are none
    call_site site = {}; ///< its name must stay valid as long as the record
};

/// What one rank measured of a call.
struct rank_block {
    /// `rank_call_layout{bins}` describes them; aligned for doubles. Null: the rank measured nothing.
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
    bool repeats = true; ///< false: the calls are not those of earlier steps, so nothing is compared with these
    bool follows = false; ///< the last judged step was the one before: no call lies between them
};

namespace detail {

/// The statistics of the input times `factor`.
COLLPROBE_COLD_INLINE statistics statistics_of_product(statistics of, double factor) noexcept
{
    of.absolute_maximum *= absolute(factor);
    of.sum *= factor;
    of.sum_of_squares = of.sum_of_squares * factor * factor;
    return of;
}

/// Makes of the ranks' blocks the messages that the ranks of `probed` exchange, and judges them as it does.
class merged_steps {
public:
    merged_steps(int ranks, double false_alarms_per_step, double lateness_floor_ns)
        : ranks_(ranks), layout_{.times = true},
          judge_(ranks, false_alarms_per_step, report_mode::gather, true, lateness_floor_ns,
              exchangeability_options{.tolerance = 0.25})
    {
    }

    int ranks() const noexcept { return ranks_; }
    const rank_block& block_of(const merged_step& step, std::size_t call, int rank) const noexcept
    {
        return step.blocks[call * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
    }
    /// Fills `out`, but for `settle_findings`. Precondition: there is a block for each call and rank.
    COLLPROBE_COLD_INLINE void judge(const merged_step& step, step_record& out)
    {
        if (!step.follows) judge_.forget_end();
        if (!step.repeats) judge_.forget_calls();
        describe_calls(step);
        write_messages(step);
        const gathered_step gathered(
            reinterpret_cast<const unsigned char*>(messages_.data()), ranks_, step.calls.size(), layout_);
        judge_.judge(gathered, calls_, {}, {}, out);
        // The index of a call moves where one before it is missing.
        if (step.repeats && step.unseen_calls != no_index)
            judge_.judge_missing(calls_, false, true, step.unseen_calls, out);
        out.unread_calls = step.unread_calls;
        out.first_call = step.first_call;
    }
    void forget() { judge_.forget(); }

    /// Of the step that was judged last. A call of integers has no result here, whose digest the blocks have.
    view<const probed_call> calls() const noexcept { return calls_; }
    /// Whether all ranks' blocks have the result.
    bool has_results(std::size_t call) const noexcept { return has_results_[call]; }

private:
    COLLPROBE_COLD_INLINE void describe_calls(const merged_step& step)
    {
        calls_.clear();
        has_results_.clear();
        for (std::size_t c = 0; c < step.calls.size(); ++c) {
            const merged_call& call = step.calls[c];
            bool has_input = true;
            bool has_result = true;
            bool has_unknown_scale = false;
            for (int r = 0; r < ranks_; ++r) {
                const rank_block& block = block_of(step, c, r);
                has_input = has_input && block.bytes != nullptr && block.has_input;
                has_result = has_result && block.bytes != nullptr && block.has_result;
                has_unknown_scale = has_unknown_scale || !is_finite(block.scale);
            }
            const bool has_statistics = is_floating(call.type);
            calls_.push_back({.call = call.call, .type = call.type, .operation = call.operation, .count = call.count,
                .has_input = has_input && has_statistics, .has_result = has_result && has_statistics,
                .site = call.site, .result_count = call.result_count, .has_unknown_scale = has_unknown_scale,
                .place = call.bucket});
            has_results_.push_back(has_result);
        }
    }
    COLLPROBE_COLD_INLINE void write_messages(const merged_step& step)
    {
        const std::uint64_t stride = layout_.bytes(step.calls.size());
        messages_.resize(static_cast<std::size_t>(ranks_) * (stride / sizeof(std::uint64_t)));
        auto* message = reinterpret_cast<unsigned char*>(messages_.data());
        for (int r = 0; r < ranks_; ++r, message += stride) {
            *reinterpret_cast<step_header*>(message) = {step.step, not_given(), 1, not_given()};
            for (std::size_t c = 0; c < step.calls.size(); ++c) {
                const rank_block& block = block_of(step, c, r);
                layout_.place(message, c) = step.calls[c].bucket;
                call_entry& entry = layout_.entry(message, c);
                entry = {};
                entry.result.dot = not_a_number();
                if (layout_.times) layout_.times_of(message, c) = {};
                if (block.bytes == nullptr || !is_floating(step.calls[c].type)) continue;
                const rank_measurement& of = rank_call_layout::measurement(block.bytes);
                const bool is_product = is_finite(block.scale) && to_bits(block.scale) != to_bits(1.0);
                if (block.has_input) entry.input = of.entry.input;
                if (block.has_input && is_product) entry.input = statistics_of_product(entry.input, block.scale);
                if (block.has_result) entry.result = of.entry.result;
                if (block.has_result && is_product) entry.result.dot *= block.scale;
                if (layout_.times) layout_.times_of(message, c) = {of.input_done, of.result_begun};
            }
        }
    }

    int ranks_;
    message_layout layout_;
    step_judge judge_;
    std::vector<probed_call> calls_;
    std::vector<bool> has_results_;
    std::vector<std::uint64_t> messages_; ///< as `gathered_step` reads them
};

} // namespace detail
} // namespace collprobe
