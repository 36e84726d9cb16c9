// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What it costs on a GPU to order a copy and the all-gather that reads it, over NCCL with one rank: its all-gather is a
// copy then, so the host's part and the overlap are what is compared.
// `host_cost`: real and processor time of the calling thread per call, with the device kept busy meanwhile so that
// nothing waits for it but who synchronises; `pipeline`: time per step where the producer computes 100 us for each of
// 16 shards of 16 MiB and the host has 50 us of work of its own for each.
#include "gpu_timing.cuh"
#include "guard_ordering.hpp"

#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/nccl/communicator.hpp>

#include "../tests/support/nccl_owner.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

using shard = bench::shard_on_its_way<testing::nccl_owner>;

/// Keeps one thread of the GPU busy, about so long.
void compute(const shard& each, long microseconds)
{
    int device = 0, kilohertz = 0;
    cu::check(cudaGetDevice(&device), "cudaGetDevice");
    cu::check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "cudaDeviceGetAttribute");
    cu::device::for_each(each.producer.get(), 1, bench::spin{static_cast<long long>(microseconds) * kilohertz / 1000});
}

void host_cost(benchmark::State& state)
{
    if (bench::skipped_without_gpu(state)) return;
    const auto how = static_cast<bench::ordering>(state.range(0));
    try {
        testing::nccl_owner comm = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0);
        shard each(1024, 1);
        constexpr int calls = 64;
        for (int i = 0; i < 4; ++i) each.step(comm, how); // loads kernels, fills pools
        each.synchronize();
        std::vector<double> real, processor;
        for (auto _ : state) {
            compute(each, 2000);
            const bench::host_time start = bench::host_time::now();
            for (int i = 0; i < calls; ++i) each.step(comm, how);
            const bench::host_time used = bench::host_time::now().since(start);
            real.push_back(used.real / calls);
            processor.push_back(used.processor / calls);
            state.SetIterationTime(used.real / calls);
            each.synchronize();
        }
        state.counters["host_us"] = bench::median(real) * 1e6;
        state.counters["host_cpu_us"] = bench::median(processor) * 1e6;
        state.SetLabel(name(how));
    } catch (const error& failed) {
        state.SkipWithError(failed.what());
    }
}

void pipeline(benchmark::State& state)
{
    if (bench::skipped_without_gpu(state)) return;
    const auto how = static_cast<bench::ordering>(state.range(0));
    try {
        testing::nccl_owner comm = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0);
        shard each(bench::capped(std::uint64_t{16} << 20) / sizeof(float), 1);
        each.step(comm, how);
        each.synchronize();
        for (auto _ : state) {
            const bench::host_time start = bench::host_time::now();
            for (int tensor = 0; tensor < 16; ++tensor) {
                compute(each, 100);
                each.step(comm, how);
                const bench::host_time own = bench::host_time::now();
                while (bench::host_time::now().since(own).real < 50e-6) {}
            }
            each.synchronize();
            state.SetIterationTime(bench::host_time::now().since(start).real);
        }
        state.SetLabel(name(how));
    } catch (const error& failed) {
        state.SkipWithError(failed.what());
    }
}

} // namespace

BENCHMARK(host_cost)
    ->DenseRange(0, bench::orderings - 1)
    ->UseManualTime()
    ->Iterations(bench::rounds(30))
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(pipeline)
    ->DenseRange(0, bench::orderings - 1)
    ->UseManualTime()
    ->Iterations(bench::rounds(30))
    ->Unit(benchmark::kMillisecond);
