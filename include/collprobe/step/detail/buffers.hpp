// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/replay.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/stream_lanes.hpp>
#include <collprobe/step/detail/wire_layout.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/probe_options.hpp>

/// The memory of a step, on any device.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory that the calls of one step write.
template <class Device>
struct step_buffers {
    step_buffers(const step_report::shape& form, std::uint64_t room)
        : layout(form.layout),
          calls(room),
          expected(form.room_for_values),
          values(form.room_for_values),
          read_values(form.room_for_values),
          gradients((room + 63) / 64),
          places(room),
          message(form.with_values(form.room_for_values).layout.bytes(room)),
          report(step_report::room_bytes(form, room))
    {
    }

    /// The memory may hold a report of an object that was freed.
    void initialise(typename Device::stream_ref stream, call_site where)
    {
        Device::zero(stream, view<unsigned char>(report), where);
        if (layout.part_bytes != 0) Device::zero(stream, view<unsigned char>(message), where);
    }

    void clear() noexcept
    {
        call_count = 0;
        value_count = 0;
        unprobed_calls = 0;
        has_gram = false;
    }
    /// Counts a call whose entry is being written.
    void add(const probed_call& call) noexcept
    {
        std::uint64_t& word = gradients[call_count / 64];
        if (call_count % 64 == 0) word = 0;
        word |= static_cast<std::uint64_t>(call.is_gradient()) << (call_count % 64);
        calls[call_count] = call;
        places[call_count] = calls[call_count].place = place_of(call.site);
        ++call_count;
    }
    void tell(const expected_value& of, write_values::source value) noexcept
    {
        value.value.place = of.place();
        expected[value_count] = of;
        values[value_count] = value;
        ++value_count;
    }
    call_entry& entry(std::uint64_t call_index) const noexcept { return layout.entry(message.data(), call_index); }
    /// What the read of a call's input, or of its result, notes.
    reduction_times input_times(std::uint64_t call_index) const noexcept
    {
        return {nullptr, layout.times ? &layout.times_of(message.data(), call_index).entered : nullptr};
    }
    reduction_times result_times(std::uint64_t call_index) const noexcept
    {
        return {layout.times ? &layout.times_of(message.data(), call_index).left : nullptr, nullptr};
    }
    /// Takes over the calls of a smaller one; enqueues the copy of what the device wrote.
    void take_over(const step_buffers& from, const step_report::shape& form, typename Device::stream_ref stream,
        call_site where)
    {
        call_count = from.call_count;
        value_count = from.value_count;
        unprobed_calls = from.unprobed_calls;
        has_gram = from.has_gram;
        due = from.due;
        for (std::uint64_t b = 0; b < call_count; ++b) {
            calls[b] = from.calls[b];
            places[b] = from.places[b];
        }
        for (std::uint64_t v = 0; v < value_count; ++v) {
            expected[v] = from.expected[v];
            values[v] = from.values[v];
        }
        Device::copy(stream, view<const statistics>(from.read_values.data(), value_count),
            view<statistics>(read_values.data(), value_count), where);
        for (std::uint64_t w = 0; w < (call_count + 63) / 64; ++w) gradients[w] = from.gradients[w];
        copy_first(stream, from.message, message, layout.bytes(call_count), where);
        if (has_gram) {
            const std::uint64_t gram = step_report(report.data(), form, 0).gram().size_bytes();
            copy_first(stream, from.report, report, gram, where);
        }
    }

private:
    using bytes = typename Device::template buffer<unsigned char>;
    static void copy_first(typename Device::stream_ref stream, const bytes& from, const bytes& to, std::uint64_t count,
        call_site where)
    {
        Device::copy(
            stream, view<const unsigned char>(from.data(), count), view<unsigned char>(to.data(), count), where);
    }

public:
    message_layout layout;
    std::uint64_t call_count = 0;
    std::uint64_t value_count = 0;
    std::uint32_t unprobed_calls = 0;
    std::uint64_t unread_calls = 0; ///< set when the step ends
    bool has_gram = false;
    std::uint64_t due = 0; ///< bit 0: the statistics are taken; bit 1 + i: part i looks at the step
    std::vector<probed_call> calls;
    std::vector<expected_value> expected;
    typename Device::template host_buffer<write_values::source> values; ///< the device reads them
    typename Device::template buffer<statistics> read_values;
    typename Device::template host_buffer<std::uint64_t> gradients; ///< a bit for each call; the device reads them
    typename Device::template host_buffer<std::uint64_t> places; ///< of the calls; the device reads them
    /// A `step_header`, then entries. Entries of parts are zero at the begin of a step.
    typename Device::template buffer<unsigned char> message;
    typename Device::template buffer<unsigned char> report; ///< a `step_report`
};

/// The scratch memory and events of a step's calls. Steps that are not captured share one set. Each captured step has
/// its own set: its graph keeps the addresses, and events inside and outside a capture must not wait for each other.
template <class Device, class... Parts>
struct step_tools {
    step_tools(const step_report::shape& form, const probe_options& options, const Parts&... of)
        : lanes(options.streams),
          part_memory(typename detail::part_memory<Parts, Device>::type(of, static_cast<int>(form.ranks))...)
    {
        const auto room = static_cast<std::uint64_t>(options.calls);
        if (form.mode == report_mode::summary) {
            references = typename Device::template buffer<std::uint64_t>(step_report::reference_bytes(room) / 8);
        }
        if (form.room_for_gram) {
            const std::uint64_t least = 16 * form.ranks; // two 8-byte elements from each rank
            gram_scratch = typename Device::template buffer<unsigned char>(
                options.scratch_bytes > least ? options.scratch_bytes : least);
        }
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        Device::fill(stream, view<std::uint64_t>(references), 0, where); // the bits of 0.0
    }
    step_reference* reference() const noexcept { return reinterpret_cast<step_reference*>(references.data()); }

    stream_lanes<Device> lanes;
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by calls on all streams
    typename Device::template buffer<std::uint64_t> references; ///< as in a `step_report`
    std::tuple<typename detail::part_memory<Parts, Device>::type...> part_memory;
};

/// A captured step: its work is in a graph.
template <class Device, class... Parts>
struct captured_work {
    captured_work(const step_report::shape& form, const probe_options& options, const Parts&... of)
        : block(form, static_cast<std::uint64_t>(options.calls)), tools(form, options, of...), tickets(1)
    {
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        tools.initialise(stream, where);
        block.initialise(stream, where);
        Device::for_each(stream, 1, write_tickets{tickets.data(), {}});
    }

    step_buffers<Device> block;
    step_tools<Device, Parts...> tools;
    typename Device::template buffer<replay_tickets> tickets;
    typename Device::event replayed; ///< the end of the last replay, recorded outside the capture
    std::uint64_t serial = 0; ///< number of this captured step among all of the process; 0 while the slot is free
    unsigned long long capture = 0; ///< number of the capture that it is recorded in
    std::uint64_t unjudged = 0; ///< replays whose reports were not read yet
};

/// A step whose report is on its way to the host. Its calls write `own`, or `from->block` for a captured step.
template <class Device, class... Parts>
struct step_in_flight {
    step_in_flight(const step_report::shape& form, std::uint64_t room)
        : own(form, room), host(step_report::room_bytes(form, room))
    {
        clear_host();
    }
    void clear_host() noexcept { std::memset(host.data(), 0, host.size()); }
    const step_buffers<Device>& seen() const noexcept { return from == nullptr ? own : from->block; }

    step_buffers<Device> own;
    std::vector<step_buffers<Device>> outgrown; ///< what calls of the step still write, until they are copied to `own`
    typename Device::template host_buffer<unsigned char> host; ///< the report
    captured_work<Device, Parts...>* from = nullptr;
    std::uint64_t step = 0;
    call_site where;
    typename Device::event done;
    bool disturbed = false; ///< a launch threw: work that writes `host` may be enqueued before `done`
};

/// All memory that enqueued work uses.
template <class Device, class... Parts>
struct step_memory {
    step_memory(const step_report::shape& form, const probe_options& options, call_site where, const Parts&... of)
        : tools(form, options, of...)
    {
        const auto room = static_cast<std::uint64_t>(options.calls);
        for (int i = 0; i < options.steps_in_flight; ++i) ring.emplace_back(form, room);
        if constexpr (can_capture<typename Device::stream_ref>) {
            captured.reserve(static_cast<std::size_t>(options.captured_steps));
            for (int i = 0; i < options.captured_steps; ++i) captured.emplace_back(form, options, of...);
        }
        const typename Device::stream stream;
        tools.initialise(stream, where);
        for (auto& slot : ring) slot.own.initialise(stream, where);
        for (auto& work : captured) work.initialise(stream, where);
        stream.synchronize(where);
    }

    /// Makes room for the references of more calls, behind the reports, which are their only users.
    void grow_references(std::uint64_t room, typename Device::stream_ref stream, call_site where)
    {
        const std::uint64_t words = step_report::reference_bytes(room) / 8;
        if (tools.references.size() >= words) return;
        typename Device::template buffer<std::uint64_t> larger(words);
        outgrown_references.reserve(outgrown_references.size() + 1);
        if (reported.recorded()) stream.wait(reported, where);
        Device::fill(stream, view<std::uint64_t>(larger), 0, where);
        Device::copy(stream, view<const std::uint64_t>(view<std::uint64_t>(tools.references)),
            view<std::uint64_t>(larger.data(), tools.references.size()), where);
        outgrown_references.push_back(std::move(tools.references));
        tools.references = std::move(larger);
    }

    bool finished_by(deadline until) const noexcept
    {
        for (const captured_work<Device, Parts...>& work : captured) {
            if (!detail::finished_by(until, work.replayed)) return false;
        }
        return tools.lanes.finished_by(until) && detail::finished_by(until, reported);
    }

    std::vector<step_in_flight<Device, Parts...>> ring; ///< the k-th step uses slot k % size
    step_tools<Device, Parts...> tools; ///< shared by all steps that are not captured
    std::vector<captured_work<Device, Parts...>> captured;
    typename Device::event reported; ///< the last `end_step`
    std::vector<typename Device::template buffer<std::uint64_t>> outgrown_references; ///< few: each is twice the last
};

} // namespace collprobe::detail
