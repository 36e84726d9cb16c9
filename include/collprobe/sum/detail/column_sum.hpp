// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/simd/convert.hpp>
#include <collprobe/simd/rounding.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/detail/add.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/round_scaled.hpp>

/// Sums over the rows of a block of columns: a column holds the terms of one element. The loops over columns have a
/// constant length, so that a host's compiler vectorises them and a GPU's compiler unrolls them into registers.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A number as the unevaluated sum of two: `high` is the rounded value, `low` is its error.
template <class Float>
struct two_terms {
    Float high;
    Float low;
};

/// a + b = high + low exactly; high = a + b rounded to nearest. Six operations, no branch. Also under `-ffast-math` and
/// `--use_fast_math`. On the CPU subnormal numbers must not be flushed to zero (`gradual_underflow` ensures that).
/// Precondition: a + b does not overflow. If it does, `high` is infinite and `low` is not finite. In rare cases only
/// `low` is not finite: an operand is the largest number, and an intermediate step overflows.
/// Source: D. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B; S. Boldo, S. Graillat, J.-M. Muller, "On
/// the robustness of the 2Sum and Fast2Sum algorithms" (2017).
template <class Float>
COLLPROBE_HD inline two_terms<Float> two_sum(Float a, Float b, const hidden<Float>& hide = hidden<Float>{}) noexcept
{
    const Float high = hide(rounded_sum(a, b));
    const Float from_b = hide(rounded_difference(high, a));
    const Float from_a = hide(rounded_difference(high, from_b));
    const Float lost_b = hide(rounded_difference(b, from_b));
    const Float lost_a = hide(rounded_difference(a, from_a));
    return {high, hide(rounded_sum(lost_a, lost_b))};
}

/// Reads a row in 16-byte words if it is aligned, else one element after the other.
template <int width, floating_element T>
COLLPROBE_HD inline const T* row_values(const T* from, int count, [[maybe_unused]] T (&room)[width]) noexcept
{
    if constexpr (!on_device) {
        if (count == width) return from;
    } else if constexpr (sizeof(room) == 16) {
        if (count == width && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
            copy_16(room, from);
            return room;
        }
    }
    for (int i = 0; i < width; ++i) room[i] = i < count ? from[i] : T{};
    return room;
}

/// What the elements of a row are added as: on the host those that are stored only become floats.
template <floating_element T>
using number_of = std::conditional_t<!on_device && narrow_floating_element<T>, float, T>;

template <int width, floating_element T>
COLLPROBE_HD inline const number_of<T>* row_numbers(
    const T* from, int count, [[maybe_unused]] number_of<T> (&room)[width]) noexcept
{
    if constexpr (std::is_same_v<number_of<T>, T>) {
        return row_values(from, count, room);
    } else {
        widen_run(from, count, room);
        for (int i = count; i < width; ++i) room[i] = 0;
        return room;
    }
}

/// The value in the accumulator's type.
template <class Wide, floating_element T>
COLLPROBE_HD inline Wide widened_to(T value) noexcept
{
    if constexpr (std::is_same_v<Wide, T>) {
        return value;
    } else if constexpr (std::is_same_v<Wide, double>) {
        return widen(value);
    } else if constexpr (on_device && std::is_same_v<T, float16>) {
        return static_cast<float>(widen(value));
    } else {
        return static_cast<Wide>(value);
    }
}

/// Rounds a wide value to the element type, once.
template <floating_element T, class Wide>
COLLPROBE_HD inline T narrowed(Wide value) noexcept
{
    if constexpr (std::is_same_v<T, Wide>) {
        return value;
    } else if constexpr (std::is_same_v<T, float>) {
        return nearest_float(value);
    } else {
        return T(value);
    }
}

/// value / divisor, rounded to the accumulator's type. For a power of two it is exact unless it underflows.
template <class Wide>
COLLPROBE_HD inline Wide quotient(Wide value, std::uint32_t divisor) noexcept
{
    if constexpr (std::is_floating_point_v<Wide>) return rounded_quotient(value, static_cast<Wide>(divisor));
    else return value;
}

/// The same of a run.
template <int width, floating_element T, class Wide>
COLLPROBE_HD inline void narrow_run(const Wide (&from)[width], T* to) noexcept
{
    if constexpr (!std::is_same_v<number_of<T>, T> && !std::is_same_v<Wide, T>) {
        round_run(from, width, to);
    } else {
        for (int i = 0; i < width; ++i) to[i] = narrowed<T>(from[i]);
    }
}

/// The terms of each element of a block, and the divisor of their sum. `terms(k)` points to the elements of term k;
/// the sum is divided by `divisor`.
template <floating_element T, class Terms>
struct columns {
    Terms terms;
    std::uint64_t term_count; // at least 1
    std::uint32_t divisor;
    int count; // elements of the block
};

/// Term after term, each addition rounded to the type `Wide`. The host keeps sums of a type that is stored only as
/// floats, which it rounds to the type after each addition.
template <class Wide, int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_plainly(const columns<T, Terms>& of, T* result) noexcept
{
    constexpr bool is_stored_only = !std::is_floating_point_v<Wide>;
    using kept = std::conditional_t<is_stored_only, number_of<T>, Wide>;
    [[maybe_unused]] const hidden<std::conditional_t<std::is_floating_point_v<kept>, kept, float>> hide;
    kept sum[width];
    number_of<T> room[width];
    const number_of<T>* row = row_numbers(of.terms(0), of.count, room);
    for (int i = 0; i < width; ++i) sum[i] = widened_to<kept>(row[i]);
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_numbers(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            sum[i] = add(sum[i], widened_to<kept>(row[i]));
            if constexpr (std::is_floating_point_v<kept>) sum[i] = hide(sum[i]);
        }
        if constexpr (is_stored_only && std::is_floating_point_v<kept>) {
            narrow_run(sum, result);
            widen_run(result, width, sum);
        }
    }
    if (of.divisor != 1 && is_stored_only) {
        for (int i = 0; i < width; ++i) result[i] = narrowed<T>(quotient(widened_to<double>(sum[i]), of.divisor));
        return;
    }
    if (of.divisor != 1) {
        for (int i = 0; i < width; ++i) sum[i] = quotient(sum[i], of.divisor);
    }
    narrow_run(sum, result);
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

/// The exponents of the nonzero terms of a column, as bits of the largest and of the smallest magnitude. All
/// operations are on integers, so the conclusions hold in any build.
template <floating_element T>
struct exponent_range {
    using traits = element_traits<T>;
    // Signed, because any processor compares many signed numbers at once.
    using bits_type = std::make_signed_t<typename traits::bits_type>;
    static constexpr bits_type magnitude = static_cast<bits_type>(~traits::sign_mask);

    bits_type largest;
    bits_type least; // minus 1, so that it is large for zero

    COLLPROBE_HD static bits_type of_largest(T value) noexcept
    {
        return static_cast<bits_type>(to_bits(value) & static_cast<typename traits::bits_type>(magnitude));
    }
    COLLPROBE_HD static bits_type of_least(T value) noexcept
    {
        return static_cast<bits_type>((of_largest(value) - 1) & magnitude);
    }
    COLLPROBE_HD bool finite() const noexcept { return largest < static_cast<bits_type>(traits::smallest_nonfinite); }
    /// The exponent of the unit of the smallest term.
    COLLPROBE_HD int unit() const noexcept { return first() - 1 + traits::min_subnormal_exponent; }
    /// The largest difference of the exponents of `terms` terms for which `bits` bits hold their sum, and every part
    /// of it, in the unit of the smallest term.
    COLLPROBE_HD static int most_spread(std::uint64_t terms, int bits) noexcept
    {
        const int carries = terms > 1 ? highest_bit(terms - 1) + 1 : 0;
        return bits - traits::digits - carries;
    }
    /// Not 0 if the exponents differ by more, or if a term is not finite. Computed in the width of the elements and
    /// without branches, so that compilers vectorise loops over columns.
    COLLPROBE_HD bits_type is_wider_than(int spread) const noexcept
    {
        const bool wider = last() - first() > spread;
        return static_cast<bits_type>(wider | !finite());
    }

private:
    COLLPROBE_HD int last() const noexcept { return at_least_1(static_cast<int>(largest >> (traits::digits - 1))); }
    COLLPROBE_HD int first() const noexcept
    {
        return at_least_1(static_cast<int>((static_cast<std::uint32_t>(least) + 1) >> (traits::digits - 1)));
    }
    COLLPROBE_HD static int at_least_1(int field) noexcept { return field > 1 ? field : 1; }
};

__extension__ typedef __int128 wide_integer;

/// The correctly rounded sum of one column: as an integer of 128 bits in the unit of its smallest term, or by the
/// long sum if 128 bits are not enough.
template <floating_element T, class Terms>
COLLPROBE_HD __attribute__((noinline)) T sum_of_column_in_integers(
    const columns<T, Terms>& of, int column) noexcept
{
    // Computed again here, so that a kernel need not keep it in registers until now.
    using range_type = exponent_range<T>;
    range_type range{0, range_type::magnitude};
    for (std::uint64_t k = 0; k < of.term_count; ++k) {
        const T term = of.terms(k)[column];
        const auto high = range_type::of_largest(term);
        const auto low = range_type::of_least(term);
        range.largest = high > range.largest ? high : range.largest;
        range.least = low < range.least ? low : range.least;
    }
    if (range.is_wider_than(range_type::most_spread(of.term_count, 127)) != 0) {
        return sum_of_column<T>(of.terms, of.term_count, of.divisor, column);
    }
    wide_integer sum = 0;
    for (std::uint64_t k = 0; k < of.term_count; ++k) {
        const scaled term = take_apart(of.terms(k)[column]);
        if (term.significand == 0) continue; // its exponent may lie below the unit
        const wide_integer shifted = static_cast<wide_integer>(term.significand) << (term.exponent - range.unit());
        sum += term.negative ? -shifted : shifted;
    }
    const wide_integer magnitude = sum < 0 ? -sum : sum;
    return round_scaled<T>(divide(static_cast<std::uint64_t>(magnitude >> 64), static_cast<std::uint64_t>(magnitude),
        range.unit(), of.divisor, sum < 0));
}

/// An exact sum, divided and rounded once.
template <floating_element T>
COLLPROBE_HD inline T rounded_once(double sum, std::uint32_t divisor) noexcept
{
    const scaled number = take_apart(sum);
    return round_scaled<T>(divide(0, number.significand, number.exponent, divisor, number.negative));
}

/// Sums in one double if the exponents are near enough for every addition to be exact, in whatever order a build adds
/// (except for the sign of zero). Else sums in integers.
template <int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_in_double(const columns<T, Terms>& of, T* result) noexcept
{
    using range = exponent_range<T>;
    double sum[width];
    typename range::bits_type largest[width];
    typename range::bits_type least[width];
    T room[width];
    [[maybe_unused]] number_of<T> numbers[width];
    const T* row = row_values(of.terms(0), of.count, room);
    const auto as_numbers = [&] {
        if constexpr (std::is_same_v<number_of<T>, T>) return row;
        else return row_numbers(row, width, numbers);
    };
    for (int i = 0; i < width; ++i) {
        largest[i] = range::of_largest(row[i]);
        least[i] = range::of_least(row[i]);
    }
    const number_of<T>* number = as_numbers();
    for (int i = 0; i < width; ++i) sum[i] = widened_to<double>(number[i]);
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            const auto high = range::of_largest(row[i]);
            const auto low = range::of_least(row[i]);
            largest[i] = high > largest[i] ? high : largest[i];
            least[i] = low < least[i] ? low : least[i];
        }
        number = as_numbers();
        for (int i = 0; i < width; ++i) sum[i] = rounded_sum(sum[i], widened_to<double>(number[i]));
    }
    if (of.divisor == 1) {
        narrow_run(sum, result);
    } else {
        for (int i = 0; i < width; ++i) result[i] = rounded_once<T>(sum[i], of.divisor);
    }
    // First all columns at once, because few blocks have an inexact column.
    const int limit = range::most_spread(of.term_count, 53);
    typename range::bits_type inexact[width];
    typename range::bits_type any = 0;
    for (int i = 0; i < width; ++i) {
        inexact[i] = range{largest[i], least[i]}.is_wider_than(limit);
        any = static_cast<typename range::bits_type>(any | inexact[i]);
    }
    if (any == 0) return;
    for (int i = 0; i < width; ++i) {
        if (inexact[i] != 0 && i < of.count) result[i] = sum_of_column_in_integers(of, i);
    }
}

/// Sums in a pair of doubles if the second double loses nothing, else by the long sum.
template <int width, class Terms>
COLLPROBE_HD inline void sum_in_pair(const columns<double, Terms>& of, double* result) noexcept
{
    const hidden<double> hide;
    double high[width];
    double low[width];
    std::uint64_t lost[width];
    double room[width];
    const double* row = row_values(of.terms(0), of.count, room);
    for (int i = 0; i < width; ++i) {
        high[i] = row[i];
        low[i] = 0;
        lost[i] = 0;
    }
    for (std::uint64_t k = 1; k < of.term_count; ++k) {
        row = row_values(of.terms(k), of.count, room);
        for (int i = 0; i < width; ++i) {
            const two_terms<double> next = two_sum(high[i], row[i], hide);
            const two_terms<double> rest = two_sum(low[i], next.low, hide);
            high[i] = next.high;
            low[i] = rest.high;
            lost[i] |= bit_cast<std::uint64_t>(rest.low) << 1;
        }
    }
    for (int i = 0; i < width; ++i) {
        const bool one_double = (bit_cast<std::uint64_t>(low[i]) << 1) == 0; // adding it may lose the sign of zero
        const double sum = one_double ? high[i] : hide(rounded_sum(high[i], low[i]));
        if (lost[i] != 0 || !is_finite(sum) || (!one_double && of.divisor != 1)) {
            result[i] = i < of.count ? sum_of_column<double>(of.terms, of.term_count, of.divisor, i) : 0;
        } else if (of.divisor == 1) {
            result[i] = sum;
        } else {
            result[i] = rounded_once<double>(sum, of.divisor);
        }
    }
}

/// The sums of a block of columns. `result` gets `width` values; only the first `of.count` are valid.
template <accumulation in, int width, floating_element T, class Terms>
COLLPROBE_HD inline void sum_columns(const columns<T, Terms>& of, T* result) noexcept
{
    static_assert(holds<T>(in), "the accumulator is narrower than the element type");
    if constexpr (in == accumulation::exact && std::is_same_v<T, double>) sum_in_pair<width>(of, result);
    else if constexpr (in == accumulation::exact) sum_in_double<width>(of, result);
    else if constexpr (in == accumulation::float64) sum_plainly<double, width>(of, result);
    else if constexpr (in == accumulation::float32) sum_plainly<float, width>(of, result);
    else sum_plainly<T, width>(of, result);
}

} // namespace collprobe::detail
