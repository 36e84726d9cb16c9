// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/scan/statistics.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <doctest/doctest.h>

#include "adversarial.hpp"

namespace collprobe::testing::statistics_test {

using adversarial::of;
using adversarial::random_elements;

namespace {

constexpr std::array every_path{detail::isa::portable, detail::isa::vectors};

/// A reducer on one path.
template <class Reducer>
struct on_path {
    static constexpr std::uint64_t block = Reducer::block;
    using partial = typename Reducer::partial;
    Reducer reducer;
    detail::isa path;

    static partial identity() { return {}; }
    static void merge(partial& into, const partial& next) { Reducer::merge(into, next); }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const { reducer.run(into, first, count, path); }
};
template <class Reducer>
auto read(const Reducer& reducer, detail::isa path)
{
    const on_path<Reducer> forced{reducer, path};
    return reducer.finish(detail::reduce_blocks(forced, reducer.data.count()));
}

/// Bit for bit, except in a program whose compiler may round in another way on each path.
template <class Result>
bool same(const Result& a, const Result& b)
{
#if defined(__FAST_MATH__)
    return a.digest == b.digest && a.first_nonfinite == b.first_nonfinite;
#else
    return std::memcmp(&a, &b, sizeof a) == 0;
#endif
}

/// Everything that must hold for any data.
template <class T>
void check_all(const std::vector<T>& data)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(data.size());
    const view<const T> input(data);
    const std::vector<T> other = random_elements<T>(data.size() + 1, 0.1, 3, 22);
    const adversarial::oracle expected(input, other.data() + 1);
    const statistics found = compute_statistics(input);
    expected.check(found);
    detail::result_record portable[2]; // without another buffer, and with one
    for (const detail::isa path : every_path) {
        if (!detail::supports(path)) continue;
        CAPTURE(std::string(detail::name(path)));
        const statistics here = read(statistics_reducer<T>(input), path);
        CHECK(same(here, found));
        for (const bool with_input : {false, true}) {
            const detail::result_reducer<T> reducer(input, with_input ? other.data() + 1 : nullptr);
            const detail::result_record record = read(reducer, path);
            expected.check(record, with_input);
#if !defined(__FAST_MATH__)
            CHECK(detail::bit_cast<std::uint64_t>(record.sum_of_squares)
                == detail::bit_cast<std::uint64_t>(here.sum_of_squares));
#endif
            if (path == detail::isa::portable) portable[with_input] = record;
            else if (!is_nan(record.dot)) CHECK(same(record, portable[with_input]));
        }
    }
}

} // namespace

TEST_CASE("statistics, and what a result is read for, are what their definitions say, on every path - any count")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        constexpr std::size_t tile = detail::tile_elements<T>, block = statistics_reducer<T>::block;
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{15},
                 std::size_t{16}, std::size_t{17}, std::size_t{63}, std::size_t{65}, std::size_t{999}, tile - 1, tile,
                 tile + 1, block - 1, block, block + 1, 3 * block + 5}) {
            check_all(random_elements<T>(count, 0.1, 2.0, static_cast<unsigned>(count) + 1));
        }
    });
}

TEST_CASE("statistics, and what a result is read for, are what their definitions say, on every path - any values")
{
    adversarial::for_each_input([](const auto& data) { check_all(data); });
}

TEST_CASE("as a rule sums of short elements are as exact as 1e-7")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        for (const double mean : {0.0, 1.0}) {
            const std::vector<T> data = random_elements<T>(200'003, mean, 1, 3);
            adversarial::oracle expected{view<const T>(data)};
            if (sizeof(T) < 4) expected.tolerance = 1e-7;
            expected.check(compute_statistics(view<const T>(data)));
        }
    });
}

TEST_CASE("the bits do not depend on the alignment")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        const std::vector<T> data = random_elements<T>(20'003, 0, 1, 1);
        const statistics expected = compute_statistics(view<const T>(data));
        std::vector<T> room(data.size() + 64 / sizeof(T));
        for (std::size_t offset = 0; offset < 64 / sizeof(T); ++offset) {
            std::copy(data.begin(), data.end(), room.begin() + static_cast<std::ptrdiff_t>(offset));
            const statistics found = compute_statistics(view<const T>(room.data() + offset, data.size()));
            CHECK(std::memcmp(&found, &expected, sizeof found) == 0);
        }
    });
}

TEST_CASE_TEMPLATE("subnormal numbers count even where the program flushes them", T, bfloat16, float, double)
{
    const std::size_t count = 3 * statistics_reducer<T>::block;
    const std::vector<T> data(count, of<T>(3));
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
#endif
    const statistics found = compute_statistics(view<const T>(data));
#if defined(__x86_64__)
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(before);
#endif
    adversarial::oracle(view<const T>(data)).check(found);
    if (sizeof(T) == 8) CHECK(to_bits(found.sum) == 3 * count);
}

TEST_CASE("counts of what is not finite stop at the largest that they hold")
{
    detail::norm<float, false>::taken many, more;
    many.nan = 0xfffffffe;
    more.nan = 1;
    many.merge(more);
    CHECK(many.nan == 0xffffffff);
    many.merge(more);
    CHECK(many.nan == 0xffffffff);
    many.add_nonfinite(std::numeric_limits<float>::quiet_NaN(), 5);
    CHECK(many.nan == 0xffffffff);
    CHECK(many.first_nonfinite == 5);
    many.positive_infinity = many.negative_infinity = 7;
    CHECK(many.nonfinite() == std::uint64_t{0xffffffff} + 14);
    detail::result_reducer<float>::partial all;
    all.second.second = many;
    CHECK(detail::result_reducer<float>({}).finish(all).nonfinite == 0xffffffff);
}

TEST_CASE("a null view and a misaligned one are errors that say so")
{
    const std::vector<double> data(4, 1.0);
    const auto* const inside = reinterpret_cast<const double*>(reinterpret_cast<const unsigned char*>(data.data()) + 4);
    const auto refused = [](view<const double> input, const char* word) {
        try {
            compute_statistics(input);
            FAIL("no error");
        } catch (const error& caught) {
            CHECK(caught.code() == status::invalid_argument);
            CHECK(std::string(caught.call()) == "compute_statistics");
            CHECK(std::string(caught.what()).find(word) != std::string::npos);
        }
    };
    refused({nullptr, 2}, "null");
    refused({inside, 3}, "input is not aligned to 8 bytes");
    CHECK(compute_statistics(view<const double>(inside, 0)).count == 0);
}

} // namespace collprobe::testing::statistics_test
