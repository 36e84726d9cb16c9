// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Type x order x accumulator x input x n: how wrong a sum is, how much it depends on the order, and what it costs
// (`sum_in_order`, one element at a time). The counters:
//
//   relative_rms       error against the exact sum, over its root mean square
//   largest_ulp        the largest error, in units of the last place
//   changed            share of elements with other bits after the ranks have moved on by about a third
//   per_term           time
//
// and sum_rows, which adds a block of neighbouring elements at once in linear order, with its time only.
// COLLPROBE_GRADIENTS names a folder of gradients, one file a rank, as silent_inconsistency --dump writes them at one
// step; without it their rows say so.
#include <collprobe/sum/sum_rows.hpp>

#include <benchmark/benchmark.h>

#include "summation_order.hpp"

using namespace summation;

namespace {

benchmark::Counter time_over(std::uint64_t terms)
{
    using counter = benchmark::Counter;
    return {static_cast<double>(terms), counter::kIsIterationInvariantRate | counter::kInvert};
}

template <accumulation in, class T>
void sum_terms(benchmark::State& state, order_kind order, input kind, int n)
{
    const std::size_t count = std::max<std::size_t>(32, 16'384 / static_cast<std::size_t>(std::max(n, 1)));
    const message<T> terms = kind == input::gradients ? gradients<T>(std::getenv("COLLPROBE_GRADIENTS"), 2'048)
                                                      : random_message<T>(kind, n, count);
    if (terms.n == 0) {
        state.SkipWithError("COLLPROBE_GRADIENTS names no folder of gradients");
        return;
    }
    const summation::summation orders(order, terms.n, terms.count);
    for (auto _ : state) {
        for (std::size_t i = 0; i < terms.count; ++i) {
            benchmark::DoNotOptimize(sum_in_order<in>(terms.of(i), orders.of(i)));
        }
    }
    const accuracy is = measure<in>(order, terms);
    state.counters["relative_rms"] = is.relative_rms;
    state.counters["largest_ulp"] = is.largest_ulp;
    state.counters["changed"] = is.changed;
    state.counters["per_term"] = time_over(terms.terms.size());
}

template <accumulation in, class T>
void add_rows(benchmark::State& state, int n)
{
    constexpr std::uint64_t count = 16'384;
    const auto rows = static_cast<std::uint64_t>(n);
    const message<T> terms = random_message<T>(input::normal, n, count); // in any arrangement
    std::vector<T> result(count);
    const sum_rows<in, T, 64> body{{terms.terms.data(), 1, count, 0}, rows, result.data(), count, 1};
    for (auto _ : state) {
        for (std::uint64_t block = 0; block < body.blocks(); ++block) body(block);
        benchmark::ClobberMemory();
    }
    state.counters["per_term"] = time_over(rows * count);
}

template <accumulation in, class T>
void add_benchmarks()
{
    const std::string what = std::string(element_traits<T>::name) + "/" + name(in) + "/";
    for (const order_kind order : {order_kind::linear, order_kind::ring, order_kind::tree, order_kind::recursive_halving,
             order_kind::pairwise, order_kind::permuted}) {
        const std::string prefix = "sum_in_order/" + what + name(order) + "/";
        for (const input kind : {input::normal, input::same_sign, input::wide}) {
            for (const int n : {2, 8, 64, 512, 4096}) {
                benchmark::RegisterBenchmark((prefix + name(kind) + "/n:" + std::to_string(n)).c_str(),
                    [=](benchmark::State& state) { sum_terms<in, T>(state, order, kind, n); })
                    ->MinTime(0.01);
            }
        }
        benchmark::RegisterBenchmark((prefix + name(input::gradients)).c_str(),
            [=](benchmark::State& state) { sum_terms<in, T>(state, order, input::gradients, 0); })
            ->MinTime(0.01);
    }
    for (const int n : {2, 4, 8, 64}) {
        benchmark::RegisterBenchmark(("sum_rows/" + what + "n:" + std::to_string(n)).c_str(),
            [=](benchmark::State& state) { add_rows<in, T>(state, n); });
    }
}

template <class T>
int add_type()
{
    add_benchmarks<accumulation::native, T>();
    if constexpr (sizeof(T) <= 4) add_benchmarks<accumulation::float32, T>();
    add_benchmarks<accumulation::float64, T>();
    add_benchmarks<accumulation::compensated, T>();
    add_benchmarks<accumulation::exact, T>();
    return 0;
}

[[maybe_unused]] const int added = add_type<float16>() + add_type<bfloat16>() + add_type<float>() + add_type<double>();

} // namespace
