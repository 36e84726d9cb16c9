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

namespace {

using shard = bench::shard_on_its_way<testing::nccl_owner>;

void host_cost(benchmark::State& state)
{
    const auto how = static_cast<bench::ordering>(state.range(0));
    bench::on_gpu(state, [&] {
        testing::nccl_owner comm = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0);
        shard each(1024, 1);
        constexpr int calls = 64;
        for (int i = 0; i < 4; ++i) each.step(comm, how); // loads kernels, fills pools
        each.synchronize();
        std::vector<double> real, processor;
        for (auto _ : state) {
            bench::keep_busy(each.producer, 2000);
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
    });
}

void pipeline(benchmark::State& state)
{
    const auto how = static_cast<bench::ordering>(state.range(0));
    bench::on_gpu(state, [&] {
        testing::nccl_owner comm = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 0);
        shard each(bench::capped(std::uint64_t{16} << 20) / sizeof(float), 1);
        each.step(comm, how);
        each.synchronize();
        for (auto _ : state) {
            const double start = bench::real_seconds();
            for (int tensor = 0; tensor < 16; ++tensor) {
                bench::keep_busy(each.producer, 100);
                each.step(comm, how);
                for (const double own = bench::real_seconds(); bench::real_seconds() - own < 50e-6;) {}
            }
            each.synchronize();
            state.SetIterationTime(bench::real_seconds() - start);
        }
        state.SetLabel(name(how));
    });
}

void all(benchmark::internal::Benchmark* cases) { bench::timed_by_hand(cases, 30)->DenseRange(0, bench::orderings - 1); }

} // namespace

BENCHMARK(host_cost)->Apply(all);
BENCHMARK(pipeline)->Apply(all)->Unit(benchmark::kMillisecond);
