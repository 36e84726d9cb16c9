// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One element type of each kernel that uses shared memory, on inputs so small that a run takes little time without a
// GPU: cmake/mutate_kernels.py runs these cases first. A grid of few blocks takes several slots each.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <collprobe/comm/gram.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/copy_statistics.hpp>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/step/cuda/probed.cuh>

#include "adversarial.hpp"
#include "device_copy.cuh"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using adversarial::check_same_statistics;
using collprobe::testing::device_copy;
using adversarial::random_elements;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// The cut of a reduction, and the blocks that take its slots.
struct cut {
    std::uint64_t rounds; ///< of a slot, 4096 bytes each
    unsigned blocks;
};
constexpr cut cuts[] = {{2, 3}, {2, 1}, {4, 7}};
/// The factors of the digest are computed for 256 rounds at a time.
constexpr cut long_slots = {260, 2};

/// The workspace is used again, so that each reduction must leave it as the next one needs it.
template <class Result>
struct bench {
    cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<Result> result{1};

    /// Again if there are few slots: which block is the last, and how far the others are, depends on chance.
    template <class T, class Reducer>
    Result reduce(const Reducer& reducer, view<const T> data, cut how)
    {
        const std::uint64_t length = how.rounds * 4096 / sizeof(T);
        const detail::slot_plan plan{length, (data.count() + length - 1) / length};
        Result first{};
        for (int again = 0; again < (plan.slots < 9 ? 4 : 1); ++again) {
            std::memset(static_cast<void*>(result.data()), 0xa5, sizeof(Result));
            cu::detail::reduce_kernel<Reducer, Result><<<how.blocks, 256, 0, stream.get().get()>>>(reducer,
                data.count(), plan, result.data(),
                cu::detail::partial_results{static_cast<unsigned long long*>(scratch.partials())}, scratch.ticket(),
                reduction_times{});
            REQUIRE(cudaGetLastError() == cudaSuccess);
            stream.synchronize();
            if (again == 0) first = result[0];
            CHECK(std::memcmp(&first, result.data(), sizeof first) == 0);
        }
        return first;
    }
};

/// Some of each kind, in several slots and threads; `last` says which are in the last vector, which is not full.
template <class T>
std::vector<T> of_every_kind(std::size_t count, std::uint64_t last)
{
    std::vector<T> all = random_elements<T>(count, 0.1, 2, 5);
    const double infinity = std::numeric_limits<double>::infinity();
    const double rare[] = {infinity, -infinity, infinity - infinity};
    for (const auto& [value, first, stride] :
        {std::tuple{rare[0], 1031u, 677u}, {rare[1], 2100u, 991u}, {rare[2], 500u, 1009u}, {0.0, 3u, 211u}})
        for (std::size_t k = first; k < count; k += stride) all[k] = T(value);
    for (std::size_t k = 7; k < count; k += 307) all[k] = std::numeric_limits<T>::denorm_min();
    for (unsigned k = 1; k <= 3; ++k) all[count - k] = T(rare[(k + last) % 3]);
    return all;
}

/// The statistics, in the ways a slot may be summed: at once, around its mean, and for doubles scaled.
template <class T, class Check>
void for_each_input(Check check)
{
    constexpr std::size_t round = 4096 / sizeof(T);
    for (const cut& how : cuts) {
        check(of_every_kind<T>(9 * round + 7, how.blocks + how.rounds), how);
        check(random_elements<T>(5 * round + 3, 1000, 1, 6), how);
        check(std::vector<T>(3 * round, T(2.5)), how);
        check(std::vector<T>{T(-3.0), T(2.0), std::numeric_limits<T>::quiet_NaN()}, how); // none but in the last vector
        check(std::vector<T>(1, T(-3.0)), how);
        std::vector<T> first_bad = random_elements<T>(5 * round, 1, 2, 10);
        std::fill_n(first_bad.begin(), 2 * round, std::numeric_limits<T>::infinity()); // slots without a finite element
        check(first_bad, how);
        check(std::vector<T>{}, how);
    }
    // More slots than threads; the first ones have finite elements only.
    std::vector<T> many = random_elements<T>(302 * round, 0, 1, 7);
    const std::vector<T> rest = of_every_kind<T>(218 * round + 9, 1);
    many.insert(many.end(), rest.begin(), rest.end());
    check(many, {2, 3});
    if constexpr (sizeof(T) == 8) check(random_elements<T>(9 * round + 7, 0, 1e200, 8), {2, 3});
}

template <class T, bool with_digest>
void check_statistics()
{
    bench<statistics> on;
    const auto check = [&](const std::vector<T>& data, cut how) {
        const device_copy<T> copy(data);
        statistics expected = compute_statistics(view<const T>(data));
        if (!with_digest) expected.digest = expected.has_digest = 0;
        check_same_statistics(
            on.reduce(statistics_reducer<T, with_digest>{copy.elements()}, copy.elements(), how), expected);
    };
    for_each_input<T>(check);
    check(random_elements<T>(300 * 4096 / sizeof(T) + 5, 0, 1, 7), long_slots);
}

/// A reducer without a kernel of its own, all of whose bits count.
struct sum_and_range {
    struct partial {
        std::uint64_t sum, least, most;
    };
    const std::uint64_t* data;

    COLLPROBE_HD static partial identity() { return {0, ~std::uint64_t{0}, 0}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const
    {
        merge(into, {data[index], data[index], data[index]});
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next)
    {
        into.sum += next.sum;
        if (next.least < into.least) into.least = next.least;
        if (next.most > into.most) into.most = next.most;
    }
    COLLPROBE_HD partial finish(const partial& all) const { return all; }
};

} // namespace

TEST_CASE("small: statistics of float with a digest") { check_statistics<float, true>(); }
TEST_CASE("small: statistics of float without a digest") { check_statistics<float, false>(); }
TEST_CASE("small: statistics of double with a digest") { check_statistics<double, true>(); }

TEST_CASE("small: copy and statistics of float")
{
    bench<statistics> on;
    const auto check = [&](const std::vector<float>& data, cut how) {
        const device_copy<float> source(data);
        const std::size_t at = how.blocks % 4; // behind a multiple of 16 bytes, or not
        cu::pinned_buffer<float> destination(data.size() + at + 1);
        const detail::copy_statistics_reducer<float, true> reducer{source.elements(), destination.data() + at};
        check_same_statistics(on.reduce(reducer, source.elements(), how), compute_statistics(view<const float>(data)));
        CHECK((data.empty() || std::memcmp(destination.data() + at, data.data(), data.size() * sizeof(float)) == 0));
    };
    for_each_input<float>(check);
    check(random_elements<float>(9 * 1024, 0, 1, 7), {2, 4});
    check(random_elements<float>(9 * 1024, 0, 1, 7), {2, 2});
    check(random_elements<float>(300 * 1024 + 5, 0, 1, 7), long_slots);
}

TEST_CASE("small: what a result of float is read for")
{
    bench<detail::result_record> on;
    const auto check = [&](const std::vector<float>& data, cut how) {
        const auto other = random_elements<float>(data.size(), 1, 1, 9);
        const device_copy<float> result(data), input(other);
        for (const bool with_input : {true, false}) {
            const detail::result_record found = on.reduce(
                detail::result_reducer<float>{result.elements(), with_input ? input.elements().data() : nullptr},
                result.elements(), how);
            const detail::result_reducer<float> on_host{view<const float>(data), with_input ? other.data() : nullptr};
            const detail::result_record expected
                = on_host.finish(detail::reduce_blocks(on_host, std::uint64_t{data.size()}));
            CHECK(found.digest == expected.digest);
            CHECK(found.nonfinite == expected.nonfinite);
            CHECK(found.first_nonfinite == expected.first_nonfinite);
            CHECK(found.sum_of_squares == doctest::Approx(expected.sum_of_squares).epsilon(1e-12));
            CHECK(is_nan(found.dot) == is_nan(expected.dot));
            if (!is_nan(expected.dot)) CHECK(found.dot == doctest::Approx(expected.dot).epsilon(1e-12));
        }
    };
    for_each_input<float>(check);
    check(random_elements<float>(520 * 1024, 0, 1, 7), {2, 3});
    check(random_elements<float>(300 * 1024 + 5, 0, 1, 7), long_slots);
}

TEST_CASE("small: digests of float")
{
    bench<std::uint64_t> on;
    const auto check = [&](const std::vector<float>& data, cut how) {
        const device_copy<float> copy(data);
        CHECK(on.reduce(detail::digest_reducer<float>{copy.elements()}, copy.elements(), how)
            == digest(view<const float>(data)));
    };
    for_each_input<float>(check);
    check(random_elements<float>(300 * 1024 + 5, 0, 1, 7), long_slots);
}

TEST_CASE("small: digests of parts, in one launch")
{
    const cu::stream stream;
    cu::workspace scratch;
    const std::vector<std::uint8_t> data = random_elements<std::uint8_t>(90'001, 0, 50, 7);
    const device_copy<std::uint8_t> copy(data);
    const std::pair<std::uint64_t, std::uint64_t> cases[]
        = {{1, 90'001}, {1, 0}, {3, 0}, {3, 1}, {2, 4096}, {3, 30'000}, {7, 12'857}, {40, 2'001}, {300, 300}, {5'000, 18}};
    for (const auto& [parts, count] : cases) {
        CAPTURE(parts);
        CAPTURE(count);
        cu::pinned_buffer<std::uint64_t> found(parts);
        std::memset(found.data(), 0xa5, parts * sizeof(std::uint64_t));
        gpu::reduce_parts(stream.get(), detail::digest_reducer<std::uint8_t>{copy.elements().part(0, parts * count)},
            parts, count, found.data(), scratch);
        stream.synchronize();
        for (std::uint64_t i = 0; i < parts; ++i)
            REQUIRE(found[i] == digest(view<const std::uint8_t>(data.data() + i * count, count)));
    }
    // Few slots for many long parts: a slot is longer than it would be alone.
    const detail::slot_plan plan = detail::plan_part_slots(1 << 20, 1, 1024, 4096);
    CHECK(plan.slots == 4);
    CHECK(plan.slots * plan.length >= 1 << 20);
    CHECK(detail::plan_part_slots(1 << 20, 1, 8, 4096).slots == detail::plan_slots(1 << 20, 1).slots);
    CHECK(detail::plan_part_slots(0, 1, 8, 4096).slots == 0);
}

TEST_CASE("small: a reducer without a kernel of its own")
{
    bench<sum_and_range::partial> on;
    const auto check = [&](const std::vector<std::uint64_t>& data, cut how) {
        const device_copy<std::uint64_t> copy(data);
        sum_and_range::partial expected = sum_and_range::identity();
        for (std::size_t k = 0; k < data.size(); ++k) sum_and_range{data.data()}.add(expected, k);
        const sum_and_range::partial found
            = on.reduce(sum_and_range{copy.elements().data()}, copy.elements(), how);
        CHECK(found.sum == expected.sum);
        CHECK(found.least == expected.least);
        CHECK(found.most == expected.most);
    };
    for (const cut& how : cuts)
        for (const std::size_t count : {0u, 1u, 300u, 5003u})
            check(random_elements<std::uint64_t>(count, 0, 1, 3), how);
    check(random_elements<std::uint64_t>(260 * 1024, 0, 1, 3), {2, 3});
}

TEST_CASE("small: sums of blocks of threads")
{
    const cu::stream stream;
    constexpr std::uint64_t ranks = 3, length = 1003;
    std::vector<float> data(ranks * length);
    for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<float>(detail::mix64(k) >> 44);
    const device_copy<float> copy(data);
    for (const unsigned blocks : {1u, 4u, 9u}) {
        cu::pinned_buffer<double> gram(ranks * ranks);
        std::memset(gram.data(), 0, ranks * ranks * sizeof(double));
        const detail::pair_dots<float> body{copy.elements().data(), length, ranks, 1, gram.data()};
        cu::detail::sum_each_kernel<detail::pair_dots<float>><<<blocks, 256, 0, stream.get().get()>>>(6, body);
        REQUIRE(cudaGetLastError() == cudaSuccess);
        stream.synchronize();
        for (std::uint64_t i = 0; i < ranks; ++i)
            for (std::uint64_t j = i; j < ranks; ++j) // integers below 2^53: exact
                CHECK(gram[i * ranks + j] == detail::dot(data.data() + i * length, data.data() + j * length, length));
    }
}
