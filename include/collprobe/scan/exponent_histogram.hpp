// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// floor(log2 |value|) of a finite element that is not zero; subnormals and integers by their leading
/// bit.
template <element T>
COLLPROBE_HD constexpr int exponent_of(T value) noexcept
{
    using traits = element_traits<T>;
    std::uint64_t bits = to_bits(value);
    int offset = 0;
    if constexpr (traits::is_floating_point) {
        const auto biased = static_cast<int>((bits & traits::exponent_mask) >> (traits::digits - 1));
        if (biased != 0) return biased - traits::max_exponent;
        bits &= traits::fraction_mask;
        offset = traits::min_exponent - traits::digits + 1;
    } else if constexpr (traits::is_signed_type) {
        if (value < 0) bits = static_cast<typename traits::bits_type>(0 - bits);
    }
    int exponent = -1;
    for (; bits != 0; bits >>= 1) ++exponent;
    return exponent + offset;
}

} // namespace detail

/// How the magnitudes of a buffer spread over the exponents that its type can express.
///
/// Bin b counts the finite elements that are not zero and whose exponent, floor(log2 |x|), is in
/// [lowest_exponent + b * width, lowest_exponent + (b + 1) * width). `width` is the least number of
/// exponents a bin with which 64 bins cover the type: half 1, bfloat16 5, float 5, double 33,
/// integers 1; `lowest_exponent` is that of the smallest subnormal (-24, -133, -149, -1074), 0 for
/// integers. Bins beyond the range of the type stay 0.
struct exponent_histogram {
    static constexpr int bins = 64;

    std::uint64_t count[bins] = {};
    std::uint64_t zero = 0;
    std::uint64_t nonfinite = 0;
    std::int32_t lowest_exponent = 0;
    std::int32_t width = 1;

    /// An empty histogram for elements of type T.
    template <element T>
    COLLPROBE_HD static constexpr exponent_histogram of() noexcept
    {
        using traits = element_traits<T>;
        exponent_histogram result;
        if constexpr (traits::is_floating_point) {
            result.lowest_exponent = traits::min_exponent - traits::digits + 1;
            result.width = (traits::max_exponent - result.lowest_exponent + bins) / bins;
        }
        return result;
    }

    /// Counts one element, of the type that the histogram was made for.
    template <element T>
    COLLPROBE_HD constexpr void add(T value) noexcept
    {
        if (!is_finite(value)) ++nonfinite;
        else if ((to_bits(value) & static_cast<typename element_traits<T>::bits_type>(~element_traits<T>::sign_mask)) == 0) ++zero;
        else ++count[(detail::exponent_of(value) - lowest_exponent) / width];
    }

    /// Adds the counts of other elements of the same type.
    COLLPROBE_HD constexpr void merge(const exponent_histogram& other) noexcept
    {
        for (int bin = 0; bin < bins; ++bin) count[bin] += other.count[bin];
        zero += other.zero;
        nonfinite += other.nonfinite;
    }
};

/// The histogram of a buffer in host memory, computed on the calling thread.
///
/// Throws `error` (invalid_argument) on a null pointer with a count above 0 and on one that is not
/// aligned for T. One read, by scalar code
/// (about a nanosecond an element): meant for a look now and then, not for every step.
template <element T>
exponent_histogram compute_exponent_histogram(view<const T> input, call_site where = call_site::current())
{
    detail::require_data(input, "compute_exponent_histogram", where);
    detail::require_aligned(input, "compute_exponent_histogram", where);
    exponent_histogram result = exponent_histogram::of<T>();
    for (const T value : input) result.add(value);
    return result;
}

} // namespace collprobe
