// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <utility>

#include <collprobe/sum/detail/error_free.hpp>

#include "exact_oracle.hpp"
#include "sum_cases.hpp"
#include "support/infinite.hpp"

namespace collprobe::testing::error_free_test {
namespace {

// Out of line: what sets the mode and what computes may not be merged.
template <class Float>
[[gnu::noinline]] detail::two_terms<Float> two_sum_of(Float a, Float b)
{
    return detail::two_sum(a, b);
}
template <class Float>
Float magnitude(Float value)
{
    using bits_type = typename element_traits<Float>::bits_type;
    return detail::bit_cast<Float>(static_cast<bits_type>(to_bits(value) & ~element_traits<Float>::sign_mask));
}

/// high is a + b rounded, and a + b - high - low is zero.
template <class Float>
bool is_exact(Float a, Float b, detail::two_terms<Float> sum)
{
    testing::exact_oracle<Float> rounded;
    rounded.add(a);
    rounded.add(b);
    testing::exact_oracle<Float> rest;
    rest.add(a);
    rest.add(b);
    rest.add(testing::sum_cases<Float>::opposite(sum.high));
    rest.add(testing::sum_cases<Float>::opposite(sum.low));
    return to_bits(rounded.round()) == to_bits(sum.high) && magnitude(rest.round()) == 0;
}

template <class Float>
std::pair<Float, Float> random_pair(testing::random_bits& random, int top_field)
{
    using cases = testing::sum_cases<Float>;
    const int field = random.between(0, top_field);
    const Float a = cases::of(random.one_in(2), field, random());
    const Float b = cases::near_field(random, random.one_in(4) ? random.between(0, top_field) : field, 60);
    // Not beyond half the largest number, whose sums stay in range.
    return {a, magnitude(b) < cases::of(false, top_field, 0) ? b : a};
}

} // namespace

TEST_CASE_TEMPLATE("two_sum loses nothing, subnormal numbers included", Float, float, double)
{
    using cases = testing::sum_cases<Float>;
    testing::random_bits random{1};
    const detail::gradual_underflow as_ieee_has_it;
    int inexact = 0;
    for (int i = 0; i < 200'000; ++i) {
        const int top = i % 4 == 0 ? 40 : cases::top_field - 1; // a quarter next to the subnormal numbers
        const auto [a, b] = random_pair<Float>(random, top);
        const detail::two_terms<Float> sum = two_sum_of(a, b);
        inexact += magnitude(sum.low) > 0 ? 1 : 0;
        if (!is_exact(a, b, sum)) FAIL("two_sum of ", to_bits(a), " and ", to_bits(b));
    }
    CHECK(inexact > 100'000);
}

TEST_CASE_TEMPLATE("two_sum of a sum that overflows is infinite and its rest is not finite", Float, float, double)
{
    using cases = testing::sum_cases<Float>;
    const Float largest = cases::of(false, cases::top_field, ~std::uint64_t{0});
    const detail::two_terms<Float> sum = two_sum_of(largest, largest);
    CHECK(testing::is_infinite(sum.high));
    CHECK_FALSE(is_finite(sum.low));
    // The sum is in range, a step on the way is not: the rest says so.
    const Float unit = cases::power(false, element_traits<Float>::max_exponent - element_traits<Float>::digits);
    const detail::two_terms<Float> robbed = two_sum_of(static_cast<Float>(-3 * unit), largest);
    CHECK(is_finite(robbed.high));
    CHECK_FALSE(is_finite(robbed.low));
}

} // namespace collprobe::testing::error_free_test
