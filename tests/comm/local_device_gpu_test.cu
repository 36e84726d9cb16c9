// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Several ranks on one GPU, or on all that there are: the kernels, copies and events of CUDA itself.
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/kernels.cuh>

#include "conformance/communicator_conformance.hpp"
#include "examples/support/device_ranks.hpp"
#include "support/device_bits.hpp"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // nvcc's headers have a namespace cuda, too

namespace {

using gpu = cu::device;
using provider = testing::device_provider<gpu>;
using comm_t = local::device_communicator<gpu>;

/// Keeps one thread of the device busy for a while.
struct spin {
    long long cycles;
    COLLPROBE_HD void operator()(std::uint64_t) const
    {
#if defined(__CUDA_ARCH__)
        const long long start = clock64();
        while (clock64() - start < cycles) {
        }
#endif
    }
};

/// Counts elements that are not `expected`.
struct count_wrong {
    const std::int64_t* values;
    std::int64_t expected;
    unsigned long long* wrong;
    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
#if defined(__CUDA_ARCH__)
        if (values[index] != expected) atomicAdd(wrong, 1ull);
#else
        (void)index;
#endif
    }
};

} // namespace

TEST_CASE("ranks on a GPU conform: operations, counts and placements, splits, sequences of calls and stress")
{
    for (const int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        CHECK_NOTHROW(conformance::check_type<bfloat16>(provider{ranks}, ranks <= 3 ? 2051 : 331));
        CHECK_NOTHROW(conformance::check_calls(provider{ranks}, 100));
    }
}

// One integer of each size, and each sign; all floating types.
TEST_CASE_TEMPLATE("a GPU gives the bits of the CPU", T, std::int8_t, std::uint32_t, std::int64_t,
    COLLPROBE_TEST_WIDER_FLOATING_TYPES, COLLPROBE_TEST_FLOAT8_TYPES)
{
    for (const int ranks : {1, 2, 3, 8, 17, 64}) {
        CAPTURE(ranks);
        CHECK(testing::differing_reductions<gpu, T>(ranks, ranks <= 8 ? 20'011 : 331) == 0);
    }
}

TEST_CASE("buffers are read when their stream has filled them and may be overwritten behind the call")
{
    constexpr int n = 3;
    constexpr std::uint64_t count = 50'000;
    CHECK_NOTHROW(provider{n}.run([&](comm_t& comm) {
        cu::buffer<std::int64_t> value(count);
        cu::buffer<std::int64_t> copy(count);
        cu::buffer<unsigned long long> wrong(1);
        cu::pinned_buffer<unsigned long long> seen(1);
        const view<std::int64_t> memory(value);
        const cu::stream stream;
        gpu::fill(stream, view<unsigned long long>(wrong), 0ull);
        std::uint64_t dice = 17u + static_cast<unsigned>(comm.rank());
        for (int round = 0; round < 200; ++round) {
            dice = collprobe::detail::mix64(dice);
            gpu::for_each(stream, 1, spin{static_cast<long long>(dice % 200'000)});
            gpu::fill(stream, memory, comm.rank() + 10 * round);
            std::int64_t expected = 3 + 30 * round;
            if (round % 2 == 0) {
                comm.all_reduce(view<const std::int64_t>(memory), view<std::int64_t>(copy), reduction::sum, stream);
            } else {
                comm.broadcast(view<const std::int64_t>(memory), view<std::int64_t>(copy), round % n, stream);
                expected = round % n + 10 * round;
            }
            gpu::fill(stream, memory, -1);
            gpu::for_each(stream, count, count_wrong{copy.data(), expected, wrong.data()});
        }
        gpu::copy(stream, view<const unsigned long long>(view<unsigned long long>(wrong)),
            view<unsigned long long>(seen));
        stream.synchronize();
        conformance::require(seen[0] == 0, std::to_string(seen[0]) + " wrong values");
    }));
}

TEST_CASE("a call returns while the device is held up")
{
    constexpr int n = 2;
    std::latch called(n);
    CHECK_NOTHROW(provider{n}.run([&](comm_t& comm) {
        cu::buffer<float> value(1000);
        const cu::stream stream;
        gpu::fill(stream, view<float>(value), 1.0f);
        const view<float> all(value);
        comm.all_reduce(view<const float>(all), all, reduction::sum, stream); // the kernels are loaded now
        stream.synchronize();
        cu::check(cudaLaunchHostFunc(
                      stream.get(), [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, &called),
            "cudaLaunchHostFunc");
        for (int call = 0; call < 10; ++call) {
            comm.all_reduce(view<const float>(all), all, reduction::max, stream);
        }
        conformance::require(!stream.query(), "the stream was not held up");
        called.count_down();
        stream.synchronize();
    }));
}
