// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>

/// What one read of a buffer tells.
namespace collprobe::inline COLLPROBE_ABI {

/// "No such index": the first non-finite element of a buffer that has none.
inline constexpr std::uint64_t no_index = ~std::uint64_t{0};

/// The result of one read of a buffer of floating point. Sums and the largest magnitude are over the finite elements
/// only, so that one NaN does not hide the rest.
/// Precondition: all ranks are built alike, because statistics travel between ranks as bytes.
struct statistics {
    std::uint64_t count = 0; ///< elements read
    std::uint64_t zero = 0; ///< zeros of either sign
    std::uint64_t first_nonfinite = no_index; ///< index of the first NaN or infinity
    std::uint64_t digest = 0; ///< of the bytes (scan/digest.hpp)
    double absolute_maximum = 0; ///< largest magnitude
    double sum = 0; ///< of the elements
    double sum_of_squares = 0; ///< infinity if it is beyond the largest double
    std::uint32_t nan = 0; ///< each of the three counts up to 2^32 - 1, which also stands for more
    std::uint32_t positive_infinity = 0; ///< elements
    std::uint32_t negative_infinity = 0; ///< elements
    std::uint32_t padding = 0;

    COLLPROBE_HD constexpr std::uint64_t infinite() const noexcept
    {
        return std::uint64_t{positive_infinity} + negative_infinity;
    }
    COLLPROBE_HD constexpr std::uint64_t nonfinite() const noexcept { return nan + infinite(); }
    COLLPROBE_HD constexpr std::uint64_t finite() const noexcept { return count - nonfinite(); }
    /// Euclidean norm.
    COLLPROBE_HD double l2() const noexcept { return detail::square_root(sum_of_squares); }
};

static_assert(std::is_trivially_copyable_v<statistics> && sizeof(statistics) == 72);

} // namespace collprobe
