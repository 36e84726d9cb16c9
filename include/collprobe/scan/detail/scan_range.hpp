// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/block_sums.hpp>
#include <collprobe/scan/detail/words.hpp>

/// Extrema by comparisons of bit patterns as integers. No floating-point flag affects them. They cost one instruction
/// each (half of one if the GPU compares three numbers at once). The extrema also show whether any element is not
/// finite or has a zero exponent, without a test of each element.
namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_HD constexpr std::uint32_t larger(std::uint32_t a, std::uint32_t b) noexcept { return a > b ? a : b; }
COLLPROBE_HD constexpr std::uint32_t smaller(std::uint32_t a, std::uint32_t b) noexcept { return a < b ? a : b; }
COLLPROBE_HD constexpr std::int32_t larger(std::int32_t a, std::int32_t b) noexcept { return a > b ? a : b; }
COLLPROBE_HD constexpr std::int32_t smaller(std::int32_t a, std::int32_t b) noexcept { return a < b ? a : b; }

/// Patterns of floating-point numbers in sign and magnitude, in the upper bits of a word. The bits below them in the
/// word only decide between equal numbers.
///
/// Compared as unsigned numbers, all negative numbers are above all positive ones, and within each sign a larger
/// magnitude is larger. So `most` is the most negative number or, if none is negative, the largest. The other members
/// follow in the same way.
struct pattern_extrema {
    std::uint32_t most = 0;
    std::uint32_t least = 0xffffffff;
    std::int32_t signed_most = -0x7fffffff - 1;

    COLLPROBE_HD constexpr void add(std::uint32_t pattern) noexcept
    {
        most = larger(most, pattern);
        least = smaller(least, pattern);
        signed_most = larger(signed_most, static_cast<std::int32_t>(pattern));
    }
    COLLPROBE_HD constexpr void merge(const pattern_extrema& other) noexcept
    {
        most = larger(most, other.most);
        least = smaller(least, other.least);
        signed_most = larger(signed_most, other.signed_most);
    }
    /// Precondition: at least one number was added.
    COLLPROBE_HD constexpr std::uint32_t minimum() const noexcept { return (most >> 31) != 0 ? most : least; }
    COLLPROBE_HD constexpr std::uint32_t maximum() const noexcept
    {
        return signed_most >= 0 ? static_cast<std::uint32_t>(signed_most) : least;
    }
};

/// The extrema of patterns, and what kinds of numbers are among them.
struct pattern_range {
    pattern_extrema extrema;
    std::int32_t signed_least = 0x7fffffff;

    COLLPROBE_HD constexpr void add(std::uint32_t pattern) noexcept
    {
        extrema.add(pattern);
        signed_least = smaller(signed_least, static_cast<std::int32_t>(pattern));
    }

    /// Whether a number is not finite: it is the extreme of its sign. `smallest`: the least magnitude that is not
    /// finite.
    COLLPROBE_HD constexpr bool has_nonfinite(std::uint32_t smallest) const noexcept
    {
        constexpr std::uint32_t magnitude = 0x7fffffff;
        return (extrema.most & magnitude) >= smallest
            || (static_cast<std::uint32_t>(extrema.signed_most) & magnitude) >= smallest;
    }
    /// Whether the exponent of a number is zero.
    COLLPROBE_HD constexpr bool has_small(std::uint32_t exponents) const noexcept
    {
        return (extrema.least & exponents) == 0 || (static_cast<std::uint32_t>(signed_least) & exponents) == 0;
    }
};

/// The bits of an element in the upper bits of a word; for a double its upper word.
template <class T>
COLLPROBE_HD constexpr std::uint32_t upper_bits(typename element_traits<T>::bits_type bits) noexcept
{
    return static_cast<std::uint32_t>(std::uint64_t{bits} << (8 * (8 - sizeof(T))) >> 32);
}
template <class T>
inline constexpr std::uint32_t upper_exponents = upper_bits<T>(element_traits<T>::exponent_mask);
template <class T>
inline constexpr std::uint32_t upper_nonfinite = upper_bits<T>(element_traits<T>::smallest_nonfinite);

/// The extrema of a run of finite elements: what the threads of a block exchange.
template <element T>
struct scan_extrema;

/// The extrema of floating-point numbers of up to 32 bits.
template <element T>
    requires(floating_element<T> && sizeof(T) <= 4)
struct scan_extrema<T> {
    pattern_extrema patterns;

    COLLPROBE_HD static constexpr std::uint32_t pattern(T element) noexcept
    {
        return std::uint32_t{to_bits(element)} << (32 - 8 * sizeof(T));
    }
    COLLPROBE_HD constexpr void add(T element) noexcept { patterns.add(pattern(element)); }
    COLLPROBE_HD constexpr void merge(const scan_extrema& other) noexcept { patterns.merge(other.patterns); }
    COLLPROBE_HD double minimum() const noexcept { return value_of(patterns.minimum()); }
    COLLPROBE_HD double maximum() const noexcept { return value_of(patterns.maximum()); }

private:
    COLLPROBE_HD static double value_of(std::uint32_t pattern) noexcept
    {
        using bits = typename element_traits<T>::bits_type;
        return widen(bit_cast<T>(static_cast<bits>(pattern >> (32 - 8 * sizeof(T)))));
    }
};

template <>
struct scan_extrema<double> {
    double least = largest_double;
    double most = -largest_double;

    COLLPROBE_HD void add(double element) noexcept
    {
        least = element < least ? element : least;
        most = element > most ? element : most;
    }
    COLLPROBE_HD void merge(const scan_extrema& other) noexcept
    {
        least = other.least < least ? other.least : least;
        most = other.most > most ? other.most : most;
    }
    COLLPROBE_HD double minimum() const noexcept { return least; }
    COLLPROBE_HD double maximum() const noexcept { return most; }
};

/// The range of the vectors, of sixteen bytes each, that a thread takes in together: extrema, and whether an element is
/// not finite or has a zero exponent.
template <element T>
struct scan_range;

template <element T>
    requires(floating_element<T> && sizeof(T) <= 4)
struct scan_range<T> {
    pattern_range patterns;

    COLLPROBE_HD constexpr void add(T element) noexcept { patterns.add(scan_extrema<T>::pattern(element)); }
    COLLPROBE_HD constexpr void add(const words16& words) noexcept
    {
        for (unsigned i = 0; i < 4; ++i)
            for (unsigned e = 0; e < 4; e += sizeof(T)) patterns.add(words.w[i] << (8 * e));
    }
    COLLPROBE_HD constexpr bool has_nonfinite() const noexcept { return patterns.has_nonfinite(upper_nonfinite<T>); }
    COLLPROBE_HD constexpr bool has_small() const noexcept { return patterns.has_small(upper_exponents<T>); }
    COLLPROBE_HD constexpr scan_extrema<T> extrema() const noexcept { return {patterns.extrema}; }
};

/// The upper words show non-finite and small numbers; the extrema compare whole numbers, all finite.
template <>
struct scan_range<double> {
    pattern_range patterns;
    scan_extrema<double> numbers;

    COLLPROBE_HD void add(double element) noexcept { numbers.add(element); }
    /// Adds only the patterns, because the numbers may not be finite.
    COLLPROBE_HD constexpr void add(const words16& words) noexcept
    {
        patterns.add(words.w[1]);
        patterns.add(words.w[3]);
    }
    COLLPROBE_HD constexpr bool has_nonfinite() const noexcept
    {
        return patterns.has_nonfinite(upper_nonfinite<double>);
    }
    COLLPROBE_HD constexpr bool has_small() const noexcept { return patterns.has_small(upper_exponents<double>); }
    COLLPROBE_HD constexpr scan_extrema<double> extrema() const noexcept { return numbers; }
};

/// The extrema of integers of up to 32 bits. Shifted to the top of a word, and with the sign bit of signed types
/// inverted, they compare as unsigned numbers.
template <element T>
    requires(!floating_element<T> && sizeof(T) <= 4)
struct scan_extrema<T> {
    std::uint32_t most = 0;
    std::uint32_t least = 0xffffffff;

    COLLPROBE_HD constexpr void add(T element) noexcept
    {
        add_pattern(std::uint32_t{to_bits(element)} << (32 - 8 * sizeof(T)) ^ (turned & 0x80000000u));
    }
    COLLPROBE_HD constexpr void add(const words16& words) noexcept
    {
        for (unsigned i = 0; i < 4; ++i)
            for (unsigned e = 0; e < 4; e += sizeof(T)) add_pattern((words.w[i] ^ turned) << (8 * e));
    }
    COLLPROBE_HD constexpr void merge(const scan_extrema& other) noexcept
    {
        most = larger(most, other.most);
        least = smaller(least, other.least);
    }
    COLLPROBE_HD double minimum() const noexcept { return value_of(least); }
    COLLPROBE_HD double maximum() const noexcept { return value_of(most); }

private:
    static constexpr std::uint32_t turned = !element_traits<T>::is_signed_type ? 0
        : sizeof(T) == 1                                                       ? 0x80808080
                                                                               : 0x80000000;

    COLLPROBE_HD constexpr void add_pattern(std::uint32_t pattern) noexcept
    {
        most = larger(most, pattern);
        least = smaller(least, pattern);
    }
    COLLPROBE_HD static double value_of(std::uint32_t pattern) noexcept
    {
        using bits = typename element_traits<T>::bits_type;
        return widen(bit_cast<T>(static_cast<bits>((pattern ^ (turned & 0x80000000u)) >> (32 - 8 * sizeof(T)))));
    }
};

template <element T>
    requires(!floating_element<T> && sizeof(T) == 8)
struct scan_extrema<T> {
    T least = static_cast<T>(element_traits<T>::is_signed_type ? ~std::uint64_t{0} >> 1 : ~std::uint64_t{0});
    T most = static_cast<T>(element_traits<T>::is_signed_type ? std::uint64_t{1} << 63 : 0);

    COLLPROBE_HD constexpr void add(T element) noexcept
    {
        least = element < least ? element : least;
        most = element > most ? element : most;
    }
    COLLPROBE_HD constexpr void add(const words16& words) noexcept
    {
        add(element_of<T>(words, 0));
        add(element_of<T>(words, 1));
    }
    COLLPROBE_HD constexpr void merge(const scan_extrema& other) noexcept
    {
        least = other.least < least ? other.least : least;
        most = other.most > most ? other.most : most;
    }
    COLLPROBE_HD double minimum() const noexcept { return widen(least); }
    COLLPROBE_HD double maximum() const noexcept { return widen(most); }
};

} // namespace collprobe::detail
