// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include <collprobe/core/element.hpp>

#include "support/element_types.hpp"
#include "support/infinite.hpp"

namespace collprobe::testing::element_test {
namespace {

/// The value of a pattern from the definition of the format, in double: exact for all types.
double value_of(unsigned bits, int fraction_bits, int exponent_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int magnitude_of_bits = static_cast<int>(bits & ((1u << (fraction_bits + exponent_bits)) - 1));
    const int exponent = magnitude_of_bits >> fraction_bits;
    const int fraction = magnitude_of_bits & ((1 << fraction_bits) - 1);
    double magnitude = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    int power = (exponent == 0 ? 1 : exponent) - bias - fraction_bits;
    for (; power > 0; --power) magnitude *= 2;
    for (; power < 0; ++power) magnitude /= 2;
    return (bits >> (fraction_bits + exponent_bits)) != 0 ? -magnitude : magnitude;
}

/// `nonfinite`: the least pattern that is no number; infinity or, in a type without infinities, the only NaN.
template <class T>
struct format;
template <>
struct format<float16> {
    static constexpr int fraction = 10, exponent = 5;
    static constexpr unsigned nonfinite = 0x7c00, sign = 0x8000;
    static constexpr bool has_infinity = true;
};
template <>
struct format<bfloat16> {
    static constexpr int fraction = 7, exponent = 8;
    static constexpr unsigned nonfinite = 0x7f80, sign = 0x8000;
    static constexpr bool has_infinity = true;
};
template <>
struct format<float8_e4m3> {
    static constexpr int fraction = 3, exponent = 4;
    static constexpr unsigned nonfinite = 0x7f, sign = 0x80;
    static constexpr bool has_infinity = false;
};
template <>
struct format<float8_e5m2> {
    static constexpr int fraction = 2, exponent = 5;
    static constexpr unsigned nonfinite = 0x7c, sign = 0x80;
    static constexpr bool has_infinity = true;
};
#define NARROW_TYPES float16, bfloat16, float8_e4m3, float8_e5m2

template <class T>
double value_of(unsigned bits)
{
    return value_of(bits, format<T>::fraction, format<T>::exponent);
}
template <class T>
T from_pattern(unsigned bits)
{
    return T::from_bits(static_cast<typename element_traits<T>::bits_type>(bits));
}

double next_up(double value)
{
    return detail::bit_cast<double>(detail::bit_cast<std::uint64_t>(value) + 1);
}
double next_down(double value)
{
    return detail::bit_cast<double>(detail::bit_cast<std::uint64_t>(value) - 1);
}

} // namespace

TEST_CASE_TEMPLATE("every narrow pattern widens to its value and narrows back", T, NARROW_TYPES)
{
    using f = format<T>;
    for (unsigned pattern = 0; pattern < 2 * f::sign; ++pattern) {
        const T element = from_pattern<T>(pattern);
        const unsigned magnitude = pattern & (f::sign - 1);
        const bool infinite = f::has_infinity && magnitude == f::nonfinite;
        const float wide = static_cast<float>(element);
        REQUIRE(is_finite(element) == (magnitude < f::nonfinite));
        REQUIRE(is_nan(element) == (magnitude >= f::nonfinite && !infinite));
        REQUIRE(testing::is_infinite(element) == infinite);
        REQUIRE(is_nan(wide) == is_nan(element));
        REQUIRE(testing::is_infinite(wide) == infinite);
        REQUIRE((to_bits(wide) >> 31) == pattern / f::sign);
        if (is_finite(element)) {
            const double expected = value_of<T>(pattern);
            // By bits: under flush-to-zero a comparison would take a subnormal for zero.
            if (magnitude != 0 && expected >= 0x1p-126) REQUIRE(static_cast<double>(element) == expected);
            REQUIRE(T(wide).bits == pattern);
            REQUIRE(T(expected).bits == pattern);
        } else if (infinite) {
            REQUIRE(T(wide).bits == pattern);
        } else {
            // Quiet, payload and sign kept. Without infinities there is one NaN of each sign.
            const unsigned quiet = f::has_infinity ? pattern | (1u << (f::fraction - 1)) : pattern;
            REQUIRE(T(wide).bits == quiet);
            REQUIRE(T(detail::bit_cast<double>(std::uint64_t{pattern / f::sign} << 63
                        | std::uint64_t{0x7ff} << 52 | std::uint64_t{to_bits(wide) & 0x7fffffu} << 29)).bits == quiet);
        }
    }
}

TEST_CASE_TEMPLATE("every NaN of a wider type becomes a NaN of its sign", T, NARROW_TYPES)
{
    for (int bit = 0; bit < 52; ++bit) {
        const auto nan = (std::uint64_t{0x7ff} << 52) | (std::uint64_t{1} << bit);
        for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1}}) {
            const T narrow(detail::bit_cast<double>(sign << 63 | nan));
            CHECK(is_nan(narrow));
            CHECK((narrow.bits & format<T>::sign) / format<T>::sign == sign);
        }
        if (bit < 23) CHECK(is_nan(T(detail::bit_cast<float>(0x7f800000u | 1u << bit))));
    }
}

TEST_CASE_TEMPLATE("conversion from double and from float rounds once at and beside every midpoint", T, NARROW_TYPES)
{
    using f = format<T>;
    for (unsigned pattern = 0; pattern < f::nonfinite; ++pattern) {
        const double below = value_of<T>(pattern);
        const double middle = below + (value_of<T>(pattern + 1) - below) / 2;
        const unsigned nearest_to_middle = pattern + (pattern & 1);
        REQUIRE(T(middle).bits == nearest_to_middle);
        REQUIRE(T(-middle).bits == (nearest_to_middle | f::sign));
        // One unit of a double beside the midpoint: rounding to float first would make it a tie.
        REQUIRE(T(next_up(middle)).bits == pattern + 1);
        REQUIRE(T(next_down(middle)).bits == pattern);
        // Whatever bit tells on which side of a number, or of the midpoint, a double lies.
        bool are_right = true;
        for (int bit = 0; bit < 52 - f::fraction - 1; ++bit) {
            const std::uint64_t by = std::uint64_t{1} << bit;
            are_right = are_right && T(detail::bit_cast<double>(to_bits(middle) | by)).bits == pattern + 1
                && (pattern == 0 || T(detail::bit_cast<double>(to_bits(below) | by)).bits == pattern);
        }
        REQUIRE(are_right);
        if (middle < 0x1p-126 || middle > 0x1.fffffep127) continue; // no normal float
        const auto bits = to_bits(static_cast<float>(middle));
        REQUIRE(T(static_cast<float>(middle)).bits == nearest_to_middle);
        REQUIRE(T(detail::bit_cast<float>(bits + 1)).bits == pattern + 1);
        REQUIRE(T(detail::bit_cast<float>(bits - 1)).bits == pattern);
    }
}

TEST_CASE_TEMPLATE("overflow goes to infinity or NaN from half a unit above the largest number", T, NARROW_TYPES)
{
    using f = format<T>;
    const unsigned largest = f::nonfinite - 1;
    const double top = value_of<T>(largest);
    const double unit = top - value_of<T>(largest - 1);
    CHECK(T(next_down(top + unit / 2)).bits == largest);
    // A tie, to the even pattern: infinity's, or that of the largest e4m3.
    CHECK(T(top + unit / 2).bits == (f::has_infinity ? f::nonfinite : largest));
    CHECK(T(next_up(top + unit / 2)).bits == f::nonfinite);
    for (double beyond = top + unit * 0.75; beyond < top * 4; beyond += unit / 16) {
        REQUIRE(T(beyond).bits == f::nonfinite);
        if (beyond < 0x1.fffffep127) REQUIRE(T(static_cast<float>(-beyond)).bits == (f::nonfinite | f::sign));
    }
    CHECK(T(detail::bit_cast<double>(std::uint64_t{0x7fefffffffffffff})).bits == f::nonfinite);
    CHECK(T(detail::bit_cast<double>(std::uint64_t{0x7ff0} << 48)).bits == f::nonfinite);
    CHECK(T(detail::bit_cast<float>(0xff800000u)).bits == (f::nonfinite | f::sign));
    CHECK(T(3.4028234663852886e38f).bits == f::nonfinite);
}

TEST_CASE("conversions are usable at compile time")
{
    static_assert(float16(1.0f).bits == 0x3c00);
    static_assert(bfloat16(1.0f).bits == 0x3f80);
    static_assert(static_cast<float>(float16::from_bits(0x3c01)) == 1.0009765625f);
    static_assert(float16(65504.0).bits == 0x7bff && float16(65520.0).bits == 0x7c00);
    static_assert(float8_e4m3(448.0f).bits == 0x7e && float8_e4m3(-480.0).bits == 0xff);
    static_assert(static_cast<float>(float8_e5m2::from_bits(0x7b)) == 57344);
    // 1 + 2^-8 + 2^-60 lies above the midpoint of bfloat16, and on it once rounded to float.
    static_assert(bfloat16(1 + 0x1p-8 + 0x1p-52).bits == 0x3f81);
    static_assert(bfloat16(static_cast<float>(1 + 0x1p-8 + 0x1p-52)).bits == 0x3f80);
    CHECK(true);
}

TEST_CASE("classification works on bits")
{
    CHECK(is_nan(detail::bit_cast<float>(std::uint32_t{0x7fc00000})));
    CHECK(is_nan(detail::bit_cast<float>(std::uint32_t{0xff800001})));
    CHECK(testing::is_infinite(detail::bit_cast<double>(std::uint64_t{0xfff0} << 48)));
    CHECK_FALSE(is_finite(float16::from_bits(0x7c00)));
    CHECK(is_finite(float16::from_bits(0x7bff)));
    CHECK(is_finite(std::int64_t{-1}));
    CHECK_FALSE(is_nan(std::uint8_t{255}));
}

TEST_CASE_TEMPLATE("traits describe the type", T, COLLPROBE_TEST_LISTED_TYPES)
{
    using traits = element_traits<T>;
    CHECK(element<T>);
    CHECK(traits::bytes == sizeof(T));
    CHECK(bytes_of(traits::type) == sizeof(T));
    CHECK(std::strcmp(name(traits::type), traits::name) == 0);
    CHECK(sizeof(typename traits::bits_type) == sizeof(T));
    if constexpr (floating_element<T>) {
        const auto of_magnitude = [](std::uint64_t bits) {
            return static_cast<double>(detail::bit_cast<T>(static_cast<typename traits::bits_type>(bits)));
        };
        const double largest = of_magnitude(std::uint64_t{traits::smallest_nonfinite} - 1);
        CHECK(std::ilogb(largest) == traits::max_exponent);
        CHECK(std::ilogb(of_magnitude(std::uint64_t{traits::fraction_mask} + 1)) == traits::min_exponent);
        CHECK(is_nan(detail::bit_cast<T>(traits::quiet_nan)));
    }
    // Those of a small_float would be 0.
    CHECK(requires { std::numeric_limits<T>::max(); } == std::is_arithmetic_v<T>);
    if constexpr (std::is_floating_point_v<T>) {
        CHECK(traits::digits == std::numeric_limits<T>::digits);
        CHECK(traits::max_exponent == std::numeric_limits<T>::max_exponent - 1);
        CHECK(traits::min_exponent == std::numeric_limits<T>::min_exponent - 1);
    }
    CHECK(std::strcmp(name(static_cast<element_type>(99)), "unknown") == 0);
    CHECK(bytes_of(static_cast<element_type>(99)) == 0);
}

TEST_CASE("other types are no elements")
{
    CHECK_FALSE(element<bool>);
    CHECK_FALSE(element<long double>);
    CHECK_FALSE(element<std::int16_t>);
    CHECK_FALSE(element<float*>);
}

} // namespace collprobe::testing::element_test
