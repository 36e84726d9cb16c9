// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <collprobe/sum/accumulation.hpp>

#include "support/element_types.hpp"

namespace collprobe::testing::accumulation_test {

TEST_CASE("an accumulator narrower than the element is none")
{
    CHECK_FALSE(holds<double>(accumulation::float32));
    CHECK(holds<double>(accumulation::native));
    CHECK(holds<float>(accumulation::float32));
    CHECK(holds<float16>(accumulation::float32));
    CHECK(holds<float8_e4m3>(accumulation::float32));
}

TEST_CASE_TEMPLATE("the default accumulator of a level keeps the level", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const auto level : {reproducibility::unspecified, reproducibility::run_to_run, reproducibility::size_invariant,
             reproducibility::order_invariant, reproducibility::correctly_rounded}) {
        const accumulation in = collprobe::detail::default_accumulation<T>(level);
        CHECK(holds<T>(in));
        CHECK(collprobe::detail::strongest<T>(in, 1'000'000) >= level);
    }
}

TEST_CASE("doubles are exact for halves up to 8192 terms")
{
    CHECK(collprobe::detail::strongest<float16>(accumulation::float64, 8192) == reproducibility::correctly_rounded);
    CHECK(collprobe::detail::strongest<float16>(accumulation::float64, 8193) == reproducibility::size_invariant);
    CHECK(collprobe::detail::strongest<bfloat16>(accumulation::float64, 2) == reproducibility::size_invariant);
    CHECK(collprobe::detail::strongest<float8_e5m2>(accumulation::float64, 1 << 20) == reproducibility::correctly_rounded);
    // The worst case: the smallest number after 8191 of the largest.
    std::vector<float16> terms(8192, float16::from_bits(0x7bff));
    terms[8191] = float16::from_bits(1);
    double sum = 0;
    for (const float16 value : terms) sum += static_cast<double>(value);
    CHECK(sum == 8191 * 65504.0 + 0x1p-24);
}

} // namespace collprobe::testing::accumulation_test
