// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step of eight all-reduces costs with an audit alone, with statistics and audit, and with a `weight_probe` alone
// that looks at each step: the ratio to the same calls without any, which run in turn. Ranks are threads of this process, so with more ranks than processors the times
// are of all ranks' work together. An all-reduce between threads is a few reads of memory: over a network the same
// checks are a smaller share.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/step/probed.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/math.hpp>

using namespace collprobe;

namespace {

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point start)
{
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

constexpr std::size_t calls = 8;

struct times {
    double bare = 0;
    double audited = 0;
    double full = 0;
    double weighed = 0;
};

template <class T>
times time_steps(int ranks, std::uint64_t count, int steps)
{
    times total;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed audited{local::communicator(world), {.statistics = false}, audit()};
        probed full{local::communicator(world), {}, audit()};
        probed weighed{local::communicator(world), {.statistics = false}, weight_probe({.every = 1})};
        std::vector<std::vector<T>> send(calls, std::vector<T>(count)), receive = send;
        for (std::uint64_t i = 0; i < calls * count; ++i) {
            const std::uint64_t bits = detail::mix64(i + (static_cast<std::uint64_t>(world.rank()) << 40));
            send[i % calls][i / calls] = static_cast<T>(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f);
        }
        step_record record;
        std::uint64_t step = 0;
        const auto timed = [&](auto&& work) {
            world.barrier(stream);
            stream.synchronize();
            const auto start = clock_type::now();
            work();
            stream.synchronize();
            return seconds_since(start);
        };
        const auto reduce = [&](auto& comm) {
            for (std::size_t c = 0; c < calls; ++c)
                comm.all_reduce(send[c], view(receive[c]), reduction::average, stream);
        };
        const auto with = [&](auto& comm) {
            reduce(comm);
            comm.end_step(step, stream);
            stream.synchronize();
            while (!comm.poll(record)) {
            }
        };
        for (int i = -2; i < steps; ++i, ++step) {
            const double bare = timed([&] { reduce(world); });
            const double one = timed([&] { with(audited); });
            const double both = timed([&] { with(full); });
            const double weights = timed([&] { with(weighed); });
            if (i < 0 || world.rank() != 0) continue; // the first two warm the buffers
            total.bare += bare;
            total.audited += one;
            total.full += both;
            total.weighed += weights;
        }
    });
    return total;
}

template <class T>
void audited_all_reduce(benchmark::State& state)
{
    times sum;
    for (auto _ : state) {
        const times one = time_steps<T>(static_cast<int>(state.range(0)), static_cast<std::uint64_t>(state.range(1)), 5);
        state.SetIterationTime(one.full / 5);
        sum.bare += one.bare;
        sum.audited += one.audited;
        sum.full += one.full;
        sum.weighed += one.weighed;
    }
    state.counters["audited_of_bare"] = sum.audited / sum.bare;
    state.counters["full_of_bare"] = sum.full / sum.bare;
    state.counters["weighed_of_bare"] = sum.weighed / sum.bare;
    state.counters["bare_us"] = sum.bare / 5 / static_cast<double>(state.iterations()) * 1e6;
}
BENCHMARK(audited_all_reduce<float>)
    ->ArgNames({"ranks", "count"})
    ->ArgsProduct({{2, 8}, {1 << 12, 1 << 16, 1 << 20}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(audited_all_reduce<bfloat16>)
    ->ArgNames({"ranks", "count"})
    ->ArgsProduct({{8}, {1 << 12, 1 << 16, 1 << 20}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

} // namespace
