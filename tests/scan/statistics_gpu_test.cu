// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Statistics and results on a GPU against their definitions: of three types here, of the others in kernels_gpu_test.cu.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/scan/by_element.hpp>
#include <collprobe/scan/statistics.hpp>

#include "above.hpp"
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

/// One workspace and stream for all: that they can be used again is part of every test.
struct bench {
    cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<unsigned char> memory{256};

    template <class Reducer>
    auto reduce(const Reducer& reducer)
    {
        auto* const result = reinterpret_cast<decltype(reducer.finish({}))*>(memory.data());
        std::memset(memory.data(), 0xa5, 256);
        gpu::reduce(stream.get(), reducer, reducer.data.count(), result, scratch);
        stream.synchronize();
        return *result;
    }
};

/// Counts by an accumulator without a form of its own for a GPU.
using above_and_norm
    = detail::both<detail::by_element<bfloat16, testing::above<bfloat16>>, detail::norm<bfloat16>>;
struct counting : detail::one_read<bfloat16, above_and_norm> {
    using base = detail::one_read<bfloat16, above_and_norm>;
    using base::base;
    COLLPROBE_HD std::uint64_t finish(const partial& from) const noexcept { return from.first.count; }
};

/// The types that kernels_gpu_test.cu does not read, and float for the sizes.
template <class Body>
void for_each_type(Body body)
{
    body(collprobe::float16{});
    body(float8_e5m2{});
    body(float{});
}

template <class T>
bool same_bits(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T>
void check_on_gpu(bench& on, const std::vector<T>& data)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(data.size());
    const std::vector<T> other = random_elements<T>(data.size(), 0.1, 3, 22);
    const device_copy<T> copy(data), other_copy(other, sizeof(T));
    const oracle expected(view<const T>(data), other.data());
    const statistics found = on.reduce(statistics_reducer<T>(copy.elements()));
    expected.check(found);
    CHECK(same_bits(on.reduce(statistics_reducer<T>(copy.elements())), found));
    expected.check(on.reduce(detail::result_reducer<T>(copy.elements())), false);
    const detail::result_record record = on.reduce(detail::result_reducer<T>(copy.elements(), other_copy.data()));
    expected.check(record, true);
    CHECK(to_bits(record.sum_of_squares) == to_bits(found.sum_of_squares));
    CHECK(on.reduce(detail::digest_reducer<T>(copy.elements())) == expected.exact.digest);
}

} // namespace

TEST_CASE("a GPU gives what the definitions say - sizes around every boundary")
{
    bench on;
    for_each_type([&](auto sample) {
        using T = decltype(sample);
        const std::size_t run = 4096 / sizeof(T);
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{17},
                 run - 1, run, run + 1, 4 * run, 7 * run + 11, 400 * run + 5, 2112 * run, 5003 * run + 1}) {
            if (testing::few_cases() && count > 10 * run) break;
            check_on_gpu(on, random_elements<T>(count, 0.1, 2.0, static_cast<unsigned>(count) + 1));
        }
    });
}

TEST_CASE("a GPU gives what the definitions say - NaN, infinities, zeros, subnormals, extremes")
{
    bench on;
    for_each_type([&]<class T>(T) { adversarial::for_each_input_of<T>([&](const auto& data) { check_on_gpu(on, data); }); });
}

TEST_CASE("a GPU gives the same bits for every alignment")
{
    bench on;
    for_each_type([&](auto sample) {
        using T = decltype(sample);
        const std::size_t periods = testing::few_cases() ? 3 : 300;
        const auto data = random_elements<T>(periods * 4096 / sizeof(T) + 33, 3, 0.01, 9);
        const device_copy<T> aligned(data);
        const statistics expected = on.reduce(statistics_reducer<T>(aligned.elements()));
        for (std::size_t offset = sizeof(T); offset < 16; offset += sizeof(T)) {
            CAPTURE(offset);
            const device_copy<T> copy(data, offset);
            CHECK(same_bits(on.reduce(statistics_reducer<T>(copy.elements())), expected));
        }
    });
}

TEST_CASE("a GPU has room for an accumulator that only adds elements")
{
    bench on;
    const auto data = random_elements<bfloat16>(100'003, 0, 1, 3);
    const device_copy<bfloat16> copy(data);
    std::uint64_t expected = 0;
    for (const bfloat16 x : data) expected += std::fabs(static_cast<float>(x)) > 1.5f ? 1 : 0;
    CHECK(on.reduce(counting(copy.elements(), {{{1.5}}, {}})) == expected);
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
    std::vector<float8_e4m3> data(count, float8_e4m3(0.5f));
    for (std::uint64_t i = 0; i < count; i += 1'000'003) data[i] = float8_e4m3(static_cast<float>(i % 256));
    data[count - 1] = adversarial::of<float8_e4m3>(0x7f);
    const device_copy<float8_e4m3> copy(data);
    oracle(view<const float8_e4m3>(data)).check(on.reduce(statistics_reducer<float8_e4m3>(copy.elements())));
}

TEST_CASE("captured into a graph and replayed on fresh data")
{
    bench on;
    const std::size_t count = 1'000'003;
    cu::pinned_buffer<float> host(count);
    cu::buffer<float> data(count);
    auto* const result = reinterpret_cast<statistics*>(on.memory.data());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    REQUIRE(cudaStreamBeginCapture(on.stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    gpu::copy(on.stream.get(), view<const float>(host.data(), count), view<float>(data));
    gpu::reduce(on.stream.get(), statistics_reducer<float>{view<const float>(data.data(), count)}, count, result, on.scratch);
    REQUIRE(cudaStreamEndCapture(on.stream.get(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    for (unsigned round = 0; round < 5; ++round) {
        const auto fresh = random_elements<float>(count, 0, 1, 100 + round);
        std::memcpy(host.data(), fresh.data(), count * sizeof(float));
        REQUIRE(cudaGraphLaunch(ready, on.stream.get()) == cudaSuccess);
        on.stream.synchronize();
        oracle(view<const float>(fresh)).check(*result);
    }
    CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}
