// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/sliced_exchange.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/round_scaled.hpp>

/// Sums as integers. The ranks agree, per element, on the unit of a fixed-point number. They add multiples of the unit,
/// which is associative, and round the sum once.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Exponents are sent as one byte if the type's exponents fit. An element's code is 0 for zero; 1 for the lowest
/// exponent, and so on upwards; the highest code marks a non-finite element.
template <floating_element T>
using exponent_code = std::conditional_t<std::is_same_v<T, double>, std::int32_t, std::uint8_t>;

template <floating_element T>
inline constexpr int not_finite_code = element_traits<T>::max_exponent - element_traits<T>::min_exponent + 2;

/// The smallest `bits` with 2^bits >= terms.
constexpr int bits_for_terms(std::uint64_t terms) noexcept
{
    int bits = 0;
    while ((std::uint64_t{1} << bits) < terms) ++bits;
    return bits;
}

/// The largest number of terms in fixed point: the sum of their codes for NaN and infinity must not overflow.
inline constexpr std::uint64_t max_fixed_point_terms = (std::uint64_t{1} << 20) - 1;
/// Whether a sum of that many arbitrary numbers of T fits in 62 bits, so that all elements can share one unit.
template <floating_element T>
inline constexpr bool sums_fit_in_one_unit = fixed_point_bits<T> + bits_for_terms(max_fixed_point_terms) <= 62;

/// The unit, as a power of two, for the sum of `terms` elements, the largest of which has this code. Each term is below
/// 2^62 / terms units. If all sums fit, the unit is the smallest number of the type (2^-24 for halves).
template <floating_element T>
COLLPROBE_HD constexpr int fixed_point_unit(int code, int term_bits) noexcept
{
    if constexpr (sums_fit_in_one_unit<T>) return element_traits<T>::min_subnormal_exponent;
    // |x| < 2^(exponent + 1)
    const int exponent = element_traits<T>::min_exponent + (code > 0 ? code - 1 : 0);
    return exponent + 1 - (62 - term_bits);
}

/// Codes of non-finite terms, each counted in its own digits.
inline constexpr std::int64_t positive_infinity_term = 1;
inline constexpr std::int64_t negative_infinity_term = std::int64_t{1} << 20;
inline constexpr std::int64_t nan_term = std::int64_t{1} << 40;

/// number / 2^unit, rounded to nearest, ties to even. Precondition: the quotient is below 2^62.
COLLPROBE_HD constexpr std::int64_t in_units(const scaled& number, int unit) noexcept
{
    const int shift = unit - number.exponent;
    std::uint64_t magnitude = 0;
    if (shift <= 0) {
        magnitude = number.significand << -shift;
    } else if (shift < 64) {
        const std::uint64_t half_unit = std::uint64_t{1} << (shift - 1);
        const std::uint64_t rest = number.significand & (half_unit | (half_unit - 1));
        magnitude = number.significand >> shift;
        if (rest > half_unit || (rest == half_unit && (magnitude & 1) != 0)) ++magnitude;
    }
    const auto value = static_cast<std::int64_t>(magnitude);
    return number.negative ? -value : value;
}

/// codes[i] = the largest code of element i of all leaves. A body for `for_each`.
template <floating_element T>
struct code_exponents {
    const T* leaves;
    std::uint64_t leaf_stride;
    std::uint64_t leaf_count;
    exponent_code<T>* codes;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        int largest = 0;
        for (std::uint64_t leaf = 0; leaf < leaf_count; ++leaf) {
            const T value = leaves[leaf * leaf_stride + index];
            const auto bits = to_bits(value);
            const int field
                = static_cast<int>((bits & element_traits<T>::exponent_mask) >> (element_traits<T>::digits - 1));
            const int code = !is_finite(value) ? not_finite_code<T>
                : field != 0 ? field
                : (bits & element_traits<T>::fraction_mask) != 0 ? 1
                                                                 : 0;
            largest = code > largest ? code : largest;
        }
        codes[index] = static_cast<exponent_code<T>>(largest);
    }
};

/// sums[i] = element i of all leaves in the agreed unit. A body for `for_each`.
template <floating_element T>
struct leaves_to_units {
    const T* leaves;
    std::uint64_t leaf_stride;
    std::uint64_t leaf_count;
    const exponent_code<T>* codes;
    int term_bits;
    std::int64_t* sums;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const int code = static_cast<int>(codes[index]);
        const int unit = fixed_point_unit<T>(code, term_bits);
        std::int64_t sum = 0;
        for (std::uint64_t leaf = 0; leaf < leaf_count; ++leaf) {
            const T value = leaves[leaf * leaf_stride + index];
            if (code == not_finite_code<T>) {
                sum += is_finite(value) ? 0
                    : is_nan(value) ? nan_term
                    : (to_bits(value) & element_traits<T>::sign_mask) != 0 ? negative_infinity_term
                                                                          : positive_infinity_term;
            } else {
                sum += in_units(take_apart(value), unit);
            }
        }
        sums[index] = sum;
    }
};

/// `round_scaled` without branches, for a number whose highest bit, 2^leading, is in the normal range of the element
/// type. `sign`: all bits or none.
template <floating_element T>
COLLPROBE_HD constexpr T round_normal(std::uint64_t magnitude, int leading, std::uint64_t sign) noexcept
{
    using traits = element_traits<T>;
    constexpr std::uint64_t half_unit = std::uint64_t{1} << 63;
    const std::uint64_t significand = magnitude << (63 - highest_bit(magnitude));
    const std::uint64_t kept = significand >> (64 - traits::digits);
    const std::uint64_t rest = significand << traits::digits;
    const auto up
        = static_cast<std::uint64_t>(rest > half_unit) | (static_cast<std::uint64_t>(rest == half_unit) & kept);
        // The hidden bit of `kept` adds one to the exponent field; so does a carry out of `kept`.
    const std::uint64_t bits = (static_cast<std::uint64_t>(leading - traits::min_exponent) << (traits::digits - 1))
        + kept + (up & 1);
    const std::uint64_t bounded = bits < traits::smallest_nonfinite ? bits : traits::smallest_nonfinite;
    return bit_cast<T>(static_cast<typename traits::bits_type>((sign & traits::sign_mask) | bounded));
}

/// result[i] = the sum divided by `divisor`, rounded once. A body for `for_each`.
template <floating_element T>
struct units_to_elements {
    const std::int64_t* sums;
    const exponent_code<T>* codes;
    int term_bits;
    std::uint32_t divisor;
    T* result;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        using traits = element_traits<T>;
        const std::int64_t sum = sums[index];
        const int code = static_cast<int>(codes[index]);
        if (code == not_finite_code<T>) {
            constexpr std::int64_t low_digits = negative_infinity_term - 1;
            const bool positive = (sum & low_digits) != 0;
            const bool negative = ((sum >> 20) & low_digits) != 0;
            result[index] = sum >= nan_term || (positive && negative) ? quiet_nan<T>() : signed_infinity<T>(negative);
            return;
        }
        const std::int64_t sign = sum >> 63; // all bits or none: avoids an unpredictable branch
        const auto magnitude = static_cast<std::uint64_t>((sum ^ sign) - sign);
        scaled number{magnitude, fixed_point_unit<T>(code, term_bits), false, sign != 0};
        if ((divisor & (divisor - 1)) == 0) {
            number.exponent -= highest_bit(divisor);
            const int leading = magnitude != 0 ? number.exponent + highest_bit(magnitude) : traits::min_exponent - 1;
            if (leading >= traits::min_exponent && leading <= traits::max_exponent) {
                result[index] = round_normal<T>(magnitude, leading, static_cast<std::uint64_t>(sign));
                return;
            }
        } else {
            number = divide(0, magnitude, number.exponent, divisor, number.negative);
        }
        result[index] = round_scaled<T>(number);
    }
};

/// Reduces floating-point sums by the communicator's own reduction of integers.
template <floating_element T, communicator Comm>
class fixed_point {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using code = exponent_code<T>;

public:
    /// Bytes of memory per element.
    static constexpr std::uint64_t element_bytes = sizeof(std::int64_t) + sizeof(code);

    /// Cost: two messages per piece.
    static void all_reduce(Comm& comm, exchange_memory<device>& memory, const T* send, std::uint64_t leaf_count,
        std::uint64_t leaves, std::uint32_t divisor, view<T> receive, stream_ref on, call_site where)
    {
        const int term_bits = bits_for_terms(static_cast<std::uint64_t>(comm.size()) * leaves);
        const std::uint64_t room = memory.scratch.size() / element_bytes / 8 * 8;
        auto* const sums = reinterpret_cast<std::int64_t*>(memory.scratch.data());
        auto* const codes = reinterpret_cast<code*>(sums + room);
        for (std::uint64_t first = 0; first < receive.count(); first += room) {
            const std::uint64_t left = receive.count() - first;
            const std::uint64_t count = left < room ? left : room;
            device::for_each(on, count, code_exponents<T>{send + first, leaf_count, leaves, codes});
            comm.all_reduce(view<const code>(codes, count), view<code>(codes, count), reduction::max, on, where);
            device::for_each(on, count, leaves_to_units<T>{send + first, leaf_count, leaves, codes, term_bits, sums});
            comm.all_reduce(
                view<const std::int64_t>(sums, count), view<std::int64_t>(sums, count), reduction::sum, on, where);
            device::for_each(
                on, count, units_to_elements<T>{sums, codes, term_bits, divisor, receive.data() + first});
        }
    }

    static std::uint64_t pieces(const exchange_memory<device>& memory, std::uint64_t count) noexcept
    {
        const std::uint64_t room = memory.scratch.size() / element_bytes / 8 * 8;
        return (count + room - 1) / room;
    }
};

} // namespace collprobe::detail
