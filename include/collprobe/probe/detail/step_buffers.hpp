// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <collprobe/error.hpp>
#include <collprobe/probe/captured_step.hpp>
#include <collprobe/probe/detail/step_message.hpp>
#include <collprobe/probe/detail/step_report.hpp>
#include <collprobe/view.hpp>

/// The memory of a step, on any device.
namespace collprobe::detail {

/// Whether work on streams of this kind can be captured in a graph.
template <class StreamRef>
concept can_capture = requires(StreamRef stream, call_site where) { stream.capturing(where); };

/// Runs `enqueue` and marks with `done` how far the stream is then, also if `enqueue` throws: the
/// buffers must outlive what it has enqueued by then.
template <class Event, class StreamRef, class Enqueue>
void enqueue_marked(Event& done, StreamRef stream, const Enqueue& enqueue)
{
    try {
        enqueue();
    } catch (...) {
        try {
            done.record(stream);
        } catch (...) { // the first error tells more
        }
        throw;
    }
    done.record(stream);
}

/// Waits for the end of work that uses buffers which are about to go; never throws.
template <class Event>
void settle(Event& done) noexcept
{
    if (!done.recorded()) return;
    try {
        done.synchronize();
    } catch (...) { // failed work no longer uses the buffers either
    }
}

/// The streams that the calls of a step are on: how far each is, and memory for reductions on it.
template <class Device>
class stream_lanes {
public:
    using stream_ref = typename Device::stream_ref;

    struct lane {
        std::optional<stream_ref> stream;
        bool in_step = false;
        typename Device::event done;
        typename Device::workspace workspace;
    };

    stream_lanes() = default;
    explicit stream_lanes(int count) : lanes_(static_cast<std::size_t>(count)) {}

    /// The lane of a stream, preferably the one that it had before. A lane's last work comes first,
    /// wherever it was: a stream's handle may be that of one destroyed since. Null if all lanes are
    /// taken and none may be added.
    lane* enter(stream_ref stream, bool may_allocate, call_site where)
    {
        lane* unused = nullptr;
        for (lane& known : lanes_) {
            const bool same = known.stream == stream;
            if (known.in_step && same) return &known;
            if (!known.in_step && (same || unused == nullptr)) unused = &known;
        }
        if (unused == nullptr) {
            if (!may_allocate) return nullptr;
            unused = &lanes_.emplace_back();
        }
        if (unused->done.recorded()) stream.wait(unused->done, where);
        unused->stream = stream;
        unused->in_step = true;
        return unused;
    }

    /// Puts `stream` behind the step's work on all streams.
    void join(stream_ref stream, call_site where) const
    {
        for (const lane& used : lanes_) {
            if (used.in_step && used.stream != stream) stream.wait(used.done, where);
        }
    }

    void end_step() noexcept
    {
        for (lane& used : lanes_) used.in_step = false;
    }

    /// Drops events too: those of one capture mean nothing to the next.
    void forget()
    {
        end_step();
        for (lane& used : lanes_) used.done = {};
    }

    void settle() noexcept
    {
        for (lane& used : lanes_) detail::settle(used.done);
    }

private:
    std::vector<lane> lanes_;
};

/// What the calls of one step write.
template <class Device>
struct step_block {
    step_block(const step_report::shape& form, std::uint64_t room)
        : calls(room), message(message_bytes(room)), report(step_report::bytes(form, room))
    {
    }

    void clear() noexcept
    {
        buckets = 0;
        unprobed_calls = 0;
        has_gram = false;
    }
    bucket_entry& entry(std::uint64_t bucket) const noexcept
    {
        return reinterpret_cast<bucket_entry*>(message.data() + sizeof(step_header))[bucket];
    }

    std::uint64_t buckets = 0;
    std::uint64_t unprobed_calls = 0;
    bool has_gram = false;
    typename Device::template host_buffer<bucket_call> calls; ///< the device reads them too
    typename Device::template buffer<unsigned char> message; ///< a `step_header`, then entries
    typename Device::template buffer<unsigned char> report; ///< a `step_report`
};

/// What the calls of a step compute with. Steps that run as they are called share one set of tools. Each
/// captured step has its own: its graph keeps the addresses, and events inside a capture and outside
/// must not wait for each other.
template <class Device>
struct step_tools {
    step_tools(const step_report::shape& form, std::uint64_t room, int streams, std::uint64_t scratch_bytes)
        : lanes(streams)
    {
        if (form.mode == report_mode::summary) {
            references = typename Device::template buffer<std::uint64_t>(step_report::reference_bytes(room) / 8);
        }
        if (form.room_for_gram) {
            const std::uint64_t least = 16 * form.ranks; // two elements of 8 bytes from each rank
            gram_scratch
                = typename Device::template buffer<unsigned char>(scratch_bytes > least ? scratch_bytes : least);
        }
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        Device::fill(stream, view<std::uint64_t>(references), 0, where); // the bits of 0.0
    }
    step_reference* reference() const noexcept { return reinterpret_cast<step_reference*>(references.data()); }

    stream_lanes<Device> lanes;
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by buckets on all streams
    typename Device::template buffer<std::uint64_t> references; ///< as in a `step_report`
};

/// A step whose work is in a graph.
template <class Device>
struct captured_work {
    captured_work(const step_report::shape& form, std::uint64_t room, int streams, std::uint64_t scratch_bytes)
        : block(form, room), tools(form, room, streams, scratch_bytes), tickets(1)
    {
    }

    void initialise(typename Device::stream_ref stream, call_site where)
    {
        tools.initialise(stream, where);
        Device::for_each(stream, 1, write_tickets{tickets.data(), {}});
    }

    step_block<Device> block;
    step_tools<Device> tools;
    typename Device::template buffer<replay_tickets> tickets;
    typename Device::event replayed; ///< the last replay, outside the capture
    std::uint64_t serial = 0; ///< which capture this is, of all; 0 while nobody has it
    std::uint64_t unjudged = 0; ///< replays whose reports were not read yet
};

} // namespace collprobe::detail
