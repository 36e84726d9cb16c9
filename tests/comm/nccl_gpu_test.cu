// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// NCCL itself. One rank per GPU; several on one GPU where NCCL allows it (2.30, an experiment of NCCL's).
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/device/cuda/kernels.cuh>

#include "conformance/communicator_conformance.hpp"
#include "support/checks.hpp"
#include "support/needs_gpu.hpp"
#include "tests/support/nccl_ranks.hpp"

using namespace collprobe;
using testing::nccl_provider;
using testing::require;
namespace cu = collprobe::cuda; // nvcc's headers have a namespace cuda, too

namespace {

constexpr nccl::blocking_mode modes[] = {nccl::blocking_mode::blocking, nccl::blocking_mode::non_blocking};

int devices()
{
    int count = 0;
    (void)cudaGetDeviceCount(&count);
    return count;
}

/// The numbers of ranks that can be here.
std::vector<int> rank_counts()
{
    // Before the first communicator: NCCL reads it once.
    static const bool shared = [] {
        int version = 0;
        (void)ncclGetVersion(&version);
        if (version < 23000) return false;
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
        setenv("NCCL_MAX_CTAS", "4", 0);
        return true;
    }();
    std::vector<int> counts{1};
    if (shared) counts.push_back(2 * devices());
    if (devices() > 1) counts.push_back(devices());
    MESSAGE("ranks: 1, and " << counts.back() << " on " << devices() << " GPUs");
    return counts;
}

struct scale {
    float* values;
    float factor;
    COLLPROBE_HD void operator()(std::uint64_t index) const { values[index] *= factor; }
};

} // namespace

TEST_CASE("NCCL conforms on GPUs")
{
    for (const int ranks : rank_counts()) {
        for (const nccl::blocking_mode mode : modes) {
            CAPTURE(ranks);
            const nccl_provider provider{ranks, {.mode = mode}, devices(), 170};
            CHECK_NOTHROW(conformance::check_type<std::int8_t>(provider, 2051));
            CHECK_NOTHROW(conformance::check_type<bfloat16>(provider, 2051));
            CHECK_NOTHROW(conformance::check_calls(provider, 50));
        }
    }
}

TEST_CASE("NCCL collectives are captured and replayed with fresh data")
{
    for (const int ranks : rank_counts()) {
        for (const nccl::blocking_mode mode : modes) {
            CAPTURE(ranks);
            CHECK_NOTHROW((nccl_provider{ranks, {.mode = mode}, devices()}.run([](testing::nccl_owner& comm) {
                constexpr std::uint64_t count = 10'000;
                cu::buffer<float> values(count);
                cu::buffer<float> sums(count);
                cu::pinned_buffer<float> seen(count);
                const view<float> memory(values);
                const cu::stream stream;
                cu::device::fill(stream, memory, 1.0f);
                // NCCL may not connect peers within a capture.
                comm.all_reduce(view<const float>(memory), view<float>(sums), reduction::sum, stream);
                comm.barrier(stream);
                comm.synchronize(stream);
                cudaGraph_t graph = nullptr;
                cudaGraphExec_t replay = nullptr;
                require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess,
                    "begin");
                cu::device::for_each(stream, count, scale{values.data(), 2.0f});
                comm.all_reduce(view<const float>(memory), view<float>(sums), reduction::sum, stream);
                comm.barrier(stream);
                comm.check();
                cu::device::copy(stream, view<const float>(sums.data(), count), view<float>(seen));
                require(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess, "capture");
                require(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess, "instantiate");
                for (int round = 1; round <= 3; ++round) {
                    cu::device::fill(stream, memory, static_cast<float>(round));
                    require(cudaGraphLaunch(replay, stream.get()) == cudaSuccess, "launch");
                    comm.synchronize(stream);
                    for (std::uint64_t i = 0; i < count; ++i) {
                        require(seen[i] == 2.0f * static_cast<float>(round * comm.size()), "replayed sum");
                    }
                }
                // Before the communicator: NCCL waits for the graphs that captured it.
                cudaGraphExecDestroy(replay);
                cudaGraphDestroy(graph);
            })));
        }
    }
}
