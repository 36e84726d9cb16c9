// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of a step note the GPU's clock.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <collprobe/collprobe.cuh>

#include "examples/support/device_ranks.hpp"
#include "support/needs_gpu.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too
using gpu = cu::device;

TEST_CASE("of ranks on a GPU, the one that sleeps before a call is last to it, by the time that it slept")
{
    // Any rank may be held up on a busy machine: such steps do not count.
    constexpr int wanted = 9;
    std::atomic<int> ranks_that_saw{0};
    local::run_on<gpu>(3, {}, [&](local::device_communicator<gpu>& world) {
        const cu::stream stream;
        cu::buffer<float> send(1 << 12);
        cu::buffer<float> receive(1 << 12);
        gpu::fill(stream, view<float>(send), 1.0f);
        probed comm(world);
        int right = 0; // alike on all ranks, as the records are
        for (int step = 0; right < wanted && step < 200; ++step) {
            comm.all_reduce(view<const float>(send.data(), send.size()), view<float>(receive), reduction::sum, stream);
            stream.synchronize();
            const int late = step * 7 % 3;
            if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
            comm.all_reduce(view<const float>(send.data(), send.size()), view<float>(receive), reduction::sum, stream);
            comm.end_step(static_cast<std::uint64_t>(step), stream);
            step_record record;
            comm.wait(record);
            const call_lateness& call = record.calls[1].lateness;
            CHECK(record.lateness.calls == 2);
            CHECK(call.present == 3);
            right += call.last == late && call.gain > 80e6 && call.gain < 150e6 && call.gain_before > 80e6;
        }
        ranks_that_saw += right == wanted;
    });
    CHECK(ranks_that_saw == 3);
}
