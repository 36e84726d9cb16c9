// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/widen.hpp>

namespace collprobe::inline COLLPROBE_ABI {

template <communicator Comm>
class probed;

/// What a rank knows of its step beside the gradients.
struct step_observation {
    double loss = 0; ///< mean loss of the rank's batch
    double weight = 1; ///< how many samples or tokens that mean is over
    std::uint64_t sample_digest = 0; ///< digest of the rank's sample ids; 0 if not given
};

/// A number in memory that the device reads, in single or double precision.
class device_number {
public:
    constexpr device_number() = default;
    constexpr device_number(const float* address) noexcept : single_(address) {}
    constexpr device_number(const double* address) noexcept : double_(address) {}

    COLLPROBE_HD double read(double otherwise) const noexcept
    {
        if (single_ != nullptr) return detail::widen(*single_);
        return double_ != nullptr ? *double_ : otherwise;
    }

private:
    const float* single_ = nullptr;
    const double* double_ = nullptr;
};

/// A `step_observation` in memory that the device reads (for CUDA: its own, pinned or managed) when the
/// stream gets to the end of the step; in a captured step anew at each replay.
struct device_observation {
    device_number loss = {}; ///< none: 0
    device_number weight = {}; ///< none: 1
    const std::uint64_t* sample_digest = nullptr; ///< none: 0
};

/// A step recorded in a graph: what `probed::replay` knows it by. Copy it freely; it owns nothing.
class captured_step {
public:
    captured_step() = default;

private:
    template <communicator Comm>
    friend class probed;
    explicit captured_step(std::uint64_t serial) noexcept : serial_(serial) {}

    std::uint64_t serial_ = 0; ///< of all captured steps of the process; 0 for none
};

} // namespace collprobe
