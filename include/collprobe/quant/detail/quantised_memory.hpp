// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What identifies the errors that a call keeps.
struct feedback_layout {
    std::uint32_t call = 0; ///< `collective`
    std::uint32_t type = 0; ///< `element_type`
    std::uint64_t count = 0;
    std::uint64_t piece = 0; ///< elements of a slice in the first piece: the places of errors depend on it
    std::uint64_t input = 0; ///< errors kept: of the first rounding, of the node's sum, of the result
    std::uint64_t node = 0;
    std::uint64_t result = 0;

    friend bool operator==(const feedback_layout&, const feedback_layout&) = default;
    std::uint64_t numbers() const noexcept { return input + node + result; }
};

/// The errors that one call of a step keeps for the next step.
template <class Device>
struct feedback_memory {
    feedback_layout layout;
    typename Device::template buffer<float> errors;

    float* input() const noexcept { return layout.input == 0 ? nullptr : errors.data(); }
    float* node() const noexcept { return layout.node == 0 ? nullptr : errors.data() + layout.input; }
    float* result() const noexcept
    {
        return layout.result == 0 ? nullptr : errors.data() + layout.input + layout.node;
    }
};

/// The memory and streams of a `quantised` communicator. The scratch memory holds two pieces, each with two
/// areas of equal size.
template <class Device>
struct quantised_memory {
    /// `places`: for each node and local rank in it the rank in the world, node by node; then, for each node,
    /// the rank with this rank's local rank. Empty without groups.
    quantised_memory(std::uint64_t bytes, const std::vector<std::uint32_t>& places, std::size_t own)
        : scratch(bytes / 4 / 64 * 64 * 4),
          step(1),
          errors(1),
          on_host(places.size()),
          slices(places.size()),
          own_slices(places.empty() ? nullptr : slices.data() + own)
    {
        Device::load_kernels();
        for (std::size_t i = 0; i < places.size(); ++i) on_host.data()[i] = places[i];
        if (!places.empty()) {
            Device::copy(
                sums, view<const std::uint32_t>(on_host.data(), on_host.size()), view<std::uint32_t>(slices));
        }
        Device::zero(sums, view<std::uint64_t>(step));
        use.done.record(sums);
    }

    std::uint64_t area_bytes() const noexcept { return scratch.size() / 4; }
    unsigned char* area(int slot, int which) const noexcept
    {
        return scratch.data() + static_cast<std::uint64_t>(2 * slot + which) * area_bytes();
    }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, use.done); }

    typename Device::template buffer<unsigned char> scratch;
    typename Device::template buffer<std::uint64_t> step;
    typename Device::template buffer<quantised_errors> errors; ///< of calls whose errors nobody wants
    typename Device::template host_buffer<std::uint32_t> on_host;
    typename Device::template buffer<std::uint32_t> slices;
    const std::uint32_t* own_slices;
    std::vector<feedback_memory<Device>> feedback; ///< by the call's place in a step
    std::vector<feedback_memory<Device>> dropped; ///< of calls that may be under way
    typename Device::template buffer<std::uint64_t> digests[2]; ///< of messages, on the call's stream and on `sums`
    typename Device::stream sums;
    typename Device::workspace call_workspace; ///< for reductions on the call's stream
    typename Device::workspace sums_workspace;
    typename Device::event begun;
    typename Device::event arrived[2];
    typename Device::event summed[2];
    ordered_use<Device> use;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
