// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/comm/sliced_exchange.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What identifies the residuals that a call keeps.
struct feedback_layout {
    std::uint32_t call = 0; ///< `collective`
    std::uint32_t type = 0; ///< `element_type`
    std::uint64_t count = 0;
    std::uint64_t piece = 0; ///< elements of a slice in the first piece: the places of residuals depend on it
    std::uint64_t input = 0; ///< residuals kept: of the first rounding, of the node's sum, of the result
    std::uint64_t node = 0;
    std::uint64_t result = 0;

    friend bool operator==(const feedback_layout&, const feedback_layout&) = default;
};

/// The residuals that one call of a step keeps for the next step.
template <class Device>
struct feedback_memory {
    feedback_layout layout;
    typename Device::template buffer<float> residuals;

    /// Those of a kind, from the slices' element `before` on; null if none are kept.
    float* input(std::uint64_t before) const noexcept { return of(layout.input, 0, before); }
    float* node(std::uint64_t before) const noexcept { return of(layout.node, layout.input, before); }
    float* result(std::uint64_t before) const noexcept
    {
        return of(layout.result, layout.input + layout.node, before);
    }

private:
    float* of(std::uint64_t kept, std::uint64_t first, std::uint64_t before) const noexcept
    {
        return kept == 0 ? nullptr : residuals.data() + first + before;
    }
};

/// The memory and streams of a `quantised` communicator. Each slot of its scratch memory has two areas of equal size,
/// for what leaves and for what arrives.
template <class Device>
struct quantised_memory : exchange_memory<Device> {
    /// `ranks_of_places`: see `exchange_levels`; empty without groups.
    quantised_memory(std::uint64_t bytes, const std::vector<std::uint32_t>& ranks_of_places)
        : exchange_memory<Device>(bytes / 4 / 64 * 64 * 4), step(1), errors(1), on_host(ranks_of_places.size()),
          places(ranks_of_places.size())
    {
        for (std::size_t i = 0; i < ranks_of_places.size(); ++i) on_host.data()[i] = ranks_of_places[i];
        if (!ranks_of_places.empty()) {
            Device::copy(this->sums, view<const std::uint32_t>(on_host.data(), on_host.size()),
                view<std::uint32_t>(places));
        }
        Device::zero(this->sums, view<std::uint64_t>(step));
        this->use.done.record(this->sums);
    }

    std::uint64_t area_bytes() const noexcept { return this->slot_bytes() / 2; }

    typename Device::template buffer<std::uint64_t> step;
    typename Device::template buffer<quantised_errors> errors; ///< of calls whose errors nobody wants
    typename Device::template host_buffer<std::uint32_t> on_host;
    typename Device::template buffer<std::uint32_t> places; ///< the rank of each place
    std::vector<feedback_memory<Device>> feedback; ///< by the call's place in a step
    std::vector<feedback_memory<Device>> dropped; ///< of calls that may be under way
    typename Device::template buffer<std::uint64_t> digests[2]; ///< of messages, on the call's stream and on `sums`
    typename Device::workspace call_workspace; ///< for reductions on the call's stream
    typename Device::workspace sums_workspace;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
