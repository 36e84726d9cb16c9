// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <collprobe/scan/sketch.hpp>

#include "support/element_types.hpp"

using namespace collprobe;

namespace {

template <element T>
std::vector<T> random_elements(std::size_t count, unsigned seed = 1)
{
    std::mt19937_64 random(seed);
    std::vector<T> values(count);
    for (T& x : values) {
        const std::uint64_t bits = random();
        if constexpr (floating_element<T>) {
            const double significand = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63;
            x = T(std::ldexp(significand, static_cast<int>(bits % 12) - 8));
        } else {
            x = static_cast<T>(bits);
        }
    }
    return values;
}

template <element T>
std::vector<sketch_sum<T>> sketch_of(const std::vector<T>& values, const sketch_options& options, std::uint64_t first = 0)
{
    std::vector<sketch_sum<T>> result(sketch_numbers<T>(options));
    sketch<T>(values, view<sketch_sum<T>>(result), options, first);
    return result;
}

/// The definition, element by element, in wide arithmetic.
template <element T>
void check_against_definition(const std::vector<T>& values, const sketch_options& options, std::uint64_t first)
{
    using wide = std::conditional_t<floating_element<T>, long double, std::uint64_t>;
    std::vector<wide> sums(options.bins), energies(options.bins), magnitudes(options.bins);
    for (std::uint64_t k = 0; k < values.size(); ++k) {
        const std::uint64_t i = first + k;
        const std::uint64_t word = detail::mix64(options.seed + (i / 64 + 1) * 0x9e3779b97f4a7c15u);
        const bool minus = (word >> (i % 64) & 1) != 0;
        const std::size_t bin = i % options.bins;
        if constexpr (floating_element<T>) {
            const auto x = static_cast<long double>(static_cast<double>(values[k]));
            sums[bin] += minus ? -x : x;
            energies[bin] += x * x;
            magnitudes[bin] += x < 0 ? -x : x;
        } else {
            const auto x = static_cast<std::uint64_t>(values[k]);
            sums[bin] += minus ? 0 - x : x;
        }
    }
    const auto found = sketch_of(values, options, first);
    for (std::size_t bin = 0; bin < options.bins; ++bin) {
        if constexpr (floating_element<T>) {
            REQUIRE(std::fabs(found[bin] - static_cast<double>(sums[bin]))
                <= 1e-13 * static_cast<double>(magnitudes[bin]));
            REQUIRE(std::fabs(found[options.bins + bin] - static_cast<double>(energies[bin]))
                <= 1e-13 * static_cast<double>(energies[bin]));
        } else {
            REQUIRE(found[bin] == sums[bin]);
        }
    }
}

/// Runs the bodies of the GPU's kernels here.
template <element T>
std::vector<sketch_sum<T>> sketch_by_threads(view<const T> values, const sketch_options& options, std::uint64_t first)
{
    const detail::sketch_source<T> source{values, first, options.bins, options.seed};
    std::vector<sketch_sum<T>> result(sketch_numbers<T>(options)), scratch(source.parts() * result.size() + 1);
    const detail::sketch_parts<T> parts{source, scratch.data()};
    for (std::uint64_t i = parts.indices(); i > 0; --i) parts(i - 1);
    const detail::join_sketch_parts<T> join{scratch.data(), source.parts(), result.size(), result.data()};
    for (std::uint64_t i = 0; i < result.size(); ++i) join(i);
    return result;
}

template <class Number>
bool same_bits(const std::vector<Number>& a, const std::vector<Number>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Number)) == 0;
}

} // namespace

TEST_CASE_TEMPLATE("a sketch is what its definition says, whatever the count and the first element", T,
    COLLPROBE_TEST_ELEMENT_TYPES)
{
    for (const std::uint32_t bins : {64u, 256u, 4096u}) {
        for (const std::size_t count : {0u, 1u, 2u, 63u, 64u, 65u, 255u, 1000u, 4096u, 50'021u}) {
            for (const std::uint64_t first : {0u, 1u, 64u, 100u, 4095u, 123'457u}) {
                CAPTURE(bins);
                CAPTURE(count);
                CAPTURE(first);
                check_against_definition(random_elements<T>(count), {.bins = bins, .seed = bins + first}, first);
            }
        }
    }
}

TEST_CASE_TEMPLATE("the bits are the same on every path and for the threads of a GPU", T, COLLPROBE_TEST_ELEMENT_TYPES)
{
    for (const std::size_t count : {0u, 1u, 130u, 4095u, 8192u, 70'003u, 1'500'001u}) {
        for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 40) + 64}) {
            const sketch_options options{.bins = count > 100'000 ? 64u : 1024u};
            const std::vector<T> values = random_elements<T>(count + 1);
            for (const std::size_t shift : {0u, 1u}) { // of the alignment
                CAPTURE(count);
                CAPTURE(first);
                const view<const T> part(values.data() + shift, count);
                const auto threads = sketch_by_threads<T>(part, options, first);
                for (const detail::isa path : {detail::isa::portable, detail::isa::vectors}) {
                    if (!detail::supports(path)) continue;
                    CAPTURE(std::string(detail::name(path)));
                    std::vector<sketch_sum<T>> result(sketch_numbers<T>(options)), scratch(result.size());
                    detail::sketch_on_host(path, detail::sketch_source<T>{part, first, options.bins, options.seed},
                        result.data(), scratch.data());
                    CHECK(same_bits(result, threads));
                }
            }
        }
    }
}

TEST_CASE("a sketch is linear - of sums, of multiples and of parts")
{
    const sketch_options options{.bins = 128};
    // Small integers, so that double has no rounding.
    std::mt19937_64 random(3);
    std::vector<float> x(10'007), y(x.size()), sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
        y[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
        sum[i] = x[i] - 2 * y[i];
    }
    const auto of_x = sketch_of(x, options), of_y = sketch_of(y, options), of_sum = sketch_of(sum, options);
    for (std::size_t bin = 0; bin < options.bins; ++bin) CHECK(of_sum[bin] == of_x[bin] - 2 * of_y[bin]);

    const std::vector<float> head(x.begin(), x.begin() + 3001), tail(x.begin() + 3001, x.end());
    const auto of_head = sketch_of(head, options), of_tail = sketch_of(tail, options, 3001);
    for (std::size_t i = 0; i < of_x.size(); ++i) CHECK(of_x[i] == of_head[i] + of_tail[i]);
}

TEST_CASE("integers wrap modulo 2^64")
{
    const sketch_options options{.bins = 64};
    const std::vector<std::int64_t> values(6400, std::numeric_limits<std::int64_t>::min());
    check_against_definition(values, options, 0);
    const std::vector<std::uint64_t> large(6400, ~std::uint64_t{0} - 5);
    check_against_definition(large, options, 9);
    const std::vector<std::int8_t> small(6400, std::int8_t{-128});
    check_against_definition(small, options, 9);
}

TEST_CASE_TEMPLATE("what is not finite shows in the energy of its bin, and subnormal numbers count",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const sketch_options options{.bins = 256};
    using traits = element_traits<T>;
    for (const std::size_t place : {0u, 1u, 300u, 511u, 2000u}) {
        std::vector<T> values = random_elements<T>(2049);
        CHECK(is_finite(sketch_of(values, options)[options.bins + place % options.bins]));
        for (const auto fraction : {0, 1}) {
            using bits = typename traits::bits_type;
            values[place] = detail::bit_cast<T>(static_cast<bits>(traits::smallest_nonfinite | static_cast<bits>(fraction)));
            const auto found = sketch_of(values, options);
            for (std::size_t bin = 0; bin < options.bins; ++bin)
                CHECK(is_finite(found[options.bins + bin]) == (bin != place % options.bins));
        }
    }
    std::vector<T> tiny(64);
    tiny[5] = detail::bit_cast<T>(typename traits::bits_type{1});
    const auto found = sketch_of(tiny, {.bins = 64});
    // By bits: a program may flush what ldexp gives.
    constexpr int exponent = traits::min_exponent - traits::digits + 1;
    const std::uint64_t expected = exponent < -1022 ? 1 : static_cast<std::uint64_t>(exponent + 1023) << 52;
    CHECK((detail::bit_cast<std::uint64_t>(found[5]) & ~(std::uint64_t{1} << 63)) == expected);
}

TEST_CASE("signs are balanced and differ between seeds")
{
    const std::vector<float> ones(1 << 16, 1.0f);
    const auto a = sketch_of(ones, {.bins = 64, .seed = 1}), b = sketch_of(ones, {.bins = 64, .seed = 2});
    CHECK_FALSE(same_bits(a, b));
    double sum = 0;
    for (std::size_t bin = 0; bin < 64; ++bin) {
        CHECK(std::fabs(a[bin]) < 6 * 32); // 1024 of them: a standard deviation of 32
        sum += a[bin];
        CHECK(a[64 + bin] == 1024);
    }
    CHECK(std::fabs(sum) < 6 * 256);
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
