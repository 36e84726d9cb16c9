// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/scan/statistics.hpp>

#include "support/element_types.hpp"

/// Inputs that statistics get wrong easily, and what two ways to compute them must agree on.
namespace collprobe::adversarial {

template <class T>
std::vector<T> random_elements(std::size_t count, double mean, double deviation, unsigned seed)
{
    std::mt19937_64 random(seed);
    std::vector<T> result(count);
    for (T& x : result) {
        if constexpr (floating_element<T>) {
            std::normal_distribution<double> normal(mean, deviation);
            x = T(normal(random));
        } else {
            x = static_cast<T>(random());
        }
    }
    return result;
}

/// Bit for bit where nothing rounds: counts, extrema, index, digest, scale. Moments to what each side
/// promises (`statistics_reducer`): 1e-12 for each, so twice that between them.
inline void check_same_statistics(const statistics& found, const statistics& expected)
{
    CHECK(found.count == expected.count);
    CHECK(found.nan == expected.nan);
    CHECK(found.positive_infinity == expected.positive_infinity);
    CHECK(found.negative_infinity == expected.negative_infinity);
    CHECK(found.zero == expected.zero);
    CHECK(found.subnormal == expected.subnormal);
    CHECK(found.first_nonfinite == expected.first_nonfinite);
    CHECK(found.digest == expected.digest);
    CHECK(to_bits(found.minimum) == to_bits(expected.minimum));
    CHECK(to_bits(found.maximum) == to_bits(expected.maximum));
    CHECK(to_bits(found.absolute_maximum) == to_bits(expected.absolute_maximum));
    CHECK(found.scale == expected.scale);
    CHECK(found.type == expected.type);
    CHECK(found.has_digest == expected.has_digest);
    if (expected.finite() == 0) {
        CHECK(found.mean == 0);
        CHECK(found.m2 == 0);
        CHECK(found.l1 == 0);
        CHECK(found.sum_of_squares == 0);
        return;
    }
    const auto near = [](double a, double b, double tolerance) {
        const double error = a < b ? b - a : a - b;
        return to_bits(a) == to_bits(b) || (is_finite(error) && error <= tolerance);
    };
    const double n = static_cast<double>(expected.finite());
    CHECK(near(found.l1, expected.l1, 2e-12 * expected.l1));
    CHECK(near(found.sum_of_squares, expected.sum_of_squares, 2e-12 * expected.sum_of_squares));
    const double magnitude = is_finite(expected.l1) ? expected.l1 / n : expected.absolute_maximum;
    CHECK(near(found.mean, expected.mean, 2e-12 * magnitude + 0x1p-1070));
    const double mean = detail::absolute(expected.mean) * detail::power_of_two(-expected.scale);
    const double rounding = 1e-15 * mean * std::sqrt(expected.m2 * n) + 1e-30 * expected.sum_of_squares * n;
    CHECK(near(found.m2, expected.m2, 2e-12 * expected.m2 + rounding));
}

/// Calls `body(std::vector<T>)` with each: special values alone, at block edges and everywhere, zeros of
/// both signs, subnormals, extremes of the range, one sign only, a mean that cancels all digits.
template <class Body>
void for_each_input(Body body)
{
    testing::for_each_floating_type([&](auto sample) {
        using T = decltype(sample);
        using traits = element_traits<T>;
        using bits = typename traits::bits_type;
        const auto of = [](std::uint64_t pattern) { return detail::bit_cast<T>(static_cast<bits>(pattern)); };
        const T nan = of(traits::smallest_nonfinite | 1);
        const T negative_nan = of(std::uint64_t{traits::sign_mask} | traits::exponent_mask | traits::fraction_mask);
        const T infinity = of(traits::smallest_nonfinite);
        const T negative_infinity = of(std::uint64_t{traits::sign_mask} | traits::smallest_nonfinite);
        const T zero = of(0);
        const T negative_zero = of(traits::sign_mask);
        const T smallest = of(1);
        const T largest_subnormal = of(traits::fraction_mask);
        const T negative_subnormal = of(std::uint64_t{traits::sign_mask} | 1);
        const T smallest_normal = of(std::uint64_t{traits::fraction_mask} + 1);
        const T largest = of(std::uint64_t{traits::smallest_nonfinite} - 1);
        const T lowest = of((std::uint64_t{traits::sign_mask} | traits::smallest_nonfinite) - 1);
        const std::size_t count = 9 * 4096 / sizeof(T) + 7;

        for (const T x : {nan, negative_nan, infinity, negative_infinity, zero, negative_zero, smallest,
                 largest_subnormal, negative_subnormal, smallest_normal, largest, lowest, T(1.0), T(-1.0)}) {
            body(std::vector<T>(1, x));
            body(std::vector<T>(count, x));
            for (const std::size_t at : {std::size_t{0}, std::size_t{4097}, 2 * 4096 / sizeof(T) - 1,
                     2 * 4096 / sizeof(T), count - 8, count - 1}) {
                if (COLLPROBE_TEST_UNLESS_SANITIZED(false, at != 4097 && at != count - 1)) continue;
                std::vector<T> data = random_elements<T>(count, 0.5, 1, 11);
                data[at] = x;
                body(data);
            }
        }
        std::vector<T> mixed = random_elements<T>(count, 3, 0.01, 12);
        const T specials[] = {nan, infinity, negative_infinity, zero, negative_zero, smallest, negative_subnormal,
            largest_subnormal, negative_nan};
        for (std::size_t i = 7; i < mixed.size(); i += 13) mixed[i] = specials[i % 9];
        body(mixed);
        for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = specials[i % 3];
        body(mixed);

        std::vector<T> subnormals(count);
        for (std::size_t i = 0; i < count; ++i)
            subnormals[i] = of((i % 2 == 0 ? 0 : std::uint64_t{traits::sign_mask})
                | (i * 0x9e3779b97f4a7c15u & traits::fraction_mask));
        body(subnormals);
        std::vector<T> wide(count);
        for (std::size_t i = 0; i < count; ++i) {
            std::uint64_t pattern = detail::mix64(i + 1);
            if (!is_finite(of(pattern))) pattern = 0;
            wide[i] = of(static_cast<bits>(pattern));
        }
        body(wide);

        for (const double mean : {-1e3, 1.0, 1e4})
            for (const double deviation : {0.0, 1e-3, 1.0, 100.0})
                if (COLLPROBE_TEST_UNLESS_SANITIZED(true, mean == 1.0)) body(random_elements<T>(count, mean, deviation, 13));
        std::vector<T> negative = random_elements<T>(count, 0, 1, 14);
        for (T& x : negative) x = of(to_bits(x) | traits::sign_mask);
        body(negative);
        std::vector<T> outlier(count, T(1.0)); // the first element is far from all others
        outlier[0] = largest;
        body(outlier);
        // The first slot holds zeros only, the second small numbers, then large ones.
        std::vector<T> steps(count, zero);
        for (std::size_t i = 2 * 4096 / sizeof(T); i < count; ++i)
            steps[i] = i < 4 * 4096 / sizeof(T) ? smallest_normal : i % 2 == 0 ? largest : lowest;
        body(steps);
    });
    const std::size_t count = 20003;
    for (const double exponent : {-1000.0, -600.0, -401.0, 469.0, 600.0, 1000.0}) {
        const double factor = std::exp2(exponent);
        std::vector<double> scaled = random_elements<double>(count, 0.3, 1, 15);
        for (double& x : scaled) x *= factor;
        body(scaled);
        scaled[3] = 1;
        scaled[15000] = 0;
        body(scaled);
        scaled[4000] = std::exp2(-1000.0);
        scaled[4001] = detail::infinity();
        body(scaled);
    }
    std::vector<std::int8_t> bytes(count, -128);
    body(bytes);
    std::vector<std::uint8_t> unsigned_bytes(count, 255);
    body(unsigned_bytes);
    unsigned_bytes[77] = 0;
    body(unsigned_bytes);
    std::vector<std::int32_t> integers(count, std::numeric_limits<std::int32_t>::min());
    body(integers);
    integers[5] = std::numeric_limits<std::int32_t>::max();
    body(integers);
    std::vector<std::uint64_t> wide_integers(count, ~std::uint64_t{0});
    body(wide_integers);
    wide_integers[9] = 0;
    body(wide_integers);
    std::vector<std::int64_t> signed_integers(count, std::numeric_limits<std::int64_t>::min());
    body(signed_integers);
}

} // namespace collprobe::adversarial
