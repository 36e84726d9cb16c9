// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/detail/wait.hpp>
#include <collprobe/error.hpp>

/// Which streams work is on, and how far they are with it.
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

/// Waits for the end of work that uses buffers which are about to go; never throws. False if work is
/// left at the deadline.
template <class Event>
bool settle(const Event& done, deadline until) noexcept
{
    if (!done.recorded()) return true;
    try {
        done.synchronize(until.is_never() ? -1 : (until.remaining_ns() + 999'999) / 1'000'000);
        return true;
    } catch (...) { // time is over, or the work failed
    }
    try {
        return done.query();
    } catch (...) {
        return true; // failed work no longer uses the buffers either
    }
}

/// The streams that the calls of a step are on: how far each is, and memory for reductions on it.
template <class Device>
class stream_lanes {
public:
    using stream_ref = typename Device::stream_ref;
    using stream_id = std::remove_cvref_t<decltype(std::declval<stream_ref>().id(call_site()))>;

    struct lane {
        stream_id stream = {};
        bool in_step = false;
        typename Device::event done;
        typename Device::workspace workspace;
    };

    stream_lanes() = default;
    explicit stream_lanes(int count) : lanes_(static_cast<std::size_t>(count)) {}

    /// The lane of a stream, preferably the one that it had before. A lane's last work comes first,
    /// wherever it was. Null if all lanes are taken and none may be added.
    lane* enter(stream_ref stream, bool may_allocate, call_site where)
    {
        const stream_id id = stream.id(where);
        lane* unused = nullptr;
        for (lane& known : lanes_) {
            const bool same = known.stream == id;
            if (known.in_step && same) return &known;
            if (!known.in_step && (same || unused == nullptr)) unused = &known;
        }
        if (unused == nullptr) {
            if (!may_allocate) return nullptr;
            unused = &lanes_.emplace_back();
        }
        if (unused->done.recorded()) stream.wait(unused->done, where);
        unused->stream = id;
        unused->in_step = true;
        return unused;
    }

    /// Puts `stream` behind the step's work on all streams.
    void join(stream_ref stream, call_site where) const
    {
        const stream_id id = stream.id(where);
        for (const lane& used : lanes_) {
            if (used.in_step && used.stream != id) stream.wait(used.done, where);
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

    bool settle(deadline until) const noexcept
    {
        bool settled = true;
        for (const lane& used : lanes_) settled = detail::settle(used.done, until) && settled;
        return settled;
    }

private:
    std::vector<lane> lanes_;
};

} // namespace collprobe::detail
