// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The dot product of two runs of elements, in double. Products of 16-bit and 32-bit elements are exact there.
/// Element k adds to partial sum k mod 8, and the eight partial sums are added in a fixed order, so the bits depend
/// on the elements alone.
///
/// With more than one lane: the part of lane `lane`, that is of the elements `lane`, `lane + lanes` and so on.
template <element T>
COLLPROBE_HD inline double dot(
    const T* x, const T* y, std::uint64_t count, unsigned lane = 0, unsigned lanes = 1) noexcept
{
    double sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    std::uint64_t k = lane;
    const std::uint64_t step = std::uint64_t{8} * lanes;
    for (; k + 7 * std::uint64_t{lanes} < count; k += step) {
        for (unsigned i = 0; i < 8; ++i) {
            const std::uint64_t at = k + i * std::uint64_t{lanes};
            sums[i] += widen(x[at]) * widen(y[at]);
        }
    }
    for (unsigned i = 0; i < 8; ++i) {
        const std::uint64_t at = k + i * std::uint64_t{lanes};
        if (at < count) sums[i] += widen(x[at]) * widen(y[at]);
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

} // namespace collprobe::detail
