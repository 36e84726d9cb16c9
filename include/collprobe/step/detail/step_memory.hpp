// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/captured_steps.hpp>
#include <collprobe/step/detail/gram.hpp>
#include <collprobe/step/detail/report_exchange.hpp>
#include <collprobe/step/detail/report_ring.hpp>
#include <collprobe/step/detail/stream_lanes.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The scratch memory and events of a step's calls. Steps that are not captured share one set. Each captured step has
/// its own: its graph keeps the addresses, and events inside and outside a capture must not wait for each other.
template <class Device, class PartMemory>
struct step_tools {
    using device = Device;
    using stream_ref = typename Device::stream_ref;

    step_tools(const step_report::shape& form, std::uint64_t room, call_site where, const probe_options& options,
        const auto& parts)
        : lanes(options.streams), exchange(form, room, where), part_memory(parts, static_cast<int>(form.ranks))
    {
        if (!form.room_for_gram) return;
        const std::uint64_t least = 16 * form.ranks; // two 8-byte elements from each rank
        gram_scratch = typename Device::template buffer<unsigned char>(
            options.scratch_bytes > least ? options.scratch_bytes : least);
    }
    /// Drops the events: those of one capture are invalid in the next.
    void forget_capture()
    {
        lanes.forget();
        gram_done = {};
    }

    /// Adds a gradient to the step's Gram matrix, behind the gradients before it on all streams.
    template <element T, communicator Comm>
    void add_to_gram(Comm& ranks, view<const T> input, step_block<Device>& step, stream_ref stream, call_site where)
    {
        const view<double> gram(step.gram);
        if (gram_done.recorded()) stream.wait(gram_done, where);
        if (!step.has_gram) Device::fill(stream, gram, 0.0, where);
        step.has_gram = true;
        accumulate_gram<T>(ranks, input, gram, view<unsigned char>(gram_scratch), stream, where);
        gram_done.record(stream);
    }

    stream_lanes<Device> lanes;
    report_exchange<Device> exchange;
    PartMemory part_memory;

private:
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by calls on all streams
};

/// All memory that enqueued work uses.
template <class Device, class PartMemory>
struct step_memory {
    using tools_type = step_tools<Device, PartMemory>;

    step_memory(const step_report::shape& form, const probe_options& options, const auto& parts, call_site where)
        : tools(form, static_cast<std::uint64_t>(options.calls), where, options, parts),
          ring(options.steps_in_flight, form, static_cast<std::uint64_t>(options.calls), where),
          captured(options.captured_steps, form, static_cast<std::uint64_t>(options.calls), where, options, parts) {}
    bool finished_by(deadline until) const noexcept
    {
        return captured.finished_by(until) && tools.lanes.finished_by(until) && detail::finished_by(until, reported);
    }

    tools_type tools; ///< shared by all steps that are not captured
    report_ring<Device> ring;
    captured_steps<tools_type> captured;
    void* probe = nullptr; ///< where its owner is: `located`
    typename Device::event reported; ///< the last `end_step`: exchanges come one after the other
};

} // namespace collprobe::detail
