// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/quant/detail/quantised_memory.hpp>
#include <collprobe/quant/format.hpp>

/// The state of a `quantised` communicator as bytes, in the byte order of the machine:
///
///     [state_header][feedback_layout][errors: floats][feedback_layout][errors] ...
namespace collprobe::inline COLLPROBE_ABI::detail {

/// What the kept errors of a rank belong to. Errors that belong to anything else are of no use.
struct state_owner {
    static constexpr int members = 14;
    static constexpr const char* names[members]
        = {"size", "rank", "ranks_per_node", "the placement of ranks on nodes", "block", "within.format",
            "across.format", "within.rule", "across.rule", "within.scale", "across.scale", "within.feedback",
            "across.feedback", "the seed of the rotation"};
    std::uint64_t values[members];

    /// `places`: as for `quantised_memory`.
    static state_owner of(int ranks, int rank, int ranks_per_node, view<const std::uint32_t> places,
        const quantisation& within, const quantisation& across) noexcept
    {
        const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
        std::uint64_t placement = 0;
        for (const std::uint32_t place : places) placement = mix64(placement + place + 1);
        return {{number(ranks), number(rank), number(ranks_per_node), placement, within.block,
            number(within.format), number(across.format), number(within.rule), number(across.rule),
            number(within.scale), number(across.scale), number(within.feedback), number(across.feedback),
            within.rotate ? mix64(within.seed) | 1 : 0}};
    }
    /// The first member that differs, with both values; empty if none does.
    std::string difference(const state_owner& saved) const
    {
        for (int i = 0; i < members; ++i) {
            if (values[i] == saved.values[i]) continue;
            return std::string(names[i]) + " is " + std::to_string(values[i]) + ", and "
                + std::to_string(saved.values[i]) + " in the saved state";
        }
        return {};
    }
};

struct state_header {
    static constexpr std::uint64_t right_mark = 0x31'74'61'74'73'71'70'63; // "cpqstat1"
    std::uint64_t mark = right_mark;
    std::uint64_t step = 0;
    std::uint64_t calls = 0;
    state_owner owner{};
};
static_assert(std::is_trivially_copyable_v<state_header> && sizeof(state_header) % 8 == 0);
static_assert(std::has_unique_object_representations_v<feedback_layout>);

/// A saved state in the caller's memory.
struct state_reader {
    struct saved_call {
        feedback_layout layout;
        std::size_t errors; ///< where they stand, in bytes
    };
    state_header header;
    std::vector<saved_call> calls;

    /// Returns what is wrong with the bytes; empty if they are a state.
    std::string read(view<const std::uint8_t> state)
    {
        if (state.count() < sizeof header) return "the state is shorter than its header";
        std::memcpy(&header, state.data(), sizeof header);
        if (header.mark != state_header::right_mark) return "the bytes are no state that save has returned";
        std::uint64_t at = sizeof header;
        for (std::uint64_t i = 0; i < header.calls; ++i) {
            saved_call call{};
            if (state.count() - at < sizeof call.layout) return "the state ends in its middle";
            std::memcpy(&call.layout, state.data() + at, sizeof call.layout);
            at += sizeof call.layout;
            const std::uint64_t left = (state.count() - at) / sizeof(float);
            const feedback_layout& of = call.layout;
            if (of.input > left || of.node > left - of.input || of.result > left - of.input - of.node)
                return "the state ends in its middle";
            call.errors = static_cast<std::size_t>(at);
            at += of.numbers() * sizeof(float);
            calls.push_back(call);
        }
        return at == state.count() ? "" : "the state has bytes behind its end";
    }
};

/// Host memory that a state is copied to or from.
template <class Device>
struct state_memory {
    explicit state_memory(std::uint64_t count) : bytes(count) {}
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }
    template <class T>
    view<T> at(std::uint64_t offset, std::uint64_t count) const noexcept
    {
        return {reinterpret_cast<T*>(bytes.data() + offset), count};
    }

    typename Device::template host_buffer<unsigned char> bytes;
    typename Device::event done;
};

/// Copies the state to host memory, in the order of `on`. Returns it; it is there when the work is done.
template <class Device, class StreamRef>
in_flight<state_memory<Device>> save_state(const quantised_memory<Device>& from, const state_owner& owner,
    std::int64_t timeout_ms, StreamRef on, call_site where)
{
    std::uint64_t bytes = sizeof(state_header);
    for (const auto& call : from.feedback) bytes += sizeof call.layout + 4 * call.layout.numbers();
    in_flight<state_memory<Device>> to(timeout_ms, bytes);
    const state_header header{.calls = from.feedback.size(), .owner = owner};
    std::memcpy(to->bytes.data(), &header, sizeof header);
    enqueue_marked(to->done, on, [&] {
        Device::copy(on, view<const std::uint64_t>(from.step),
            to->template at<std::uint64_t>(offsetof(state_header, step), 1), where);
        std::uint64_t at = sizeof header;
        for (const auto& call : from.feedback) {
            std::memcpy(to->bytes.data() + at, &call.layout, sizeof call.layout);
            at += sizeof call.layout;
            Device::copy(
                on, view<const float>(call.errors), to->template at<float>(at, call.layout.numbers()), where);
            at += 4 * call.layout.numbers();
        }
    });
    return to;
}

/// Takes over the errors of the calls, or, if they do not fit, marks the calls so that the next ones say that
/// they were dropped. Memory of equal layout stays where it is, because a graph may use it.
template <class Device, class StreamRef>
in_flight<state_memory<Device>> restore_state(quantised_memory<Device>& to, const state_reader& state,
    view<const std::uint8_t> bytes, bool fits, std::int64_t timeout_ms, StreamRef on, call_site where)
{
    in_flight<state_memory<Device>> from(timeout_ms, bytes.count());
    std::memcpy(from->bytes.data(), bytes.data(), bytes.count());
    enqueue_marked(from->done, on, [&] {
        Device::copy(on,
            view<const std::uint64_t>(from->template at<std::uint64_t>(offsetof(state_header, step), 1)),
            view<std::uint64_t>(to.step), where);
        if (to.feedback.size() < state.calls.size()) to.feedback.resize(state.calls.size());
        for (std::size_t i = 0; i < to.feedback.size(); ++i) {
            feedback_memory<Device>& call = to.feedback[i];
            const bool used = fits && i < state.calls.size();
            const feedback_layout wanted = used ? state.calls[i].layout : feedback_layout();
            if (!used || call.layout != wanted) {
                if (call.errors.size() != 0) to.dropped.push_back(std::move(call));
                call = {};
                call.unfit = i < state.calls.size() && !fits && state.calls[i].layout != feedback_layout();
            }
            call.layout = wanted;
            if (wanted.numbers() == 0) continue;
            if (call.errors.size() == 0)
                call.errors = typename Device::template buffer<float>(wanted.numbers());
            Device::copy(on,
                view<const float>(from->template at<float>(state.calls[i].errors, wanted.numbers())),
                view<float>(call.errors), where);
        }
    });
    return from;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
