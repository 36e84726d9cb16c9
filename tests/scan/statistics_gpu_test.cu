// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of statistics, copies and results on a GPU against the host. What a thread computes is
// tested without a GPU too (cuda_schedule_test.cpp); here are the barriers, the shared memory, the
// hand-over between blocks, captures, and the instructions themselves.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/copy_statistics.hpp>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/step/cuda/probed.cuh>

#include "adversarial.hpp"
#include "cuda_schedule.hpp"
#include "device_copy.cuh"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using adversarial::check_same_statistics;
using collprobe::testing::device_copy;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// One workspace and stream for all: that they can be used again is part of every test.
struct bench {
    cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<statistics> result{1};

    template <class Reducer>
    statistics reduce(const Reducer& reducer, std::uint64_t count)
    {
        std::memset(static_cast<void*>(result.data()), 0xa5, sizeof(statistics));
        gpu::reduce(stream.get(), reducer, count, result.data(), scratch);
        stream.synchronize();
        return result[0];
    }
    template <class T, bool with_digest = true>
    statistics statistics_of(view<const T> data)
    {
        return reduce(statistics_reducer<T, with_digest>{data}, data.count());
    }
};

bool same_bits(const statistics& a, const statistics& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T>
void check_on_gpu(bench& on, const std::vector<T>& data)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(data.size());
    const device_copy<T> copy(data);
    const statistics found = on.statistics_of(copy.elements());
    check_same_statistics(found, compute_statistics(view<const T>(data)));
    CHECK(same_bits(on.statistics_of(copy.elements()), found));
    statistics plain = on.statistics_of<T, false>(copy.elements());
    CHECK(plain.digest == 0);
    plain.digest = found.digest;
    plain.has_digest = 1;
    CHECK(same_bits(plain, found));
}

} // namespace

TEST_CASE("a GPU gives the statistics of the host - every type, sizes around every boundary")
{
    bench on;
    testing::for_all_element_types([&](auto sample) {
        using T = decltype(sample);
        const std::size_t period = 4096 / sizeof(T);
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{17},
                 period - 1, period, period + 1, 2 * period, 2 * period + 3, 7 * period + 11, 400 * period + 5,
                 2048 * period, 5003 * period + 1}) {
            if (testing::few_cases() && count > 10 * period) break;
            check_on_gpu(on, adversarial::random_elements<T>(count, 0.1, 2.0, static_cast<unsigned>(count) + 1));
        }
    });
}

TEST_CASE("a GPU gives the statistics of the host - NaN, infinities, zeros, subnormals, extremes")
{
    bench on;
    adversarial::for_each_input([&](const auto& data) { check_on_gpu(on, data); });
}

TEST_CASE("a GPU gives the same bits for every alignment")
{
    bench on;
    testing::for_all_element_types([&](auto sample) {
        using T = decltype(sample);
        const std::size_t periods = testing::few_cases() ? 3 : 300;
        const auto data = adversarial::random_elements<T>(periods * 4096 / sizeof(T) + 33, 3, 0.01, 9);
        const device_copy<T> aligned(data);
        const statistics expected = on.statistics_of(aligned.elements());
        for (std::size_t offset = 0; offset < 16; offset += sizeof(T)) {
            CAPTURE(offset);
            const device_copy<T> copy(data, offset);
            CHECK(same_bits(on.statistics_of(copy.elements()), expected));
        }
    });
}

TEST_CASE("the bits do not depend on the number of blocks, nor on which one is the last")
{
    constexpr int repetitions = COLLPROBE_TEST_UNLESS_BRIEF(20, 2);
    bench on;
    const auto data = adversarial::random_elements<float>(3'000'017, 5, 1, 3);
    const device_copy<float> copy(data);
    using reducer = statistics_reducer<float, true>;
    const statistics expected = on.statistics_of(copy.elements());
    for (const unsigned blocks : {1u, 2u, 3u, 7u, 100u, 733u, 1024u}) {
        for (int again = 0; again < repetitions; ++again) {
            cu::detail::reduce_kernel<reducer, statistics><<<blocks, 256, 0, on.stream.get().get()>>>(reducer{copy.elements()},
                copy.count(), detail::plan_slots(copy.count(), 4), on.result.data(),
                cu::detail::partial_results{static_cast<unsigned long long*>(on.scratch.partials())}, on.scratch.ticket(),
                reduction_times{});
            REQUIRE(cudaGetLastError() == cudaSuccess);
            on.stream.synchronize();
            CHECK(same_bits(on.result[0], expected));
        }
    }
}

TEST_CASE("more than 2^31 elements")
{
    std::size_t free = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    const std::uint64_t count = (std::uint64_t{1} << 31) + 4099;
    if (testing::few_cases()) return;
    if (free < count + (std::uint64_t{1} << 28)) {
        MESSAGE("too little device memory: skipped");
        return;
    }
    bench on;
    std::vector<std::int8_t> data(count, 3);
    for (std::uint64_t i = 0; i < count; i += 1'000'003) data[i] = static_cast<std::int8_t>(i % 256);
    data[count - 1] = -128;
    check_on_gpu(on, data);
}

TEST_CASE("copy and statistics in one read: every byte, nothing beside, any alignment")
{
    bench on;
    testing::for_all_element_types([&](auto sample) {
        using T = decltype(sample);
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, 2 * 4096 / sizeof(T) + 3,
                 COLLPROBE_TEST_UNLESS_BRIEF(900, 90) * 4096 / sizeof(T) + 7}) {
            if (testing::few_cases() && count > 10 * 4096 / sizeof(T)) break;
            const auto data = adversarial::random_elements<T>(count, 1, 3, 4);
            const statistics expected = compute_statistics(view<const T>(data));
            for (const std::size_t from : {std::size_t{0}, sizeof(T)}) {
                for (const std::size_t to : {std::size_t{0}, sizeof(T), std::size_t{4}, std::size_t{8}}) {
                    if (to % sizeof(T) != 0) continue;
                    const device_copy<T> source(data, from);
                    const device_copy<T> destination(std::vector<T>(count + 2, T{}), 16 + to);
                    copy_with_statistics<gpu>(on.stream.get(), source.elements(), view<T>(destination.data() + 1, count),
                        on.result.data(), on.scratch);
                    on.stream.synchronize();
                    check_same_statistics(on.result[0], expected);
                    std::vector<T> back(count + 2);
                    REQUIRE(cudaMemcpy(back.data(), destination.data(), back.size() * sizeof(T), cudaMemcpyDeviceToHost)
                        == cudaSuccess);
                    CHECK(to_bits(back.front()) == 0);
                    CHECK(to_bits(back.back()) == 0);
                    CHECK((count == 0 || std::memcmp(back.data() + 1, data.data(), count * sizeof(T)) == 0));
                }
            }
        }
    });
}

TEST_CASE("what a result is read for: digest, norm, dot with the input, NaN without one")
{
    bench on;
    cu::pinned_buffer<detail::result_record> record(1);
    testing::for_each_floating_type([&](auto sample) {
        using T = decltype(sample);
        const std::size_t periods = testing::few_cases() ? 5 : 500;
        for (const std::size_t count : {std::size_t{0}, std::size_t{5}, periods * 4096 / sizeof(T) + 77}) {
            const auto x = adversarial::random_elements<T>(count, 0.2, 1, 21);
            const auto y = adversarial::random_elements<T>(count, 0.1, 3, 22);
            const device_copy<T> result(x);
            for (const std::size_t offset : {std::size_t{0}, sizeof(T)}) {
                const device_copy<T> input(y, offset);
                for (const bool with_input : {true, false}) {
                    const detail::result_reducer<T> on_gpu{result.elements(), with_input ? input.data() : nullptr};
                    gpu::reduce(on.stream.get(), on_gpu, count, record.data(), on.scratch);
                    on.stream.synchronize();
                    const detail::result_reducer<T> on_host{view<const T>(x), with_input ? y.data() : nullptr};
                    const detail::result_record expected
                        = on_host.finish(detail::reduce_blocks(on_host, std::uint64_t{count}));
                    CHECK(record[0].digest == expected.digest);
                    CHECK(record[0].scale == expected.scale);
                    CHECK(record[0].nonfinite == expected.nonfinite);
                    CHECK(record[0].first_nonfinite == expected.first_nonfinite);
                    CHECK(record[0].sum_of_squares == doctest::Approx(expected.sum_of_squares).epsilon(1e-12));
                    CHECK(is_nan(record[0].dot) == is_nan(expected.dot));
                    if (!is_nan(expected.dot)) CHECK(record[0].dot == doctest::Approx(expected.dot).epsilon(1e-10));
                }
            }
        }
    });
}

TEST_CASE("captured into a graph and replayed on fresh data")
{
    bench on;
    const std::size_t count = 1'000'003;
    cu::pinned_buffer<float> host(count);
    cu::buffer<float> data(count);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    REQUIRE(cudaStreamBeginCapture(on.stream.get().get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    gpu::copy(on.stream.get(), view<const float>(host.data(), count), view<float>(data));
    gpu::reduce(on.stream.get(), statistics_reducer<float, true>{view<const float>(data.data(), count)}, count,
        on.result.data(), on.scratch);
    REQUIRE(cudaStreamEndCapture(on.stream.get().get(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    for (unsigned round = 0; round < 5; ++round) {
        const auto fresh = adversarial::random_elements<float>(count, 0, 1, 100 + round);
        std::memcpy(host.data(), fresh.data(), count * sizeof(float));
        REQUIRE(cudaGraphLaunch(ready, on.stream.get().get()) == cudaSuccess);
        on.stream.synchronize();
        check_same_statistics(on.result[0], compute_statistics(view<const float>(fresh)));
    }
    CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("a GPU gives the bits of its schedule run on the host")
{
    // Not promised (the compilers contract products and sums differently), but a difference larger than
    // rounding would show an error that the tolerances above hide.
    bench on;
    testing::for_each_floating_type([&](auto sample) {
        using T = decltype(sample);
        const auto data = adversarial::random_elements<T>(3 * 131072 + 5, 1, 1, 8);
        const device_copy<T> copy(data);
        const statistics found = on.statistics_of(copy.elements());
        const statistics expected = cuda_schedule::compute_statistics<T, true>(data.data(), data.size());
        CHECK(found.mean == doctest::Approx(expected.mean).epsilon(1e-14));
        CHECK(found.l1 == doctest::Approx(expected.l1).epsilon(1e-14));
        CHECK(found.m2 == doctest::Approx(expected.m2).epsilon(1e-14));
        CHECK(found.sum_of_squares == doctest::Approx(expected.sum_of_squares).epsilon(1e-14));
    });
}
