// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/metrics/order_sensitivity.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/table.hpp>

#include "support/steps.hpp"

namespace collprobe::testing::order_sensitivity_test {
namespace {

/// An independent sum: in long double, which holds sums of a few floats or bfloat16 exactly enough.
template <class T>
double exactly(const std::vector<T>& terms)
{
    long double sum = 0;
    for (const T term : terms) sum += static_cast<long double>(static_cast<double>(term));
    return static_cast<double>(sum);
}

probe_options sampled(int elements)
{
    probe_options options;
    options.order_sample = elements;
    return options;
}

template <class T>
std::vector<T> gradient_of(int rank, std::uint64_t count)
{
    std::mt19937 random(static_cast<unsigned>(rank) + 7);
    std::normal_distribution<float> normal;
    std::vector<T> gradient(count);
    for (T& value : gradient) value = T(normal(random));
    return gradient;
}

/// The record of one sum.
template <class T>
step_record step_of(int ranks, std::uint64_t count, const probe_options& options, bool scattered = false)
{
    return testing::records_of({ranks, 1, options}, [&](auto& comm, auto& stream, int, auto&) {
        const std::vector<T> gradient = gradient_of<T>(comm.rank(), count);
        std::vector<T> result(scattered ? count / static_cast<std::uint64_t>(ranks) : count);
        if (scattered) comm.reduce_scatter(gradient, view(result), reduction::sum, stream);
        else comm.all_reduce(gradient, view(result), reduction::sum, stream);
        stream.synchronize(20'000);
    })[0];
}

} // namespace

TEST_CASE("samples are evenly spaced, distinct and inside")
{
    for (const std::uint64_t count : {1u, 5u, 16u, 17u, 100u, 1000003u}) {
        std::uint64_t before = 0;
        for (std::uint64_t i = 0; i < 16; ++i) {
            const std::uint64_t place = detail::sample_place(i, 16, count);
            if (i >= count) {
                CHECK(place == count);
                continue;
            }
            CHECK(place < count);
            if (i > 0) CHECK(place > before);
            before = place;
        }
    }
}

TEST_CASE("a sum that no order changes is not sensitive, one that cancels is")
{
    collprobe::detail::order_meter meter(4, collprobe::detail::sample_orders(4, 8));
    const float calm[] = {1, 2, 3, 4};
    meter.add(calm, 10.0f);
    CHECK(meter.finish().changed == 0);
    CHECK(meter.finish().max_ulp_error == 0);
    const float cancels[] = {1e8f, 1, -1e8f, 1};
    meter.add(cancels, 1.0f); // what the linear order gives; the exact sum is 2
    const order_sensitivity seen = meter.finish();
    CHECK(seen.elements == 2);
    CHECK(seen.orders == 8);
    CHECK(seen.changed == 1);
    CHECK(seen.max_ulp_spread >= ulp_distance(1.0f, 2.0f));
    CHECK(seen.max_ulp_error == static_cast<double>(ulp_distance(1.0f, 2.0f)));
    CHECK(std::abs(seen.rms_ulp_error - seen.max_ulp_error / std::sqrt(2.0)) < 1e-6 * seen.max_ulp_error);
}

TEST_CASE("an average is measured as it is added: each term times 1/n")
{
    // By hand, for three ranks: the product of two floats and their sum are exact enough in double to round once.
    // (Volatile, so that -ffast-math finds nothing to simplify.)
    const auto rounded = [](double value) {
        const volatile double exact = value;
        const volatile float once = static_cast<float>(exact);
        return static_cast<float>(once);
    };
    const auto scaled = [&](float term) { return rounded(double{term} * double{1.0f / 3}); };
    const auto sum = [&](float a, float b) { return rounded(double{a} + double{b}); };
    const std::vector<summation_order> orders{permuted_order({0, 1, 2}), permuted_order({2, 1, 0}),
        permuted_order({0, 2, 1})};
    collprobe::detail::order_meter meter(3, orders);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    int unlike_the_sum = 0;
    for (int i = 0; i < 200; ++i) {
        const float x[] = {normal(random), normal(random), normal(random)};
        const auto changes = [&](float a, float b, float c) {
            const float all[] = {sum(sum(a, b), c), sum(sum(c, b), a), sum(sum(a, c), b)};
            return all[0] != all[1] || all[1] != all[2];
        };
        const bool expected = changes(scaled(x[0]), scaled(x[1]), scaled(x[2]));
        unlike_the_sum += expected != changes(x[0], x[1], x[2]) ? 1 : 0;
        meter.start(reduction::average);
        meter.add(x, static_cast<float>((double{x[0]} + double{x[1]} + double{x[2]}) / 3));
        REQUIRE(meter.finish().changed == (expected ? 1 : 0));
        REQUIRE(meter.finish().max_ulp_error <= 1); // of the average itself, not of the scaled terms
    }
    CHECK(unlike_the_sum > 10); // or the test would tell nothing

    const float largest = std::numeric_limits<float>::max();
    const float overflow_as_sum[] = {largest, largest, largest};
    meter.start(reduction::average);
    meter.add(overflow_as_sum, largest);
    CHECK(meter.finish().elements == 1);
    meter.start(reduction::sum);
    meter.add(overflow_as_sum, largest);
    CHECK(meter.finish().elements == 0);
}

TEST_CASE("an element is counted and left out if its exact sum, its result or a sum in any order is not finite")
{
    collprobe::detail::order_meter meter(4, collprobe::detail::sample_orders(4, 8));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const float largest = std::numeric_limits<float>::max();
    const float fine[] = {1, 2, 3, 4};
    const float with_nan[] = {1, nan, 3, 4};
    const float with_infinity[] = {1, -infinity, 3, 4};
    const float in_one_order[] = {largest, largest, -largest, -largest}; // exactly 0; pairwise infinity - infinity
    meter.add(with_nan, nan);
    meter.add(with_infinity, -infinity);
    meter.add(fine, nan);
    meter.add(fine, infinity);
    meter.add(in_one_order, 0.0f);
    CHECK(meter.finish().elements == 0);
    CHECK(meter.finish().nonfinite == 5);
    meter.add(fine, 10.0f);
    CHECK(meter.finish().elements == 1);
    CHECK(meter.finish().max_ulp_spread == 0);
    CHECK(meter.finish().max_ulp_error == 0);
    CHECK(meter.finish().nonfinite == 5);

    collprobe::detail::order_meter narrow(2, collprobe::detail::sample_orders(2, 3));
    const bfloat16 terms[] = {bfloat16::from_bits(0x7f80), bfloat16(1.0f)};
    narrow.add(terms, terms[0]);
    CHECK(narrow.finish().elements == 0);
    CHECK(narrow.finish().nonfinite == 1);
}

TEST_CASE("a step whose sampled elements are all left out says so")
{
    const step_record seen = testing::records_of({2, 1, sampled(8)}, [](auto& comm, auto& stream, int, auto&) {
        std::vector<float> gradient(100, std::numeric_limits<float>::quiet_NaN()), result(100);
        comm.all_reduce(gradient, view(result), reduction::average, stream);
        stream.synchronize(20'000);
    })[0];
    CHECK(seen.order().elements == 0);
    CHECK(seen.order().nonfinite == 8);
    CHECK(report::step_table(seen).find("order of the sum: 8 sampled elements left out") != std::string::npos);
    CHECK(report::json_line("run", seen).find("\"order\":{\"elements\":0,\"nonfinite\":8,") != std::string::npos);
}

TEST_CASE("a step measures its sums against the exact ones")
{
    const std::uint64_t count = 333;
    const int ranks = 8;
    const step_record step = step_of<bfloat16>(ranks, count, sampled(64));
    const order_sensitivity seen = step.order();
    CHECK(seen.elements == 64);
    CHECK(seen.changed > 16); // about 61 % at 8 ranks
    CHECK(seen.max_ulp_error >= 1);
    CHECK(report::step_table(step).find("order of the sum: ") != std::string::npos);
    CHECK(report::json_line("run", step).find("\"order\":{\"elements\":64,") != std::string::npos);

    // The same numbers, recomputed from the ranks' data and a linear sum in the element type.
    double squares = 0;
    std::vector<std::vector<bfloat16>> data;
    for (int r = 0; r < ranks; ++r) data.push_back(gradient_of<bfloat16>(r, count));
    for (std::uint64_t i = 0; i < 64; ++i) {
        const std::uint64_t place = detail::sample_place(i, 64, count);
        std::vector<bfloat16> terms;
        bfloat16 linear = data[0][place];
        for (int r = 0; r < ranks; ++r) {
            terms.push_back(data[static_cast<std::size_t>(r)][place]);
            if (r > 0) linear = bfloat16(static_cast<float>(linear) + static_cast<float>(terms.back()));
        }
        const auto error = static_cast<double>(ulp_distance(linear, bfloat16(exactly(terms))));
        squares += error * error;
    }
    CHECK(std::abs(seen.rms_ulp_error - std::sqrt(squares / 64)) < 1e-9);
}

TEST_CASE("a reduce-scatter's results come from the rank that holds them")
{
    const order_sensitivity whole = step_of<float>(4, 400, sampled(50)).order();
    const order_sensitivity parts = step_of<float>(4, 400, sampled(50), true).order();
    // `local` adds both in rank order: the same results.
    CHECK(parts.rms_ulp_error == whole.rms_ulp_error);
    CHECK(parts.changed == whole.changed);
    CHECK(whole.elements == 50);
}

TEST_CASE("nothing is measured where nobody asks, and a summary refuses it")
{
    const step_record step = step_of<float>(2, 100, {});
    CHECK(step.order().elements == 0);
    CHECK(report::json_line("run", step).find("\"order\"") == std::string::npos);
    local::run(1, [](local::communicator& world) {
        probe_options options = sampled(8);
        options.mode = report_mode::summary;
        CHECK_THROWS_AS(probed(world, options), error);
    });
}

} // namespace collprobe::testing::order_sensitivity_test
