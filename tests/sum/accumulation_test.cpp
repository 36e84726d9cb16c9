// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/sum_in_order.hpp>

#include "exact_oracle.hpp"
#include "sum_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::accumulation_test {
namespace {

/// How many different bits a sum has over some orders: each is a column of its own.
template <accumulation in, floating_element T>
std::size_t different_sums(testing::random_bits& random, std::vector<T> terms)
{
    constexpr std::size_t orders = 20;
    const auto n = static_cast<int>(terms.size());
    std::vector<T> columns(terms.size() * orders);
    for (std::size_t again = 0; again < orders; ++again) {
        for (std::size_t k = 0; k < terms.size(); ++k) columns[k * orders + again] = terms[k];
        testing::sum_cases<T>::shuffle(random, terms.data(), n);
    }
    std::vector<const T*> rows;
    for (std::size_t k = 0; k < terms.size(); ++k) rows.push_back(columns.data() + k * orders);
    std::vector<T> sums(orders);
    sum_in_order<in>(rows.data(), linear_order(n), sums.data(), orders);
    std::set<std::uint64_t> seen;
    for (const T sum : sums) seen.insert(to_bits(sum));
    return seen.size();
}

} // namespace

TEST_CASE("names")
{
    CHECK(std::string(name(accumulation::native)) == "native");
    CHECK(std::string(name(accumulation::float32)) == "float32");
    CHECK(std::string(name(accumulation::float64)) == "float64");
    CHECK(std::string(name(accumulation::exact)) == "exact");
    CHECK(std::string(name(static_cast<accumulation>(99))) == "unknown");
    CHECK(std::string(name(reproducibility::unspecified)) == "unspecified");
    CHECK(std::string(name(reproducibility::run_to_run)) == "run_to_run");
    CHECK(std::string(name(reproducibility::size_invariant)) == "size_invariant");
    CHECK(std::string(name(reproducibility::order_invariant)) == "order_invariant");
    CHECK(std::string(name(reproducibility::correctly_rounded)) == "correctly_rounded");
    CHECK(std::string(name(static_cast<reproducibility>(99))) == "unknown");
}

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
    testing::random_bits random{13};
    for (int i = 0; i < 20; ++i) {
        testing::sum_cases<float16>::fill(random, testing::difficulty::any, terms.data(), 500);
        const std::vector<float16> some(terms.begin(), terms.begin() + 500);
        CHECK(different_sums<accumulation::float64>(random, some) == 1);
    }
}

TEST_CASE_TEMPLATE("only the exact sum is the same in every order", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{14};
    std::size_t native = 0;
    std::size_t wide = 0;
    for (int i = 0; i < 200; ++i) {
        std::vector<T> terms(30);
        testing::sum_cases<T>::fill(random, testing::difficulty::cancelling, terms.data(), 30);
        REQUIRE(different_sums<accumulation::exact>(random, terms) == 1);
        native += different_sums<accumulation::native>(random, terms) - 1;
        wide += different_sums<accumulation::float64>(random, terms) - 1;
    }
    CHECK(native > 0);
    if (element_traits<T>::max_exponent > 15) CHECK(wide > 0);
}

} // namespace collprobe::testing::accumulation_test
