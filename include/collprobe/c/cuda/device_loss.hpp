// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/view.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/step/observation.hpp>

namespace collprobe::inline COLLPROBE_ABI::c {

/// What a rank knows of a step whose loss is in memory of its GPU: a copy, because the exchange reads it later.
class device_loss {
public:
    /// Copies the loss on `on`. The numbers last until five steps later.
    device_observation read(const step_observation& seen, const float* loss, cuda::stream_ref on)
    {
        const std::uint64_t at = steps_++ % slots;
        double* const known = numbers_.data() + 2 * at;
        known[0] = seen.weight;
        known[1] = seen.gradient_norm;
        cuda::device::copy(on, view<const float>(loss, 1), view<float>(losses_.data() + at, 1), call_site{});
        device_observation out;
        out.loss = losses_.data() + at;
        out.weight = static_cast<const double*>(known);
        out.gradient_norm = static_cast<const double*>(known + 1);
        return out;
    }

private:
    static constexpr std::uint64_t slots = 5; ///< more than steps can be under way
    cuda::buffer<float> losses_{slots};
    cuda::pinned_buffer<double> numbers_{2 * slots};
    std::uint64_t steps_ = 0;
};

} // namespace collprobe::c
