// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/step/detail/gram.hpp>

#include "support/needs_gpu.hpp"
#include "support/upload.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

struct add_index {
    std::uint64_t from;
    unsigned long long* sum;
    unsigned long long* calls;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
#if defined(__CUDA_ARCH__)
        if (index < from) return;
        atomicAdd(sum, static_cast<unsigned long long>(index));
        atomicAdd(calls, 1ull);
#else
        (void)index;
#endif
    }
};

/// A reducer without a kernel of its own: sums, with a product that any other order would change.
struct sum_reducer {
    struct partial {
        double sum;
        std::uint64_t count;
    };
    const float* data;

    COLLPROBE_HD static partial identity() { return {0, 0}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t index) const
    {
        into.sum += static_cast<double>(data[index]);
        ++into.count;
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next)
    {
        into.sum += next.sum;
        into.count += next.count;
    }
    COLLPROBE_HD partial finish(const partial& all) const { return all; }
};

struct refusing_body {
    COLLPROBE_HD void operator()(std::uint64_t) const {}
};

} // namespace

TEST_CASE("for_each calls every index once, beyond 2^32 too")
{
    cu::stream stream;
    cu::buffer<unsigned long long> device_sums(2);
    cu::pinned_buffer<unsigned long long> sums(2);
    const std::uint64_t far = std::uint64_t{1} << 32;
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{255}, std::uint64_t{100'003}, far + 1000}) {
        const std::uint64_t from = count > far ? far - 1000 : 0;
        gpu::fill(stream.get(), view<unsigned long long>(device_sums), 0ull);
        gpu::for_each(stream.get(), count, add_index{from, device_sums.data(), device_sums.data() + 1});
        gpu::copy(stream.get(), view<const unsigned long long>(device_sums.data(), 2), view<unsigned long long>(sums));
        stream.synchronize();
        CAPTURE(count);
        CHECK(sums[1] == count - from);
        unsigned long long expected = 0;
        for (std::uint64_t i = from; i < count; ++i) expected += i;
        CHECK(sums[0] == expected);
    }
}

TEST_CASE("a reducer without a kernel of its own: the same bits each time, and zero elements")
{
    cu::stream stream;
    cu::workspace scratch;
    cu::pinned_buffer<sum_reducer::partial> result(1);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2047}, std::size_t{5'000'011}}) {
        std::vector<float> data(count);
        double expected = 0;
        for (std::size_t i = 0; i < count; ++i) {
            data[i] = static_cast<float>(1.0 / static_cast<double>(i + 1));
            expected += static_cast<double>(data[i]);
        }
        cu::buffer<float> memory(count);
        testing::upload(memory.data(), data.data(), count);
        double first = 0;
        for (int again = 0; again < 10; ++again) {
            gpu::reduce(stream.get(), sum_reducer{memory.data()}, count, result.data(), scratch);
            stream.synchronize();
            CHECK(result[0].count == count);
            CHECK(result[0].sum == doctest::Approx(expected).epsilon(1e-12));
            if (again == 0) first = result[0].sum;
            CHECK(to_bits(result[0].sum) == to_bits(first));
        }
        std::uint32_t ticket = 1;
        REQUIRE(cudaMemcpy(&ticket, scratch.ticket(), sizeof ticket, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK(ticket == 0);
    }
}

TEST_CASE("sum_each gives the dots of all pairs, whole and in parts")
{
    cu::stream stream;
    const std::uint64_t n = 5, length = 10'007;
    std::vector<float> data(n * length);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i * 7919 % 101) - 50.0f;
    cu::buffer<float> memory(data.size());
    testing::upload(memory.data(), data.data(), data.size());
    for (const std::uint64_t parts : {1u, 3u, 17u}) {
        const std::uint64_t pairs = n * (n + 1) / 2;
        cu::buffer<double> sums(parts == 1 ? n * n : parts * pairs);
        cu::buffer<double> gram(n * n);
        cu::pinned_buffer<double> seen(n * n);
        gpu::fill(stream.get(), view<double>(sums), 0.0);
        gpu::fill(stream.get(), view<double>(gram), 0.0);
        gpu::sum_each(stream.get(), pairs * parts, detail::pair_dots<float>{memory.data(), length, n, parts, sums.data()});
        if (parts != 1) gpu::for_each(stream.get(), pairs, detail::add_parts{sums.data(), n, parts, gram.data()});
        gpu::copy(stream.get(), view<const double>(parts == 1 ? sums.data() : gram.data(), n * n), view<double>(seen));
        stream.synchronize();
        for (std::uint64_t i = 0; i < n; ++i)
            for (std::uint64_t j = i; j < n; ++j) // integers: exact
                CHECK(seen[i * n + j] == detail::dot(data.data() + i * length, data.data() + j * length, length));
    }
}

TEST_CASE("a launch that fails is an error that names the operation and the stream")
{
    cu::stream stream;
    const cudaStream_t handle = stream.get();
    REQUIRE(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, 16) != cudaSuccess); // invalidates the capture
    (void)cudaGetLastError();
    try {
        gpu::for_each(stream.get(), 1, refusing_body{});
        FAIL_CHECK("launched into an invalid capture");
    } catch (const error& failure) {
        CHECK(failure.code() == status::device_failure);
        CHECK(std::string(failure.what()).find("for_each") != std::string::npos);
        CHECK(std::string(failure.what()).find("stream") != std::string::npos);
    }
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(handle, &graph);
    (void)cudaGetLastError();
}
