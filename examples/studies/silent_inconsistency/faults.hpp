// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "../digits/random.hpp"

namespace trainer {

/// What a broken rank does to the gradient that it sends.
enum class fault_kind {
    scale, ///< multiplies it, as a forgotten division by the batch does
    drift, ///< multiplies it by more in each step, as a device does that fails slowly
    noise, ///< adds Gaussian noise, as a broken multiplier may
    stale, ///< sends the buffer of the step before, as a missing stream dependency does
    duplicate, ///< trains on the samples and the dropout seed of the next rank
    nan, ///< has one NaN
};

struct fault {
    int rank = 0;
    fault_kind kind = fault_kind::scale;
    std::uint64_t at = 0; ///< the first step
    std::uint64_t steps = 1; ///< how many from then on
    /// Of `scale`; of `drift` what a step adds to a factor of 1; noise norm by gradient norm of `noise`.
    double factor = 0;
    std::optional<std::size_t> bucket; ///< the only one to damage; all without it (`nan`: the first)

    bool hits(int on_rank, std::uint64_t step, std::size_t on_bucket) const
    {
        if (on_rank != rank || step < at || step - at >= steps) return false;
        if (kind == fault_kind::nan) return on_bucket == bucket.value_or(0);
        return !bucket || *bucket == on_bucket;
    }
};

/// Damages a gradient on its way into the send buffer: `gradient` is the true one. The other kinds are
/// not a matter of values (see `rank_trainer`).
inline void damage(const fault& which, std::uint64_t step, std::vector<float>& gradient, std::uint64_t seed)
{
    const double grown = 1 + which.factor * static_cast<double>(step - which.at + 1);
    switch (which.kind) {
    case fault_kind::scale:
    case fault_kind::drift:
        for (float& value : gradient) {
            const double factor = which.kind == fault_kind::drift ? grown : which.factor;
            value = static_cast<float>(factor * static_cast<double>(value));
        }
        break;
    case fault_kind::noise: {
        double squares = 0;
        for (const float value : gradient) squares += static_cast<double>(value) * static_cast<double>(value);
        const double deviation = which.factor * std::sqrt(squares / static_cast<double>(gradient.size()));
        random_stream random(seed);
        for (float& value : gradient) {
            value = static_cast<float>(static_cast<double>(value) + deviation * random.normal());
        }
        break;
    }
    case fault_kind::nan: gradient[gradient.size() / 2] = std::numeric_limits<float>::quiet_NaN(); break;
    case fault_kind::stale:
    case fault_kind::duplicate: break;
    }
}

} // namespace trainer
