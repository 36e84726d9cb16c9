// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/element.hpp>

namespace collprobe::detail {

/// The dot product of two runs of elements, in double: products of 16-bit and 32-bit elements are
/// exact there. Element k adds to partial sum k mod 8 and the eight are added in a fixed order, so
/// the bits depend on nothing but the elements.
template <element T>
COLLPROBE_HD inline double dot(const T* x, const T* y, std::uint64_t count) noexcept
{
    double lanes[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    std::uint64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        for (std::uint64_t lane = 0; lane < 8; ++lane) {
            lanes[lane] += static_cast<double>(x[k + lane]) * static_cast<double>(y[k + lane]);
        }
    }
    for (; k < count; ++k) lanes[k % 8] += static_cast<double>(x[k]) * static_cast<double>(y[k]);
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

} // namespace collprobe::detail
