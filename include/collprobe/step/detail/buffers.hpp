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

/// The calls of one step, and the memory that they write. Entries are in pieces that stay where they are while the step
/// is open; when it ends they are brought together in one, which the next step begins with.
template <class Device>
struct step_buffers {
    using stream_ref = typename Device::stream_ref;
    using bytes = typename Device::template buffer<unsigned char>;

    /// A message (message.hpp) of the calls from `first` on. Entries of parts are zero at the begin of a step.
    struct piece {
        bytes message;
        std::uint64_t first = 0;
        std::uint64_t room = 0;
    };
    struct entry_place {
        unsigned char* message;
        std::uint64_t index; ///< in it
    };

    step_buffers(const step_report::shape& form, std::uint64_t room)
        : layout(form.layout),
          expected(form.room_for_values),
          values(form.room_for_values),
          read_values(form.room_for_values),
          gram(form.room_for_gram ? form.ranks * form.ranks : 0)
    {
        pieces.push_back({bytes(form.with_values(form.room_for_values).layout.bytes(room)), 0, room});
        make_room_on_host(room);
    }

    void initialise(stream_ref stream, call_site where)
    {
        if (layout.part_bytes != 0) Device::zero(stream, view<unsigned char>(pieces.front().message), where);
    }

    void clear() noexcept
    {
        call_count = 0;
        value_count = 0;
        unprobed_calls = 0;
        has_gram = false;
        is_refused = false;
    }
    std::uint64_t room() const noexcept { return calls.size(); }
    /// Makes room for as many calls again, at most for `most`.
    void add_piece(std::uint64_t most, call_site where)
    {
        const std::uint64_t more = room() < most - room() ? room() : most - room();
        piece next{bytes(layout.bytes(more)), room(), more};
        if (layout.part_bytes != 0) {
            const typename Device::stream fresh;
            Device::zero(fresh, view<unsigned char>(next.message), where);
            fresh.synchronize(where);
        }
        pieces.reserve(pieces.size() + 1);
        make_room_on_host(room() + more);
        pieces.push_back(std::move(next));
    }
    /// Brings all entries together, behind the step's work. What they leave, and work still reads, goes to `left`.
    void join_pieces(const step_report::shape& form, stream_ref stream, std::vector<bytes>& left, call_site where)
    {
        if (pieces.size() == 1) return;
        left.reserve(left.size() + pieces.size() + 1);
        piece whole{bytes(form.with_values(form.room_for_values).layout.bytes(room())), 0, room()};
        try {
            if (layout.part_bytes != 0) Device::zero(stream, view<unsigned char>(whole.message), where);
            for (const piece& each : pieces) {
                if (each.first >= call_count) break;
                const std::uint64_t here = call_count - each.first < each.room ? call_count - each.first : each.room;
                const std::uint64_t begin = layout.bytes(0);
                const std::uint64_t count = layout.bytes(here) - begin;
                Device::copy(stream, view<const unsigned char>(each.message.data() + begin, count),
                    view<unsigned char>(whole.message.data() + layout.bytes(each.first), count), where);
            }
        } catch (...) {
            left.push_back(std::move(whole.message));
            throw;
        }
        for (piece& each : pieces) left.push_back(std::move(each.message));
        pieces.clear();
        pieces.push_back(std::move(whole));
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
    /// Where the entry of a call is while the step is open.
    entry_place at(std::uint64_t call_index) const noexcept
    {
        const piece* of = &pieces.back();
        while (call_index < of->first) --of;
        return {of->message.data(), call_index - of->first};
    }
    call_entry& entry(std::uint64_t call_index) const noexcept
    {
        const entry_place here = at(call_index);
        return layout.entry(here.message, here.index);
    }
    call_times& times(std::uint64_t call_index) const noexcept
    {
        const entry_place here = at(call_index);
        return layout.times_of(here.message, here.index);
    }
    /// What the read of a call's input, or of its result, notes.
    reduction_times input_times(std::uint64_t call_index) const noexcept
    {
        return {nullptr, layout.times ? &times(call_index).entered : nullptr};
    }
    reduction_times result_times(std::uint64_t call_index) const noexcept
    {
        return {layout.times ? &times(call_index).left : nullptr, nullptr};
    }
    /// Makes the entries from one call to another as they were before the calls.
    void zero_entries(std::uint64_t first, std::uint64_t end, stream_ref stream, call_site where)
    {
        for (const piece& each : pieces) {
            if (end <= each.first || first >= each.first + each.room) continue;
            const std::uint64_t from = layout.bytes(first > each.first ? first - each.first : 0);
            const std::uint64_t to = layout.bytes(end - each.first < each.room ? end - each.first : each.room);
            Device::zero(stream, view<unsigned char>(each.message).part(from, to - from), where);
        }
    }
    /// The step's message. Precondition: one piece.
    unsigned char* message() const noexcept { return pieces.front().message.data(); }

private:
    void make_room_on_host(std::uint64_t room)
    {
        // No device reads them before the step ends.
        enlarge(gradients, (room + 63) / 64);
        enlarge(places, room);
        calls.resize(room);
    }
    static void enlarge(typename Device::template host_buffer<std::uint64_t>& words, std::uint64_t count)
    {
        typename Device::template host_buffer<std::uint64_t> larger(count);
        if (words.size() != 0) std::memcpy(larger.data(), words.data(), words.size() * sizeof(std::uint64_t));
        words = std::move(larger);
    }

public:
    message_layout layout;
    std::uint64_t call_count = 0;
    std::uint64_t value_count = 0;
    std::uint32_t unprobed_calls = 0;
    std::uint64_t unread_calls = 0; ///< set when the step ends
    bool has_gram = false;
    bool is_refused = false; ///< a call beyond the largest step has thrown
    std::uint64_t due = 0; ///< bit 0: the statistics are taken; bit 1 + i: part i looks at the step
    std::vector<probed_call> calls; ///< as many as there is room for
    std::vector<expected_value> expected;
    typename Device::template host_buffer<write_values::source> values; ///< the device reads them
    typename Device::template buffer<statistics> read_values;
    typename Device::template buffer<double> gram; ///< of this rank's share of the gradients, for exact direction
    typename Device::template host_buffer<std::uint64_t> gradients; ///< a bit for each call; the device reads them
    typename Device::template host_buffer<std::uint64_t> places; ///< of the calls; the device reads them
    std::vector<piece> pieces;
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
            references = typename Device::template buffer<unsigned char>(step_report::reference_bytes(room));
        }
        if (form.room_for_gram) {
            const std::uint64_t least = 16 * form.ranks; // two 8-byte elements from each rank
            gram_scratch = typename Device::template buffer<unsigned char>(
                options.scratch_bytes > least ? options.scratch_bytes : least);
        }
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        Device::zero(stream, view<unsigned char>(references), where); // the bits of 0.0
    }
    step_reference* reference() const noexcept { return reinterpret_cast<step_reference*>(references.data()); }

    stream_lanes<Device> lanes;
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by calls on all streams
    typename Device::template buffer<unsigned char> references; ///< as in a `step_report`
    std::tuple<typename detail::part_memory<Parts, Device>::type...> part_memory;
};

/// A captured step: its work is in a graph.
template <class Device, class... Parts>
struct captured_work {
    captured_work(const step_report::shape& form, const probe_options& options, const Parts&... of)
        : block(form, static_cast<std::uint64_t>(options.calls)), tools(form, options, of...), tickets(1),
          report(step_report::room_bytes(form, block.room()))
    {
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        tools.initialise(stream, where);
        block.initialise(stream, where);
        Device::zero(stream, view<unsigned char>(report), where);
        Device::for_each(stream, 1, write_tickets{tickets.data(), {}});
    }

    step_buffers<Device> block;
    step_tools<Device, Parts...> tools;
    typename Device::template buffer<replay_tickets> tickets;
    typename Device::template buffer<unsigned char> report; ///< a `step_report`
    typename Device::event replayed; ///< the end of the last replay, recorded outside the capture
    std::uint64_t serial = 0; ///< number of this captured step among all of the process; 0 while the slot is free
    unsigned long long capture = 0; ///< number of the capture that it is recorded in
    std::uint64_t unjudged = 0; ///< replays whose reports were not read yet
};

/// A step whose report is on its way to the host. Its calls write `own`, or `from->block` for a captured step.
template <class Device, class... Parts>
struct step_in_flight {
    step_in_flight(const step_report::shape& form, std::uint64_t room) : own(form, room)
    {
        make_room(step_report::room_bytes(form, room));
    }
    /// Precondition: no enqueued work writes `host`.
    void make_room(std::uint64_t count)
    {
        if (host.size() >= count) return;
        host = typename Device::template host_buffer<unsigned char>(count);
        std::memset(host.data(), 0, count);
    }
    const step_buffers<Device>& seen() const noexcept { return from == nullptr ? own : from->block; }

    step_buffers<Device> own;
    /// Memory that was too small for the step, and work still uses; freed when the step has been judged.
    std::vector<typename Device::template buffer<unsigned char>> outgrown;
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
        report = typename Device::template buffer<unsigned char>(step_report::room_bytes(form, room));
        for (int i = 0; i < options.steps_in_flight; ++i) ring.emplace_back(form, room);
        if constexpr (can_capture<typename Device::stream_ref>) {
            captured.reserve(static_cast<std::size_t>(options.captured_steps));
            for (int i = 0; i < options.captured_steps; ++i) captured.emplace_back(form, options, of...);
        }
        const typename Device::stream stream;
        tools.initialise(stream, where);
        Device::zero(stream, view<unsigned char>(report), where); // it may hold a report of an object that was freed
        for (auto& slot : ring) slot.own.initialise(stream, where);
        for (auto& work : captured) work.initialise(stream, where);
        stream.synchronize(where);
    }

    /// Makes room for the report of as many calls as `slot` has room for, behind all reports on `stream`.
    void make_room(step_in_flight<Device, Parts...>& slot, const step_report::shape& form,
        typename Device::stream_ref stream, call_site where)
    {
        using bytes = typename Device::template buffer<unsigned char>;
        const std::uint64_t room = slot.own.room();
        slot.outgrown.reserve(slot.outgrown.size() + 2);
        if (const std::uint64_t count = step_report::room_bytes(form, room); report.size() < count) {
            bytes larger(count);
            slot.outgrown.push_back(std::move(report));
            report = std::move(larger);
            Device::zero(stream, view<unsigned char>(report), where);
        }
        if (form.mode == report_mode::gather) return;
        if (const std::uint64_t count = step_report::reference_bytes(room); tools.references.size() < count) {
            bytes larger(count);
            slot.outgrown.push_back(std::move(tools.references));
            tools.references = std::move(larger);
            const bytes& known = slot.outgrown.back();
            const view<unsigned char> all(tools.references);
            Device::zero(stream, all, where);
            Device::copy(stream, view<const unsigned char>(known), all.part(0, known.size()), where);
        }
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
    typename Device::template buffer<unsigned char> report; ///< a `step_report`; reports come one after the other
};

} // namespace collprobe::detail
