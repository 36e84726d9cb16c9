// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/sum/exact_sum.hpp>

#include "exact_oracle.hpp"
#include "sum_cases.hpp"
#include "support/element_types.hpp"
#include "support/infinite.hpp"

namespace collprobe::testing::exact_sum_test {
namespace {

template <floating_element T>
T of_bits(std::uint64_t bits)
{
    return detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(bits));
}

template <floating_element T>
T sum_of(const std::vector<T>& terms, std::uint32_t divisor = 1)
{
    exact_sum<T> sum;
    for (const T value : terms) sum.add(value);
    return sum.round(divisor);
}

template <floating_element T, floating_element U = T>
U wanted_of(const std::vector<T>& terms, std::uint32_t divisor = 1)
{
    testing::exact_oracle<T> sum;
    for (const T value : terms) sum.add(value);
    return sum.template round<U>(divisor);
}

} // namespace

TEST_CASE_TEMPLATE("random and adversarial sums and averages, in groups, round to every type as the oracle says",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::random_bits random{4};
    for (int i = 0; i < COLLPROBE_TEST_UNLESS_BRIEF(20'000, 4'000); ++i) {
        const int n = testing::random_terms(random);
        const int kinds = static_cast<int>(difficulty::count);
        std::vector<T> terms(static_cast<std::size_t>(n));
        testing::sum_cases<T>::fill(random, static_cast<difficulty>(i % kinds), terms.data(), n);
        exact_sum<T> part[3];
        for (const T value : terms) part[random.below(3)].add(value);
        part[1].add(part[2]);
        part[1].add(part[0]);
        const auto check = [&]<class U>(U) {
            const std::uint32_t divisor = testing::random_divisor(random, n);
            REQUIRE(to_bits(part[1].template round<U>(divisor)) == to_bits(wanted_of<T, U>(terms, divisor)));
        };
        check(float16());
        check(bfloat16());
        check(0.0f);
        check(0.0);
    }
}

TEST_CASE_TEMPLATE("quotients a hair beside a midpoint round to their side", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    // Midpoint times divisor, and one unit more or less, cut into terms of few bits.
    __extension__ typedef unsigned __int128 wide;
    using cases = testing::sum_cases<T>;
    constexpr int chunk = element_traits<T>::digits;
    testing::random_bits random{5};
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t midpoint = std::uint64_t{1} << chunk | (random() & ((std::uint64_t{1} << chunk) - 1)) | 1;
        const auto divisor = static_cast<std::uint32_t>(random() >> 32 >> (chunk == 11 ? 12 + random.below(20) : 0)) | 1;
        wide rest = wide{midpoint} * divisor + static_cast<unsigned>(random.below(3)) - 1;
        std::vector<T> terms;
        const int base = chunk == 11 ? element_traits<T>::min_exponent : 0;
        for (int exponent = base; rest != 0; exponent += chunk, rest >>= chunk) {
            for (int bit = 0; bit < chunk; ++bit) {
                if ((rest >> bit & 1) != 0) terms.push_back(cases::power(false, exponent + bit - chunk + 1));
            }
        }
        REQUIRE(to_bits(sum_of(terms, divisor)) == to_bits(wanted_of(terms, divisor)));
    }
}

TEST_CASE_TEMPLATE("a sum holds the largest number as often as 2^32 - 1 times", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    for (const bool negative : {false, true}) {
        const T most = cases::of(negative, cases::top_field, ~std::uint64_t{0});
        // By doubling: 2^k times the number is the sum of two of 2^(k-1).
        exact_sum<T> power, all;
        power.add(most);
        for (int k = 0; k < 32; ++k) {
            all.add(power);
            power.add(exact_sum<T>(power));
        }
        CHECK(to_bits(all.round(0xffffffff)) == to_bits(most));
        CHECK(to_bits(all.round(1)) == to_bits(cases::of(negative, cases::top_field + 1, 0)));
    }
}

TEST_CASE_TEMPLATE("zeros, infinities and NaN follow IEEE 754", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    const T zero = cases::of(false, 0, 0);
    const T minus_zero = cases::of(true, 0, 0);
    const T one = cases::power(false, 0);
    const T infinity = cases::of(false, cases::top_field + 1, 0);
    const T minus_infinity = cases::of(true, cases::top_field + 1, 0);
    const T nan = cases::of(true, cases::top_field + 1, 5);
    const auto quiet = std::uint64_t{element_traits<T>::quiet_nan};
    const auto bits = [](const std::vector<T>& terms) { return std::uint64_t{to_bits(sum_of(terms))}; };
    CHECK(bits({}) == 0);
    CHECK(bits({minus_zero, minus_zero, minus_zero}) == to_bits(minus_zero));
    CHECK(to_bits(sum_of<T>({minus_zero, minus_zero}, 2)) == to_bits(minus_zero));
    CHECK(bits({minus_zero, zero}) == 0);
    CHECK(bits({one, cases::opposite(one)}) == 0);
    CHECK(bits({one, minus_zero, cases::opposite(one)}) == 0);
    CHECK(bits({infinity, one, infinity}) == to_bits(infinity));
    CHECK(bits({minus_infinity, one}) == (testing::has_infinity<T> ? to_bits(minus_infinity) : quiet));
    CHECK(bits({infinity, minus_infinity}) == quiet);
    CHECK(bits({nan, one}) == quiet);
    CHECK(bits({nan, infinity}) == quiet);
    CHECK(to_bits(sum_of<T>({minus_zero, cases::of(true, 0, 1)}, 3)) == to_bits(minus_zero)); // underflows
}

TEST_CASE_TEMPLATE("a sum overflows by its value alone", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using cases = testing::sum_cases<T>;
    using traits = element_traits<T>;
    const T largest = cases::of(false, cases::top_field, ~std::uint64_t{0});
    const T half_unit = cases::power(false, traits::max_exponent - traits::digits);
    const T least = cases::of(false, 0, 1);
    const T infinity = cases::of(false, cases::top_field + 1, 0);
    // A tie, to even: infinity, but not the only NaN of e4m3.
    CHECK(to_bits(sum_of<T>({largest, half_unit})) == to_bits(testing::has_infinity<T> ? infinity : largest));
    CHECK(to_bits(sum_of<T>({largest, half_unit, least})) == to_bits(infinity));
    CHECK(to_bits(sum_of<T>({largest, half_unit, cases::opposite(least)})) == to_bits(largest));
    CHECK(to_bits(sum_of<T>({largest, largest, cases::opposite(largest)})) == to_bits(largest));
    CHECK(to_bits(sum_of<T>({largest, largest, largest}, 3)) == to_bits(largest));
    CHECK(to_bits(sum_of<T>({largest, largest, largest}, 2)) == to_bits(infinity));
}

TEST_CASE("more terms than fit before a carry")
{
    // 2^30 + 2^20 largest floats: their words wait for a carry once on the way.
    exact_sum<float> sum;
    const float largest = of_bits<float>(0x7f7fffff);
    constexpr std::uint32_t n = (1u << 30) + (1u << 20);
    constexpr std::uint32_t singly = COLLPROBE_TEST_UNLESS_BRIEF(1u << 30, 1u << 20);
    for (std::uint32_t i = 0; i < singly; ++i) sum.add(largest);
    for (std::uint32_t terms = singly; terms < 1u << 30; terms *= 2) sum.add(exact_sum<float>(sum));
    for (std::uint32_t i = 0; i < 1u << 20; ++i) sum.add(largest);
    CHECK(to_bits(sum.round(n)) == 0x7f7fffff);
    CHECK(sum.round<double>(n) == static_cast<double>(largest));
    for (int i = 0; i < 32; ++i) sum.add(exact_sum<float>(sum)); // doubled: 2^62 terms
    CHECK(to_bits(sum.round()) == 0x7f800000);
}

TEST_CASE("an exact sum can be taken at compile time")
{
    constexpr float sum = [] {
        exact_sum<float> terms;
        for (const float value : {0x1p60f, 1.0f, -0x1p60f, 0x1p-30f}) terms.add(value);
        return terms.round();
    }();
    static_assert(sum == 1.0f);
    static_assert(sizeof(exact_sum<float16>) <= 48 + 8 && sizeof(exact_sum<double>) <= 576);
    CHECK(sum == 1.0f);
}

} // namespace collprobe::testing::exact_sum_test
