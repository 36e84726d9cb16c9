// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The dependence of a reduction on the order of its terms, measured on a sample of its elements: see `order_meter`.
struct order_sensitivity {
    std::uint64_t elements = 0; ///< in the sample; 0 if nothing was measured
    std::uint64_t nonfinite = 0; ///< sampled, but left out: exact sum, result or the sum of an order is not finite
    std::uint64_t orders = 0; ///< how many orders were compared
    std::uint64_t changed = 0; ///< elements whose bits are not the same in all orders
    std::uint64_t max_ulp_spread = 0; ///< largest distance of the sums of one element in two orders
    /// Error of the communicator's own result against the correctly rounded one, in units in the last place.
    double rms_ulp_error = 0;
    double max_ulp_error = 0;
};

} // namespace collprobe
