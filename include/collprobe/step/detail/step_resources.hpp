// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/gram.hpp>
#include <collprobe/step/detail/report_exchange.hpp>
#include <collprobe/step/probe_options.hpp>

/// The scratch memory and events of a step's calls. Steps that are not captured share one set. Each captured step has
/// its own: its graph keeps the addresses, and events inside and outside a capture must not wait for each other.
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

/// The memory of a probe's parts for the calls of a step.
struct part_memories : ref_counted {
    virtual ~part_memories() = default;
    virtual void clear() noexcept = 0;
    /// Calls of the step from this index on were not made in the end.
    virtual void forget(std::uint64_t first) noexcept = 0;
};

template <class Device>
struct step_resources {
    using stream_ref = typename Device::stream_ref;

    step_resources(
        const step_report::shape& form, const probe_options& options, ref<part_memories> of_parts, call_site where)
        : lanes(options.streams), exchange(form, static_cast<std::uint64_t>(options.calls), where),
          parts(std::move(of_parts))
    {
        const std::uint64_t least = 16 * form.ranks; // two 8-byte elements from each rank
        if (form.room_for_gram)
            gram_scratch = typename Device::template buffer<unsigned char>(larger(options.scratch_bytes, least));
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
    typename Device::template buffer<unsigned char> gram_scratch;
    typename Device::event gram_done; ///< scratch and matrix are shared by calls on all streams
};

} // namespace collprobe::detail
