// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/scan/statistics.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <doctest/doctest.h>

#include "support/element_types.hpp"

using namespace collprobe;
using testing::for_all_element_types;

namespace {

#if defined(__FAST_MATH__)
constexpr bool fast_math = true;
#else
constexpr bool fast_math = false;
#endif

constexpr std::size_t block = 16384; // of the types of two bytes and more

constexpr std::array every_path{detail::isa::portable, detail::isa::vectors};

template <class T>
std::string name_of()
{
    return element_traits<T>::name;
}

/// 2^exponent exactly, also where it is subnormal and the test runs with flush-to-zero.
double power(int exponent)
{
    if (exponent >= -1022) return detail::power_of_two(exponent);
    return detail::bit_cast<double>(std::uint64_t{1} << (exponent + 1074));
}

template <class T>
double widened(T x)
{
    return static_cast<double>(x);
}

/// The definition in long double, two passes. Its own errors are some 1e-16 of l1 and of m2.
struct oracle {
    statistics expected;
    long double mean = 0;
    long double m2 = 0;
    long double squares = 0;
    long double l1 = 0;

    template <class T>
    explicit oracle(const std::vector<T>& data)
    {
        using traits = element_traits<T>;
        expected.minimum = std::numeric_limits<double>::max();
        expected.maximum = -std::numeric_limits<double>::max();
        long double sum = 0;
        for (std::size_t i = 0; i < data.size(); ++i) {
            ++expected.count;
            const auto bits = to_bits(data[i]);
            if (!is_finite(data[i])) {
                if ((bits & traits::fraction_mask) != 0) ++expected.nan;
                else if ((bits & traits::sign_mask) != 0) ++expected.negative_infinity;
                else ++expected.positive_infinity;
                if (expected.first_nonfinite == no_index) expected.first_nonfinite = i;
                continue;
            }
            if (static_cast<typename traits::bits_type>(bits & ~traits::sign_mask) == 0) ++expected.zero;
            else if (traits::is_floating_point && (bits & traits::exponent_mask) == 0) ++expected.subnormal;
            const double x = widened(data[i]);
            expected.minimum = std::min(expected.minimum, x);
            expected.maximum = std::max(expected.maximum, x);
            sum += x;
            l1 += x < 0 ? -static_cast<long double>(x) : static_cast<long double>(x);
            squares += static_cast<long double>(x) * x;
        }
        if (expected.finite() == 0) {
            expected.minimum = expected.maximum = 0;
            return;
        }
        expected.absolute_maximum = std::max(detail::absolute(expected.minimum), detail::absolute(expected.maximum));
        mean = sum / static_cast<long double>(expected.finite());
        for (const T element : data) {
            if (!is_finite(element)) continue;
            const long double d = widened(element) - mean;
            m2 += d * d;
        }
    }
};

template <class T>
[[gnu::noinline]] oracle oracle_of(const std::vector<T>& data)
{
    return oracle(data);
}

bool near(double value, long double expected, long double tolerance)
{
    const long double error = value - expected;
    return (error < 0 ? -error : error) <= tolerance;
}

/// Fields compare by the stated accuracy: 1e-12, of the magnitude for the mean, and for m2 a
/// term for the two means that a merge subtracts.
[[gnu::noinline]] void check_against(const statistics& s, const oracle& o)
{
    const statistics& e = o.expected;
    CHECK(s.count == e.count);
    CHECK(s.nan == e.nan);
    CHECK(s.positive_infinity == e.positive_infinity);
    CHECK(s.negative_infinity == e.negative_infinity);
    CHECK(s.zero == e.zero);
    CHECK(s.subnormal == e.subnormal);
    CHECK(s.first_nonfinite == e.first_nonfinite);
    CHECK(s.minimum == e.minimum);
    CHECK(s.maximum == e.maximum);
    CHECK(s.absolute_maximum == e.absolute_maximum);
    if (e.finite() == 0) {
        CHECK(s.mean == 0);
        CHECK(s.m2 == 0);
        CHECK(s.l1 == 0);
        CHECK(s.sum_of_squares == 0);
        return;
    }
    const long double n = static_cast<long double>(e.finite());
    const long double grid = std::exp2(-1074.0L); // a mean may have to be subnormal
    CHECK(near(s.mean, o.mean, 1e-12L * o.l1 / n + grid));
    CHECK(near(s.l1, o.l1, 1e-12L * o.l1));
    const long double scale = std::exp2(-2.0L * s.scale);
    CHECK(near(s.sum_of_squares, o.squares * scale, 1e-12L * o.squares * scale));
    const long double magnitude = o.mean < 0 ? -o.mean : o.mean;
    const long double rounding = (4e-16L * magnitude + grid) * std::sqrt(o.m2 * n) + 1e-31L * o.squares * n;
    CHECK(near(s.m2, o.m2 * scale, (1e-12L * o.m2 + rounding) * scale));
    const long double norm = std::sqrt(o.squares);
    if (norm < 1e308L) CHECK(near(s.l2(), norm, 1e-12L * norm + 1e-323L));
}

template <class T>
std::vector<T> random_elements(std::size_t count, double mean, double deviation, unsigned seed = 1)
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

/// One run over fixed blocks on a given path, merged as reduce_blocks does.
template <class T>
struct forced_path {
    using inner = statistics_reducer<T, true>;
    using partial = typename inner::partial;
    static constexpr std::uint64_t block = inner::block;
    inner reducer;
    detail::isa path;

    static partial identity() { return inner::identity(); }
    static void merge(partial& into, const partial& next) { inner::merge(into, next); }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const { reducer.run(into, first, count, path); }
};

template <class T>
statistics on_path(view<const T> data, detail::isa path)
{
    const forced_path<T> reducer{{data}, path};
    return reducer.reducer.finish(detail::reduce_blocks(reducer, data.count()));
}

/// As bytes, so that the sign of a zero counts. Under -ffast-math the compiler may round differently
/// on each path: then only what is exact must agree.
void check_same(statistics a, statistics b)
{
    if (fast_math) {
        for (double statistics::*field : {&statistics::mean, &statistics::l1, &statistics::m2, &statistics::sum_of_squares}) {
            CHECK(near(a.*field, b.*field, 1e-9L * (detail::absolute(b.*field) + b.l1)));
            a.*field = b.*field = 0;
        }
    }
    CHECK(std::memcmp(&a, &b, sizeof a) == 0);
}

/// Everything that must hold for any data.
template <class T>
void check_all(const std::vector<T>& data)
{
    CAPTURE(name_of<T>());
    CAPTURE(data.size());
    const view<const T> input(data);
    const statistics s = compute_statistics(input);
    {
        // The library runs in the program's floating-point mode, the oracle must not flush subnormals.
        const detail::gradual_underflow exact;
        check_against(s, oracle_of(data));
    }
    CHECK(s.type == element_traits<T>::type);
    CHECK(s.has_digest == 1);
    CHECK(s.digest == digest(input));

    statistics plain = compute_statistics(input, false);
    CHECK(plain.digest == 0);
    CHECK(plain.has_digest == 0);
    plain.digest = s.digest;
    plain.has_digest = 1;
    check_same(plain, s);

    for (const auto path : every_path)
        if (detail::supports(path)) check_same(on_path(input, path), s);
}

} // namespace

TEST_CASE("statistics - the paths that this machine can run")
{
    for (const auto path : every_path)
        MESSAGE(std::string(detail::name(path)) << std::string(detail::supports(path) ? ": tested" : ": SKIPPED, not supported here"));
    CHECK(detail::supports(detail::best_isa()));
}

TEST_CASE("statistics - equal two-pass long double for every type and around block lengths, on every path")
{
    for_all_element_types([](auto sample) {
        using T = decltype(sample);
        constexpr std::size_t length = statistics_reducer<T, true>::block;
        CHECK((sizeof(T) == 1 || length == block));
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{8},
                 std::size_t{15}, std::size_t{16}, std::size_t{17}, std::size_t{63}, std::size_t{65}, std::size_t{999},
                 length - 1, length, length + 1, 3 * length + 5, std::size_t{100003}})
            check_all(random_elements<T>(count, 0.1, 2.0, static_cast<unsigned>(count) + 1));
    });
}

TEST_CASE("statistics - pointers that no vector is aligned to give the same result")
{
    for_all_element_types([](auto sample) {
        using T = decltype(sample);
        const std::vector<T> data = random_elements<T>(20003, 0, 1);
        const statistics expected = compute_statistics(view<const T>(data));
        std::vector<T> room(data.size() + 64 / sizeof(T));
        for (std::size_t offset = 0; offset < 64 / sizeof(T); ++offset) {
            std::copy(data.begin(), data.end(), room.begin() + static_cast<std::ptrdiff_t>(offset));
            check_same(compute_statistics(view<const T>(room.data() + offset, data.size())), expected);
        }
    });
}

TEST_CASE("statistics - NaN and infinities are counted and located and the finite rest keeps its moments")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        using traits = element_traits<T>;
        using bits = typename traits::bits_type;
        const T nan = detail::bit_cast<T>(static_cast<bits>(traits::smallest_nonfinite | 1));
        const T negative_nan = detail::bit_cast<T>(static_cast<bits>(traits::sign_mask | traits::exponent_mask | traits::fraction_mask));
        const T infinity = detail::bit_cast<T>(traits::smallest_nonfinite);
        const T negative_infinity = detail::bit_cast<T>(static_cast<bits>(traits::sign_mask | traits::smallest_nonfinite));
        const T specials[] = {nan, negative_nan, infinity, negative_infinity};
        for (const std::size_t at : {0u, 1u, 15u, 16u, 16383u, 16384u, 33000u, 33999u}) {
            for (const T special : specials) {
                std::vector<T> data = random_elements<T>(34000, 0.5, 1);
                data[at] = special;
                check_all(data);
                CHECK(compute_statistics(view<const T>(data)).first_nonfinite == at);
            }
        }
        std::vector<T> mixed = random_elements<T>(34000, 3, 0.01);
        for (std::size_t i = 77; i < mixed.size(); i += 13) mixed[i] = specials[i % 4];
        check_all(mixed);
        check_all(std::vector<T>(5000, nan));
        check_all(std::vector<T>(5000, negative_infinity));
        check_all(std::vector<T>(1, infinity));
    });
}

TEST_CASE("statistics - zeros of both signs and subnormals count, and zero results have positive sign")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        using traits = element_traits<T>;
        using bits = typename traits::bits_type;
        const T negative_zero = detail::bit_cast<T>(traits::sign_mask);
        const T smallest = detail::bit_cast<T>(bits{1});
        const T largest_subnormal = detail::bit_cast<T>(static_cast<bits>(traits::sign_mask | traits::fraction_mask));
        const T smallest_normal = detail::bit_cast<T>(static_cast<bits>(traits::fraction_mask + 1));
        const T values[] = {T(0.0f), negative_zero, smallest, largest_subnormal, smallest_normal};

        for (const T value : values) check_all(std::vector<T>(17999, value));
        std::vector<T> mixed(36001);
        for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = values[i * i % 5];
        check_all(mixed);
        std::vector<T> one_in_many = random_elements<T>(36001, 10, 1);
        one_in_many[20000] = largest_subnormal;
        one_in_many[17] = negative_zero;
        check_all(one_in_many);

        const statistics s = compute_statistics(view<const T>(std::vector<T>(100, negative_zero)));
        CHECK(detail::bit_cast<std::uint64_t>(s.minimum) == 0);
        CHECK(detail::bit_cast<std::uint64_t>(s.maximum) == 0);
        CHECK(detail::bit_cast<std::uint64_t>(s.mean) == 0);
        CHECK(s.zero == 100);
    });
}

TEST_CASE("statistics - subnormals count in the moments even where the program flushes them")
{
    std::vector<float> data(5000, detail::bit_cast<float>(std::uint32_t{3}));
    std::vector<double> wide(5000, detail::bit_cast<double>(std::uint64_t{3}));
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
#endif
    const statistics s = compute_statistics(view<const float>(data));
    const statistics w = compute_statistics(view<const double>(wide));
#if defined(__x86_64__)
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(before);
#endif
    CHECK(s.subnormal == 5000);
    CHECK(s.mean == 3 * power(-149));
    CHECK(s.sum_of_squares == doctest::Approx(5000 * 9 * power(-298)));
    CHECK(w.subnormal == 5000);
    CHECK(detail::bit_cast<std::uint64_t>(w.mean) == 3);
    CHECK(detail::bit_cast<std::uint64_t>(w.l1) == 15000);
    CHECK(w.scale == -600);
    CHECK(w.sum_of_squares == doctest::Approx(5000 * 9 * power(-948)));
}

TEST_CASE("statistics - the largest numbers of a type do not overflow the moments")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        using traits = element_traits<T>;
        using bits = typename traits::bits_type;
        const T largest = detail::bit_cast<T>(static_cast<bits>(traits::exponent_mask - 1));
        const T lowest = detail::bit_cast<T>(static_cast<bits>(traits::sign_mask | (traits::exponent_mask - 1)));
        std::vector<T> alternating(36000, largest);
        for (std::size_t i = 0; i < alternating.size(); i += 2) alternating[i] = lowest;
        std::vector<T> halves(3 * block, largest);
        std::fill_n(halves.begin(), block, lowest);
        if constexpr (!std::is_same_v<T, double>) {
            check_all(std::vector<T>(36000, largest));
            check_all(alternating);
            check_all(halves);
        }
    });
    constexpr double largest = std::numeric_limits<double>::max();
    const statistics constant = compute_statistics(view<const double>(std::vector<double>(36000, largest)));
    CHECK(constant.mean == largest);
    CHECK(constant.m2 == 0);
    CHECK_FALSE(is_finite(constant.l1)); // truly beyond the range
    CHECK(constant.scale == 600);
    const statistics single = compute_statistics(view<const double>(std::vector<double>(1, largest)));
    CHECK(single.l1 == largest);
    CHECK(single.l2() == doctest::Approx(largest).epsilon(1e-14));

    std::vector<double> alternating(36000, largest);
    for (std::size_t i = 0; i < alternating.size(); i += 2) alternating[i] = -largest;
    const statistics a = compute_statistics(view<const double>(alternating));
    CHECK(detail::absolute(a.mean) <= 1e-12 * largest);
    CHECK(is_finite(a.standard_deviation()));
    CHECK(a.standard_deviation() == doctest::Approx(largest).epsilon(1e-12));
    std::vector<double> halves(2 * block, largest);
    std::fill_n(halves.begin(), block, -largest);
    const statistics h = compute_statistics(view<const double>(halves));
    CHECK(h.mean == 0);
    CHECK(h.standard_deviation() == doctest::Approx(largest).epsilon(1e-12));
}

TEST_CASE("statistics - of subnormal doubles have the right bits, also where a build flushes such numbers to zero")
{
    std::vector<double> data;
    for (const std::uint64_t bits : {3u, 4u, 12u, 84u}) data.push_back(detail::bit_cast<double>(bits));
    const statistics_reducer<double, true> reducer{view<const double>(data)};
    auto added = reducer.identity();
    for (std::uint64_t i = 0; i < data.size(); ++i) reducer.add(added, i);
    for (const statistics& s : {compute_statistics(view<const double>(data)), reducer.finish(added)}) {
        CHECK(to_bits(s.l2()) == 85);
        CHECK(to_bits(s.standard_deviation()) == 34); // of 33.81
        CHECK(to_bits(s.minimum) == 3);
        CHECK(to_bits(s.maximum) == 84);
        CHECK(to_bits(s.absolute_maximum) == 84);
        CHECK(to_bits(s.l1) == 103);
        CHECK(to_bits(s.mean) == 26); // of 25.75
        CHECK(s.zero == 0);
        CHECK(s.subnormal == 4);
    }
}

TEST_CASE("statistics - doubles of any magnitude agree with long double, also in different blocks")
{
    for (const double magnitude : {1e-320, 1e-300, 1e-200, 1e-161, 1e-155, 1e-130, 1e-121, 1e-120, 1e-100, 1.0, 1e100, 1e141, 1e142, 1e154, 1e160, 1e170, 1e200, 1e300}) {
        CAPTURE(magnitude);
        if (fast_math && magnitude < 1e-307) continue; // the test's own arithmetic would flush
        std::vector<double> data = random_elements<double>(2 * block + 3000, 0, 1);
        for (double& x : data) x *= magnitude;
        check_all(data);
        for (double& x : data) x += 7 * magnitude;
        check_all(data);
        for (const double other : {1e-300, 1.0, 1e300}) {
            CAPTURE(other);
            std::vector<double> mixed = data;
            for (std::size_t i = 0; i < block; ++i) mixed[i] = other * static_cast<double>(i % 7);
            check_all(mixed);
            std::fill_n(mixed.begin(), block, 0.0);
            check_all(mixed);
            mixed = data;
            mixed[block + 5] = other;
            check_all(mixed);
        }
    }
}

TEST_CASE("statistics - a mean far above the deviation does not cancel m2")
{
    for (const double deviation : {1e-3, 1.0, 100.0}) {
        check_all(random_elements<double>(50000, 1e6, deviation));
        check_all(random_elements<double>(50000, -1e6, deviation));
        check_all(random_elements<float>(50000, 1e6, deviation));
        check_all(random_elements<float>(50000, -3, deviation));
    }
    const statistics s = compute_statistics(view<const double>(random_elements<double>(100000, 1e6, 1e-3)));
    CHECK(s.standard_deviation() == doctest::Approx(1e-3).epsilon(0.01));
    check_all(random_elements<float16>(50000, 1000, 1));
    check_all(random_elements<bfloat16>(50000, 100, 1));
    check_all(std::vector<float>(12345, 0.1f));
    CHECK(compute_statistics(view<const float>(std::vector<float>(12345, 0.1f))).m2 == 0);
}

TEST_CASE("statistics - one outlier among ones")
{
    for (const std::size_t at : {0u, 20000u, 39998u}) {
        std::vector<float> data(39999, 1.0f);
        data[at] = 1e30f;
        check_all(data);
        data[at] = -1e30f;
        check_all(data);
        std::vector<double> wide(39999, 1.0);
        wide[at] = 1e30;
        check_all(wide);
        wide[at] = 1e300;
        check_all(wide);
    }
}

TEST_CASE("statistics - integers at the ends of their ranges")
{
    for_all_element_types([](auto sample) {
        using T = decltype(sample);
        if constexpr (!floating_element<T>) {
            constexpr T low = std::numeric_limits<T>::min();
            constexpr T high = std::numeric_limits<T>::max();
            std::vector<T> data(32769, low);
            check_all(data);
            for (std::size_t i = 0; i < data.size(); i += 3) data[i] = high;
            check_all(data);
            for (std::size_t i = 0; i < data.size(); i += 2) data[i] = 0;
            check_all(data);
            check_all(std::vector<T>(16385, high));
            check_all(std::vector<T>(16385, T{0}));
        }
    });
}

TEST_CASE_TEMPLATE("statistics - sums of 8-bit integers are exact whichever lane of a block holds the largest ones", T,
    std::int8_t, std::uint8_t)
{
    constexpr T low = std::numeric_limits<T>::min();
    constexpr T high = std::numeric_limits<T>::max();
    for (const T extreme : {low, high}) {
        for (const std::size_t apart : {1u, 2u, 64u}) {
            for (const std::size_t first : {0u, 1u}) {
                for (const std::size_t count : {1u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 8255u}) {
                    CAPTURE(count);
                    std::vector<T> data(count, T{1});
                    for (std::size_t i = first; i < count; i += apart) data[i] = extreme;
                    std::int64_t sum = 0, magnitudes = 0, squares = 0;
                    std::uint64_t zeros = 0;
                    for (const std::int64_t x : data) {
                        sum += x;
                        magnitudes += x < 0 ? -x : x;
                        squares += x * x;
                        zeros += x == 0 ? 1 : 0;
                    }
                    for (const auto path : every_path) {
                        if (!detail::supports(path)) continue;
                        const statistics s = on_path(view<const T>(data), path);
                        CHECK(s.l1 == static_cast<double>(magnitudes));
                        CHECK(s.sum_of_squares == static_cast<double>(squares));
                        CHECK(s.zero == zeros);
                        if (count <= 4096) CHECK(s.mean == static_cast<double>(sum) / static_cast<double>(count));
                    }
                }
            }
        }
    }
}

TEST_CASE("statistics - element by element gives the same counts, extrema and digest and near moments")
{
    for_all_element_types([](auto sample) {
        using T = decltype(sample);
        CAPTURE(name_of<T>());
        std::vector<T> data = random_elements<T>(6000, 0.3, 1);
        if constexpr (floating_element<T>) {
            data[100] = detail::bit_cast<T>(element_traits<T>::exponent_mask);
            data[101] = detail::bit_cast<T>(element_traits<T>::sign_mask);
            data[4500] = detail::bit_cast<T>(typename element_traits<T>::bits_type{1});
        }
        const statistics_reducer<T, true> reducer{view<const T>(data)};
        auto partial = reducer.identity();
        for (std::uint64_t i = 0; i < data.size(); ++i) reducer.add(partial, i);
        const statistics s = reducer.finish(partial);
        check_against(s, oracle_of(data));
        CHECK(s.digest == digest(view<const T>(data)));
    });
    std::vector<double> scaled{1e300, 1e-300, 0, -1e300, 5, 1e-310};
    const statistics_reducer<double, false> reducer{view<const double>(scaled)};
    auto partial = reducer.identity();
    for (std::uint64_t i = 0; i < scaled.size(); ++i) reducer.add(partial, i);
    if (!fast_math) check_against(reducer.finish(partial), oracle_of(scaled));
}

TEST_CASE("statistics - runs over parts that are no blocks merge to the same counts and digest")
{
    const std::vector<float> data = random_elements<float>(80000, 1, 2);
    const statistics_reducer<float, true> reducer{view<const float>(data)};
    std::mt19937 random(3);
    for (int repeat = 0; repeat < 20; ++repeat) {
        auto partial = reducer.identity();
        for (std::uint64_t first = 0; first < data.size();) {
            const std::uint64_t count = std::min<std::uint64_t>(random() % 16384, data.size() - first);
            reducer.run(partial, first, count);
            first += count;
        }
        const statistics s = reducer.finish(partial);
        check_against(s, oracle_of(data));
        CHECK(s.digest == digest(view<const float>(data)));
    }
}

TEST_CASE("statistics - subtrees of blocks merge to the bits of the whole")
{
    const std::vector<float> data = random_elements<float>(13 * block + 99, 1, 2);
    const view<const float> input(data);
    const statistics_reducer<float, true> reducer{input};
    const std::uint64_t blocks = detail::blocks_of(data.size(), reducer.block);
    REQUIRE(blocks == 14);
    auto left = detail::reduce_block_range(reducer, 0, 8, data.size());
    auto middle = detail::reduce_block_range(reducer, 8, 4, data.size());
    const auto right = detail::reduce_block_range(reducer, 12, 2, data.size());
    reducer.merge(middle, right);
    reducer.merge(left, middle);
    const statistics parts = reducer.finish(left);
    const statistics whole = compute_statistics(input);
    CHECK(std::memcmp(&parts, &whole, sizeof whole) == 0);
}

TEST_CASE("statistics - merging an empty partial changes nothing, on either side")
{
    const std::vector<double> data = random_elements<double>(100, 1, 2);
    const statistics_reducer<double, true> reducer{view<const double>(data)};
    auto partial = reducer.identity();
    reducer.run(partial, 0, data.size());
    auto right = partial;
    reducer.merge(right, reducer.identity());
    auto left = reducer.identity();
    reducer.merge(left, partial);
    check_same(reducer.finish(left), reducer.finish(partial));
    check_same(reducer.finish(right), reducer.finish(partial));
}

TEST_CASE("statistics - a null view is an error that names the call")
{
    try {
        compute_statistics(view<const float16>(nullptr, 2));
        FAIL("no error");
    } catch (const error& caught) {
        CHECK(caught.code() == status::invalid_argument);
        CHECK(std::string(caught.call()) == "compute_statistics");
    }
}

TEST_CASE("statistics - elements that are not aligned for their type are an error that says so")
{
    const std::vector<double> data(4, 1.0);
    const auto* const inside = reinterpret_cast<const double*>(reinterpret_cast<const unsigned char*>(data.data()) + 4);
    for (const bool with_digest : {false, true}) {
        try {
            compute_statistics(view<const double>(inside, 3), with_digest);
            FAIL("no error");
        } catch (const error& caught) {
            CHECK(caught.code() == status::invalid_argument);
            CHECK(std::string(caught.what()).find("input is not aligned to 8 bytes") != std::string::npos);
        }
    }
    CHECK(compute_statistics(view<const double>(inside, 0)).count == 0);
}
