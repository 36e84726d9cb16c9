// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/detail/math.hpp>
#include <collprobe/step/merged_steps.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The statistics of the input times `factor`.
COLLPROBE_COLD_INLINE statistics statistics_of_product(statistics of, double factor) noexcept
{
    of.absolute_maximum *= absolute(factor);
    of.sum *= factor;
    of.sum_of_squares = of.sum_of_squares * factor * factor;
    return of;
}

COLLPROBE_COLD_INLINE void merged_steps::judge(const merged_step& step, step_record& out)
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

COLLPROBE_COLD_INLINE void merged_steps::describe_calls(const merged_step& step)
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
        calls_.push_back({.call = call.call,
            .type = call.type,
            .operation = call.operation,
            .count = call.count,
            .has_input = has_input && has_statistics,
            .has_result = has_result && has_statistics,
            .site = call.site,
            .result_count = call.result_count,
            .has_unknown_scale = has_unknown_scale,
            .place = call.bucket});
        has_results_.push_back(has_result);
    }
}

COLLPROBE_COLD_INLINE void merged_steps::write_messages(const merged_step& step)
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

} // namespace collprobe::inline COLLPROBE_ABI::detail
