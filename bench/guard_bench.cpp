// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What it costs to order a copy and the all-gather that reads it. `host_cost`: time of the calling thread per call (the
// column CPU) with everything on three streams; `pipeline`: time per step where the producer computes and the host has
// work of its own, which is what a synchronisation of the host takes the overlap from. One rank of `local`.
#include "guard_ordering.hpp"

#include <cstdint>
#include <ctime>

#include <benchmark/benchmark.h>

#include <collprobe/comm/local/communicator.hpp>

using namespace collprobe;

namespace {

using shard = bench::shard_on_its_way<local::communicator>;

void nap(long microseconds)
{
    const timespec time{0, microseconds * 1000};
    nanosleep(&time, nullptr);
}

void host_cost(benchmark::State& state)
{
    const auto how = static_cast<bench::ordering>(state.range(0));
    const local::group alone(1);
    auto comm = alone.communicator(0);
    shard each(64, 1);
    int calls = 0;
    for (auto _ : state) {
        each.step(comm, how);
        if (++calls % 256 != 0) continue;
        state.PauseTiming(); // a queue that only grows would be timed as well
        each.synchronize();
        state.ResumeTiming();
    }
    each.synchronize();
    state.SetLabel(name(how));
}

void pipeline(benchmark::State& state)
{
    const auto how = static_cast<bench::ordering>(state.range(0));
    const local::group alone(1);
    auto comm = alone.communicator(0);
    shard each(std::uint64_t{1} << 14, 1);
    for (auto _ : state) {
        // 16 tensors a step: the device computes each for 200 us; the host prepares the next for 200 us.
        for (int tensor = 0; tensor < 16; ++tensor) {
            each.producer.enqueue([] { nap(200); });
            each.step(comm, how);
            nap(200);
        }
        each.synchronize();
    }
    state.SetLabel(name(how));
}

} // namespace

BENCHMARK(host_cost)->DenseRange(0, bench::orderings - 1)->Unit(benchmark::kNanosecond);
BENCHMARK(pipeline)->DenseRange(0, bench::orderings - 1)->Unit(benchmark::kMillisecond)->UseRealTime();
