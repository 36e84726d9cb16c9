// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>

#include <collprobe/core/element.hpp>

#include "support/element_types.hpp"
#include "support/infinite.hpp"

using namespace collprobe;

namespace {

/// The value of a 16-bit pattern from the definition of the format, in double: exact for both types.
double value_of(std::uint16_t bits, int fraction_bits, int exponent_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    int power = (exponent == 0 ? 1 : exponent) - bias - fraction_bits;
    for (; power > 0; --power) magnitude *= 2;
    for (; power < 0; ++power) magnitude /= 2;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
struct format;
template <>
struct format<float16> {
    static constexpr int fraction = 10, exponent = 5;
    static constexpr std::uint16_t infinity = 0x7c00;
};
template <>
struct format<bfloat16> {
    static constexpr int fraction = 7, exponent = 8;
    static constexpr std::uint16_t infinity = 0x7f80;
};

/// The nearest pattern for a non-negative finite value, ties to the even pattern, by search over all
/// patterns: the value half a unit above the largest finite number is the first that overflows.
template <class T>
std::uint16_t nearest(double value)
{
    using f = format<T>;
    std::uint16_t low = 0;
    std::uint16_t high = f::infinity; // first pattern known to be above, or infinity itself
    while (high - low > 1) {
        const auto middle = static_cast<std::uint16_t>((low + high) / 2);
        if (value_of(middle, f::fraction, f::exponent) <= value) low = middle;
        else high = middle;
    }
    const double below = value_of(low, f::fraction, f::exponent);
    // Infinity stands where the next power of two would be.
    const double above = high != f::infinity
        ? value_of(high, f::fraction, f::exponent)
        : below + (below - value_of(static_cast<std::uint16_t>(low - 1), f::fraction, f::exponent));
    // Neighbours differ in at most one more bit than the format has: the midpoint is exact in double.
    const double middle = below + (above - below) / 2;
    if (value < middle) return low;
    if (value > middle) return high;
    return (low & 1) == 0 ? low : high;
}

template <class T, class Wide>
void check_both_signs(Wide value)
{
    const std::uint16_t expected = nearest<T>(static_cast<double>(value));
    REQUIRE(T(value).bits == expected);
    REQUIRE(T(-value).bits == (expected | 0x8000));
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

TEST_CASE_TEMPLATE("every 16-bit pattern widens to its value and narrows back", T, float16, bfloat16)
{
    using f = format<T>;
    for (unsigned pattern = 0; pattern < 0x10000; ++pattern) {
        const T element = T::from_bits(static_cast<std::uint16_t>(pattern));
        const std::uint16_t magnitude = pattern & 0x7fff;
        const float wide = static_cast<float>(element);
        REQUIRE(is_nan(element) == (magnitude > f::infinity));
        REQUIRE(testing::is_infinite(element) == (magnitude == f::infinity));
        REQUIRE(is_nan(wide) == is_nan(element));
        REQUIRE(testing::is_infinite(wide) == testing::is_infinite(element));
        REQUIRE((to_bits(wide) >> 31) == (pattern >> 15));
        if (magnitude < f::infinity) {
            const double expected = value_of(element.bits, f::fraction, f::exponent);
            // By bits: under flush-to-zero a comparison would take a subnormal for zero.
            if (magnitude != 0 && expected >= 0x1p-126) REQUIRE(static_cast<double>(element) == expected);
            REQUIRE(T(wide).bits == pattern);
            REQUIRE(T(expected).bits == pattern);
        } else if (magnitude == f::infinity) {
            REQUIRE(T(wide).bits == pattern);
        } else {
            REQUIRE(is_nan(T(wide)));
            REQUIRE(T(wide).bits == (pattern | (1u << (f::fraction - 1)))); // quiet, payload kept
        }
    }
}

TEST_CASE_TEMPLATE("conversion from double rounds once at and beside every midpoint", T, float16, bfloat16)
{
    using f = format<T>;
    for (std::uint16_t pattern = 0; pattern < f::infinity - 1; ++pattern) {
        const double below = value_of(pattern, f::fraction, f::exponent);
        const double above = value_of(static_cast<std::uint16_t>(pattern + 1), f::fraction, f::exponent);
        const double middle = below + (above - below) / 2;
        const auto up = static_cast<std::uint16_t>(pattern + 1);
        REQUIRE(T(middle).bits == ((pattern & 1) == 0 ? pattern : up));
        // One unit of a double beside the midpoint: rounding to float first would make it a tie.
        REQUIRE(T(next_up(middle)).bits == up);
        REQUIRE(T(next_down(middle)).bits == pattern);
    }
}

TEST_CASE_TEMPLATE("overflow goes to infinity from half a unit above the largest number", T, float16, bfloat16)
{
    using f = format<T>;
    const std::uint16_t largest = f::infinity - 1;
    const double top = value_of(largest, f::fraction, f::exponent);
    const double unit = top - value_of(static_cast<std::uint16_t>(largest - 1), f::fraction, f::exponent);
    CHECK(T(next_down(top + unit / 2)).bits == largest);
    CHECK(T(top + unit / 2).bits == f::infinity); // a tie; infinity's pattern is even
    CHECK(T(top * 4).bits == f::infinity);
    CHECK(T(detail::bit_cast<double>(std::uint64_t{0x7fefffffffffffff})).bits == f::infinity);
    CHECK(T(-top * 4).bits == (f::infinity | 0x8000));
    CHECK(T(3.4028234663852886e38f).bits == f::infinity);
}

TEST_CASE_TEMPLATE("underflow is gradual and keeps the sign of zero", T, float16, bfloat16)
{
    using f = format<T>;
    const double smallest = value_of(1, f::fraction, f::exponent);
    CHECK(T(smallest).bits == 1);
    CHECK(T(smallest / 2).bits == 0); // a tie, to even
    CHECK(T(next_up(smallest / 2)).bits == 1);
    CHECK(T(smallest * 1.5).bits == 2); // a tie, to even
    CHECK(T(-smallest / 4).bits == 0x8000);
    CHECK(T(0.0f).bits == 0);
    CHECK(T(-0.0f).bits == 0x8000);
    CHECK(T(detail::bit_cast<double>(std::uint64_t{1})).bits == 0);
    CHECK(T(detail::bit_cast<double>(std::uint64_t{0x8000000000000001})).bits == 0x8000);
    CHECK(T(detail::bit_cast<float>(std::uint32_t{1})).bits == 0);
}

TEST_CASE_TEMPLATE("random floats and doubles round to the nearest pattern", T, float16, bfloat16)
{
    std::mt19937_64 random(7);
    for (int i = 0; i < 200'000; ++i) {
        // Any pattern at all, then one whose exponent lies near the narrow range.
        const auto any = static_cast<std::uint32_t>(random()) & 0x7fffffffu;
        if (any < 0x7f800000u && any >= 0x00800000u) check_both_signs<T>(detail::bit_cast<float>(any));
        const std::uint64_t bits = random();
        const std::uint64_t exponent = 1023 - 30 + bits % 50;
        check_both_signs<T>(detail::bit_cast<double>(exponent << 52 | (random() >> 12)));
        // A double that is almost a midpoint of the narrow type.
        const std::uint64_t low = random() % 3;
        const std::uint64_t tie = std::uint64_t{1} << (52 - format<T>::fraction - 1);
        check_both_signs<T>(
            detail::bit_cast<double>((exponent << 52 | ((random() >> 12) & ~(2 * tie - 1)) | tie) + low - 1));
    }
}

TEST_CASE("conversions are usable at compile time")
{
    static_assert(float16(1.0f).bits == 0x3c00);
    static_assert(bfloat16(1.0f).bits == 0x3f80);
    static_assert(static_cast<float>(float16::from_bits(0x3c01)) == 1.0009765625f);
    static_assert(float16(65504.0).bits == 0x7bff && float16(65520.0).bits == 0x7c00);
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
