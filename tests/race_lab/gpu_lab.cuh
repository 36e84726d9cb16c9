// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/device/cuda/device.hpp>

#include "examples/support/device_ranks.hpp"
#include "tests/race_lab/watch.hpp"
#include "tests/support/nccl_ranks.hpp"
#include "tests/support/run_ranks.hpp"

namespace collprobe::race_lab {

/// Before the first call of CUDA: streams that share a queue of the hardware, and kernels that are loaded when they are
/// first used, give order that nobody asked for.
[[maybe_unused]] inline const bool queues_apart = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0
    && setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

static __global__ void wait_for_flag(const volatile unsigned* flag)
{
    while (*flag == 0) __nanosleep(1000);
}

/// A kernel of one thread at the head of a stream, which ends when the host says so. The flags are never freed: a free
/// waits for the device, and so for other gates.
class gpu_gate {
public:
    explicit gpu_gate(cuda::stream_ref on) : flag_(flags() + next().fetch_add(1) % flag_count)
    {
        *flag_ = 0;
        wait_for_flag<<<1, 1, 0, on.get()>>>(flag_);
        cuda::check(cudaGetLastError(), "cudaLaunchKernel", on.device(), on.get());
    }
    gpu_gate(const gpu_gate&) = delete;
    ~gpu_gate() { open(); }
    void open() { __atomic_store_n(flag_, 1u, __ATOMIC_SEQ_CST); }

private:
    static constexpr std::uint64_t flag_count = 4096; // more than a program closes
    static unsigned* flags()
    {
        static const auto* const all = new cuda::pinned_buffer<unsigned>(flag_count);
        return all->data();
    }
    static std::atomic<std::uint64_t>& next()
    {
        static std::atomic<std::uint64_t> one{0};
        return one;
    }
    unsigned* flag_;
};

struct gpu_streams {
    using device = cuda::device;
    using gate = gpu_gate;

    /// Kernels are loaded and peers connected before a gate is closed, and all ranks have their buffers: an
    /// allocation may wait for the device.
    static void warm_up(const auto& at) { warm_up(at, at.comm); }
    template <class Comm>
    static void warm_up(const auto& at, Comm& comm)
    {
        gate(at.on).open();
        comm.template all_gather<std::uint32_t>(view<const std::uint32_t>(at.second()), at.spare(), at.on, call_site{});
        comm.barrier(at.on);
        at.on.synchronize(60'000);
    }
    static void enter_device(const auto& at)
    {
        cuda::check(cudaSetDevice(at.producer.device()), "cudaSetDevice");
    }
    static cuda::stream_ref default_stream(const auto&) { return cuda::stream_ref(cudaStreamLegacy); }
};

/// Two ranks of this process, on one GPU if there are no more.
struct gpu_lab : gpu_streams {
    using communicator = local::device_communicator<cuda::device>;
    static constexpr int ranks = 2;

    template <class Body>
    static void run(int count, Body body)
    {
        const testing::watchdog guard("a failure mode", 120);
        local::run_on<device>(count, {}, body);
    }
};

/// NCCL with one rank, whose gather is a copy on its stream: a GPU may not be in a communicator twice.
struct gpu_nccl_lab : gpu_streams {
    using communicator = testing::nccl_owner;
    static constexpr int ranks = 1;

    template <class Body>
    static void run(int count, Body body)
    {
        testing::nccl_provider{count, {}, 1}.run(body);
    }
};

} // namespace collprobe::race_lab
