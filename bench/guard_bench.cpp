// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What it costs to order a copy and the all-gather that reads it. `host_cost`: time of the calling thread per call (the
// column CPU) with everything on three streams; `pipeline`: time per step where the producer computes and the host has
// work of its own, which is what a synchronisation of the host takes the overlap from. Ranks are threads.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <ctime>
#include <vector>

#include <collprobe/comm/local.hpp>
#include <collprobe/guard/all_gather.hpp>

using namespace collprobe;

namespace {

using device = host::device;

enum class ordering { unordered, events_by_hand, guarded, guarded_buffers, stream_synchronized, device_synchronized };

constexpr const char* name(ordering how)
{
    switch (how) {
    case ordering::unordered: return "unordered";
    case ordering::events_by_hand: return "events by hand";
    case ordering::guarded: return "guarded";
    case ordering::guarded_buffers: return "guarded buffers";
    case ordering::stream_synchronized: return "stream synchronised";
    case ordering::device_synchronized: return "device synchronised";
    }
    return "";
}

struct trainer {
    explicit trainer(std::uint64_t count) : source(count), shard(count), full(count) {}

    /// Copies the shard and gathers it, ordered as told. (Unordered: the copy is on the producer's stream.)
    void step(local::communicator& comm, ordering how)
    {
        const view<const float> from(source);
        const view<float> to = shard.memory();
        const auto gather = [&] { comm.all_gather(view<const float>(to), full.memory(), communication); };
        switch (how) {
        case ordering::unordered:
            device::copy(producer, from, to);
            gather();
            return;
        case ordering::events_by_hand:
            device::copy(producer, from, to);
            copied.record(producer);
            communication.wait(copied);
            gather();
            gathered.record(communication);
            consumer.wait(gathered);
            return;
        case ordering::guarded:
            device::copy(producer, from, to);
            copy_then_all_gather(to, full.memory(), comm, communication, {producer}, {consumer});
            return;
        case ordering::guarded_buffers:
            copy_then_all_gather(from, full, comm, communication, {producer}, {consumer}, {.shard = &shard});
            return;
        case ordering::stream_synchronized:
            device::copy(producer, from, to);
            producer.synchronize();
            gather();
            communication.synchronize();
            return;
        case ordering::device_synchronized:
            device::copy(producer, from, to);
            synchronize();
            gather();
            synchronize();
            return;
        }
    }
    void synchronize() const
    {
        producer.synchronize();
        communication.synchronize();
        consumer.synchronize();
    }

    std::vector<float> source;
    guarded<device, float> shard, full;
    host::event copied, gathered;
    host::stream producer, communication, consumer;
};

void nap(long microseconds)
{
    const timespec time{0, microseconds * 1000};
    nanosleep(&time, nullptr);
}

void host_cost(benchmark::State& state)
{
    const auto how = static_cast<ordering>(state.range(0));
    local::group alone(1);
    auto comm = alone.communicator(0);
    trainer all(64);
    int calls = 0;
    for (auto _ : state) {
        all.step(comm, how);
        if (++calls % 256 != 0) continue;
        state.PauseTiming(); // a queue that only grows would be timed as well
        all.synchronize();
        state.ResumeTiming();
    }
    all.synchronize();
    state.SetLabel(name(how));
}

void pipeline(benchmark::State& state)
{
    const auto how = static_cast<ordering>(state.range(0));
    local::group alone(1);
    auto comm = alone.communicator(0);
    trainer all(std::uint64_t{1} << 14);
    for (auto _ : state) {
        // 16 tensors a step: the device computes each for 200 us; the host prepares the next for 200 us.
        for (int tensor = 0; tensor < 16; ++tensor) {
            all.producer.enqueue([] { nap(200); });
            all.step(comm, how);
            nap(200);
        }
        all.synchronize();
    }
    state.SetLabel(name(how));
}

} // namespace

BENCHMARK(host_cost)->DenseRange(0, 5)->Unit(benchmark::kNanosecond);
BENCHMARK(pipeline)->DenseRange(0, 5)->Unit(benchmark::kMillisecond)->UseRealTime();
