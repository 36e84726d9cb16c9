// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Lists of accumulators, runs and merges; and one read that must give the bits of the reads that it replaces.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/by_element.hpp>
#include <collprobe/scan/sketched_read.hpp>

#include "above.hpp"
#include "adversarial.hpp"

namespace collprobe::testing::one_read_test {

using adversarial::random_elements;

namespace {

template <class T>
bool same(const T& a, const T& b)
{
    return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class Reducer>
auto read_all(const Reducer& reducer)
{
    return reducer.finish(detail::reduce_blocks(reducer, reducer.data.count()));
}

/// Reads `data` with a sketch, once and separately.
template <floating_element T>
void check_reads(view<const T> data, const T* other, std::uint32_t bins, std::uint64_t first)
{
    const sketch_options options{.bins = bins};
    const std::size_t numbers = sketch_numbers(options);
    std::vector<double> expected(numbers), scratch(numbers);
    sketch<T>(data, view<double>(expected), options, first);
    const statistics separate = compute_statistics<T>(data);
    const detail::result_record record = read_all(detail::result_reducer<T>(data, other));

    host::stream stream;
    host::device::workspace workspace;
    statistics input{};
    detail::result_record result{};
    const auto check_sketch = [&](auto read) {
        std::vector<double> sums(numbers, 77);
        std::fill(scratch.begin(), scratch.end(), 55.0);
        read(detail::sketch_target{first, bins, options.seed, sums.data(), scratch.data()});
        stream.synchronize();
        CHECK(std::memcmp(sums.data(), expected.data(), numbers * sizeof(double)) == 0);
    };
    check_sketch([&](const detail::sketch_target& target) {
        detail::read_input<host::device, T>(stream, data, &input, target, workspace);
    });
    CHECK(same(input, separate));
    check_sketch([&](const detail::sketch_target& target) {
        detail::read_input<host::device, T>(stream, data, nullptr, target, workspace);
    });
    check_sketch([&](const detail::sketch_target& target) {
        detail::read_result<host::device, T>(stream, data, other, &result, target, workspace);
    });
    CHECK(same(result, record));
    input = {};
    result = {};
    detail::read_input<host::device, T>(stream, data, &input, {}, workspace);
    detail::read_result<host::device, T>(stream, data, other, &result, {}, workspace);
    stream.synchronize();
    CHECK(same(input, separate));
    CHECK(same(result, record));
}

} // namespace

TEST_CASE("runs of whole tiles have the bits of one run, and subtrees of blocks those of the whole")
{
    const statistics_reducer<float>::partial none{};
    const std::vector<float> data = random_elements<float>(13 * statistics_reducer<float>::block + 99, 1, 2, 1);
    const statistics_reducer<float> reducer{view<const float>(data)};
    const std::uint64_t tile = detail::tile_elements<float>;
    auto whole = none, cut = none;
    reducer.run(whole, 3 * tile, 5 * tile + 77);
    reducer.run(cut, 3 * tile, tile);
    reducer.run(cut, 4 * tile, 3 * tile);
    reducer.run(cut, 7 * tile, tile + 77);
    CHECK(same(reducer.finish(whole), reducer.finish(cut)));

    auto left = detail::reduce_block_range(reducer, 0, 8, data.size());
    auto middle = detail::reduce_block_range(reducer, 8, 4, data.size());
    reducer.merge(middle, detail::reduce_block_range(reducer, 12, 2, data.size()));
    reducer.merge(left, middle);
    const statistics all = compute_statistics(view<const float>(data));
    CHECK(same(reducer.finish(left), all));
    // In another order: the same, except for rounding.
    auto turned = middle;
    reducer.merge(turned, detail::reduce_block_range(reducer, 0, 8, data.size()));
    adversarial::oracle(view<const float>(data)).check(reducer.finish(turned));

    auto behind = none, before = left;
    reducer.merge(behind, left);
    reducer.merge(before, none);
    CHECK(same(reducer.finish(behind), all));
    CHECK(same(reducer.finish(before), all));
}

TEST_CASE("the digest's reducer gives the digest of the buffer - every type, by elements and bytes, and of parts")
{
    const host::stream stream;
    host::device::workspace scratch;
    testing::for_each_element_type([&](auto sample) {
        using T = decltype(sample);
        constexpr std::uint64_t block = detail::digest_reducer<T>::block;
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, block - 1, block,
                 3 * block + 5}) {
            const auto data = random_elements<T>(static_cast<std::size_t>(count), 0.5, 3.0, 7);
            const view<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(data.data()), count * sizeof(T));
            std::uint64_t found = 0, of_bytes = 0, of_parts[3] = {};
            host::device::reduce(stream, detail::digest_reducer<T>(view<const T>(data)), count, &found, scratch);
            host::device::reduce(stream, detail::digest_reducer<std::uint8_t>(bytes), bytes.count(), &of_bytes, scratch);
            host::device::reduce_parts(
                stream, detail::digest_reducer<T>(view<const T>(data).part(0, count / 3 * 3)), 3, count / 3, of_parts, scratch);
            stream.synchronize();
            CHECK(found == digest(view<const T>(data)));
            CHECK(of_bytes == found);
            for (std::uint64_t i = 0; i < 3; ++i)
                CHECK(of_parts[i] == digest(view<const T>(data).part(i * (count / 3), count / 3)));
        }
    });
}

TEST_CASE_TEMPLATE("an accumulator that only adds elements counts right in every place of a read, on every path", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    using above = detail::by_element<T, testing::above<T>>;
    using values = detail::both<above, detail::both<detail::norm<T>, above>>;
    using bytes = detail::both<detail::digested, above>;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{8191}, std::size_t{70'003}}) {
        const std::vector<T> data = random_elements<T>(count, 0, 1, 5);
        const view<const T> input(data);
        const auto expected = [&](double limit) {
            return static_cast<std::uint64_t>(std::count_if(data.begin(), data.end(),
                [limit](T x) { return std::fabs(static_cast<double>(x)) > limit; }));
        };
        const auto alone = read_all(statistics_reducer<T>(input));
        const detail::one_read<T, detail::both<values, bytes>> reader(
            input, {{{{0.5}}, {{}, {{1.0}}}}, {{}, {{2.0}}}});
        for (const detail::isa path : {detail::isa::portable, detail::isa::vectors}) {
            if (!detail::supports(path)) continue;
            CAPTURE(std::string(detail::name(path)));
            auto all = reader.identity();
            for (std::uint64_t first = 0; first < count; first += reader.block)
                reader.run(all, first, std::min<std::uint64_t>(reader.block, count - first), path);
            CHECK(all.first.first.count == expected(0.5));
            CHECK(all.first.second.second.count == expected(1.0));
            CHECK(all.second.second.count == expected(2.0));
            CHECK(detail::finish_digest(all.second.first, input) == alone.digest);
            CHECK(all.first.second.first.zero == alone.zero);
            CHECK(all.first.second.first.squares == doctest::Approx(alone.sum_of_squares).epsilon(1e-12));
        }
    }
}

TEST_CASE_TEMPLATE("one read has the bits of separate reads, whatever the count, the bins and the first element", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    constexpr std::size_t block = statistics_reducer<T>::block;
    for (const std::uint32_t bins : {64u, 4096u, 1u << 16, 1u << 19}) {
        if (COLLPROBE_TEST_UNLESS_BRIEF(false, bins == 4096 || bins == 1u << 16)) continue;
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, block, 2 * block + 1,
                 13 * block + 4097, std::size_t{64 * 128 * 40 + 5}}) {
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 40) + 4064}) {
                if (bins >= 1u << 16 && (count < block || first == 77)) continue;
                if (COLLPROBE_TEST_UNLESS_BRIEF(false, count > 2 * block + 1 && first == 77)) continue;
                CAPTURE(bins);
                CAPTURE(count);
                CAPTURE(first);
                const std::vector<T> data = random_elements<T>(count + 1, 0.2, 1, 21);
                const std::vector<T> other = random_elements<T>(count, 0.1, 3, 22);
                check_reads<T>({data.data() + 1, count}, other.data(), bins, first);
            }
        }
    }
}

TEST_CASE("one read has the bits of separate reads, whatever the values")
{
    adversarial::for_each_input([](const auto& data) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        if constexpr (COLLPROBE_TEST_UNLESS_BRIEF(true, (sizeof(T) == 4 || std::is_same_v<T, bfloat16>)))
            check_reads<T>(data, data.data(), 256, 5);
    });
}

TEST_CASE("the bins of a sketch add up to one of fewer bins")
{
    std::vector<float> data(50'021);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(detail::mix64(i) % 2001) - 1000; // sums are exact
    const sketch_options many{.bins = 4096}, few{.bins = 256};
    std::vector<double> from(sketch_numbers(many)), expected(sketch_numbers(few)), found(expected.size());
    sketch<float>(data, view<double>(from), many, 77);
    sketch<float>(data, view<double>(expected), few, 77);
    const detail::fold_sketch fold{from.data(), many.bins, found.data(), few.bins};
    for (std::size_t i = 0; i < found.size(); ++i) fold(i);
    CHECK(found == expected);
    const detail::sketch_target wide{.first = 77, .bins = 4096, .seed = 3}, narrow{.first = 77, .bins = 256, .seed = 3};
    CHECK(detail::is_foldable(wide, narrow));
    CHECK_FALSE(detail::is_foldable(narrow, wide));
    CHECK_FALSE(detail::is_foldable(wide, {.first = 78, .bins = 256, .seed = 3}));
    CHECK_FALSE(detail::is_foldable(wide, {.first = 77, .bins = 256, .seed = 4}));
}

} // namespace collprobe::testing::one_read_test
