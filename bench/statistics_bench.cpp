// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One pass of statistics over a buffer, on one thread, against a bare read and a memcpy of the same
// buffer. The peers run in turn with it inside each iteration, so a noisy machine hits all alike:
//
//   GBps               of the statistics, bytes read
//   read_GBps          explicit AVX2 sum, eight accumulators: as fast as this core reads
//   memcpy_GBps        bytes copied (each is read and written once)
//   ratio_to_read      median time of the read / median time of the statistics
//   ratio_to_memcpy    the same for memcpy
//
// Times are processor time of the thread, medians over the iterations: others' work on the machine
// costs cache and bandwidth, but not time slices.
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/scan/statistics.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bare_read.hpp"
#include "cpu_timing.hpp"

namespace {

using namespace collprobe;
using namespace collprobe::bench;

template <class T>
void statistics_pass(benchmark::State& state)
{
    const auto bytes = static_cast<std::size_t>(state.range(0));
    const std::vector<T> data = gradient_like<T>(bytes / sizeof(T));
    // Not at the same offset in its page: that makes some processors' block copies ten times slower.
    std::vector<unsigned char> room(bytes + 2048);
    unsigned char* const copy = room.data() + 2048;
    const auto* const raw = reinterpret_cast<const unsigned char*>(data.data());

    // A clock reading must not weigh on small buffers.
    const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{1} << 20) / bytes);
    std::vector<double> read_times, copy_times, own_times;
    for (auto _ : state) {
        copy_times.push_back(seconds([&] {
            for (std::size_t i = 0; i < repeats; ++i) {
                std::memcpy(copy, raw, bytes);
                benchmark::ClobberMemory();
            }
        }));
        // The copy leaves modified lines in the caches: whoever reads next pays for writing them back.
        benchmark::DoNotOptimize(bare_read(raw, bytes));
        read_times.push_back(seconds([&] {
            for (std::size_t i = 0; i < repeats; ++i) benchmark::DoNotOptimize(bare_read(raw, bytes));
        }));
        own_times.push_back(seconds([&] {
            for (std::size_t i = 0; i < repeats; ++i)
                benchmark::DoNotOptimize(compute_statistics(view<const T>(data)));
        }));
        state.SetIterationTime(own_times.back());
    }
    const double total = static_cast<double>(bytes) * static_cast<double>(repeats);
    const double own = median(own_times);
    state.counters["GBps"] = total / own * 1e-9;
    state.counters["read_GBps"] = total / median(read_times) * 1e-9;
    state.counters["memcpy_GBps"] = total / median(copy_times) * 1e-9;
    state.counters["ratio_to_read"] = median(read_times) / own;
    state.counters["ratio_to_memcpy"] = median(copy_times) / own;
}

enum class work { sketch, input_and_sketch, result, result_and_input, result_and_sketch, result_input_and_sketch };

/// What a step with checks reads of 64 MiB, 4096 bins, against the bare read.
template <class T, work what>
void read_pass(benchmark::State& state)
{
    constexpr std::size_t bytes = 64 << 20;
    const std::vector<T> data = gradient_like<T>(bytes / sizeof(T)), other = data;
    const view<const T> all(data);
    constexpr std::uint32_t bins = 4096;
    std::vector<double> sums(2 * bins);
    const detail::sketch_source<T> from{all, 0, bins, 1};
    const auto reduced = [&](const auto& reducer) { return reducer.finish(detail::reduce_blocks(reducer, all.count())); };
    const auto read = [&] {
        if constexpr (what == work::sketch) {
            detail::sketch_on_host(detail::best_isa(), from, sums.data());
        } else if constexpr (what == work::input_and_sketch) {
            using inner = statistics_reducer<T>;
            benchmark::DoNotOptimize(reduced(detail::sketched_reducer<inner, T>{inner(all), from, sums.data()}));
        } else {
            constexpr bool with_input = what == work::result_and_input || what == work::result_input_and_sketch;
            const detail::result_reducer<T> result{all, with_input ? other.data() : nullptr};
            if constexpr (what == work::result || what == work::result_and_input)
                benchmark::DoNotOptimize(reduced(result));
            else
                benchmark::DoNotOptimize(
                    reduced(detail::sketched_reducer<detail::result_reducer<T>, T>{result, from, sums.data()}));
        }
    };
    std::vector<double> read_times, own_times;
    for (auto _ : state) {
        read_times.push_back(seconds([&] {
            benchmark::DoNotOptimize(bare_read(reinterpret_cast<const unsigned char*>(data.data()), bytes));
        }));
        own_times.push_back(seconds(read));
        state.SetIterationTime(own_times.back());
    }
    state.counters["GBps"] = static_cast<double>(bytes) / median(own_times) * 1e-9;
    state.counters["ratio_to_read"] = median(read_times) / median(own_times);
}

template <class T>
void add_reads(const std::string& type)
{
    const auto add = [&](const char* what, auto* run) {
        benchmark::RegisterBenchmark(("read_pass<" + type + ", work::" + what + ">").c_str(), run)->UseManualTime()->MinTime(0.3);
    };
    add("sketch", read_pass<T, work::sketch>);
    add("input_and_sketch", read_pass<T, work::input_and_sketch>);
    add("result", read_pass<T, work::result>);
    add("result_and_input", read_pass<T, work::result_and_input>);
    add("result_and_sketch", read_pass<T, work::result_and_sketch>);
    add("result_input_and_sketch", read_pass<T, work::result_input_and_sketch>);
}

void sizes(benchmark::internal::Benchmark* bench)
{
    for (const std::int64_t kib : {4, 64, 1024, 16 * 1024, 64 * 1024, 256 * 1024}) bench->Arg(kib * 1024);
    bench->UseManualTime()->MinTime(0.3);
}

} // namespace

BENCHMARK_TEMPLATE(statistics_pass, float)->Apply(sizes);
BENCHMARK_TEMPLATE(statistics_pass, bfloat16)->Apply(sizes);
BENCHMARK_TEMPLATE(statistics_pass, float16)->Apply(sizes);
BENCHMARK_TEMPLATE(statistics_pass, float8_e4m3)->Apply(sizes);
BENCHMARK_TEMPLATE(statistics_pass, float8_e5m2)->Apply(sizes);
BENCHMARK_TEMPLATE(statistics_pass, double)->Apply(sizes);
[[maybe_unused]] static const bool reads_are_added
    = (add_reads<float>("float"), add_reads<bfloat16>("bfloat16"), add_reads<float16>("float16"), add_reads<double>("double"), true);
