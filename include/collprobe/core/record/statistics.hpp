// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// "No such index": the first non-finite element of a buffer that has none.
inline constexpr std::uint64_t no_index = ~std::uint64_t{0};

/// The result of one read of a buffer. Moments, norms and extrema are over the finite elements only, so that one NaN
/// does not hide the rest. Integers are converted to double (exact below 2^53).
///
/// Precondition: all ranks are built alike, because statistics travel between ranks as bytes.
struct statistics {
    std::uint64_t count = 0; ///< elements read
    std::uint64_t nan = 0;
    std::uint64_t positive_infinity = 0;
    std::uint64_t negative_infinity = 0;
    std::uint64_t zero = 0; ///< of either sign
    std::uint64_t subnormal = 0;
    std::uint64_t first_nonfinite = no_index; ///< index of the first NaN or infinity
    std::uint64_t digest = 0; ///< of the bytes (scan/digest.hpp); 0 if it was not requested
    double minimum = 0; ///< extrema and moments are 0 if no element is finite
    double maximum = 0;
    double absolute_maximum = 0;
    double mean = 0;
    double l1 = 0; ///< sum of absolute values
    /// Sum of squared distances from the mean, and sum of squares, both times 2^(-2 scale). `scale` is 0 unless
    /// squares of doubles would leave the range of a double.
    double m2 = 0;
    double sum_of_squares = 0;
    std::int32_t scale = 0;
    element_type type = element_type::float32;
    std::uint8_t has_digest = 0;
    std::uint8_t padding[2] = {0, 0};

    COLLPROBE_HD constexpr std::uint64_t infinite() const noexcept { return positive_infinity + negative_infinity; }
    COLLPROBE_HD constexpr std::uint64_t nonfinite() const noexcept { return nan + infinite(); }
    COLLPROBE_HD constexpr std::uint64_t finite() const noexcept { return count - nonfinite(); }
    /// Euclidean norm. Infinity only if the norm itself is beyond the largest double. The bits are right also if the
    /// norm is subnormal and the build flushes such numbers to zero. The caller's arithmetic then takes it as zero, as
    /// it takes every other subnormal member.
    COLLPROBE_HD double l2() const noexcept
    {
        return detail::times_power_of_two(detail::square_root(sum_of_squares), scale);
    }
    /// Population standard deviation (divides by the number of finite elements); 0 if no element is finite. Subnormal
    /// results: see `l2`.
    COLLPROBE_HD double standard_deviation() const noexcept
    {
        if (finite() == 0) return 0;
        return detail::times_power_of_two(detail::square_root(m2 / static_cast<double>(finite())), scale);
    }
};

static_assert(std::is_trivially_copyable_v<statistics> && sizeof(statistics) == 128);

} // namespace collprobe
