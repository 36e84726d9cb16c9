// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One read must give the bits of the reads that it replaces.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/one_read.hpp>
#include <collprobe/sum/dot.hpp>

#include "adversarial.hpp"
#include "support/element_types.hpp"

using namespace collprobe;

namespace {

/// What a result is read for, by functions that read it once each.
template <element T>
struct separate_reads {
    using inner = statistics_reducer<T, true>;
    struct partial {
        typename inner::partial result;
        double dot;
    };
    static constexpr std::uint64_t block = inner::block;
    view<const T> result;
    const T* input;

    static partial identity() { return {inner::identity(), 0}; }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const
    {
        inner{result}.run(into.result, first, count);
        into.dot += input == nullptr ? detail::not_a_number() : detail::dot(input + first, result.data() + first, count);
    }
    static void merge(partial& into, const partial& next)
    {
        inner::merge(into.result, next.result);
        into.dot += next.dot;
    }
    static detail::result_record finish(const partial& all)
    {
        const statistics found = inner::finish(all.result);
        return {found.digest, found.sum_of_squares, all.dot, found.scale,
            static_cast<std::uint32_t>(found.nonfinite()), found.first_nonfinite};
    }
};

#if defined(__FAST_MATH__)
constexpr bool fast_math = true;
#else
constexpr bool fast_math = false;
#endif

void check_same(const detail::result_record& found, const detail::result_record& expected)
{
    CHECK(found.digest == expected.digest);
    CHECK(found.scale == expected.scale);
    CHECK(found.nonfinite == expected.nonfinite);
    CHECK(found.first_nonfinite == expected.first_nonfinite);
    CHECK(is_nan(found.dot) == is_nan(expected.dot));
    if (fast_math) { // moments are promised to 1e-12, and the terms of a dot may cancel
        CHECK(detail::absolute(found.sum_of_squares - expected.sum_of_squares) <= 2e-12 * expected.sum_of_squares);
        return;
    }
    CHECK(to_bits(found.sum_of_squares) == to_bits(expected.sum_of_squares));
    if (!is_nan(expected.dot)) CHECK(to_bits(found.dot) == to_bits(expected.dot));
}

template <element T>
detail::result_record record_of(view<const T> data, const T* other, detail::isa path)
{
    struct on_path : detail::result_reducer<T> {
        detail::isa path;
        void run(typename on_path::partial& into, std::uint64_t first, std::uint64_t count) const
        {
            detail::result_reducer<T>::run(into, first, count, path);
        }
    };
    const on_path reducer{{data, other}, path};
    return reducer.finish(detail::reduce_blocks(reducer, data.count()));
}

template <element T>
void check_record(view<const T> data, const T* other)
{
    for (const T* input : {other, static_cast<const T*>(nullptr)}) {
        const separate_reads<T> separate{data, input};
        const auto expected = separate.finish(detail::reduce_blocks(separate, data.count()));
        for (const detail::isa path : {detail::isa::portable, detail::isa::vectors}) {
            if (!detail::supports(path)) continue;
            CAPTURE(std::string(detail::name(path)));
            check_same(record_of<T>(data, input, path), expected);
        }
    }
}

/// Reads `data` with a sketch, once and separately.
template <element T>
void check_reads(view<const T> data, const T* other, std::uint32_t bins, std::uint64_t first)
{
    const sketch_options options{.bins = bins};
    const std::size_t numbers = sketch_numbers<T>(options);
    std::vector<sketch_sum<T>> expected(numbers), scratch(numbers);
    sketch<T>(data, view<sketch_sum<T>>(expected), options, first);
    const auto is_expected = [&](const std::vector<sketch_sum<T>>& found) {
        return std::memcmp(found.data(), expected.data(), numbers * sizeof(sketch_sum<T>)) == 0;
    };
    const statistics separate = compute_statistics<T>(data);
    const separate_reads<T> reads{data, other};
    const auto record = reads.finish(detail::reduce_blocks(reads, data.count()));

    host::stream stream;
    host::device::workspace workspace;
    const auto run = [&](auto read) {
        std::vector<sketch_sum<T>> sums(numbers, sketch_sum<T>(77));
        std::fill(scratch.begin(), scratch.end(), sketch_sum<T>(55));
        read(detail::sketch_target<T>{first, bins, options.seed, sums.data(), scratch.data()});
        stream.synchronize();
        return sums;
    };
    statistics input;
    CHECK(is_expected(
        run([&](const auto& target) { detail::read_input<host::device, T>(stream, data, &input, target, workspace); })));
    CHECK(std::memcmp(&input, &separate, sizeof input) == 0);
    CHECK(is_expected(
        run([&](const auto& target) { detail::read_input<host::device, T>(stream, data, nullptr, target, workspace); })));
    detail::result_record result{};
    CHECK(is_expected(run([&](const auto& target) {
        detail::read_result<host::device, T>(stream, data, other, &result, target, workspace);
    })));
    check_same(result, record);
    input = {};
    detail::read_input<host::device, T>(stream, data, &input, {}, workspace);
    result = {};
    detail::read_result<host::device, T>(stream, data, other, &result, {}, workspace);
    stream.synchronize();
    CHECK(std::memcmp(&input, &separate, sizeof input) == 0);
    check_same(result, record);
}

} // namespace

TEST_CASE("what a result is read for has the bits of separate reads, whatever the values and the path")
{
    adversarial::for_each_input([](const auto& data) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        if constexpr (floating_element<T>) {
            const std::vector<T> other = adversarial::random_elements<T>(data.size() + 1, 0.1, 3, 22);
            check_record<T>(data, other.data() + 1);
            if (COLLPROBE_TEST_UNLESS_BRIEF(true, false) && data.size() > 1)
                check_record<T>(view<const T>(data).part(1, data.size() - 1), other.data());
        }
    });
}

TEST_CASE_TEMPLATE("what a result is read for has the bits of separate reads, whatever the count", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::size_t block = detail::result_reducer<T>::block;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17},
             std::size_t{33}, block - 1, block, block + 1, 3 * block + 31, 7 * block}) {
        CAPTURE(count);
        const std::vector<T> data = adversarial::random_elements<T>(count + 1, 0.2, 1, 21);
        const std::vector<T> other = adversarial::random_elements<T>(count + 1, 0.1, 3, 22);
        check_record<T>({data.data() + 1, count}, other.data());
    }
}

TEST_CASE_TEMPLATE("the elements of a result that are not finite are counted, and the first one is found", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::size_t block = detail::result_reducer<T>::block;
    std::uint64_t state = 7;
    const auto random = [&state](std::size_t below) { return detail::mix64(++state) % below; };
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{63}, block - 1, block, 3 * block + 77}) {
        for (const std::size_t faults : {std::size_t{0}, std::size_t{1}, std::size_t{3}, count / 2, count}) {
            if (faults > count) continue;
            std::vector<T> data = adversarial::random_elements<T>(count, 0, 1, 21);
            std::vector<bool> is_bad(count);
            for (std::size_t i = 0; i < faults; ++i) {
                const std::size_t at = faults == count ? i : i == 1 ? count - 1 : random(count);
                is_bad[at] = true;
                data[at] = T(i % 3 == 0 ? detail::not_a_number() : i % 3 == 1 ? detail::infinity() : -detail::infinity());
            }
            const auto first = std::find(is_bad.begin(), is_bad.end(), true);
            for (const detail::isa path : {detail::isa::portable, detail::isa::vectors}) {
                if (!detail::supports(path)) continue;
                const detail::result_record found = record_of<T>(view<const T>(data), nullptr, path);
                CHECK(found.nonfinite == static_cast<std::size_t>(std::count(is_bad.begin(), is_bad.end(), true)));
                CHECK(found.first_nonfinite
                    == (first == is_bad.end() ? no_index : static_cast<std::uint64_t>(first - is_bad.begin())));
            }
        }
    }
    // A count beyond 32 bits says so.
    typename detail::result_reducer<T>::partial many;
    many.nonfinite = 0x1'0000'0001;
    CHECK(detail::result_reducer<T>::finish(many).nonfinite == 0xffffffff);
}

TEST_CASE("scales of blocks of doubles merge as those of their statistics")
{
    constexpr std::size_t block = detail::result_reducer<double>::block;
    const std::vector<double> other(4 * block, 1);
    // Powers of two of each block; 1 stands for zeros, 2 for NaN.
    for (const auto& exponents : {std::vector<int>{-900, 0, 900, 1}, {1, -900, 1, 0}, {2, -900, 2, 1}, {600, 1, 2, -401},
             {-401, -401, 1, -402}, {1, 1, 1, 1}, {2, 2, 2, 2}, {-400, -399, 469, 470}, {1, 2, 900, 2}}) {
        std::vector<double> data(4 * block);
        for (std::size_t i = 0; i < data.size(); ++i) {
            const int exponent = exponents[i / block];
            data[i] = exponent == 1 ? 0.0
                : exponent == 2     ? detail::not_a_number()
                                    : std::ldexp(1 + static_cast<double>(i % 77) / 100, exponent);
        }
        check_record<double>(view<const double>(data), other.data());
    }
}

TEST_CASE_TEMPLATE("one read has the bits of separate reads, whatever the count, the bins and the first element", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::size_t block = statistics_reducer<T, true>::block;
    for (const std::uint32_t bins : {64u, 4096u, 1u << 16, 1u << 19}) {
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, bins == 4096 || bins == 1u << 16)) continue;
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, block, 2 * block + 1,
                 13 * block + 4097, std::size_t{64 * 128 * 40 + 5}}) {
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 40) + 4064}) {
                if (bins >= 1u << 16 && (count < block || first == 77)) continue;
                CAPTURE(bins);
                CAPTURE(count);
                CAPTURE(first);
                const std::vector<T> data = adversarial::random_elements<T>(count + 1, 0.2, 1, 21);
                const std::vector<T> other = adversarial::random_elements<T>(count, 0.1, 3, 22);
                check_reads<T>({data.data() + 1, count}, other.data(), bins, first);
            }
        }
    }
}

TEST_CASE("one read has the bits of separate reads, whatever the values")
{
    adversarial::for_each_input([](const auto& data) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        if constexpr (floating_element<T>) check_reads<T>(data, data.data(), 256, 5);
    });
}
