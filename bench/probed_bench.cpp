// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What probing adds to a step, with and without an audit. Ranks are threads of this process, so with more ranks than
// processors the times are of all ranks' work together, and the ratio to the same calls without a probe, which run in
// turn, is what counts. An all-reduce between threads is a few reads of memory: over a network the same checks are a
// smaller share.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "cpu_timing.hpp"
#include "made_up_messages.hpp"

using namespace collprobe;

namespace {

constexpr int steps = 5; ///< of a measurement

/// Seconds of rank 0 for steps of so many all-reduces: bare, then as each of `probes(world)` has them, in turn.
template <class T, class Probes>
std::vector<double> time_steps(int ranks, std::size_t calls, std::size_t count, Probes probes)
{
    std::vector<double> total;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        auto probed_by = probes(world);
        std::vector<std::vector<T>> send, receive(calls, std::vector<T>(count));
        for (std::size_t c = 0; c < calls; ++c) send.push_back(bench::gradient_like<T>(count, (static_cast<std::uint64_t>(world.rank()) << 40) + (c << 32)));
        step_record record;
        for (int step = -2; step < steps; ++step) {
            std::vector<double> times;
            const auto time = [&](auto& comm) {
                world.barrier(stream);
                stream.synchronize();
                times.push_back(bench::seconds([&] {
                    for (std::size_t c = 0; c < calls; ++c)
                        comm.all_reduce(view<const T>(send[c]), view<T>(receive[c]), reduction::average, stream);
                    constexpr bool is_probed = requires { comm.poll(record); };
                    if constexpr (is_probed) comm.end_step(static_cast<std::uint64_t>(step + 2), {.loss = 1}, stream);
                    stream.synchronize();
                    if constexpr (is_probed) while (!comm.poll(record)) {}
                }, &bench::real_seconds));
            };
            time(world);
            std::apply([&](auto&... each) { (time(each), ...); }, probed_by);
            if (step < 0 || world.rank() != 0) continue; // the first two warm the buffers
            total.resize(times.size());
            for (std::size_t i = 0; i < times.size(); ++i) total[i] += times[i];
        }
    });
    return total;
}

/// The last form's time, less the bare one's `bare_share` times, and the ratios of all to the bare one.
template <class T, class Probes>
void measure(benchmark::State& state, std::size_t calls, std::size_t count, std::vector<const char*> ratios, Probes probes,
    double bare_share = 0)
{
    std::vector<double> sums(1 + ratios.size());
    for (auto _ : state) {
        const std::vector<double> times = time_steps<T>(static_cast<int>(state.range(0)), calls, count, probes);
        state.SetIterationTime((times[ratios.size()] - bare_share * times[0]) / steps);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += times[i];
    }
    for (std::size_t i = 0; i < ratios.size(); ++i) state.counters[ratios[i]] = sums[1 + i] / sums[0];
    state.counters["bare_us"] = sums[0] / steps / static_cast<double>(state.iterations()) * 1e6;
}

auto probe_with(const probe_options& options)
{
    return [options](local::communicator& world) { return std::tuple(probed<local::communicator>(world, options)); };
}

/// A probed all-reduce with its step report.
void probed_all_reduce(benchmark::State& state)
{
    const auto count = static_cast<std::size_t>(state.range(1));
    measure<float>(state, 1, count, {"ratio_to_bare"}, probe_with({.direction = static_cast<direction_mode>(state.range(2))}));
}
BENCHMARK(probed_all_reduce)
    ->ArgNames({"ranks", "count", "exact"})
    ->ArgsProduct({{2, 8}, {1 << 12, 1 << 16, 1 << 20, 1 << 22}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// A step report of four small buckets: almost nothing but the report itself.
void step_report(benchmark::State& state)
{
    measure<float>(state, 4, 64, {"ratio_to_bare"}, probe_with({.mode = static_cast<report_mode>(state.range(1))}), 1);
}
BENCHMARK(step_report)
    ->ArgNames({"ranks", "summary"})
    ->ArgsProduct({{8, 64, 256}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Eight all-reduces with a `weight_probe` alone that looks at each step, with an audit alone, and with statistics and audit.
template <class T>
void audited_all_reduce(benchmark::State& state)
{
    const auto count = static_cast<std::size_t>(state.range(1));
    measure<T>(state, 8, count, {"weighed_of_bare", "audited_of_bare", "full_of_bare"}, [](local::communicator& world) {
        return std::tuple(probed(local::communicator(world), {.statistics = false}, weight_probe({.every = 1})),
            probed(local::communicator(world), {.statistics = false}, audit()), probed(local::communicator(world), {}, audit()));
    });
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

/// What each rank's host thread spends on turning the gathered messages into the verdict.
void judge_step(benchmark::State& state)
{
    const int ranks = static_cast<int>(state.range(0));
    const auto buckets = static_cast<std::size_t>(state.range(1));
    const bool times = state.range(2) != 0;
    bench::made_up_messages made(ranks, buckets, times);
    const detail::gathered_step gathered = made.next();
    const auto calls = made.calls();
    detail::step_judge judge(ranks, {.false_alarms_per_run = 0}, report_mode::gather, times);
    step_record record;
    for (auto _ : state) {
        judge.judge(gathered, calls, {}, {}, record);
        benchmark::DoNotOptimize(record);
    }
    state.counters["ns_per_record"]
        = benchmark::Counter(static_cast<double>(ranks) * static_cast<double>(buckets) * 1e-9,
            benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(judge_step)
    ->ArgNames({"ranks", "buckets", "times"})
    ->ArgsProduct({{8, 64, 256, 1024}, {4, 76}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

} // namespace
