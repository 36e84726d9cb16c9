// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/scan/exponent_histogram.hpp>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace collprobe;

namespace {

template <class T>
T from_bits(std::uint64_t bits)
{
    return detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(bits));
}

/// Each power of two that the type can express falls into the bin of its exponent, with either sign
/// and with any fraction.
template <class T>
void check_float(int lowest, int width)
{
    using traits = element_traits<T>;
    CAPTURE(std::string(traits::name));
    const exponent_histogram empty = exponent_histogram::of<T>();
    CHECK(empty.lowest_exponent == lowest);
    CHECK(empty.width == width);
    CHECK((traits::max_exponent - lowest) / width < exponent_histogram::bins);
    for (int exponent = lowest; exponent <= traits::max_exponent; ++exponent) {
        const bool subnormal = exponent < traits::min_exponent;
        const std::uint64_t bits = subnormal ? std::uint64_t{1} << (exponent - lowest)
                                             : static_cast<std::uint64_t>(exponent + traits::max_exponent) << (traits::digits - 1);
        const std::uint64_t fraction = subnormal ? bits - 1 : traits::fraction_mask;
        const std::vector<T> data{from_bits<T>(bits), from_bits<T>(bits | traits::sign_mask), from_bits<T>(bits | fraction)};
        const exponent_histogram h = compute_exponent_histogram(view<const T>(data));
        REQUIRE(h.count[(exponent - lowest) / width] == 3);
        REQUIRE(std::accumulate(std::begin(h.count), std::end(h.count), std::uint64_t{0}) == 3);
    }
    const std::vector<T> others{from_bits<T>(0), from_bits<T>(traits::sign_mask), from_bits<T>(traits::exponent_mask),
        from_bits<T>(traits::sign_mask | traits::exponent_mask | 1)};
    const exponent_histogram h = compute_exponent_histogram(view<const T>(others));
    CHECK(h.zero == 2);
    CHECK(h.nonfinite == 2);
    CHECK(std::accumulate(std::begin(h.count), std::end(h.count), std::uint64_t{0}) == 0);
}

} // namespace

TEST_CASE("exponent_histogram - every exponent of a floating-point type has its bin")
{
    check_float<float16>(-24, 1);
    check_float<bfloat16>(-133, 5);
    check_float<float>(-149, 5);
    check_float<double>(-1074, 33);
}

TEST_CASE("exponent_histogram - integers by their leading bit, the most negative one too")
{
    const std::vector<std::int64_t> data{0, 1, -1, 2, 3, -4, 1023, 1024, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()};
    const exponent_histogram h = compute_exponent_histogram(view<const std::int64_t>(data));
    CHECK(h.zero == 1);
    CHECK(h.count[0] == 2);
    CHECK(h.count[1] == 2);
    CHECK(h.count[2] == 1);
    CHECK(h.count[9] == 1);
    CHECK(h.count[10] == 1);
    CHECK(h.count[62] == 1);
    CHECK(h.count[63] == 1);
    const std::vector<std::int8_t> bytes{-128, 127, -1};
    const exponent_histogram b = compute_exponent_histogram(view<const std::int8_t>(bytes));
    CHECK(b.count[7] == 1);
    CHECK(b.count[6] == 1);
    CHECK(b.count[0] == 1);
}

TEST_CASE("exponent_histogram - parts merge to the whole, and a null view is an error")
{
    std::vector<float> data(1000);
    std::iota(data.begin(), data.end(), -500.0f);
    const view<const float> all(data);
    exponent_histogram merged = compute_exponent_histogram(all.part(0, 300));
    merged.merge(compute_exponent_histogram(all.part(300, 700)));
    const exponent_histogram whole = compute_exponent_histogram(all);
    for (int bin = 0; bin < exponent_histogram::bins; ++bin) CHECK(merged.count[bin] == whole.count[bin]);
    CHECK(merged.zero == whole.zero);
    CHECK_THROWS_AS(compute_exponent_histogram(view<const float>(nullptr, 1)), const error&);
    const auto* const inside = reinterpret_cast<const float*>(reinterpret_cast<const unsigned char*>(data.data()) + 2);
    CHECK_THROWS_AS(compute_exponent_histogram(view<const float>(inside, 1)), const error&);
}
