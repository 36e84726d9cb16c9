// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The element types that a buffer can have: those that NCCL reduces. The numbers are stable, because they travel in
/// records, and independent of NCCL's own.
enum class element_type : std::uint8_t {
    int8 = 0,
    uint8 = 1,
    int32 = 2,
    uint32 = 3,
    int64 = 4,
    uint64 = 5,
    float16 = 6,
    bfloat16 = 7,
    float32 = 8,
    float64 = 9,
    float8_e4m3 = 10,
    float8_e5m2 = 11,
};

namespace detail {

template <class To, class From>
COLLPROBE_HD constexpr To bit_cast(const From& value) noexcept
{
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, value);
}

/// `condition ? a : b` by a mask, because compilers do not vectorise a choice of a floating-point result.
COLLPROBE_HD constexpr std::uint32_t choose(bool condition, std::uint32_t a, std::uint32_t b) noexcept
{
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (a & mask) | (b & ~mask);
}

enum class infinities : bool { no, yes };

/// A format of up to 16 bits: sign, exponent, fraction. Without infinities the largest exponent is one of numbers too;
/// only the pattern with all bits set is NaN.
template <int exponent, int fraction, infinities infinite = infinities::yes>
struct narrow_format {
    static constexpr int fraction_bits = fraction;
    static constexpr int magnitude_bits = exponent + fraction;
    static constexpr std::uint32_t bias = (1u << (exponent - 1)) - 1;
    static constexpr std::uint32_t fraction_mask = (1u << fraction) - 1;
    static constexpr std::uint32_t sign = 1u << magnitude_bits;
    static constexpr std::uint32_t nonfinite
        = infinite == infinities::yes ? sign - 1 - fraction_mask : sign - 1; // infinity or, without infinities, NaN
    static constexpr std::uint32_t nan = infinite == infinities::yes ? nonfinite | 1u << (fraction - 1) : nonfinite;

    /// The end of the numbers that are rounded to finite ones (or, by a carry, to infinity), as upper bits of a wider
    /// format: those of 2^(bias + 1), or those behind half a unit above the largest number.
    COLLPROBE_HD static constexpr std::uint32_t end(int wide_fraction, std::uint32_t wide_bias) noexcept
    {
        const std::uint32_t power = (wide_bias + bias + 1) << wide_fraction;
        if (infinite == infinities::yes) return power;
        return power + (((2u << fraction) - 3) << (wide_fraction - fraction - 1)) + 1;
    }
};

/// The bits of a float or double rounded to a narrow format: to nearest, ties to even, in one step. It has no branches,
/// so that loops over it are vectorised. Where its result is used, the one floating-point addition is of normal
/// numbers, so neither `-ffast-math` nor flush-to-zero matters.
template <class Format, class Wide>
COLLPROBE_HD constexpr std::uint32_t narrow(Wide value) noexcept
{
    constexpr bool is_double = sizeof(Wide) == 8;
    using bits_type = std::conditional_t<is_double, std::uint64_t, std::uint32_t>;
    constexpr int wide_bits = 8 * sizeof(Wide), wide_fraction = is_double ? 52 : 23;
    constexpr int upper_fraction = is_double ? 20 : 23; // in the upper 32 bits
    constexpr std::uint32_t wide_bias = is_double ? 1023 : 127;
    constexpr bits_type rebias = wide_bias - Format::bias;
    constexpr int shift = wide_fraction - Format::fraction_bits;
    const auto bits = bit_cast<bits_type>(value);
    const std::uint32_t sign
        = static_cast<std::uint32_t>(bits >> (wide_bits - 1 - Format::magnitude_bits)) & Format::sign;
    const bits_type magnitude = bits & ~(bits_type{1} << (wide_bits - 1));
    // The carry of a fraction that rounds up moves into the exponent.
    const bits_type half_unit = (bits_type{1} << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    const auto normal = static_cast<std::uint32_t>((magnitude - (rebias << wide_fraction) + half_unit) >> shift);
    // At this number the unit of a Wide is that of the format's subnormal numbers, so the addition rounds to that unit.
    constexpr bits_type large_unit = (rebias + 1 + shift) << wide_fraction;
    const auto small = static_cast<std::uint32_t>(
        bit_cast<bits_type>(bit_cast<Wide>(magnitude) + bit_cast<Wide>(large_unit)) - large_unit);
    // Comparisons of 32 bits, because every processor does many of them at a time. One more comparison takes the
    // lower bits of a double.
    const auto high = static_cast<std::uint32_t>(magnitude >> (wide_bits - 32));
    const std::uint32_t upper = high | (is_double && static_cast<std::uint32_t>(magnitude) != 0 ? 1u : 0u);
    const std::uint32_t nan = Format::nan | (static_cast<std::uint32_t>(magnitude >> shift) & Format::fraction_mask);
    const std::uint32_t finite
        = choose(high < static_cast<std::uint32_t>(rebias + 1) << upper_fraction, small, normal);
    const std::uint32_t large = choose(upper > (2 * wide_bias + 1) << upper_fraction, nan, Format::nonfinite);
    return sign | choose(upper < Format::end(upper_fraction, wide_bias), finite, large);
}

/// The float with the value of a narrow pattern, exactly. Without branches, so that loops over it are vectorised.
template <class Format>
COLLPROBE_HD constexpr float float_of(std::uint32_t bits) noexcept
{
    constexpr std::uint32_t rebias = (127 - Format::bias) << 23;
    constexpr int shift = 23 - Format::fraction_bits;
    const std::uint32_t sign = (bits & Format::sign) << (31 - Format::magnitude_bits);
    const std::uint32_t magnitude = (bits & (Format::sign - 1)) << shift;
    // A subnormal number is an integer times the smallest one: a difference of two normal floats.
    constexpr std::uint32_t least_normal = rebias + (1u << 23);
    const float small = bit_cast<float>(magnitude + least_normal) - bit_cast<float>(least_normal);
    const std::uint32_t other = magnitude + rebias + (magnitude >= Format::nonfinite << shift ? rebias : 0u);
    return bit_cast<float>(sign | choose(magnitude < 1u << 23, bit_cast<std::uint32_t>(small), other));
}

/// A float rounded to bfloat16, in the same way.
COLLPROBE_HD constexpr std::uint16_t float_to_bfloat16_bits(std::uint32_t bits) noexcept
{
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

} // namespace detail

/// A floating-point number of 8 or 16 bits of storage. Conversion from `float` and from `double` rounds once, to
/// nearest, ties to even, with overflow to infinity and gradual underflow. Conversion to them is exact. There is no
/// arithmetic: an algorithm names the type in which it computes. Its limits are in `element_traits`.
template <class Bits, int exponent, int fraction>
struct small_float {
    Bits bits = 0;

    small_float() = default;
    COLLPROBE_HD explicit constexpr small_float(float value) noexcept : bits(static_cast<Bits>(narrow(value))) {}
    COLLPROBE_HD explicit constexpr small_float(double value) noexcept
        : bits(static_cast<Bits>(detail::narrow<format>(value)))
    {
    }
    COLLPROBE_HD static constexpr small_float from_bits(Bits pattern) noexcept
    {
        small_float result;
        result.bits = pattern;
        return result;
    }
    COLLPROBE_HD explicit constexpr operator float() const noexcept
    {
        if constexpr (has_range_of_float) return detail::bit_cast<float>(std::uint32_t{bits} << 16);
        else return detail::float_of<format>(bits);
    }
    COLLPROBE_HD explicit constexpr operator double() const noexcept
    {
        return static_cast<double>(static_cast<float>(*this));
    }

private:
    static constexpr bool has_range_of_float = exponent == 8;
    static constexpr auto infinite = exponent == 4 ? detail::infinities::no : detail::infinities::yes;
    using format = detail::narrow_format<exponent, fraction, infinite>;

    COLLPROBE_HD static constexpr std::uint32_t narrow(float value) noexcept
    {
        if constexpr (has_range_of_float) return detail::float_to_bfloat16_bits(detail::bit_cast<std::uint32_t>(value));
        else return detail::narrow<format>(value);
    }
};
using float16 = small_float<std::uint16_t, 5, 10>; ///< IEEE-754 binary16, with the layout of CUDA's `__half`
using bfloat16 = small_float<std::uint16_t, 8, 7>; ///< the upper half of a `float`, as CUDA's `__nv_bfloat16`
/// The 8-bit formats of the Open Compute Project, with the layout of CUDA's `__nv_fp8_e4m3` and `__nv_fp8_e5m2`.
/// `float8_e4m3` has no infinities. Its largest number is 448; what rounds beyond it becomes NaN, of which there is one
/// for each sign. `float8_e5m2` has infinities; its largest number is 57344. So an overflow stays visible. (The
/// constructors of CUDA's types, and NCCL's reductions of them, saturate: an overflow gives the largest number.)
/// Source: "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0 (2023).
using float8_e4m3 = small_float<std::uint8_t, 4, 3>;
using float8_e5m2 = small_float<std::uint8_t, 5, 2>;

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 && sizeof(float8_e5m2) == 1);

/// Every element type, one on each line, and the functions that find one by its type and by its number.
namespace detail::element_list {

template <int bytes>
using unsigned_of = std::conditional_t<bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t, std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;

template <class T>
struct integer {
    using value_type = T;
    using bits_type = unsigned_of<sizeof(T)>;
    const char* text;

    static constexpr bool is_floating_point = false;
    static constexpr int digits = 0;
    static constexpr int min_exponent = 0;
    static constexpr int max_exponent = 0;
    static constexpr bits_type sign_mask = 0;
};

/// Sign, exponent and fraction, from the highest bit down. `least_nonfinite` is the smallest pattern without a sign
/// that is not a finite number. That is infinity or, in a type without infinities, NaN.
template <class T, int significand_bits, int smallest_exponent, int largest_exponent, std::uint64_t least_nonfinite,
    infinities infinite = infinities::yes>
struct floating {
    using value_type = T;
    using bits_type = unsigned_of<sizeof(T)>;
    const char* text;

    static constexpr bool is_floating_point = true;
    static constexpr int digits = significand_bits;
    static constexpr int min_exponent = smallest_exponent;
    static constexpr int max_exponent = largest_exponent;
    static constexpr int min_subnormal_exponent = min_exponent - (digits - 1);
    static constexpr bits_type sign_mask = bits_type(bits_type{1} << (sizeof(T) * 8 - 1));
    static constexpr bits_type fraction_mask = bits_type((bits_type{1} << (digits - 1)) - 1);
    static constexpr bits_type exponent_mask = bits_type(~(sign_mask | fraction_mask));
    static constexpr bits_type smallest_nonfinite = bits_type(least_nonfinite);
    static constexpr bits_type quiet_nan
        = bits_type(smallest_nonfinite | (infinite == infinities::yes ? bits_type{1} << (digits - 2) : 0));
};

template <element_type>
struct number {};

// Of floating point: the type, significand bits, exponents, smallest non-finite pattern (see `element_traits`).
constexpr auto listed(number<element_type::int8>) { return integer<std::int8_t>{"int8"}; }
constexpr auto listed(number<element_type::uint8>) { return integer<std::uint8_t>{"uint8"}; }
constexpr auto listed(number<element_type::int32>) { return integer<std::int32_t>{"int32"}; }
constexpr auto listed(number<element_type::uint32>) { return integer<std::uint32_t>{"uint32"}; }
constexpr auto listed(number<element_type::int64>) { return integer<std::int64_t>{"int64"}; }
constexpr auto listed(number<element_type::uint64>) { return integer<std::uint64_t>{"uint64"}; }
constexpr auto listed(number<element_type::float16>) { return floating<float16, 11, -14, 15, 0x7c00>{"half"}; }
constexpr auto listed(number<element_type::bfloat16>) { return floating<bfloat16, 8, -126, 127, 0x7f80>{"bfloat16"}; }
constexpr auto listed(number<element_type::float32>) { return floating<float, 24, -126, 127, 0x7f800000>{"float"}; }
constexpr auto listed(number<element_type::float64>)
{
    return floating<double, 53, -1022, 1023, 0x7ff0000000000000>{"double"};
}
constexpr auto listed(number<element_type::float8_e4m3>)
{
    return floating<float8_e4m3, 4, -6, 8, 0x7f, infinities::no>{"float8_e4m3"};
}
constexpr auto listed(number<element_type::float8_e5m2>)
{
    return floating<float8_e5m2, 3, -14, 15, 0x7c>{"float8_e5m2"};
}

/// The number of element types. They are numbered from 0 on, without a gap.
template <int so_far = 0>
constexpr int count() noexcept
{
    if constexpr (requires { listed(number<element_type{so_far}>{}); }) return count<so_far + 1>();
    else return so_far;
}

template <int at>
using traits_at = decltype(listed(number<element_type{at}>{}));

/// The number of T. If T is no element type, a number that no type has.
template <class T, int at = 0>
constexpr int number_of() noexcept
{
    if constexpr (at == count()) return at;
    else if constexpr (std::is_same_v<typename traits_at<at>::value_type, T>) return at;
    else return number_of<T, at + 1>();
}

} // namespace detail::element_list

/// The properties of an element type that algorithms need.
/// - `digits`: significand bits with the hidden one (0 for integers).
/// - `max_exponent`, `min_exponent`: those of the largest finite and the smallest normal number, as powers of two (1
///   <= |significand| < 2).
/// - `bits_type`: the unsigned integer of the same size. The masks are the parts of a floating-point number in it.
/// - `smallest_nonfinite`: a number without its sign is finite below it. From it on it is infinity where its fraction
///   is zero, else NaN.
/// - `min_subnormal_exponent`: all finite numbers are multiples of 2^`min_subnormal_exponent`.
template <class T>
struct element_traits;

template <class T>
    requires(detail::element_list::number_of<T>() < detail::element_list::count())
struct element_traits<T> : detail::element_list::traits_at<detail::element_list::number_of<T>()> {
    static constexpr element_type type{detail::element_list::number_of<T>()};
    static constexpr int bytes = sizeof(T);
    static_assert(std::is_trivially_copyable_v<T>);
    static constexpr const char* name = listed(detail::element_list::number<type>{}).text;
};

/// A type that a buffer of a collective may hold.
template <class T>
concept element = requires { element_traits<std::remove_const_t<T>>::type; };

template <class T>
concept floating_element = element<T> && element_traits<std::remove_const_t<T>>::is_floating_point;

namespace detail {

/// Calls `use` with a zero of every element type, in the order of their numbers.
template <class Use>
constexpr void for_each_type(Use&& use)
{
    namespace list = element_list;
    [&]<int... at>(std::integer_sequence<int, at...>) {
        (use(typename list::traits_at<at>::value_type{}), ...);
    }(std::make_integer_sequence<int, list::count()>{});
}

/// Calls `use` with a zero of the type that a number names. Does nothing for other numbers.
template <class Use>
constexpr void with_type(element_type type, Use&& use)
{
    for_each_type([&]<class T>(T zero) {
        if (type == element_traits<T>::type) use(zero);
    });
}

} // namespace detail

/// Calls `use` with a zero of the floating-point type that a number names. Does nothing for other numbers.
template <class Use>
constexpr void with_floating_type(element_type type, Use&& use)
{
    detail::with_type(type, [&]<class T>(T zero) {
        if constexpr (floating_element<T>) use(zero);
    });
}

constexpr bool is_floating(element_type type) noexcept
{
    bool floating = false;
    with_floating_type(type, [&](auto) { floating = true; });
    return floating;
}

/// The type's name as in messages and reports; "unknown" for a number that is no element type.
constexpr const char* name(element_type type) noexcept
{
    const char* result = "unknown";
    detail::with_type(type, [&]<class T>(T) { result = element_traits<T>::name; });
    return result;
}

/// Bytes of one element; 0 for a number that is no element type.
constexpr int bytes_of(element_type type) noexcept
{
    int result = 0;
    detail::with_type(type, [&]<class T>(T) { result = element_traits<T>::bytes; });
    return result;
}

/// The bit pattern of an element as an unsigned integer of its size.
template <element T>
COLLPROBE_HD constexpr auto to_bits(T value) noexcept
{
    return detail::bit_cast<typename element_traits<T>::bits_type>(value);
}

/// The element type with the layout of a type of another library, as `type`. Specialise it for a type of your own:
/// views then take memory of that type. (`comm/nccl/types.hpp` has CUDA's floating-point types.)
template <class T>
struct foreign_element {};

namespace detail {

template <class T>
struct element_for_type {
    using type = T;
};
template <class T>
    requires requires { typename foreign_element<std::remove_const_t<T>>::type; }
struct element_for_type<T> {
    using same = typename foreign_element<std::remove_const_t<T>>::type;
    static_assert(element<same> && sizeof(same) == sizeof(T) && alignof(same) <= alignof(T));
    using type = std::conditional_t<std::is_const_v<T>, const same, same>;
};

/// The elements of a view of T's memory: T, or the element type with the layout of a foreign T. Const stays.
template <class T>
using element_for = typename element_for_type<T>::type;

/// Whether the bit pattern without its sign is below `end`. Compares signed numbers, because any processor compares
/// many of those at once.
template <floating_element T>
COLLPROBE_HD constexpr bool magnitude_is_below(T value, typename element_traits<T>::bits_type end) noexcept
{
    using bits_type = typename element_traits<T>::bits_type;
    using signed_type = std::make_signed_t<bits_type>;
    constexpr auto magnitude = static_cast<bits_type>(~element_traits<T>::sign_mask);
    return static_cast<signed_type>(to_bits(value) & magnitude) < static_cast<signed_type>(end);
}

} // namespace detail

/// Classification by bits, which is right under `-ffast-math` and flush-to-zero. Integers are always finite.
template <element T>
COLLPROBE_HD constexpr bool is_finite(T value) noexcept
{
    if constexpr (!element_traits<T>::is_floating_point) return true;
    else return detail::magnitude_is_below(value, element_traits<T>::smallest_nonfinite);
}

template <element T>
COLLPROBE_HD constexpr bool is_nan(T value) noexcept
{
    if constexpr (!element_traits<T>::is_floating_point) return false;
    else return !is_finite(value) && (to_bits(value) & element_traits<T>::fraction_mask) != 0;
}

} // namespace collprobe

/// Not defined, because the primary template would give 0 for every limit of these types.
template <class Bits, int exponent, int fraction>
struct std::numeric_limits<collprobe::small_float<Bits, exponent, fraction>>;
