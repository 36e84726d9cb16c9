// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the sum of an element costs, by type, order and accumulation, over 8 rows of N(0, 1): `sum_in_order` as the
// program summation_order calls it (examples/studies/summation_order, whose orders and measures these are). The
// counters:
//
//   bytes_per_second   of terms, on one core
//   per_element        time
//   relative_error     the length of the vector of errors over that of the correctly rounded sums
//   largest_ulp        the largest error, in numbers of the type
//
// and `sum_rows`, which adds in linear order alone. `owners_sum`: as the owner of a slice adds rows of 16 MiB together in a
// reproducible reduction, against a plain read of them in turn; processor time, medians: GBps, of_read.
#include <collprobe/device/host/device.hpp>
#include <collprobe/sum/sum_rows.hpp>

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "../examples/studies/summation_order/measures.hpp"
#include "../examples/studies/summation_order/orders.hpp"
#include "../examples/studies/summation_order/random_terms.hpp"
#include "bare_read.hpp"
#include "cpu_timing.hpp"

using namespace summation;

namespace {

constexpr int ranks = 8;
constexpr std::uint64_t elements = 16'384; // the rows stay in the second cache

template <class T>
struct rows_of_terms {
    std::vector<T> terms;
    std::vector<const T*> rows;

    rows_of_terms() : terms(ranks * elements)
    {
        const random_terms draw(input_kind::normal, 1, ranks);
        for (int row = 0; row < ranks; ++row) {
            T* const own = terms.data() + static_cast<std::size_t>(row) * elements;
            for (std::uint64_t i = 0; i < elements; ++i) own[i] = T(draw(row, i));
            rows.push_back(own);
        }
    }
};

template <class T>
void set_counters(benchmark::State& state)
{
    using counter = benchmark::Counter;
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(ranks * elements * sizeof(T)));
    state.counters["per_element"] = counter(
        static_cast<double>(elements), counter::kIsIterationInvariantRate | counter::kInvert);
}

template <class T>
void add_in_order(benchmark::State& state, method how)
{
    const rows_of_terms<T> from;
    const auto orders = orders_over_ranks(how.order, ranks, {elements, sizeof(T)});
    std::vector<T> result(elements), right(elements);
    for (auto _ : state) {
        add_rows(how.in, from.rows.data(), orders, result.data(), 0, elements);
        benchmark::ClobberMemory();
    }
    set_counters<T>(state);
    add_rows(accumulation::exact, from.rows.data(), orders, right.data(), 0, elements);
    method_measures measures;
    measures.add({0, elements, nullptr}, result.data(), right.data());
    state.counters["relative_error"] = measures.relative_error();
    state.counters["largest_ulp"] = static_cast<double>(measures.largest.ulp);
}

template <class T, accumulation in>
void add_rows_linearly(benchmark::State& state)
{
    const rows_of_terms<T> from;
    std::vector<T> result(elements);
    const sum_rows<in, T, 64> body{{from.terms.data(), 1, elements, 0}, ranks, result.data(), elements, 1};
    for (auto _ : state) {
        for (std::uint64_t block = 0; block < body.blocks(); ++block) body(block);
        benchmark::ClobberMemory();
    }
    set_counters<T>(state);
}

template <class T, accumulation in>
void owners_sum(benchmark::State& state)
{
    const auto terms = static_cast<std::uint64_t>(state.range(0));
    const std::vector<T> rows = bench::gradient_like<T>((std::uint64_t{16} << 20) / sizeof(T));
    const std::uint64_t count = rows.size() / terms, bytes = rows.size() * sizeof(T);
    std::vector<T> result(count);
    constexpr int width = static_cast<int>(host::device::body_bytes / sizeof(T));
    const sum_rows<in, T, width> body{{rows.data(), 1, count, count}, terms, result.data(), count, 1};
    std::vector<double> times, ratios;
    for (auto _ : state) {
        const double read = bench::seconds([&] {
            benchmark::DoNotOptimize(bench::bare_read(reinterpret_cast<const unsigned char*>(rows.data()), bytes));
        });
        times.push_back(bench::seconds([&] {
            for (std::uint64_t block = 0; block < body.blocks(); ++block) body(block);
        }));
        ratios.push_back(read / times.back());
    }
    state.counters["GBps"] = static_cast<double>(bytes) / bench::median(times) * 1e-9;
    state.counters["of_read"] = bench::median(ratios);
}

template <class T>
void add_owners_sums()
{
    const auto add = [](const char* in, auto* run) {
        benchmark::RegisterBenchmark((std::string("owners_sum/") + element_traits<T>::name + '/' + in).c_str(), run)
            ->ArgName("terms")->Arg(2)->Arg(4)->Arg(8)->Arg(64);
    };
    add("native", owners_sum<T, accumulation::native>);
    add("float32", owners_sum<T, accumulation::float32>);
    add("float64", owners_sum<T, accumulation::float64>);
    add("exact", owners_sum<T, accumulation::exact>);
}

template <class T>
void add_benchmarks(const std::vector<method>& methods)
{
    const std::string type = std::string(element_traits<T>::name) + '/';
    for (const method& how : methods) {
        benchmark::RegisterBenchmark(("sum_in_order/" + type + collprobe::name(how.in) + '/' + how.order.text()).c_str(),
            [how](benchmark::State& state) { add_in_order<T>(state, how); });
    }
}

const int added = [] {
    const order_choice linear{order_kind::linear}, ring{order_kind::ring}, doubling{order_kind::recursive_doubling};
    add_benchmarks<bfloat16>({{linear, accumulation::native}, {ring, accumulation::native},
        {ring, accumulation::float32}, {ring, accumulation::exact}});
    add_benchmarks<float16>({{ring, accumulation::native}, {ring, accumulation::exact}});
    add_benchmarks<float>({{linear, accumulation::native}, {ring, accumulation::native}, {doubling, accumulation::native},
        {ring, accumulation::float64}, {ring, accumulation::exact}});
    add_benchmarks<double>({{ring, accumulation::native}, {ring, accumulation::exact}});
    benchmark::RegisterBenchmark("sum_rows/bfloat16/float32", add_rows_linearly<bfloat16, accumulation::float32>);
    benchmark::RegisterBenchmark("sum_rows/float/native", add_rows_linearly<float, accumulation::native>);
    add_owners_sums<float>();
    add_owners_sums<bfloat16>();
    return 0;
}();

} // namespace
