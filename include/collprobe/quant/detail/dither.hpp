// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/detail/philox.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The random bits of one quantisation: a function of the seed, the step, the call, the phase of the call,
/// the rank and the element. So they do not depend on how a kernel is launched or a buffer is cut, and differ
/// between ranks and steps.
struct dither {
    std::uint64_t seed = 0;
    const std::uint64_t* step
        = nullptr; ///< in the device's memory, so that a captured graph reads a new one each time
    std::uint32_t rank = 0;
    std::uint32_t call = 0; ///< 8 times the call's number in its step, plus the phase

    COLLPROBE_HD std::uint64_t key() const noexcept
    {
        return mix64(seed ^ mix64((step == nullptr ? 0 : *step) + 0x9e3779b97f4a7c15u));
    }
    /// The bits of elements 8 * `eighth` to 8 * `eighth` + 7.
    COLLPROBE_HD philox of_eight(std::uint64_t key, std::uint64_t eighth) const noexcept
    {
        return philox::of(
            static_cast<std::uint32_t>(eighth), static_cast<std::uint32_t>(eighth >> 32), rank, call, key);
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
