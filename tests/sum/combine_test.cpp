// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/sum/combine.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "support/element_types.hpp"

namespace collprobe::testing::combine_test {
namespace {

/// NaN of both signs and kinds, infinities, zeros, ends of the ranges of both formats, ties of sums and products.
constexpr std::uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x03ff, 0x0400, 0x7bff, 0x7c00,
    0xfc00, 0x7c01, 0xfe01, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffc1, 0x3f80, 0x3c00, 0x3f00, 0x00c1, 0x3fff};

/// The element with the lower bits of a pattern.
template <class T>
T of(std::uint32_t pattern)
{
    return T::from_bits(static_cast<typename element_traits<T>::bits_type>(pattern));
}

/// All patterns, in an order in which vectors hold ordinary numbers and special ones together.
template <class T>
std::vector<T> all_patterns(std::uint32_t step)
{
    std::vector<T> result(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) result[i] = of<T>(i * step);
    return result;
}

/// The correctly rounded result. A double holds every product, and rounds a sum with more than twice the bits of T.
template <class T>
T expected(reduction operation, T a, T b)
{
    const double x = static_cast<double>(static_cast<float>(a));
    const double y = static_cast<double>(static_cast<float>(b));
    return T(operation == reduction::product ? detail::rounded_product(x, y) : detail::rounded_sum(x, y));
}

/// A NaN keeps the bits of the only NaN that went in, made quiet; of two, either.
template <class T>
bool is_expected(T found, reduction operation, T a, T b)
{
    const auto quiet = [](T nan) { return nan.bits | element_traits<T>::quiet_nan; };
    if (is_nan(a) || is_nan(b))
        return (is_nan(a) && found.bits == quiet(a)) || (is_nan(b) && found.bits == quiet(b));
    const T right = expected(operation, a, b);
    return is_nan(right) ? is_nan(found) : found.bits == right.bits;
}

} // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern combines with special ones to the correctly rounded sum and product", T,
    float16, bfloat16)
{
    const detail::gradual_underflow as_ieee_has_it;
    const std::vector<T> left = all_patterns<T>(0x9e37);
    std::mt19937 random(1);
    for (const reduction operation : {reduction::sum, reduction::average, reduction::product}) {
        for (const std::uint16_t pattern : special) {
            std::vector<T> right(left.size(), of<T>(pattern));
            // The last quarter: anything.
            for (std::size_t i = right.size() / 4 * 3; i < right.size(); ++i)
                right[i] = of<T>(static_cast<std::uint32_t>(random()));
            std::vector<T> result = left;
            detail::combine(operation, result.data(), right.data(), static_cast<int>(result.size()));
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < result.size(); ++i)
                wrong += is_expected(result[i], operation, left[i], right[i]) ? 0 : 1;
            CAPTURE(pattern);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE_TEMPLATE("every two 8-bit patterns combine to the correctly rounded sum and product", T,
    COLLPROBE_TEST_FLOAT8_TYPES)
{
    const detail::gradual_underflow as_ieee_has_it;
    const std::vector<T> left = all_patterns<T>(1);
    std::vector<T> right(left.size());
    for (std::uint32_t i = 0; i < right.size(); ++i) right[i] = of<T>(i >> 8);
    for (const reduction operation : {reduction::sum, reduction::product}) {
        std::vector<T> result = left;
        detail::combine(operation, result.data(), right.data(), static_cast<int>(result.size()));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < result.size(); ++i) {
            wrong += is_expected(result[i], operation, left[i], right[i]) ? 0 : 1;
            wrong += is_expected(detail::combine(operation, left[i], right[i]), operation, left[i], right[i]) ? 0 : 1;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE_TEMPLATE("an average brings every narrow pattern times 1/n, rounded once", T, float16, bfloat16,
    COLLPROBE_TEST_FLOAT8_TYPES)
{
    const detail::gradual_underflow as_ieee_has_it;
    const std::vector<T> values = all_patterns<T>(0x9e37);
    for (const int ranks : {1, 2, 3, 7, 64, 1000}) {
        std::vector<T> prepared(values.size());
        detail::prepare(reduction::average, prepared.data(), values.data(), static_cast<int>(values.size()), ranks);
        const T scale(1.0 / ranks);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
            wrong += is_expected(prepared[i], reduction::product, values[i], scale) ? 0 : 1;
        CHECK(wrong == 0);
    }
}

TEST_CASE_TEMPLATE("a hop of any count and alignment combines its elements and writes no other", T, float16, bfloat16,
    COLLPROBE_TEST_FLOAT8_TYPES)
{
    const detail::gradual_underflow as_ieee_has_it;
    const std::vector<T> values = all_patterns<T>(0x7a35);
    constexpr std::size_t room = 200;
    for (const reduction operation : {reduction::sum, reduction::product}) {
        for (std::size_t count = 0; count <= 150; ++count) {
            for (const std::size_t offset : {0u, 1u, 7u}) {
                const std::size_t from = count * 97 + offset;
                std::vector<T> result(values.begin(), values.begin() + room);
                const std::vector<T> before = result;
                detail::combine(operation, result.data() + offset, values.data() + from, static_cast<int>(count));
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < room; ++i) {
                    const bool inside = i >= offset && i < offset + count;
                    const bool right = inside
                        ? is_expected(result[i], operation, before[i], values[from + i - offset])
                        : result[i].bits == before[i].bits;
                    wrong += right ? 0 : 1;
                }
                CAPTURE(count);
                CHECK(wrong == 0);
            }
        }
    }
}

} // namespace collprobe::testing::combine_test
