// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sums of rows on a GPU, as the owner of a slice adds them in a reproducible reduction, against a plain read of the same
// memory, by CUDA events; medians over the rounds:
//
//   GBps, read_GBps    bytes of the rows over time: of the sum, and of the faster of two kernels that only read
//   of_read            GBps over read_GBps
#include "gpu_read.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <collprobe/sum/sum_rows.hpp>

using namespace collprobe;
namespace cu = collprobe::cuda; // CUB has a namespace cuda, too

namespace {

/// The sum of `terms` rows of 256 MiB together.
template <class T, accumulation in>
void sum(benchmark::State& state)
{
    const auto terms = static_cast<std::uint64_t>(state.range(0));
    bench::on_gpu(state, [&] {
        const std::uint64_t bytes = bench::capped(std::uint64_t{256} << 20);
        constexpr int width = static_cast<int>(cu::device::body_bytes / sizeof(T));
        const std::uint64_t count = bytes / sizeof(T) / terms;
        const cu::buffer<T> rows(bytes / sizeof(T));
        const cu::buffer<T> result(count);
        const cu::stream stream;
        cu::device::for_each(stream, rows.size(), bench::fill_like_gradient<T>{rows.data(), 1});
        const sum_rows<in, T, width> body{{rows.data(), 1, count, count}, terms, result.data(), count, 1};
        const bench::reader readers[] = {bench::reader::of<512, 4>(true), bench::reader::of<512, 4>(false)};
        bench::device_timer timer;
        const auto seconds = [&](auto work) { return timer.measure(stream, 50, work).device; };
        std::vector<double> own, read;
        for (int i = -1; i < bench::rounds(30); ++i) { // the first loads the kernels
            double fastest = 1e9;
            for (const bench::reader& one : readers)
                fastest = std::min(fastest, seconds([&] { one.run(stream, rows.data(), bytes); }));
            const double time = seconds([&] { cu::device::for_each(stream, body.blocks(), body); });
            if (i < 0) continue;
            own.push_back(time);
            read.push_back(fastest);
        }
        for (auto _ : state) state.SetIterationTime(bench::median(own));
        state.counters["GBps"] = static_cast<double>(bytes) / bench::median(own) * 1e-9;
        state.counters["read_GBps"] = static_cast<double>(bytes) / bench::median(read) * 1e-9;
        state.counters["of_read"] = bench::median(read) / bench::median(own);
    });
}

template <floating_element T>
void add_cases()
{
    const std::string type = element_traits<T>::name;
    const auto add_sum = [&](const char* in, auto* run) {
        bench::timed_by_hand(benchmark::RegisterBenchmark(("sum/" + type + "/" + in).c_str(), run), 1)
            ->ArgName("terms")->Arg(2)->Arg(8)->Arg(64);
    };
    add_sum("native", sum<T, accumulation::native>);
    add_sum("float32", sum<T, accumulation::float32>);
    add_sum("float64", sum<T, accumulation::float64>);
    add_sum("exact", sum<T, accumulation::exact>);
}

[[maybe_unused]] const bool added = (add_cases<float>(), add_cases<bfloat16>(), add_cases<collprobe::float16>(), true);

} // namespace
