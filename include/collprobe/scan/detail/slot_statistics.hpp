// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/detail/block_sums.hpp>
#include <collprobe/scan/detail/merge_statistics.hpp>
#include <collprobe/scan/detail/thread_scan.hpp>
#include <collprobe/simd/barrier.hpp>

/// Computes a slot's statistics from its totals, and the result from the statistics of all slots: the work of one
/// thread between block reductions. Extrema, counts and digest are those of the host, bit for bit. Moments have the
/// accuracy stated at `statistics_reducer`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether a slot must be read again, and for which sums: see `shifted_sums`.
struct slot_request {
    bool again;
    double factor; ///< 2^-scale
    double pivot;
};

COLLPROBE_HD constexpr double unsigned_zero(double value) noexcept
{
    return (bit_cast<std::uint64_t>(value) << 1) == 0 ? 0 : value;
}

/// Computes counts, extrema and scale. Requests sums of scaled elements if the squares leave the range of a double.
template <element T>
COLLPROBE_HD inline slot_request describe_slot(
    const range_totals<T>& totals, const rare_counts& rare, std::uint64_t first,
    std::uint64_t count, statistics& out) noexcept
{
    out.count = count;
    out.nan = rare.nan;
    out.positive_infinity = rare.positive_infinity;
    out.negative_infinity = rare.negative_infinity;
    if (rare.first_nonfinite != rare_counts::none_yet) out.first_nonfinite = first + rare.first_nonfinite;
    out.zero = totals.zero;
    out.subnormal = floating_element<T> ? totals.small - totals.zero : 0;
    if (finite_count(out) == 0) return {false, 1, 0};
    // The sign of a zero depends on the order of comparisons.
    out.minimum = unsigned_zero(totals.range.minimum());
    out.maximum = unsigned_zero(totals.range.maximum());
    const double below = absolute(out.minimum);
    const double above = absolute(out.maximum);
    out.absolute_maximum = below > above ? below : above;
    if constexpr (std::is_same_v<T, double>) out.scale = scale_for(out.absolute_maximum);
    return {out.scale != 0, power_of_two(-out.scale), 0};
}

/// Computes moments from sums of elements times 2^-scale. Requests sums around the mean if the difference of the sums
/// would cancel more than three bits.
COLLPROBE_HD inline slot_request sum_slot(const shifted_sums& sums, statistics& out) noexcept
{
    if (finite_count(out) == 0) return {false, 1, 0};
    const double n = static_cast<double>(finite_count(out));
    out.sum_of_squares = sums.squares;
    out.l1 = sums.magnitudes * power_of_two(out.scale);
    if (out.minimum == out.maximum) {
        out.mean = out.minimum;
        return {false, 1, 0};
    }
    const double mean = sums.sum / n;
    const double m2 = sums.squares - opaque(sums.sum * mean);
    out.mean = mean; // times 2^-scale until the slot is closed
    out.m2 = m2;
    return {!(m2 > sums.squares / 8), power_of_two(-out.scale), mean};
}

/// Takes in the sums around the mean.
COLLPROBE_HD inline void refine_slot(const centred_sums& sums, statistics& out) noexcept
{
    const double rest = sums.sum / static_cast<double>(finite_count(out));
    const double m2 = sums.squares - opaque(sums.sum * rest);
    out.m2 = m2 > 0 ? m2 : 0;
    out.mean += rest;
}

/// Brings the mean to its own scale, and back into the range of the elements if rounding moved it out.
COLLPROBE_HD inline void close_slot(statistics& out) noexcept
{
    if (finite_count(out) == 0 || out.minimum == out.maximum) return;
    const double mean = out.mean * power_of_two(out.scale);
    out.mean = mean < out.minimum ? out.minimum : mean > out.maximum ? out.maximum : mean;
}

/// The first pass over the slots adds up the values that need neither the mean nor the scale of the result.
struct slot_counts {
    std::uint64_t count = 0;
    std::uint64_t nan = 0;
    std::uint64_t positive_infinity = 0;
    std::uint64_t negative_infinity = 0;
    std::uint64_t zero = 0;
    std::uint64_t subnormal = 0;
    std::uint64_t first_nonfinite = no_index;

    COLLPROBE_HD static slot_counts of(const statistics& slot) noexcept
    {
        return {slot.count, slot.nan, slot.positive_infinity, slot.negative_infinity, slot.zero, slot.subnormal,
            slot.first_nonfinite};
    }
    COLLPROBE_HD void merge(const slot_counts& next) noexcept
    {
        count += next.count;
        nan += next.nan;
        positive_infinity += next.positive_infinity;
        negative_infinity += next.negative_infinity;
        zero += next.zero;
        subnormal += next.subnormal;
        first_nonfinite = lesser(first_nonfinite, next.first_nonfinite);
    }
};

struct slot_extent {
    double minimum = largest_double;
    double maximum = -largest_double;
    double l1 = 0;

    COLLPROBE_HD static slot_extent of(const statistics& slot) noexcept
    {
        if (finite_count(slot) == 0) return {};
        return {slot.minimum, slot.maximum, slot.l1};
    }
    COLLPROBE_HD void merge(const slot_extent& next) noexcept
    {
        minimum = next.minimum < minimum ? next.minimum : minimum;
        maximum = next.maximum > maximum ? next.maximum : maximum;
        l1 += next.l1;
    }
};

template <element T>
COLLPROBE_HD inline void open_result(const slot_counts& counts, const slot_extent& extent, statistics& out) noexcept
{
    out.count = counts.count;
    out.nan = counts.nan;
    out.positive_infinity = counts.positive_infinity;
    out.negative_infinity = counts.negative_infinity;
    out.zero = counts.zero;
    out.subnormal = counts.subnormal;
    out.first_nonfinite = counts.first_nonfinite;
    if (finite_count(out) == 0) return;
    out.minimum = extent.minimum;
    out.maximum = extent.maximum;
    out.l1 = extent.l1;
    const double below = absolute(out.minimum);
    const double above = absolute(out.maximum);
    out.absolute_maximum = below > above ? below : above;
    if constexpr (std::is_same_v<T, double>) out.scale = scale_for(out.absolute_maximum);
}

/// A slot's moments at the scale of the result. Only doubles are scaled.
template <element T>
COLLPROBE_HD inline double rescale_slot(statistics& slot, std::int32_t scale) noexcept
{
    if constexpr (std::is_same_v<T, double>) {
        if (slot.absolute_maximum == 0) slot.scale = scale; // zeros are compatible with any scale
        rescale(slot, scale);
        return slot.mean * power_of_two(-scale);
    } else {
        return slot.mean;
    }
}

/// The second pass: sums at the scale of the result.
struct slot_sums {
    double sum = 0;
    double squares = 0;

    template <element T>
    COLLPROBE_HD static slot_sums of(statistics slot, std::int32_t scale) noexcept
    {
        const double mean = rescale_slot<T>(slot, scale);
        return {mean * static_cast<double>(finite_count(slot)), slot.sum_of_squares};
    }
    COLLPROBE_HD void merge(const slot_sums& next) noexcept
    {
        sum += next.sum;
        squares += next.squares;
    }
};

/// Returns the mean times 2^-scale.
COLLPROBE_HD inline double sum_result(const slot_sums& sums, statistics& out) noexcept
{
    if (finite_count(out) == 0) return 0;
    out.sum_of_squares = sums.squares;
    return sums.sum / static_cast<double>(finite_count(out));
}

/// The third pass: a slot's contribution to the sum of squared distances from the mean of all elements, from its own
/// sum and the distance of its mean. (Merging moments slot by slot would need one pass. Two passes over the means
/// need no division, and errors do not grow with the number of slots.)
struct slot_distances {
    double m2 = 0;

    template <element T>
    COLLPROBE_HD static slot_distances of(statistics slot, std::int32_t scale, double mean) noexcept
    {
        const double distance = rescale_slot<T>(slot, scale) - mean;
        return {slot.m2 + distance * distance * static_cast<double>(finite_count(slot))};
    }
    COLLPROBE_HD void merge(const slot_distances& next) noexcept { m2 += next.m2; }
};

COLLPROBE_HD inline void close_result(const slot_distances& distances, double mean, statistics& out) noexcept
{
    if (finite_count(out) == 0) return;
    out.mean = mean;
    out.m2 = distances.m2;
    if (out.minimum == out.maximum) {
        out.mean = out.minimum;
        out.m2 = 0;
    }
    close_slot(out);
}

} // namespace collprobe::detail
