// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/detail/ref.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/gram.hpp>
#include <collprobe/step/detail/report_exchange.hpp>
#include <collprobe/step/detail/stream_lanes.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory of a probe's parts for the calls of a step.
struct part_memories : ref_counted {
    virtual ~part_memories() = default;
    virtual void clear() noexcept = 0;
    /// Calls of the step from this index on were not made in the end.
    virtual void forget(std::uint64_t first) noexcept = 0;
};

/// The scratch memory and events of a step's calls. Steps that are not captured share one set. Each captured step has
/// its own: its graph keeps the addresses, and events inside and outside a capture must not wait for each other.
template <class Device>
struct step_tools {
    using stream_ref = typename Device::stream_ref;

    step_tools(
        const step_report::shape& form, const probe_options& options, ref<part_memories> of_parts, call_site where)
        : lanes(options.streams), exchange(form, static_cast<std::uint64_t>(options.calls), where),
          parts(std::move(of_parts))
    {
        const std::uint64_t least = 16 * form.ranks; // two 8-byte elements from each rank
        if (form.room_for_gram)
            gram_scratch = typename Device::template buffer<unsigned char>(larger(options.scratch_bytes, least));
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
    ref<part_memories> parts;

private:
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by calls on all streams
};

} // namespace collprobe::detail
