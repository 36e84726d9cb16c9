// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

/// Tracks the streams that a step's work is on, and their progress.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The streams of a step's calls. Each has an event (its progress) and memory for its reductions.
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

    /// The lane of a stream, preferably the lane that the stream had before. When the stream enters the step, it waits
    /// for the lane's last work, on any stream, and `entered()` is called. -1 if all lanes are taken and none may be
    /// added.
    int enter(stream_ref stream, bool may_allocate, call_site where, const auto& entered)
    {
        const stream_id id = stream.id(where);
        lane* unused = nullptr;
        for (lane& known : lanes_) {
            const bool same = known.stream == id;
            if (known.in_step && same) return static_cast<int>(&known - lanes_.data());
            if (!known.in_step && (same || unused == nullptr)) unused = &known;
        }
        if (unused == nullptr) {
            if (!may_allocate) return -1;
            unused = &lanes_.emplace_back();
        }
        if (unused->done.recorded()) stream.wait(unused->done, where);
        unused->stream = id;
        unused->in_step = true;
        entered();
        return static_cast<int>(unused - lanes_.data());
    }
    lane& operator[](int index) noexcept { return lanes_[static_cast<std::size_t>(index)]; }

    /// Lets `stream` wait for the step's work on all other streams.
    void join(stream_ref stream, call_site where) const
    {
        const stream_id id = stream.id(where);
        for (const lane& used : lanes_) {
            const bool is_other = used.in_step && used.stream != id;
            if (is_other && used.done.recorded()) stream.wait(used.done, where);
        }
    }

    void end_step() noexcept { for (lane& used : lanes_) used.in_step = false; }

    /// Ends the step and drops the events: an event of one capture is invalid in the next.
    void forget()
    {
        end_step();
        for (lane& used : lanes_) used.done = {};
    }

    bool finished_by(deadline until) const noexcept
    {
        for (const lane& used : lanes_) {
            if (!detail::finished_by(until, used.done)) return false;
        }
        return true;
    }

private:
    std::vector<lane> lanes_;
};

} // namespace collprobe::detail
