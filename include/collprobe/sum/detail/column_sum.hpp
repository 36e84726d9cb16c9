// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <collprobe/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/widen.hpp>
#include <collprobe/element.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/detail/add.hpp>
#include <collprobe/sum/detail/round_scaled.hpp>
#include <collprobe/sum/detail/rounding.hpp>
#include <collprobe/sum/error_free.hpp>
#include <collprobe/sum/exact_sum.hpp>

/// Sums over the rows of a block of columns: per column, the terms of one element. The loops over columns
/// have a constant length, so that the host's are vectorised and a GPU's are unrolled into registers.
namespace collprobe::detail {

/// The 16-byte words of a row where it is aligned; else one element after the other.
template <int width, floating_element T>
COLLPROBE_HD inline const T* row_values(const T* from, int count, [[maybe_unused]] T (&room)[width]) noexcept
{
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(room) == 16) {
        if (count == width && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
            const uint4 word = *reinterpret_cast<const uint4*>(from);
            memcpy(room, &word, 16);
            return room;
        }
    }
#else
    if (count == width) return from;
#endif
    for (int i = 0; i < width; ++i) room[i] = i < count ? from[i] : T{};
    return room;
}

/// The value in the type it is added in.
template <class Wide, floating_element T>
COLLPROBE_HD inline Wide widened_to(T value) noexcept
{
    if constexpr (sizeof(Wide) == 8) {
        return widen(value);
    } else {
#if defined(__CUDA_ARCH__)
        if constexpr (element_traits<T>::type == element_type::half) return static_cast<float>(widen(value));
#endif
        return static_cast<Wide>(value);
    }
}

/// Rounds a wide value to the element type, once.
template <floating_element T, class Wide>
COLLPROBE_HD inline T narrowed(Wide value) noexcept
{
    if constexpr (sizeof(T) == sizeof(Wide)) {
        return value;
    } else if constexpr (sizeof(T) == 4) {
#if defined(__CUDA_ARCH__)
        float nearest;
        asm("cvt.rn.f32.f64 %0, %1;" : "=f"(nearest) : "d"(value));
        return nearest;
#else
        return static_cast<float>(value);
#endif
    } else {
        return T(value);
    }
}

/// value / divisor in the accumulator's type: exact for a power of two but for underflow, else rounded.
template <class Wide>
COLLPROBE_HD inline Wide quotient(Wide value, std::uint32_t divisor) noexcept
{
    return divisor == 1 ? value : rounded_quotient(value, static_cast<Wide>(divisor));
}

/// What the terms of each element of a block are, and what becomes of their sum. `terms(k)` points to the
/// elements of term k; the sum is divided by `divisor`.
template <floating_element T, class Terms>
struct columns {
    Terms terms;
    std::uint64_t term_count; // at least 1
    std::uint32_t divisor;
    int count; // elements of the block
};

/// Term after term, each addition rounded to the type.
template <class Wide, int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_plainly(const columns<T, Terms>& of, T* result) noexcept
{
    Wide sum[width];
    T room[width];
    const T* row = row_values(of.terms(0), of.count, room);
    for (int i = 0; i < width; ++i) sum[i] = widened_to<Wide>(row[i]);
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) sum[i] = rounded_sum(sum[i], widened_to<Wide>(row[i]));
        settle(sum);
    }
    if (of.divisor != 1) {
        for (int i = 0; i < width; ++i) sum[i] = quotient(sum[i], of.divisor);
    }
    for (int i = 0; i < width; ++i) result[i] = narrowed<T>(sum[i]);
}

/// Term after term, each addition rounded to the element type of 16 bits.
template <int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_in_16_bits(const columns<T, Terms>& of, T* result) noexcept
{
    T room[width];
    const T* row = row_values(of.terms(0), of.count, room);
    T sum[width];
    for (int i = 0; i < width; ++i) sum[i] = row[i];
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) sum[i] = add(sum[i], row[i]);
    }
    for (int i = 0; i < width; ++i) {
        result[i] = of.divisor == 1 ? sum[i] : T(quotient(widened_to<double>(sum[i]), of.divisor));
    }
}

/// The sum and what it lost as one number. After an overflow, of the sum or of a step of `two_sum`, `lost` is not
/// finite, and the sum alone says what IEEE 754 does; adding nothing would make +0 of -0.
template <class Wide>
COLLPROBE_HD inline Wide compensated(Wide sum, Wide lost) noexcept
{
    const bool nothing = static_cast<decltype(to_bits(lost))>(to_bits(lost) << 1) == 0;
    return nothing || !is_finite(lost) ? sum : rounded_sum(sum, lost);
}

/// Kahan's and Babuska's: what each addition lost is summed beside it.
/// Source: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen" (1974).
template <class Wide, int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_compensated(const columns<T, Terms>& of, T* result) noexcept
{
    const hidden<Wide> hide;
    Wide sum[width];
    Wide lost[width];
    T room[width];
    const T* row = row_values(of.terms(0), of.count, room);
    for (int i = 0; i < width; ++i) {
        sum[i] = widened_to<Wide>(row[i]);
        lost[i] = 0;
    }
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            const two_terms<Wide> next = hidden_two_sum(sum[i], widened_to<Wide>(row[i]), hide);
            sum[i] = next.high;
            lost[i] = hide(rounded_sum(lost[i], next.low));
        }
    }
    for (int i = 0; i < width; ++i) {
        result[i] = narrowed<T>(quotient(compensated(sum[i], lost[i]), of.divisor));
    }
}

/// The correctly rounded sum of one column, term by term.
template <floating_element T, class Terms>
COLLPROBE_HD __attribute__((noinline)) T sum_of_column(
    const Terms& terms, std::uint64_t term_count, std::uint32_t divisor, int column) noexcept
{
    exact_sum<T> sum;
    for (std::uint64_t k = 0; k < term_count; ++k) sum.add(terms(k)[column]);
    return sum.round(divisor);
}

/// The exponents of the terms of a column that are not zero. Integers all the way, so that what is proved by them
/// holds in any build.
template <floating_element T>
class exponent_range {
    using traits = element_traits<T>;
    // The magnitude's bits, of a double the upper ones: signed, because any processor compares many of those at once.
    using key = std::conditional_t<sizeof(T) == 2, std::int16_t, std::int32_t>;
    static constexpr int field = sizeof(T) == 8 ? 20 : traits::digits - 1; // the exponent starts there
    static constexpr key largest = sizeof(T) == 2 ? 0x7fff : 0x7fffffff;

public:
    COLLPROBE_HD void include(T value) noexcept
    {
        key bits;
        if constexpr (sizeof(T) == 8) {
            const std::uint64_t all = to_bits(value);
            const auto not_zero = static_cast<std::int32_t>(static_cast<std::uint32_t>(all) != 0);
            bits = (static_cast<std::int32_t>(all >> 32) & largest) | not_zero;
        } else {
            bits = static_cast<key>(to_bits(value) & largest);
        }
        const auto less = static_cast<key>((bits - 1) & largest); // makes the largest of zero
        most_ = bits > most_ ? bits : most_;
        least_ = less < least_ ? less : least_;
    }
    COLLPROBE_HD bool finite() const noexcept { return (most_ >> field) <= traits::max_exponent - traits::min_exponent + 1; }
    /// Of the unit of the smallest term.
    COLLPROBE_HD int unit() const noexcept { return smallest() - 1 + traits::min_exponent - (traits::digits - 1); }
    /// How many bits hold the sum of `terms` such terms, in that unit and in any order.
    COLLPROBE_HD int bits_of_sum(std::uint64_t terms) const noexcept
    {
        const int biggest = most_ >> field;
        const int carries = terms > 1 ? highest_bit(terms - 1) + 1 : 0;
        return (biggest > 1 ? biggest : 1) - smallest() + traits::digits + carries;
    }

private:
    COLLPROBE_HD int smallest() const noexcept
    {
        const auto exponent = static_cast<int>((static_cast<std::uint32_t>(least_) + 1) >> field);
        return exponent > 1 ? exponent : 1;
    }
    key most_ = 0;
    key least_ = largest;
};

__extension__ typedef __int128 wide_integer;

/// The correctly rounded sums of the columns that are marked: as integers of 128 bits in the unit of the smallest
/// term, or by the long sum where those are not enough.
template <int width, floating_element T, class Terms>
COLLPROBE_HD __attribute__((noinline)) void sum_in_integers(
    const columns<T, Terms>& of, const exponent_range<T>* range, const bool* marked, T* result) noexcept
{
    wide_integer sum[width];
    bool negative[width]; // all terms, that is: of a sum of zero, all are -0
    int unit[width];
    T room[width];
    for (int i = 0; i < width; ++i) {
        sum[i] = 0;
        negative[i] = true;
        unit[i] = range[i].unit();
    }
    for (std::uint64_t k = 0; k < of.term_count; ++k) {
        const T* const row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            const scaled term = take_apart(row[i]);
            const wide_integer shifted = static_cast<wide_integer>(term.significand) << ((term.exponent - unit[i]) & 127);
            sum[i] += term.negative ? -shifted : shifted;
            negative[i] &= term.negative;
        }
    }
    for (int i = 0; i < width; ++i) {
        if (!marked[i] || i >= of.count) continue;
        if (!range[i].finite() || range[i].bits_of_sum(of.term_count) > 127) {
            result[i] = sum_of_column<T>(of.terms, of.term_count, of.divisor, i);
        } else {
            const bool below_zero = sum[i] < 0 || (sum[i] == 0 && negative[i]);
            const wide_integer magnitude = sum[i] < 0 ? -sum[i] : sum[i];
            result[i] = round_scaled<T>(divide(static_cast<std::uint64_t>(magnitude >> 64),
                static_cast<std::uint64_t>(magnitude), unit[i], of.divisor, below_zero));
        }
    }
}

/// In one double where each addition is exact because the exponents are near enough to each other, whatever order a
/// build makes of them; else in integers.
template <int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_exactly(const columns<T, Terms>& of, T* result) noexcept
{
    exponent_range<T> range[width];
    double sum[width] = {};
    T room[width];
    for (std::uint64_t k = 0; k < of.term_count; ++k) {
        const T* const row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) range[i].include(row[i]);
        if constexpr (sizeof(T) < 8) {
            for (int i = 0; i < width; ++i) sum[i] = k == 0 ? widen(row[i]) : sum[i] + widen(row[i]);
        }
    }
    bool marked[width];
    bool any = false;
    for (int i = 0; i < width; ++i) {
        marked[i] = sizeof(T) == 8 || !range[i].finite() || range[i].bits_of_sum(of.term_count) > 53;
        any |= marked[i];
    }
    if constexpr (sizeof(T) < 8) {
        if (of.divisor == 1) {
            for (int i = 0; i < width; ++i) result[i] = narrowed<T>(sum[i]);
        } else {
            for (int i = 0; i < width; ++i) {
                const scaled number = take_apart(sum[i]);
                result[i] = round_scaled<T>(
                    divide(0, number.significand, number.exponent, of.divisor, number.negative));
            }
        }
    }
    if (any) sum_in_integers<width>(of, range, marked, result);
}

/// The sums of a block of columns: `result` gets `width` values, of which `of.count` mean something.
template <accumulation in, int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_columns(const columns<T, Terms>& of, T* result) noexcept
{
    using narrow = std::conditional_t<sizeof(T) == 8, double, float>;
    static_assert(holds<T>(in), "the accumulator is narrower than the element type");
    if constexpr (in == accumulation::exact) sum_exactly<width>(of, result);
    else if constexpr (in == accumulation::compensated) sum_compensated<narrow, width>(of, result);
    else if constexpr (in == accumulation::float64) sum_plainly<double, width>(of, result);
    else if constexpr (in == accumulation::float32) sum_plainly<float, width>(of, result);
    else if constexpr (sizeof(T) == 2) sum_in_16_bits<width>(of, result);
    else sum_plainly<T, width>(of, result);
}

} // namespace collprobe::detail
