// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One element type of each kernel that uses shared memory, on inputs so small that a run takes little time without a
// GPU: cmake/mutate_kernels.py runs these cases first. A grid of few blocks takes several slots each.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/detail/gram.hpp>

#include "adversarial.hpp"
#include "support/device_copy.cuh"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using adversarial::oracle;
using adversarial::random_elements;
using collprobe::testing::device_copy;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// The workspace is used again, so that each reduction must leave it as the next one needs it.
template <class Result>
struct bench {
    cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<Result> result{1};

    /// The bits depend on the slots alone. Each several times if they are few: which block is the last, and how far the
    /// others are, depends on chance.
    template <class Reducer>
    Result reduce(const Reducer& reducer, std::uint64_t count, detail::slot_plan plan)
    {
        Result first{};
        bool is_first = true;
        for (const unsigned blocks : {3u, 1u, 7u}) {
            for (int again = 0; again < (plan.slots < 9 ? 2 : 1); ++again) {
                std::memset(static_cast<void*>(result.data()), 0xa5, sizeof(Result));
                cu::detail::reduce_kernel<Reducer, Result><<<blocks, 256, 0, stream.get()>>>(reducer, count, plan,
                    result.data(), cu::detail::partial_results{static_cast<unsigned long long*>(scratch.partials())},
                    scratch.ticket(), reduction_times{});
                REQUIRE(cudaGetLastError() == cudaSuccess);
                stream.synchronize();
                if (std::exchange(is_first, false)) first = result[0];
                CHECK(std::memcmp(&first, result.data(), sizeof first) == 0);
            }
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
    for (std::size_t k = 7; k < count; k += 307) all[k] = adversarial::of<T>(1);
    for (unsigned k = 1; k <= 3; ++k) all[count - k] = T(rare[(k + last) % 3]);
    return all;
}

/// `check(data, slots)`.
template <class T, class Check>
void for_each_input(Check check)
{
    constexpr std::size_t chunk = 16384 / sizeof(T);
    for (const unsigned slots : {1u, 3u, 5u}) {
        check(of_every_kind<T>(5 * chunk + 7, slots), slots);
        check(random_elements<T>(6 * chunk, 1000, 1, 6), slots);
        std::vector<T> first_bad = random_elements<T>(5 * chunk, 1, 2, 10);
        for (std::size_t k = 0; k < 2 * chunk; ++k) first_bad[k] = T(std::numeric_limits<float>::infinity());
        check(first_bad, slots); // slots without a finite element
    }
    check(std::vector<T>{T(-3.0f), T(2.0f), T(std::numeric_limits<float>::quiet_NaN())}, 1);
    check(std::vector<T>(1, T(-3.0f)), 1);
    check(std::vector<T>{}, 0);
    check(random_elements<T>(35 * chunk + 5, 0, 1, 7), 1); // more chunks than are prepared together
    if (sizeof(T) == 4) check(of_every_kind<T>(270 * chunk + 9, 1), 270); // more slots than threads
}

template <class T>
void check_statistics()
{
    bench<statistics> on;
    for_each_input<T>([&](const std::vector<T>& data, unsigned slots) {
        const device_copy<T> copy(data);
        oracle(view<const T>(data)).check(on.reduce(statistics_reducer<T>(copy.elements()), copy.count(), {0, slots}));
    });
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

TEST_CASE("small: statistics of float") { check_statistics<float>(); }
TEST_CASE("small: statistics of double") { check_statistics<double>(); }
TEST_CASE("small: statistics of bfloat16") { check_statistics<bfloat16>(); }
TEST_CASE("small: statistics of e4m3") { check_statistics<float8_e4m3>(); }

TEST_CASE("small: what a result of float is read for")
{
    bench<detail::result_record> on;
    for_each_input<float>([&](const std::vector<float>& data, unsigned slots) {
        const auto other = random_elements<float>(data.size(), 1, 1, 9);
        const device_copy<float> result(data), input(other);
        for (const bool with_input : {true, false}) {
            const detail::result_reducer<float> reducer(result.elements(), with_input ? input.data() : nullptr);
            oracle(view<const float>(data), other.data()).check(on.reduce(reducer, data.size(), {0, slots}), with_input);
        }
    });
}

TEST_CASE("small: digests of float")
{
    bench<std::uint64_t> on;
    for_each_input<float>([&](const std::vector<float>& data, unsigned slots) {
        const device_copy<float> copy(data);
        CHECK(on.reduce(detail::digest_reducer<float>(copy.elements()), data.size(), {0, slots})
            == digest(view<const float>(data)));
    });
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
}

TEST_CASE("small: a reducer without a kernel of its own")
{
    bench<sum_and_range::partial> on;
    for (const std::size_t count : {0u, 1u, 300u, 5003u, 70'000u}) {
        for (const std::uint64_t length : {1024u, 2048u}) {
            const std::vector<std::uint64_t> data = random_elements<std::uint64_t>(count, 0, 1, 3);
            const device_copy<std::uint64_t> copy(data);
            sum_and_range::partial expected = sum_and_range::identity();
            for (std::size_t k = 0; k < data.size(); ++k) sum_and_range{data.data()}.add(expected, k);
            const sum_and_range::partial found
                = on.reduce(sum_and_range{copy.data()}, count, {length, (count + length - 1) / length});
            CHECK(found.sum == expected.sum);
            CHECK(found.least == expected.least);
            CHECK(found.most == expected.most);
        }
    }
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
        cu::detail::sum_each_kernel<detail::pair_dots<float>><<<blocks, 256, 0, stream.get()>>>(6, body);
        REQUIRE(cudaGetLastError() == cudaSuccess);
        stream.synchronize();
        for (std::uint64_t i = 0; i < ranks; ++i)
            for (std::uint64_t j = i; j < ranks; ++j) // integers below 2^53: exact
                CHECK(gram[i * ranks + j] == detail::dot(data.data() + i * length, data.data() + j * length, length));
    }
}
