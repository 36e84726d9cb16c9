// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/scan/detail/block_sums.hpp>
#include <collprobe/simd/barrier.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A sum of squares, brought from one scale to another by two factors. Their product may leave the range of a double,
/// so it must not be formed, as -ffast-math would do.
COLLPROBE_HD inline double rescaled(double squares, std::int32_t from, std::int32_t scale) noexcept
{
    for (; from != scale; from += from < scale ? scale_step : -scale_step) {
        const double factor = power_of_two(from < scale ? -scale_step : scale_step);
        squares = opaque(squares * factor) * factor;
    }
    return squares;
}

COLLPROBE_HD inline void rescale(statistics& s, std::int32_t scale) noexcept
{
    s.m2 = rescaled(s.m2, s.scale, scale);
    s.sum_of_squares = rescaled(s.sum_of_squares, s.scale, scale);
    s.scale = scale;
}

/// The same as `statistics::finite()`, also on a device.
COLLPROBE_HD constexpr std::uint64_t finite_count(const statistics& s) noexcept
{
    return s.count - s.nan - s.positive_infinity - s.negative_infinity;
}

/// Joins the statistics of disjoint sets of elements, except for the digest.
/// Source: for the moments, Chan, Golub and LeVeque (1979).
template <class T>
COLLPROBE_HD inline void merge_statistics(statistics& into, const statistics& next) noexcept
{
    const std::uint64_t a = finite_count(into);
    const std::uint64_t b = finite_count(next);
    into.count += next.count;
    into.nan += next.nan;
    into.positive_infinity += next.positive_infinity;
    into.negative_infinity += next.negative_infinity;
    into.zero += next.zero;
    into.subnormal += next.subnormal;
    into.first_nonfinite = lesser(into.first_nonfinite, next.first_nonfinite);
    if (b == 0) return;
    if (a == 0) {
        into.minimum = next.minimum;
        into.maximum = next.maximum;
        into.absolute_maximum = next.absolute_maximum;
        into.mean = next.mean;
        into.l1 = next.l1;
        into.m2 = next.m2;
        into.sum_of_squares = next.sum_of_squares;
        into.scale = next.scale;
        return;
    }

    double mean_a = into.mean;
    double mean_b = next.mean;
    double m2_b = next.m2;
    double squares_b = next.sum_of_squares;
    if constexpr (std::is_same_v<T, double>) {
        // A buffer of zeros has scale 0, which is compatible with every other scale.
        const std::int32_t scale = into.absolute_maximum == 0 ? next.scale
            : next.absolute_maximum == 0                      ? into.scale
            : into.scale > next.scale                         ? into.scale
                                                              : next.scale;
        statistics other = next;
        rescale(into, scale);
        rescale(other, scale);
        m2_b = other.m2;
        squares_b = other.sum_of_squares;
        mean_a = mean_a * power_of_two(-scale);
        mean_b = mean_b * power_of_two(-scale);
    }
    const double total = static_cast<double>(a + b);
    const double weight = static_cast<double>(b) / total;
    const double delta = mean_b - mean_a;
    const double mean = mean_a + delta * weight;
    into.m2 += m2_b + delta * delta * (static_cast<double>(a) * weight);
    into.sum_of_squares += squares_b;
    into.l1 += next.l1;
    if (next.minimum < into.minimum) into.minimum = next.minimum;
    if (next.maximum > into.maximum) into.maximum = next.maximum;
    if (next.absolute_maximum > into.absolute_maximum) into.absolute_maximum = next.absolute_maximum;
    into.mean = mean;
    if constexpr (std::is_same_v<T, double>) into.mean = mean * power_of_two(into.scale);
}

/// The same if the caller's floating-point mode drops subnormal numbers. Not inlined: see `gradual_underflow`.
template <class T>
[[gnu::noinline]] void merge_statistics_in_guard(statistics& into, const statistics& next) noexcept
{
    merge_statistics<T>(into, next);
}

template <class T>
void merge_statistics_guarded(statistics& into, const statistics& next) noexcept
{
    const gradual_underflow guard;
    merge_statistics_in_guard<T>(into, next);
}

} // namespace collprobe::detail
