// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include <collprobe/core/widen.hpp>
#include <collprobe/reduce/detail/fixed_point.hpp>

#include "sum/exact_oracle.hpp"
#include "sum/sum_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::fixed_point_test {
namespace {

/// The code of a value, and it in units of that code.
template <floating_element T>
struct one_term {
    detail::exponent_code<T> code{};
    std::int64_t units = 0;
    int unit = 0;

    one_term(T value, int term_bits)
    {
        detail::code_exponents<T>{&value, 1, 1, &code}(0);
        unit = detail::fixed_point_unit<T>(static_cast<int>(code), term_bits);
        detail::leaves_to_units<T>{&value, 1, 1, &code, term_bits, &units}(0);
    }
};

} // namespace

TEST_CASE_TEMPLATE("a term is rounded to the nearest number of units, ties to even, and fills 62 bits less those of the terms",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    random_bits random{5};
    for (int round = 0; round < 20'000; ++round) {
        const int term_bits = random.between(0, 20);
        T column[2];
        sum_cases<T>::fill(
            random, static_cast<difficulty>(random.below(static_cast<std::uint64_t>(difficulty::not_finite))), column, 2);
        const one_term<T> own(column[0], term_bits);
        // In units of another, larger term.
        const one_term<T> larger(column[1], term_bits);
        for (const one_term<T>& in : {own, larger}) {
            if (in.code < own.code) continue;
            std::int64_t units = 0;
            detail::leaves_to_units<T>{&column[0], 1, 1, &in.code, term_bits, &units}(0);
            if constexpr (element_traits<T>::type == element_type::float64) {
                if (in.unit < -1000) continue; // a long double holds what 2^-unit makes of the others
            }
            const long double exact = std::ldexp(static_cast<long double>(detail::widen(column[0])), -in.unit);
            REQUIRE(static_cast<long double>(units) == std::rint(exact));
            REQUIRE(units <= std::int64_t{1} << (62 - term_bits));
            REQUIRE(-units <= std::int64_t{1} << (62 - term_bits));
        }
    }
}

TEST_CASE_TEMPLATE("a sum is rounded once, whatever it is divided by", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    random_bits random{6};
    for (int round = 0; round < 20'000; ++round) {
        const int term_bits = random.between(0, 20);
        const one_term<T> largest(sum_cases<T>::of(false, random.between(0, sum_cases<T>::top_field), random()), term_bits);
        if (largest.unit < -1000 || largest.unit > 950) continue; // its parts are doubles
        std::int64_t sum = static_cast<std::int64_t>(random() >> random.between(2, 63));
        if (random.one_in(4)) sum &= ~std::int64_t{0} << random.between(0, 40); // ties
        if (random.one_in(2)) sum = -sum;
        const std::uint32_t divisor = testing::random_divisor(random, 7);
        T result{};
        detail::units_to_elements<T>{&sum, &largest.code, term_bits, divisor, &result}(0);
        // Two halves of the integer, each a double.
        const std::int64_t low = sum & 0xffffffff;
        exact_oracle<double> exact;
        exact.add(std::ldexp(static_cast<double>(sum - low), largest.unit));
        exact.add(std::ldexp(static_cast<double>(low), largest.unit));
        REQUIRE(to_bits(result) == to_bits(exact.template round<T>(divisor)));
    }
}

TEST_CASE("what is not finite is counted, for as many terms as there may be")
{
    constexpr std::int64_t most = detail::max_fixed_point_terms;
    CHECK(most * detail::positive_infinity_term < detail::negative_infinity_term);
    CHECK(most * detail::negative_infinity_term + most < detail::nan_term);
    CHECK(most <= INT64_MAX / detail::nan_term);
    const float inf = sum_cases<float>::of(false, 255, 0);
    const float nan = sum_cases<float>::of(true, 255, 1);
    const auto decoded = [](std::int64_t sum) {
        const detail::exponent_code<float> code = 255;
        float result = 0;
        detail::units_to_elements<float>{&sum, &code, 4, 3, &result}(0);
        return to_bits(result);
    };
    for (const std::int64_t number : {std::int64_t{1}, most}) {
        CHECK(decoded(number * one_term<float>(inf, 4).units) == to_bits(inf));
        CHECK(decoded(number * one_term<float>(-inf, 4).units) == to_bits(sum_cases<float>::of(true, 255, 0)));
        CHECK(is_nan(detail::bit_cast<float>(decoded(number * one_term<float>(nan, 4).units))));
    }
    CHECK(is_nan(detail::bit_cast<float>(decoded(one_term<float>(inf, 4).units + one_term<float>(-inf, 4).units))));
    CHECK(detail::bits_for_terms(1) == 0);
    CHECK(detail::bits_for_terms(2) == 1);
    CHECK(detail::bits_for_terms(3) == 2);
    CHECK(detail::bits_for_terms(detail::max_fixed_point_terms) == 20);
}

} // namespace collprobe::testing::fixed_point_test
