// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/element.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/scan/statistics.hpp>

#include "support/element_types.hpp"

/// Inputs that a read gets wrong easily, and an oracle: the definitions in long double, element by element.
namespace collprobe::adversarial {

template <class T>
std::vector<T> random_elements(std::size_t count, double mean, double deviation, unsigned seed)
{
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<T> result(count);
    for (T& x : result) {
        if constexpr (floating_element<T>) x = T(normal(random));
        else x = static_cast<T>(random());
    }
    return result;
}

/// The element with this pattern.
template <class T>
T of(std::uint64_t pattern)
{
    return detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(pattern));
}

/// The largest relative errors of sums that the library promises.
template <class T>
constexpr double promised = sizeof(T) >= 4 ? 1e-12 : 4e-6;

/// By bits where it is subnormal: a test may flush such numbers.
template <class T>
long double exactly(T x)
{
    using traits = element_traits<T>;
    const auto bits = to_bits(x);
    const long double sign = (bits & traits::sign_mask) != 0 ? -1 : 1;
    if ((bits & traits::exponent_mask) != 0) return static_cast<double>(x);
    return sign * std::ldexp(static_cast<long double>(bits & traits::fraction_mask), traits::min_exponent - traits::digits + 1);
}

struct oracle {
    statistics exact; ///< all but the sums
    long double largest = 0, sum = 0, magnitudes = 0, squares = 0, dot = 0, products = 0;
    double tolerance = 0;

    template <class T>
    explicit oracle(view<const T> data, const T* other = nullptr)
    {
        using traits = element_traits<T>;
        tolerance = promised<T>;
        exact.digest = digest(data);
        for (std::uint64_t i = 0; i < data.count(); ++i) {
            ++exact.count;
            const auto bits = to_bits(data[i]);
            if (other != nullptr && is_finite(data[i])) {
                const long double product = exactly(data[i]) * exactly(other[i]);
                dot += product;
                products += product < 0 ? -product : product;
            }
            if (!is_finite(data[i])) {
                if (is_nan(data[i])) ++exact.nan;
                else if ((bits & traits::sign_mask) != 0) ++exact.negative_infinity;
                else ++exact.positive_infinity;
                if (exact.first_nonfinite == no_index) exact.first_nonfinite = i;
                continue;
            }
            const long double x = exactly(data[i]), size = x < 0 ? -x : x;
            if (size == 0) ++exact.zero;
            if (size > largest) largest = size;
            sum += x;
            magnitudes += size;
            squares += x * x;
        }
    }

    /// Squares of doubles that leave their range, or the sums' own, are not promised.
    [[gnu::noinline]] void check(const statistics& found) const
    {
        CHECK(found.count == exact.count);
        CHECK(found.nan == exact.nan);
        CHECK(found.positive_infinity == exact.positive_infinity);
        CHECK(found.negative_infinity == exact.negative_infinity);
        CHECK(found.infinite() == exact.positive_infinity + exact.negative_infinity);
        CHECK(found.zero == exact.zero);
        CHECK(found.first_nonfinite == exact.first_nonfinite);
        CHECK(found.digest == exact.digest);
        const detail::gradual_underflow with_subnormals;
        CHECK(is_near(found.absolute_maximum, largest, 0));
        if (magnitudes < 1e308L) CHECK(is_near(found.sum, sum, tolerance * magnitudes));
        check_squares(found.sum_of_squares);
        if (squares < 1e300L && squares > 1e-290L)
            CHECK(is_near(found.l2(), std::sqrt(squares), tolerance * std::sqrt(squares)));
    }
    void check_squares(double found) const
    {
        const long double lost = static_cast<long double>(exact.count) * std::ldexp(1.0L, -1074);
        if (squares < 1e308L) CHECK(is_near(found, squares, tolerance * squares + lost));
        else if (squares > 2e308L) CHECK_FALSE(is_finite(found));
    }
    [[gnu::noinline]] void check(const detail::result_record& found, bool with_input) const
    {
        CHECK(found.digest == exact.digest);
        CHECK(found.nonfinite == exact.nonfinite());
        CHECK(found.first_nonfinite == exact.first_nonfinite);
        const detail::gradual_underflow with_subnormals;
        check_squares(found.sum_of_squares);
        if (!with_input && exact.count != 0) CHECK(is_nan(found.dot));
        if (!with_input) return;
        if (exact.nonfinite() != 0) CHECK_FALSE(is_finite(found.dot));
        else if (products < 1e308L) CHECK(is_near(found.dot, dot, tolerance * products + 1e-300L));
    }
    [[gnu::noinline]] static bool is_near(double found, long double expected, long double error)
    {
        const long double difference = found - expected;
        return is_finite(found) && (difference < 0 ? -difference : difference) <= error;
    }
};

/// Calls `body(std::vector<T>)` with each: special values alone, at the edges of tiles and
/// everywhere, zeros of both signs, subnormals, extremes of the range, sums that cancel.
template <class T, class Body>
void for_each_input_of(Body body)
{
    using traits = element_traits<T>;
    constexpr std::uint64_t minus = traits::sign_mask;
    constexpr std::uint64_t infinity = traits::smallest_nonfinite;
    constexpr std::uint64_t nan = traits::exponent_mask | traits::fraction_mask;
    constexpr std::uint64_t edge = 8192 / sizeof(T); // of a tile
    const std::size_t count = 9 * edge + 7;
    const std::uint64_t specials[] = {0, 1, traits::fraction_mask, minus, minus | 1, nan, minus | nan, infinity,
        minus | infinity, infinity - 1, minus | (infinity - 1), std::uint64_t{traits::fraction_mask} + 1};

    for (const std::uint64_t pattern : specials) {
        body(std::vector<T>(1, of<T>(pattern)));
        body(std::vector<T>(count, of<T>(pattern)));
        for (const std::size_t at : {std::size_t{0}, std::size_t{4097}, edge - 1, edge, count - 8, count - 1}) {
            constexpr bool is_short = COLLPROBE_TEST_UNLESS_SANITIZED(COLLPROBE_TEST_UNLESS_BRIEF(false, true), true);
            if (is_short && at != 4097 && at != count - 1) continue;
            std::vector<T> data = random_elements<T>(count, 0.5, 1, 11);
            data[at] = of<T>(pattern);
            body(data);
        }
    }
    std::vector<T> data = random_elements<T>(count, 3, 0.01, 12);
    for (std::size_t i = 7; i < count; i += 13) data[i] = of<T>(specials[i % 9]);
    body(data);
    for (std::size_t i = 0; i < count; ++i) data[i] = of<T>(detail::mix64(i + 1));
    body(data); // all patterns
    for (T& x : data)
        if (!is_finite(x)) x = T(1.0f);
    body(data); // all magnitudes
    for (std::size_t i = 0; i < count; ++i) data[i] = of<T>(infinity - 1 - (i % 2) * minus + 2 * (i % 2) * minus);
    body(data); // the largest of either sign in turn
    data = random_elements<T>(count, 0, 1, 14);
    for (std::size_t i = 1; i < count; i += 2) data[i] = of<T>(to_bits(data[i - 1]) ^ minus);
    body(data); // nothing remains of the sum
    // Ranges in which squares leave that of a float, alone and beside others.
    for (const int exponent : {-70, -60, 59, 61, 120}) {
        for (const std::size_t every : {std::size_t{1}, edge}) {
            data = random_elements<T>(count, 0.3, 1, 15);
            for (std::size_t i = every / 2; i < count; i += every) {
                data[i] = T(std::ldexp(static_cast<double>(data[i]), exponent));
                if (!is_finite(data[i])) data[i] = of<T>(infinity - 1);
            }
            body(data);
        }
    }
}

/// And of all floating types.
template <class Body>
void for_each_input(Body body)
{
    testing::for_each_floating_type([&]<class T>(T) { for_each_input_of<T>(body); });
    for (const double exponent : {-1000.0, -530.0, 500.0, 520.0, 1000.0}) {
        std::vector<double> scaled = random_elements<double>(20'003, 0.3, 1, 16);
        for (double& x : scaled) x *= std::exp2(exponent);
        body(scaled);
        scaled[4000] = 1;
        body(scaled);
    }
}

} // namespace collprobe::adversarial
