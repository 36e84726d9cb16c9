// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The element types a buffer can have: those that NCCL reduces. The numbers are stable (they travel
/// in records) and independent of NCCL's own.
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
};

namespace detail {

template <class To, class From>
COLLPROBE_HD constexpr To bit_cast(const From& value) noexcept
{
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, value);
}

/// `condition ? a : b` by a mask: compilers do not vectorise a choice of a floating-point result.
COLLPROBE_HD constexpr std::uint32_t choose(bool condition, std::uint32_t a, std::uint32_t b) noexcept
{
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (a & mask) | (b & ~mask);
}

/// A double's bits rounded to a 16-bit format: to nearest, ties to even, in one step. Without branches, so that loops
/// over it are vectorised. The one floating-point addition is of normal numbers where its result counts, so neither
/// `-ffast-math` nor flush-to-zero matters.
template <int fraction, int exponent>
COLLPROBE_HD constexpr std::uint16_t double_to_16_bits(std::uint64_t bits) noexcept
{
    constexpr std::uint64_t bias = (1 << (exponent - 1)) - 1;
    constexpr std::uint32_t infinity = std::uint32_t((1 << exponent) - 1) << fraction;
    constexpr int shift = 52 - fraction;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 48) & 0x8000u;
    const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
    // The carry of a fraction that rounds up moves into the exponent.
    const std::uint64_t half_unit = (std::uint64_t{1} << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    const auto normal = static_cast<std::uint32_t>((magnitude - ((1023 - bias) << 52) + half_unit) >> shift);
    // Next to this number a double's unit is that of the format's subnormal numbers: the addition rounds to it.
    constexpr std::uint64_t large_unit = (1023 + 1 - bias - fraction + 52) << 52;
    const auto small = static_cast<std::uint32_t>(
        bit_cast<std::uint64_t>(bit_cast<double>(magnitude) + bit_cast<double>(large_unit)) - large_unit);
    // Comparisons of 32 bits, which every processor does many at a time; one more for what lies below them.
    const auto high = static_cast<std::uint32_t>(magnitude >> 32);
    const std::uint32_t below = static_cast<std::uint32_t>(magnitude) != 0 ? 1 : 0;
    const std::uint32_t nan
        = infinity | 1u << (fraction - 1) | (static_cast<std::uint32_t>(magnitude >> shift) & ((1u << fraction) - 1));
    const std::uint32_t finite = choose(high < (1023 + 1 - bias) << 20, small, normal);
    const std::uint32_t large = choose((high | below) > 0x7ff00000u, nan, infinity);
    return static_cast<std::uint16_t>(sign | choose(high < (1023 + 1 + bias) << 20, finite, large));
}

/// A float's bits rounded to a half's, likewise; without branches, so that loops over it
/// are vectorised. The one floating-point addition is of normal numbers where its result counts.
COLLPROBE_HD constexpr std::uint16_t float_to_float16_bits(std::uint32_t bits) noexcept
{
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    // 112 is the difference of the biases; the carry of a fraction that rounds up moves into the exponent.
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    // Next to 1/2 a float's unit is 2^-24, that of subnormal halves: the addition rounds to it.
    const std::uint32_t small = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const std::uint32_t finite = choose(magnitude < 0x38800000u, small, normal);
    const std::uint32_t large = choose(magnitude > 0x7f800000u, nan, 0x7c00u);
    return static_cast<std::uint16_t>(sign | choose(magnitude < 0x47800000u, finite, large));
}

/// The same for bfloat16.
COLLPROBE_HD constexpr std::uint16_t float_to_bfloat16_bits(std::uint32_t bits) noexcept
{
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

} // namespace detail

/// IEEE-754 binary16 as 16 bits of storage, layout-compatible with CUDA's `__half`.
///
/// Conversion from `float` and from `double` rounds once, to nearest, ties to even, with overflow to
/// infinity and gradual underflow; conversion to them is exact. There is no arithmetic: an algorithm
/// says in which type it computes.
struct float16 {
    std::uint16_t bits = 0;

    float16() = default;
    COLLPROBE_HD explicit constexpr float16(float value) noexcept
        : bits(detail::float_to_float16_bits(detail::bit_cast<std::uint32_t>(value)))
    {
    }
    COLLPROBE_HD explicit constexpr float16(double value) noexcept
        : bits(detail::double_to_16_bits<10, 5>(detail::bit_cast<std::uint64_t>(value)))
    {
    }
    COLLPROBE_HD static constexpr float16 from_bits(std::uint16_t pattern) noexcept
    {
        float16 result;
        result.bits = pattern;
        return result;
    }
    COLLPROBE_HD explicit constexpr operator float() const noexcept
    {
        // Without branches, so that loops over it are vectorised.
        const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16;
        const std::uint32_t magnitude = std::uint32_t(bits & 0x7fffu) << 13;
        // A subnormal half is an integer times 2^-24: a difference of two normal floats.
        const float small = detail::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14f;
        const std::uint32_t rebias = (112u << 23) + (magnitude >= 0x0f800000u ? 112u << 23 : 0u);
        return detail::bit_cast<float>(
            sign | detail::choose(magnitude < 0x00800000u, detail::bit_cast<std::uint32_t>(small), magnitude + rebias));
    }
    COLLPROBE_HD explicit constexpr operator double() const noexcept
    {
        return static_cast<double>(static_cast<float>(*this));
    }
};

/// bfloat16 (the upper half of a `float`) as 16 bits of storage, layout-compatible with CUDA's
/// `__nv_bfloat16`. Conversions as for `float16`.
struct bfloat16 {
    std::uint16_t bits = 0;

    bfloat16() = default;
    COLLPROBE_HD explicit constexpr bfloat16(float value) noexcept
        : bits(detail::float_to_bfloat16_bits(detail::bit_cast<std::uint32_t>(value)))
    {
    }
    COLLPROBE_HD explicit constexpr bfloat16(double value) noexcept
        : bits(detail::double_to_16_bits<7, 8>(detail::bit_cast<std::uint64_t>(value)))
    {
    }
    COLLPROBE_HD static constexpr bfloat16 from_bits(std::uint16_t pattern) noexcept
    {
        bfloat16 result;
        result.bits = pattern;
        return result;
    }
    COLLPROBE_HD explicit constexpr operator float() const noexcept
    {
        return detail::bit_cast<float>(std::uint32_t{bits} << 16);
    }
    COLLPROBE_HD explicit constexpr operator double() const noexcept
    {
        return static_cast<double>(static_cast<float>(*this));
    }
};

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);
static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_copyable_v<bfloat16>);

/// What an algorithm must know of an element type. `digits` counts significand bits with the hidden
/// one (0 for integers); `max_exponent` and `min_exponent` are those of the largest finite and the
/// smallest normal number, as powers of two (1 <= |significand| < 2); `bits_type` is the unsigned
/// integer of the same size.
template <class T>
struct element_traits;

namespace detail {

template <class Bits, element_type Type, bool floating, bool is_signed, int significand_digits,
    int smallest_exponent, int largest_exponent>
struct element_traits_base {
    using bits_type = Bits;
    static constexpr element_type type = Type;
    static constexpr int bytes = sizeof(Bits);
    static constexpr bool is_floating_point = floating;
    static constexpr bool is_signed_type = is_signed;
    static constexpr int digits = significand_digits;
    static constexpr int min_exponent = smallest_exponent;
    static constexpr int max_exponent = largest_exponent;

    /// The bits of a floating-point number by part; zero for integers.
    static constexpr Bits sign_mask = floating ? Bits(Bits{1} << (sizeof(Bits) * 8 - 1)) : Bits{0};
    static constexpr Bits fraction_mask
        = floating ? Bits((Bits{1} << (significand_digits > 0 ? significand_digits - 1 : 0)) - 1) : Bits{0};
    static constexpr Bits exponent_mask = floating ? Bits(~(sign_mask | fraction_mask)) : Bits{0};
};

} // namespace detail

template <>
struct element_traits<std::int8_t>
    : detail::element_traits_base<std::uint8_t, element_type::int8, false, true, 0, 0, 0> {
    static constexpr const char* name = "int8";
};
template <>
struct element_traits<std::uint8_t>
    : detail::element_traits_base<std::uint8_t, element_type::uint8, false, false, 0, 0, 0> {
    static constexpr const char* name = "uint8";
};
template <>
struct element_traits<std::int32_t>
    : detail::element_traits_base<std::uint32_t, element_type::int32, false, true, 0, 0, 0> {
    static constexpr const char* name = "int32";
};
template <>
struct element_traits<std::uint32_t>
    : detail::element_traits_base<std::uint32_t, element_type::uint32, false, false, 0, 0, 0> {
    static constexpr const char* name = "uint32";
};
template <>
struct element_traits<std::int64_t>
    : detail::element_traits_base<std::uint64_t, element_type::int64, false, true, 0, 0, 0> {
    static constexpr const char* name = "int64";
};
template <>
struct element_traits<std::uint64_t>
    : detail::element_traits_base<std::uint64_t, element_type::uint64, false, false, 0, 0, 0> {
    static constexpr const char* name = "uint64";
};
template <>
struct element_traits<float16>
    : detail::element_traits_base<std::uint16_t, element_type::float16, true, true, 11, -14, 15> {
    static constexpr const char* name = "half";
};
template <>
struct element_traits<bfloat16>
    : detail::element_traits_base<std::uint16_t, element_type::bfloat16, true, true, 8, -126, 127> {
    static constexpr const char* name = "bfloat16";
};
template <>
struct element_traits<float>
    : detail::element_traits_base<std::uint32_t, element_type::float32, true, true, 24, -126, 127> {
    static constexpr const char* name = "float";
};
template <>
struct element_traits<double>
    : detail::element_traits_base<std::uint64_t, element_type::float64, true, true, 53, -1022, 1023> {
    static constexpr const char* name = "double";
};

/// A type that a buffer of a collective may hold.
template <class T>
concept element = requires { element_traits<std::remove_const_t<T>>::type; };

template <class T>
concept floating_element = element<T> && element_traits<std::remove_const_t<T>>::is_floating_point;

/// The type's name as in messages and reports; "unknown" for a number that is no element type.
constexpr const char* name(element_type type) noexcept
{
    switch (type) {
    case element_type::int8: return element_traits<std::int8_t>::name;
    case element_type::uint8: return element_traits<std::uint8_t>::name;
    case element_type::int32: return element_traits<std::int32_t>::name;
    case element_type::uint32: return element_traits<std::uint32_t>::name;
    case element_type::int64: return element_traits<std::int64_t>::name;
    case element_type::uint64: return element_traits<std::uint64_t>::name;
    case element_type::float16: return element_traits<float16>::name;
    case element_type::bfloat16: return element_traits<bfloat16>::name;
    case element_type::float32: return element_traits<float>::name;
    case element_type::float64: return element_traits<double>::name;
    }
    return "unknown";
}

/// Bytes of one element; 0 for a number that is no element type.
constexpr int bytes_of(element_type type) noexcept
{
    switch (type) {
    case element_type::int8:
    case element_type::uint8: return 1;
    case element_type::float16:
    case element_type::bfloat16: return 2;
    case element_type::int32:
    case element_type::uint32:
    case element_type::float32: return 4;
    case element_type::int64:
    case element_type::uint64:
    case element_type::float64: return 8;
    }
    return 0;
}

/// Calls `use` with a zero of the floating-point type that a number names; of any other nothing happens.
template <class Use>
constexpr void with_floating_type(element_type type, Use&& use)
{
    if (type == element_type::float16) use(float16{});
    else if (type == element_type::bfloat16) use(bfloat16{});
    else if (type == element_type::float32) use(float{});
    else if (type == element_type::float64) use(double{});
}

/// The bit pattern of an element as an unsigned integer of its size.
template <element T>
COLLPROBE_HD constexpr auto to_bits(T value) noexcept
{
    return detail::bit_cast<typename element_traits<T>::bits_type>(value);
}

/// Classification by bits, right under `-ffast-math` and flush-to-zero. Integers are always finite.
template <element T>
COLLPROBE_HD constexpr bool is_finite(T value) noexcept
{
    if constexpr (!element_traits<T>::is_floating_point) return true;
    else return (to_bits(value) & element_traits<T>::exponent_mask) != element_traits<T>::exponent_mask;
}

template <element T>
COLLPROBE_HD constexpr bool is_nan(T value) noexcept
{
    if constexpr (!element_traits<T>::is_floating_point) return false;
    else return !is_finite(value) && (to_bits(value) & element_traits<T>::fraction_mask) != 0;
}

template <element T>
COLLPROBE_HD constexpr bool is_infinite(T value) noexcept
{
    return !is_finite(value) && !is_nan(value);
}

} // namespace collprobe
