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

/// The float nearest to a double, moved to its odd neighbour if that is not the double: it rounds to a 16-bit
/// type as the double does. (See `rounded_to_odd` for the source.)
COLLPROBE_HD inline float odd_float(double value) noexcept
{
#if defined(__CUDA_ARCH__)
    float nearest;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(nearest) : "d"(value));
#else
    const auto nearest = static_cast<float>(value);
#endif
    const auto bits = bit_cast<std::uint32_t>(nearest);
    const auto wide = bit_cast<std::uint64_t>(widen(nearest));
    const auto exact = bit_cast<std::uint64_t>(value);
    const std::uint32_t step = wide > exact ? ~std::uint32_t{0} : 1; // the same sign: as magnitudes
    return bit_cast<float>(wide == exact || (bits & 1) != 0 ? bits : bits + step);
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
    } else if constexpr (sizeof(Wide) == 8) {
        return T(odd_float(value));
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

/// high + low moved to the neighbour of `high` that is odd, if `low` is not zero: a number that rounds to any
/// type of at most 51 significand bits as the exact sum does.
/// Source: S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
/// rounding to odd" (2008). Preconditions: high = high + low rounded to nearest; finite.
COLLPROBE_HD inline double rounded_to_odd(two_terms<double> sum) noexcept
{
    const auto high = bit_cast<std::uint64_t>(sum.high);
    const auto low = bit_cast<std::uint64_t>(sum.low);
    if ((low << 1) == 0 || (high & 1) != 0) return sum.high;
    const bool towards_zero = ((high ^ low) >> 63) != 0;
    return bit_cast<double>(towards_zero ? high - 1 : high + 1);
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
            const two_terms<Wide> next = two_sum(sum[i], widened_to<Wide>(row[i]));
            sum[i] = next.high;
            lost[i] = rounded_sum(lost[i], next.low);
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

/// An exact sum that one double holds, divided and rounded once.
template <floating_element T>
COLLPROBE_HD inline T round_exact(double sum, std::uint32_t divisor) noexcept
{
    return divisor == 1 ? narrowed<T>(sum) : round_scaled<T>(divide(take_apart(sum), divisor));
}

/// Exact where each column's sum fits a pair of doubles without loss, which the error of the pair's lower
/// part tells; else by the long sum.
template <int width, floating_element T, class Terms>
COLLPROBE_HD __attribute__((noinline)) void sum_exactly_in_pairs(const columns<T, Terms>& of, T* result) noexcept
{
    double high[width];
    double low[width];
    std::uint64_t lost[width];
    T room[width];
    const T* row = row_values(of.terms(0), of.count, room);
    for (int i = 0; i < width; ++i) {
        high[i] = widened_to<double>(row[i]);
        low[i] = 0;
        lost[i] = 0;
    }
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            const two_terms<double> next = two_sum(high[i], widened_to<double>(row[i]));
            const two_terms<double> rest = two_sum(low[i], next.low);
            high[i] = next.high;
            low[i] = rest.high;
            lost[i] |= bit_cast<std::uint64_t>(rest.low) << 1;
        }
    }
    for (int i = 0; i < width; ++i) {
        if (i >= of.count) continue;
        const bool negative_zero = (bit_cast<std::uint64_t>(low[i]) << 1) == 0; // then adding `low` may lose the sign
        const two_terms<double> whole = negative_zero ? two_terms<double>{high[i], 0} : two_sum(high[i], low[i]);
        const bool one_double = (bit_cast<std::uint64_t>(whole.low) << 1) == 0;
        if (lost[i] != 0 || !is_finite(whole.high) || (!one_double && of.divisor != 1)) {
            result[i] = sum_of_column<T>(of.terms, of.term_count, of.divisor, i);
        } else if constexpr (sizeof(T) == 8) {
            result[i] = round_exact<T>(whole.high, of.divisor);
        } else {
            result[i] = round_exact<T>(rounded_to_odd(whole), of.divisor);
        }
    }
}

/// Exact where each column's sum fits one double without loss, which the error of each addition tells; else
/// in pairs.
template <int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_exactly(const columns<T, Terms>& of, T* result) noexcept
{
    if constexpr (sizeof(T) == 8) {
        sum_exactly_in_pairs<width>(of, result);
    } else {
        double sum[width];
        std::uint64_t lost[width];
        T room[width];
        const T* row = row_values(of.terms(0), of.count, room);
        for (int i = 0; i < width; ++i) {
            sum[i] = widened_to<double>(row[i]);
            lost[i] = 0;
        }
        const bool cannot_lose = of.term_count <= exact_terms_in_float64<T>;
        for (std::uint64_t k = 1; k < of.term_count; ++k) {
            row = row_values(of.terms(k), of.count, room);
            if (cannot_lose) {
                for (int i = 0; i < width; ++i) sum[i] = rounded_sum(sum[i], widened_to<double>(row[i]));
            } else {
                for (int i = 0; i < width; ++i) {
                    const two_terms<double> next = two_sum(sum[i], widened_to<double>(row[i]));
                    sum[i] = next.high;
                    lost[i] |= bit_cast<std::uint64_t>(next.low) << 1;
                }
            }
        }
        std::uint64_t any_lost = 0;
        for (int i = 0; i < width; ++i) any_lost |= lost[i] | (is_finite(sum[i]) ? 0 : 1);
        if (any_lost != 0) {
            sum_exactly_in_pairs<width>(of, result);
        } else if (of.divisor == 1) {
            for (int i = 0; i < width; ++i) result[i] = narrowed<T>(sum[i]);
        } else {
            for (int i = 0; i < width; ++i) result[i] = round_exact<T>(sum[i], of.divisor);
        }
    }
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
