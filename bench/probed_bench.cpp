// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What probing adds to a step. Ranks are threads of this process, so with more ranks than processors
// the times are of all ranks' work together, and the ratio to the bare step is what counts.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

using namespace collprobe;

namespace {

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point start)
{
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

std::vector<float> random_values(int rank, std::size_t count)
{
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
}

/// Seconds of rank 0 for the bare and the probed form of the same steps, taken in turn.
struct pair_of_times {
    double bare = 0;
    double probed = 0;
};

pair_of_times time_steps(int ranks, std::size_t buckets, std::size_t count, int steps, const probe_options& options)
{
    pair_of_times total;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, options);
        std::vector<std::vector<float>> send, receive;
        for (std::size_t b = 0; b < buckets; ++b) {
            send.push_back(random_values(world.rank() + static_cast<int>(b) * 1000, count));
            receive.emplace_back(count);
        }
        step_record record;
        const auto step = [&](auto& over) {
            for (std::size_t b = 0; b < buckets; ++b) {
                over.all_reduce(view<const float>(send[b]), view<float>(receive[b]), reduction::sum, stream);
            }
        };
        for (int i = -2; i < steps; ++i) {
            world.barrier(stream);
            stream.synchronize();
            auto start = clock_type::now();
            step(world);
            stream.synchronize();
            const double bare = seconds_since(start);

            world.barrier(stream);
            stream.synchronize();
            start = clock_type::now();
            step(comm);
            comm.end_step(static_cast<std::uint64_t>(i + 2), {.loss = 1}, stream);
            stream.synchronize();
            while (!comm.poll(record)) {
            }
            const double with_probe = seconds_since(start);
            if (i < 0 || world.rank() != 0) continue; // the first two warm the buffers
            total.bare += bare;
            total.probed += with_probe;
        }
    });
    return total;
}

/// A probed all-reduce with its step report against the bare all-reduce.
void probed_all_reduce(benchmark::State& state)
{
    const int ranks = static_cast<int>(state.range(0));
    const auto count = static_cast<std::size_t>(state.range(1));
    const auto mode = static_cast<direction_mode>(state.range(2));
    pair_of_times sum;
    for (auto _ : state) {
        const pair_of_times times = time_steps(ranks, 1, count, 5, {.direction = mode});
        state.SetIterationTime(times.probed / 5);
        sum.bare += times.bare;
        sum.probed += times.probed;
    }
    state.counters["ratio_to_bare"] = sum.probed / sum.bare;
    state.counters["bare_us"] = sum.bare / 5 / static_cast<double>(state.iterations()) * 1e6;
}
BENCHMARK(probed_all_reduce)
    ->ArgNames({"ranks", "count", "exact"})
    ->ArgsProduct({{2, 8}, {1 << 12, 1 << 16, 1 << 20, 1 << 22}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// A step report of four small buckets: almost nothing but the report itself.
void step_report(benchmark::State& state)
{
    const int ranks = static_cast<int>(state.range(0));
    const auto mode = static_cast<report_mode>(state.range(1));
    pair_of_times sum;
    for (auto _ : state) {
        const pair_of_times times = time_steps(ranks, 4, 64, 5, {.mode = mode});
        state.SetIterationTime((times.probed - times.bare) / 5);
        sum.bare += times.bare;
        sum.probed += times.probed;
    }
    state.counters["ratio_to_bare"] = sum.probed / sum.bare;
    state.counters["bare_us"] = sum.bare / 5 / static_cast<double>(state.iterations()) * 1e6;
}
BENCHMARK(step_report)
    ->ArgNames({"ranks", "summary"})
    ->ArgsProduct({{8, 64, 256}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// What each rank's host thread spends on turning the gathered messages into the verdict.
void judge_step(benchmark::State& state)
{
    const int ranks = static_cast<int>(state.range(0));
    const auto buckets = static_cast<std::size_t>(state.range(1));
    const detail::message_layout layout{.times = state.range(2) != 0};
    std::vector<unsigned char> bytes(static_cast<std::size_t>(ranks) * layout.bytes(buckets));
    std::vector<detail::probed_call> calls(buckets, {.count = 4096, .has_input = true, .has_result = true});
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (int r = 0; r < ranks; ++r) {
        unsigned char* const message = bytes.data() + static_cast<std::size_t>(r) * layout.bytes(buckets);
        *reinterpret_cast<detail::step_header*>(message) = {1, 2 + 0.1 * normal(random), 1, detail::not_given(), 0};
        for (std::size_t b = 0; b < buckets; ++b) {
            detail::call_entry& entry = layout.entry(message, b);
            entry = {};
            entry.input.count = 4096;
            entry.input.digest = random();
            entry.input.sum_of_squares = 4096 + 64 * normal(random);
            entry.result = {.digest = 7, .sum_of_squares = 4096.0 * ranks, .dot = 4096, .nonfinite = 0};
            if (layout.times) {
                const auto start = static_cast<clock_stamp>(b * 10000);
                layout.times_of(message, b) = {start, start + 1000 + static_cast<clock_stamp>(random() % 100)};
            }
        }
    }
    detail::step_judge judge(ranks, {.false_alarms_per_run = 0}, report_mode::gather, layout.times);
    step_record record;
    for (auto _ : state) {
        judge.judge(detail::gathered_step(bytes.data(), ranks, buckets, layout), calls, {}, {}, record);
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
