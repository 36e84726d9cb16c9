// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include <collprobe/core/record.hpp>
#include <collprobe/core/version.hpp>

using namespace collprobe;

TEST_CASE("derived counts and norms of statistics follow from the fields")
{
    statistics s;
    s.count = 10;
    s.nan = 1;
    s.positive_infinity = 2;
    s.negative_infinity = 3;
    s.sum_of_squares = 16;
    s.m2 = 36;
    CHECK(s.infinite() == 5);
    CHECK(s.nonfinite() == 6);
    CHECK(s.finite() == 4);
    CHECK(s.l2() == 4);
    CHECK(s.standard_deviation() == 3);
    s.scale = 600; // sums are times 2^-1200
    CHECK(s.l2() == std::ldexp(4.0, 600));
    CHECK(s.standard_deviation() == std::ldexp(3.0, 600));
}

TEST_CASE("norms that are subnormal have the right bits, also where a build flushes such numbers to zero")
{
    const auto bits_of_norm = [](double sum_of_squares) {
        statistics s;
        s.count = 1;
        s.scale = -600;
        s.sum_of_squares = s.m2 = sum_of_squares;
        const double norm = s.l2();
        const double deviation = s.standard_deviation();
        CHECK(std::memcmp(&norm, &deviation, sizeof norm) == 0);
        return to_bits(norm);
    };
    // The norm is the root times 2^-600, in units of 2^-1074: the root times 2^474.
    const auto bits_of_root = [&](double root) { return bits_of_norm(root * root); };
    CHECK(bits_of_root(0x1p-474) == 1);
    CHECK(bits_of_root(0x1p-450) == 1u << 24);
    CHECK(bits_of_root(5 * 0x1p-474) == 5);
    CHECK(bits_of_root(0x1p-423) == std::uint64_t{1} << 51);
    CHECK(bits_of_root(0x1p-422) == std::uint64_t{1} << 52); // the smallest normal number
    CHECK(bits_of_root(0x1p-421) == std::uint64_t{2} << 52);
    // Rounded to the nearest, halves to even.
    CHECK(bits_of_root(2.25 * 0x1p-474) == 2);
    CHECK(bits_of_root(2.5 * 0x1p-474) == 2);
    CHECK(bits_of_root(2.75 * 0x1p-474) == 3);
    CHECK(bits_of_root(3.5 * 0x1p-474) == 4);
    CHECK(bits_of_root(0x1p-475) == 0);
    CHECK(bits_of_root(1.5 * 0x1p-475) == 1);
    CHECK(bits_of_root(0x1p-476) == 0);
    CHECK(bits_of_norm(0) == 0);
}

TEST_CASE("statistics of nothing are zero")
{
    const statistics s;
    CHECK(s.finite() == 0);
    CHECK(s.l2() == 0);
    CHECK(s.standard_deviation() == 0);
    CHECK(s.first_nonfinite == no_index);
}

TEST_CASE("what is not known yet is NaN by its bits")
{
    const spread s;
    CHECK(is_nan(s.mean));
    CHECK(is_nan(s.std_sample));
    CHECK(s.minimum_rank == -1);
    CHECK(is_nan(direction{}.mean_pairwise));
}

TEST_CASE("every enumerator has a name")
{
    for (int i = 0; i <= static_cast<int>(finding::cosine); ++i) CHECK(std::strcmp(name(static_cast<finding>(i)), "unknown") != 0);
    for (int i = 0; i <= static_cast<int>(collective::split); ++i) {
        CHECK(std::strcmp(name(static_cast<collective>(i)), "unknown") != 0);
    }
    CHECK(std::strcmp(name(static_cast<finding>(99)), "unknown") == 0);
    CHECK(std::strcmp(name(report_mode::summary), "summary") == 0);
}

TEST_CASE("the version number is made of its parts")
{
    CHECK(COLLPROBE_VERSION
        == COLLPROBE_VERSION_MAJOR * 10000 + COLLPROBE_VERSION_MINOR * 100 + COLLPROBE_VERSION_PATCH);
}
