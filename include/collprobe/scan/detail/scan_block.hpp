// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/widen.hpp>
#include <collprobe/scan/detail/block_sums.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/simd/barrier.hpp>
#include <collprobe/simd/vector.hpp>

#include <collprobe/scan/detail/statistics_kernel.hpp>

/// The statistics of one block in host memory. The vector kernels do the common case. Scalar code with the same lanes
/// does the rest: the tail, blocks with NaN or infinity, scaled doubles.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Adds the elements from `begin`, a multiple of eight, to `end`, whatever their values.
template <class T>
void scan_scalar(const T* data, std::uint64_t begin, std::uint64_t end, block_sums& out) noexcept
{
    for (std::uint64_t i = begin; i < end; ++i) {
        const T element = data[i];
        if (!is_finite(element)) {
            if (out.nonfinite() == 0) out.first_nonfinite = i;
            if (is_nan(element)) ++out.nan;
            else if (is_negative(element)) ++out.negative_infinity;
            else ++out.positive_infinity;
            continue;
        }
        const double x = widen(element);
        const std::uint64_t lane = lane_position<T>(i) % 8;
        out.sum[lane] += x;
        out.squares[lane] += opaque(x * x);
        out.magnitudes[lane] += absolute(x);
        if (x < out.minimum) out.minimum = x;
        if (x > out.maximum) out.maximum = x;
        if (is_zero(element)) ++out.zero;
        else if (is_subnormal(element)) ++out.subnormal;
    }
}

/// Computes the sums of a block again, from finite elements times 2^-scale.
inline void rescan_scaled(const double* data, std::uint64_t count, std::int32_t scale, block_sums& out) noexcept
{
    const double factor = power_of_two(-scale);
    for (double& lane : out.sum) lane = 0;
    for (double& lane : out.magnitudes) lane = 0;
    for (double& lane : out.squares) lane = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (!is_finite(data[i])) continue;
        const double x = opaque(data[i] * factor);
        out.sum[i % 8] += x;
        out.squares[i % 8] += opaque(x * x);
        out.magnitudes[i % 8] += absolute(x);
    }
}

template <class T>
void scan_distances_scalar(const T* data, std::uint64_t begin, std::uint64_t end, std::int32_t scale, double pivot,
    distance_sums& out) noexcept
{
    const double factor = power_of_two(-scale);
    for (std::uint64_t i = begin; i < end; ++i) {
        if (!is_finite(data[i])) continue;
        const double d = opaque(opaque(widen(data[i]) * factor) - pivot);
        const std::uint64_t lane = lane_position<T>(i) % 8;
        out.sum[lane] += d;
        out.squares[lane] += opaque(d * d);
    }
}

/// `first_byte`: offset of the block in its buffer, with a digest a multiple of 128.
template <class T, bool with_digest>
void scan_block([[maybe_unused]] isa path, const T* data, std::uint64_t count, block_sums& out,
    [[maybe_unused]] digest_state& digest, [[maybe_unused]] std::uint64_t first_byte) noexcept
{
    std::uint64_t done = 0;
    bool finite = true;
    done = COLLPROBE_ON_ISA(path, 0, scan<T, with_digest>(data, count, out, digest, first_byte, finite));
    if constexpr (with_digest)
        digest.merge(digest_bytes(path, reinterpret_cast<const unsigned char*>(data + done),
            (count - done) * sizeof(T), first_byte + done * sizeof(T)));
    if (!finite) {
        out = block_sums{};
        done = 0;
    }
    scan_scalar(data, done, count, out);
}

template <class T>
distance_sums scan_distances([[maybe_unused]] isa path, const T* data, std::uint64_t count, bool all_finite,
    std::int32_t scale, double pivot) noexcept
{
    distance_sums sums;
    std::uint64_t done = 0;
    if (all_finite && scale == 0) done = COLLPROBE_ON_ISA(path, 0, scan_distances(data, count, pivot, sums));
    scan_distances_scalar(data, done, count, scale, pivot, sums);
    return sums;
}

/// The sign of a zero depends on the order of comparisons, so this gives all zeros the same bits.
inline double without_negative_zero(double value) noexcept
{
    return (bit_cast<std::uint64_t>(value) << 1) == 0 ? 0 : value;
}

/// Turns the sums over a block that begins at index `first` into statistics.
template <class T>
void finish_block(isa path, const T* data, std::uint64_t first, std::uint64_t count, block_sums& sums,
    statistics& out) noexcept
{
    out.count = count;
    out.nan = sums.nan;
    out.positive_infinity = sums.positive_infinity;
    out.negative_infinity = sums.negative_infinity;
    out.zero = sums.zero;
    out.subnormal = sums.subnormal;
    if (sums.nonfinite() != 0) out.first_nonfinite = first + sums.first_nonfinite;
    if (out.finite() == 0) return;

    out.minimum = without_negative_zero(sums.minimum);
    out.maximum = without_negative_zero(sums.maximum);
    const double below = absolute(out.minimum);
    const double above = absolute(out.maximum);
    out.absolute_maximum = below > above ? below : above;
    if constexpr (std::is_same_v<T, double>) {
        out.scale = scale_for(out.absolute_maximum);
        if (out.scale != 0) rescan_scaled(data, count, out.scale, sums);
    }
    const double n = static_cast<double>(out.finite());
    const double down = power_of_two(-out.scale);
    const double up = power_of_two(out.scale);
    const double sum = add_lanes(sums.sum);
    out.sum_of_squares = add_lanes(sums.squares);
    out.l1 = add_lanes(sums.magnitudes) * up;
    if (out.minimum == out.maximum) {
        out.mean = out.minimum;
        return;
    }
    double mean = sum / n;
    const double correction = opaque(sum * mean);
    if (out.sum_of_squares - correction > out.sum_of_squares / 8) {
        // At most three bits cancel: a rounding error of some 1e-14 in the sums grows eightfold at most.
        out.m2 = out.sum_of_squares - correction;
    } else {
        // The difference would cancel, so the block, which is still in the cache, is read again around its mean.
        const double pivot = mean;
        const distance_sums distances
            = scan_distances(path, data, count, sums.nonfinite() == 0, out.scale, pivot);
        const double rest = add_lanes(distances.sum);
        const double m2 = add_lanes(distances.squares) - opaque(rest * opaque(rest / n));
        out.m2 = m2 > 0 ? m2 : 0;
        mean = pivot + rest / n;
    }
    // The rounded mean must stay within the range of the elements.
    const double low = out.minimum * down;
    const double high = out.maximum * down;
    out.mean = (mean < low ? low : mean > high ? high : mean) * up;
}

} // namespace collprobe::detail
