// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the checks of integrity cost on one thread of the host, against a bare read of the same buffer, which runs in
// turn with them inside each iteration:
//
//   GBps            of the sketch, bytes read
//   read_GBps       explicit AVX2 sum, eight accumulators: as fast as this core reads
//   ratio_to_read   median time of the read / median time of the sketch
//
// Times are processor time of the thread, medians over the iterations.
#include <collprobe/scan/sketch.hpp>

#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "bare_read.hpp"
#include "cpu_timing.hpp"

namespace {

using namespace collprobe;
using namespace collprobe::bench;

template <class T>
void sketch_pass(benchmark::State& state)
{
    const auto bytes = static_cast<std::size_t>(state.range(0));
    std::mt19937_64 random(1);
    std::vector<T> data(bytes / sizeof(T));
    for (T& x : data) x = T(static_cast<float>(static_cast<std::int64_t>(random())) * 0x1p-70f);
    const auto* const raw = reinterpret_cast<const unsigned char*>(data.data());
    std::vector<sketch_sum<T>> result(sketch_numbers<T>({}));
    std::vector<double> sketches, reads;
    for (auto _ : state) {
        sketches.push_back(seconds([&] { sketch<T>(data, view<sketch_sum<T>>(result)); }));
        benchmark::DoNotOptimize(result.data());
        reads.push_back(seconds([&] { benchmark::DoNotOptimize(bench::bare_read(raw, bytes)); }));
    }
    const double sketching = median(sketches), reading = median(reads);
    state.counters["GBps"] = static_cast<double>(bytes) / sketching * 1e-9;
    state.counters["read_GBps"] = static_cast<double>(bytes) / reading * 1e-9;
    state.counters["ratio_to_read"] = reading / sketching;
}

BENCHMARK(sketch_pass<bfloat16>)->Arg(1 << 20)->Arg(25 << 20)->Arg(256 << 20);
BENCHMARK(sketch_pass<float16>)->Arg(25 << 20);
BENCHMARK(sketch_pass<float>)->Arg(1 << 20)->Arg(25 << 20)->Arg(256 << 20);
BENCHMARK(sketch_pass<double>)->Arg(25 << 20);
BENCHMARK(sketch_pass<std::int8_t>)->Arg(25 << 20);
BENCHMARK(sketch_pass<std::int32_t>)->Arg(25 << 20);

} // namespace
