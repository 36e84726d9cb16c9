// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the checks of integrity cost on one thread of the host, against a bare read of the same buffer, which runs in
// turn with them inside each iteration:
//
//   GBps            of the check, bytes read
//   read_GBps       explicit AVX2 sum, eight accumulators: as fast as this core reads
//   ratio_to_read   median time of the read / median time of the check
//
// Times are processor time of the thread, medians over the iterations.
#include <collprobe/scan/sketch.hpp>
#include <collprobe/scan/tensor_part.hpp>

#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "bare_read.hpp"
#include "cpu_timing.hpp"

namespace {

using namespace collprobe;
using namespace collprobe::bench;

/// Times `check`, which reads `bytes` from `data`, and a bare read of them.
template <class Check>
void measure(benchmark::State& state, const void* data, std::size_t bytes, Check check)
{
    std::vector<double> checks, reads;
    for (auto _ : state) {
        checks.push_back(seconds(check));
        reads.push_back(seconds([&] { benchmark::DoNotOptimize(bare_read(static_cast<const unsigned char*>(data), bytes)); }));
    }
    state.counters["GBps"] = static_cast<double>(bytes) / median(checks) * 1e-9;
    state.counters["read_GBps"] = static_cast<double>(bytes) / median(reads) * 1e-9;
    state.counters["ratio_to_read"] = median(reads) / median(checks);
}

template <class T>
void sketch_pass(benchmark::State& state)
{
    const auto bytes = static_cast<std::size_t>(state.range(0));
    std::mt19937_64 random(1);
    std::vector<T> data(bytes / sizeof(T));
    for (T& x : data) x = T(static_cast<float>(static_cast<std::int64_t>(random())) * 0x1p-70f);
    std::vector<double> result(sketch_numbers({}));
    measure(state, data.data(), bytes, [&] {
        sketch<T>(data, view<double>(result));
        benchmark::DoNotOptimize(result.data());
    });
}

BENCHMARK(sketch_pass<bfloat16>)->Arg(1 << 20)->Arg(25 << 20)->Arg(256 << 20);
BENCHMARK(sketch_pass<float16>)->Arg(25 << 20);
BENCHMARK(sketch_pass<float>)->Arg(1 << 20)->Arg(25 << 20)->Arg(256 << 20);
BENCHMARK(sketch_pass<double>)->Arg(25 << 20);
BENCHMARK(sketch_pass<float8_e4m3>)->Arg(25 << 20);

enum class part_kind { digest, bfloat16, float16 };

/// A block of columns of a matrix of float, dense in memory: rows of `range(0)` bytes, which begin at a line of 64 bytes
/// of the matrix or, for `range(1)` = 1, anywhere. 256 MiB in all.
template <part_kind kind>
void part_pass(benchmark::State& state)
{
    constexpr std::uint64_t bytes = 256u << 20;
    const std::vector<float> data = gradient_like<float>(bytes / 4);
    const auto width = static_cast<std::uint64_t>(state.range(0)) / 4;
    const std::uint64_t rows = data.size() / width;
    const std::uint64_t odd = state.range(1) != 0 ? 1 : 0;
    const tensor_part part{view(data), {rows, 4 * width + odd}, {{0, width + odd}, {rows, width}}};
    measure(state, data.data(), bytes, [&] {
        const element_cast cast{kind == part_kind::bfloat16 ? element_type::bfloat16 : element_type::float16};
        benchmark::DoNotOptimize(digest_part(part, {&cast, kind == part_kind::digest ? 0u : 1u}));
    });
}

void rows(benchmark::internal::Benchmark* bench)
{
    for (const std::int64_t row : {64, 128, 256, 260, 512, 4096, 65536})
        for (const std::int64_t odd : {0, 1}) bench->Args({row, odd});
}
BENCHMARK(part_pass<part_kind::digest>)->Apply(rows);
BENCHMARK(part_pass<part_kind::bfloat16>)->Args({4096, 1});
BENCHMARK(part_pass<part_kind::float16>)->Args({4096, 1});

} // namespace
