// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/scan/sketch.hpp>

#include "adversarial.hpp"
#include "sketch_definition.hpp"

namespace collprobe::testing::sketch_test {

using adversarial::of;

namespace {

template <class T>
std::vector<T> random_elements(std::size_t count)
{
    return adversarial::random_elements<T>(count, 0.01, 0.3, 1);
}

template <class T>
std::vector<double> sketch_on(detail::isa path, view<const T> values, const sketch_options& options, std::uint64_t first)
{
    std::vector<double> result(sketch_numbers(options), 77);
    detail::sketch_on_host(path, detail::sketch_source<T>{values, first, options.bins, options.seed}, result.data());
    return result;
}
template <class T>
std::vector<double> sketch_of(const std::vector<T>& values, const sketch_options& options, std::uint64_t first = 0)
{
    std::vector<double> result(sketch_numbers(options));
    sketch<T>(values, view<double>(result), options, first);
    return result;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// The definition holds, and the bits are the same on every path.
template <class T>
void check(view<const T> values, const sketch_options& options, std::uint64_t first)
{
    const auto portable = sketch_on(detail::isa::portable, values, options, first);
    testing::sketch_definition(values, options, first).check(portable, sizeof(T) >= 4 ? 1e-13 : 2e-6);
    if (detail::supports(detail::isa::vectors))
        CHECK(same_bits(sketch_on(detail::isa::vectors, values, options, first), portable));
}

} // namespace

TEST_CASE_TEMPLATE("a sketch is what its definition says, on every path, whatever the count and the first element", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const std::uint32_t bins : {64u, 256u, 4096u}) {
        for (const std::size_t count : {0u, 1u, 2u, 63u, 64u, 65u, 255u, 1000u, 4096u, 50'021u}) {
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{4095},
                     std::uint64_t{123'457}, (std::uint64_t{1} << 40) + 64}) {
                CAPTURE(bins);
                CAPTURE(count);
                CAPTURE(first);
                const std::vector<T> values = random_elements<T>(count + 1);
                for (const std::size_t shift : {0u, 1u}) // of the alignment
                    check<T>({values.data() + shift, count}, {.bins = bins, .seed = bins + first}, first);
            }
        }
    }
    const std::vector<T> values = random_elements<T>(1'500'001); // many rows in each part
    check<T>(view<const T>(values), {.bins = 64}, 77);
}

TEST_CASE_TEMPLATE("squares that a float does not hold are added up in double", T, bfloat16, float, double)
{
    for (const int exponent : {-125, -62, -60, 59, 62, 125}) {
        std::vector<T> values = random_elements<T>(20'003);
        for (std::size_t i = 0; i < values.size(); i += exponent % 2 == 0 ? 1 : 777)
            values[i] = T(std::ldexp(static_cast<double>(values[i]), exponent));
        CAPTURE(exponent);
        check<T>(view<const T>(values), {.bins = 256}, 9);
    }
}

TEST_CASE_TEMPLATE("what is not finite shows in the energy of its bin, and subnormal numbers count", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    const sketch_options options{.bins = 256};
    using traits = element_traits<T>;
    for (const std::size_t place : {0u, 1u, 300u, 511u, 2000u}) {
        std::vector<T> values = random_elements<T>(2049);
        CHECK(is_finite(sketch_of(values, options)[options.bins + place % options.bins]));
        for (const unsigned fraction : {0u, 1u}) {
            values[place] = of<T>(traits::smallest_nonfinite | fraction);
            for (const detail::isa path : {detail::isa::portable, detail::isa::vectors}) {
                if (!detail::supports(path)) continue;
                const auto found = sketch_on(path, view<const T>(values), options, 0);
                for (std::size_t bin = 0; bin < options.bins; ++bin)
                    CHECK(is_finite(found[options.bins + bin]) == (bin != place % options.bins));
            }
        }
    }
    std::vector<T> tiny(64);
    tiny[5] = of<T>(1);
    const auto found = sketch_of(tiny, {.bins = 64});
    // By bits: a program may flush what ldexp gives.
    constexpr int exponent = traits::min_exponent - traits::digits + 1;
    const std::uint64_t expected = exponent < -1022 ? 1 : static_cast<std::uint64_t>(exponent + 1023) << 52;
    CHECK((detail::bit_cast<std::uint64_t>(found[5]) & ~(std::uint64_t{1} << 63)) == expected);
}

TEST_CASE("bad arguments are refused by name")
{
    const std::vector<float> values(100);
    std::vector<double> result(128);
    const auto message = [&](view<const float> input, view<double> to, const sketch_options& options) -> std::string {
        try {
            sketch<float>(input, to, options);
        } catch (const error& refused) {
            CHECK(refused.code() == status::invalid_argument);
            return refused.what();
        }
        return "";
    };
    CHECK(message(values, result, {.bins = 64}).empty());
    CHECK(message({nullptr, 3}, result, {.bins = 64}).find("null input") != std::string::npos);
    CHECK(message({reinterpret_cast<const float*>(reinterpret_cast<const char*>(values.data()) + 1), 3}, result, {.bins = 64})
              .find("not aligned") != std::string::npos);
    CHECK(message(values, view<double>(result).part(0, 100), {.bins = 64}).find("result must hold 128") != std::string::npos);
    for (const std::uint32_t bins : {0u, 32u, 100u, 1u << 21})
        CHECK(message(values, result, {.bins = bins}).find("bins is " + std::to_string(bins)) != std::string::npos);
}

} // namespace collprobe::testing::sketch_test
