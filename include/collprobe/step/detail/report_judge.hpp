// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/measure_orders.hpp>
#include <collprobe/step/detail/report_ring.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Records that have not been read yet. A record that is added to a full queue replaces the oldest one. Records are
/// swapped in and out, so that their memory is used again: by as many as have ever waited together, and one more.
template <class Record>
class record_queue {
public:
    explicit record_queue(std::size_t room) : records_(room + 1) {}

    /// The record to fill next. If filling fails, the queue is unchanged; else `push` adds the record.
    Record& next() noexcept { return records_[(first_ + size_) % records_.size()]; }
    void push() noexcept
    {
        if (++size_ < records_.size()) return;
        remove_first();
        ++dropped_;
    }

    bool pop(Record& out)
    {
        if (size_ == 0) return false;
        std::swap(out, records_[first_]);
        remove_first();
        return true;
    }

    std::size_t size() const noexcept { return size_; }
    std::uint64_t dropped() const noexcept { return dropped_; }

private:
    void remove_first() noexcept
    {
        first_ = --size_ == 0 ? 0 : (first_ + 1) % records_.size();
    }

    std::vector<Record> records_; ///< the kept records, and the next one
    std::size_t first_ = 0;
    std::size_t size_ = 0;
    std::uint64_t dropped_ = 0;
};

/// Judges the reports of steps: makes records of them, the same on every rank, and keeps these until they are read.
class report_judge {
public:
    report_judge(const probe_options& options, const step_report::shape& form)
        : unread(static_cast<std::size_t>(options.unread_steps)),
          judge(static_cast<int>(form.ranks), options, form.mode, form.layout.times),
          form_(form),
          meter_(static_cast<int>(form.ranks),
              sample_orders(static_cast<int>(form.ranks), form.layout.samples > 0 ? 8 : 0)) {}

    /// Judges the report of a step and adds its record to `unread`. `calls_before`: calls of all steps before it.
    /// \throws error `device_failure` if the report is not that of the step with this number; `mismatch` if the ranks
    ///   ended different steps; what a part throws. `origin(call)`: of the errors.
    template <class Device>
    void add(const step_in_flight<Device>& of, std::uint32_t serial, std::uint64_t calls_before, auto& parts,
        function_ref<error_origin(const char*)> origin);

    record_queue<step_record> unread;
    step_judge judge;

private:
    step_report::shape form_;
    order_meter meter_; ///< has no orders if nothing is sampled
};

// Behind its class, and so not inline: who uses the instances of the compiled form does not compile the judge.
template <class Device>
void report_judge::add(const step_in_flight<Device>& of, std::uint32_t serial, std::uint64_t calls_before, auto& parts,
    function_ref<error_origin(const char*)> origin)
{
    const step_block<Device>& step = *of.calls;
    const step_report report = report_of(form_, step, of.host.data());
    const view<const probed_call> calls(step.calls.data(), step.call_count);
    const view<const expected_value> expected(step.expected.data(), step.value_count);
    const view<const double> gram = step.has_gram ? report.gram : view<double>();
    const auto require_arrived = [&](bool has_arrived) {
        if (has_arrived) return;
        throw error(status::device_failure,
            "the records of step " + std::to_string(of.step) + " never arrived: work on its stream failed",
            origin("poll"));
    };
    const auto end_step = [&] { return origin("end_step"); };
    const auto ranks = static_cast<int>(form_.ranks);
    step_record& out = unread.next();
    if (form_.mode == report_mode::gather) {
        const gathered_step messages(report.messages, ranks, step.call_count,
            form_.with_values(step.value_count).layout);
        require_arrived(messages.has_arrived(serial));
        judge.require_same_step(messages, end_step);
        judge.judge(messages, calls, expected, gram, out);
        measure_orders(meter_, messages, calls, out);
        parts.judge(messages, step.due, calls, judge.series(), out);
    } else {
        const step_keys& keys = *report.summary.keys;
        const gathered_step totals(report.messages, ranks, 1, totals_layout(form_.layout));
        require_arrived(keys.arrival.complete(serial, ranks));
        if (form_.has_totals()) judge.require_same_step(totals, end_step);
        else if (keys.step != ~keys.step_complement)
            throw error(status::mismatch,
                "the ranks report different steps, up to " + std::to_string(keys.step), end_step());
        judge_summary(judge, report.summary, form_.has_totals() ? &totals : nullptr, ranks, calls, expected, gram,
            out);
        parts.judge_summary(report.part_words, step.due, out);
    }
    out.unprobed_calls = step.unprobed_calls;
    out.unread_calls = step.unread_calls;
    out.first_call = calls_before;
    const bool has_places = form_.mode == report_mode::gather && out.places_agree;
    judge.finish(calls, has_places, step.due > 1 || out.unread_calls == 0, out.unprobed_calls, out);
    unread.push();
}

} // namespace collprobe::detail
