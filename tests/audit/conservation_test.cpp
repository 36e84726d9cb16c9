// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "conservation_cases.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::conservation_test {
namespace {

/// Normal values of rank `rank`.
template <element T>
std::vector<T> values_of(int rank, std::size_t count, double scale = 0.05)
{
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 11);
    std::normal_distribution<double> normal;
    std::vector<T> values(count);
    for (T& x : values) x = T(scale * normal(random));
    return values;
}

} // namespace

TEST_CASE_TEMPLATE("inputs that are not finite, and sums that overflow, are not judged",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const auto verdict_of = [](auto change) {
        std::vector<std::vector<T>> inputs;
        for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<T>(rank, 500));
        change(inputs);
        const auto result = testing::reduce_simulated(inputs, testing::simulated_order::ring, reduction::sum);
        return testing::judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64}).verdict();
    };
    using all = std::vector<std::vector<T>>;
    const T infinite = detail::bit_cast<T>(element_traits<T>::smallest_nonfinite);
    const T nan = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite | 1));
    const T largest = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite - 1));
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = infinite; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = nan; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).checked);
    CHECK(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).conserved);
    CHECK(verdict_of([](all&) {}).checked);
}

TEST_CASE("exact sums rounded once are judged more sharply")
{
    testing::gradient_pool<float> pool(3);
    const auto inputs = pool.make(testing::gradients::gaussian, 8, 16384);
    for (const reduction operation : {reduction::sum, reduction::average}) {
        const auto result = testing::reduce_simulated(inputs, testing::simulated_order::single, operation);
        const auto judged = [&](rounding_order order) {
            const auto verdict = testing::judged_reduction<float>(inputs, result, operation, order).verdict();
            CHECK(verdict.checked);
            CHECK(verdict.conserved);
            return verdict.residual;
        };
        CHECK(judged(rounding_order::linear) < judged(rounding_order::single));
    }
}

TEST_CASE("doubles near the limits of their squares, and subnormal gradients, raise no alarm")
{
    for (const double scale : {1e-320, 1e-300, 1e-170, 1e-150, 1e140, 1e152, 1e160}) {
        CAPTURE(scale);
        for (const reduction operation : {reduction::sum, reduction::average}) {
            std::vector<std::vector<double>> inputs;
            for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<double>(rank, 5000, scale));
            auto result = testing::reduce_simulated(inputs, testing::simulated_order::ring, operation);
            const auto verdict = [&] {
                return testing::judged_reduction<double>(inputs, result, operation, rounding_order::linear, {.bins = 64})
                    .verdict();
            };
            CHECK(verdict().conserved);
            if (scale > 1e-160 && scale < 1e150) {
                CHECK(verdict().checked);
                result[1000] += scale;
                CHECK_FALSE(verdict().conserved);
            }
        }
    }
}

TEST_CASE_TEMPLATE("clean reductions of all kinds raise no alarm, of all orders", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const char* const more = std::getenv("COLLPROBE_ROUNDS"); // by hand: 1000 and more
    testing::gradient_pool<T> pool(5);
    for (int round = more != nullptr ? std::atoi(more) : 1; round > 0; --round) {
        for (int kind = 0; kind < static_cast<int>(testing::gradients::count); ++kind) {
            for (int order = 0; order < static_cast<int>(testing::simulated_order::count); ++order) {
                for (const int n : {2, 3, 16, 32}) {
                    const auto how = static_cast<testing::simulated_order>(order);
                    CAPTURE(std::string(name(how)));
                    CAPTURE(std::string(name(static_cast<testing::gradients>(kind))));
                    const auto inputs = pool.make(static_cast<testing::gradients>(kind), n, more != nullptr ? 1 + pool.random()() % 16384 : 5000);
                    const reduction operation = (n == 3) != (round % 2 == 0) ? reduction::average : reduction::sum;
                    const auto result = testing::reduce_simulated(inputs, how, operation);
                    const auto verdict = testing::judged_reduction<T>(
                        inputs, result, operation, testing::rounding_of(how), {.bins = 64u << 2 * (round % 4)}).verdict();
                    CHECK(verdict.checked);
                    CHECK(verdict.conserved);
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("the sensitivity is what theory gives - n = 8, 256 elements a bin", T, bfloat16, float)
{
    // At 8 standard deviations: half of the sum's root mean square for bfloat16, 7e-6 of it for float.
    const double threshold = sizeof(T) == 2 ? 0.5 : 7.5e-6;
    testing::gradient_pool<T> pool(9);
    const auto inputs = pool.make(testing::gradients::gaussian, 8, 16384);
    const auto clean = testing::reduce_simulated(inputs, testing::simulated_order::ring, reduction::sum);
    double squares = 0;
    for (const T x : clean) squares += static_cast<double>(x) * static_cast<double>(x);
    const double rms = std::sqrt(squares / static_cast<double>(clean.size()));
    int seen_above = 0, seen_below = 0;
    for (std::size_t place = 0; place < 200; ++place) {
        const auto is_seen = [&](double size) {
            auto result = clean;
            const std::size_t i = place * 80 + 3;
            result[i] = T(static_cast<double>(result[i]) + (static_cast<double>(result[i]) > 0 ? -size : size) * threshold * rms);
            return !testing::judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64})
                        .verdict()
                        .conserved;
        };
        seen_above += is_seen(1.6); // 8 standard deviations and the noise of the bin
        seen_below += is_seen(0.4);
    }
    CHECK(seen_above >= 198);
    CHECK(seen_below <= 2);
}

TEST_CASE("the judge of all bins, which passes over most, finds what the judge of each finds")
{
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    constexpr std::uint32_t bins = 1024;
    for (int trial = 0; trial < 300; ++trial) {
        const int ranks = 1 + trial % 17;
        const auto order = static_cast<rounding_order>(trial % 3);
        const auto operation = trial % 2 == 0 ? reduction::sum : reduction::average;
        std::vector<double> input(2 * bins), result(2 * bins);
        const double alike = trial % 5 == 0 ? ranks : 1; // energy of the result where ranks have the same numbers
        for (std::uint32_t b = 0; b < bins; ++b) {
            const double scale = operation == reduction::sum ? 1 : 1.0 / ranks;
            const double sum = 4 * normal(random) * ranks;
            input[b] = sum;
            result[b] = scale * sum * (1 + 1e-8 * normal(random));
            input[bins + b] = 16.0 * ranks * (1 + 0.1 * normal(random));
            result[bins + b] = scale * scale * input[bins + b] * alike * (1 + 0.1 * normal(random));
        }
        const auto any = [&] { return static_cast<std::size_t>(random() % bins); };
        if (trial % 7 == 1) input[bins + any()] = detail::not_a_number();
        if (trial % 7 == 2) result[bins + any()] = detail::infinity();
        if (trial % 7 == 3) result[any()] *= 1.001;
        if (trial % 7 == 4) input[any()] = input[bins + any()] = 0;
        if (trial % 7 == 5) {
            const std::size_t empty = any();
            input[empty] = result[empty] = input[bins + empty] = result[bins + empty] = 0;
        }
        const detail::conservation_judge judge{input.data(), result.data(), bins,
            detail::conservation_bound::of<float>(operation, order, ranks, 16, detail::terms_of(order, ranks))};
        auto all = judge.identity();
        judge.run(all, 0, bins);
        auto each = judge.identity();
        for (std::uint64_t b = 0; b < bins; ++b) judge.add(each, b);
        CHECK(to_bits(all.worst) == to_bits(each.worst));
        CHECK(all.bin == each.bin);
        CHECK(all.unmeasured == each.unmeasured);
    }
}

} // namespace collprobe::testing::conservation_test
