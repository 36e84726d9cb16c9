// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>

#include <collprobe/core/ulp.hpp>

#include "sum/sum_cases.hpp"
#include "support/element_types.hpp"
#include "support/infinite.hpp"

namespace collprobe::testing::ulp_test {

TEST_CASE_TEMPLATE("the distance counts steps over zero and up to infinity", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    const T zero = cases::of(false, 0, 0);
    const T minus_zero = cases::of(true, 0, 0);
    const T least = cases::of(false, 0, 1);
    const T largest = cases::of(false, cases::top_field, ~std::uint64_t{0});
    const T infinity = cases::of(false, cases::top_field + 1, 0);
    const T minus_infinity = cases::of(true, cases::top_field + 1, 0);
    CHECK(ulp_distance(zero, minus_zero) == 0);
    CHECK(ulp_distance(zero, least) == 1);
    CHECK(ulp_distance(minus_zero, least) == 1);
    CHECK(ulp_distance(cases::opposite(least), least) == 2);
    CHECK(ulp_distance(infinity, infinity) == 0);
    if constexpr (testing::has_infinity<T>) CHECK(ulp_distance(largest, infinity) == 1);
    const std::uint64_t patterns = std::uint64_t{to_bits(testing::has_infinity<T> ? infinity : largest)};
    if constexpr (testing::has_infinity<T>) CHECK(ulp_distance(minus_infinity, infinity) == 2 * patterns);
    CHECK(ulp_distance(cases::opposite(largest), largest) == 2 * std::uint64_t{to_bits(largest)});
    testing::random_bits random{3};
    for (int i = 0; i < 10'000; ++i) {
        // Neighbours across binades, and any two numbers one step at a time from each other.
        const std::uint64_t low = random.below(patterns);
        const std::uint64_t steps = random.below(patterns - low) + 1;
        const auto of = [](std::uint64_t bits) {
            return detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(bits));
        };
        REQUIRE(ulp_distance(of(low), of(low + steps)) == steps);
        REQUIRE(ulp_distance(of(low + steps), of(low)) == steps);
        REQUIRE(ulp_distance(cases::opposite(of(low)), cases::opposite(of(low + steps))) == steps);
        REQUIRE(ulp_distance(cases::opposite(of(low)), of(steps)) == low + steps);
    }
}

TEST_CASE_TEMPLATE("NaN is as far from every number as can be and not from NaN", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    const T nan = cases::of(false, cases::top_field + 1, 1);
    const T other_nan = cases::of(true, cases::top_field + 1, ~std::uint64_t{0});
    const T infinity = cases::of(false, cases::top_field + 1, 0);
    CHECK(ulp_distance(nan, other_nan) == 0);
    if constexpr (testing::has_infinity<T>) CHECK(ulp_distance(nan, infinity) == ~std::uint64_t{0});
    CHECK(ulp_distance(T{}, other_nan) == ~std::uint64_t{0});
}

TEST_CASE_TEMPLATE("the unit in the last place is the step to the next number away from zero",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    using traits = element_traits<T>;
    for (int field = 0; field <= cases::top_field; ++field) {
        for (const bool negative : {false, true}) {
            for (const std::uint64_t fraction : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
                const int exponent = (field > 1 ? field - 1 : 0) + traits::min_exponent - (traits::digits - 1);
                REQUIRE(to_bits(ulp(cases::of(negative, field, fraction)))
                    == to_bits(testing::sum_cases<double>::power(false, exponent)));
            }
        }
    }
}

} // namespace collprobe::testing::ulp_test
