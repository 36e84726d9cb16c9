// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// All-reduce over `local`, whose ranks are threads of this process: the communicator's own (in ring order) and those
// under contracts; then the sum in the owner alone, on one thread, against a plain read of the same memory.
//
//     all_reduce_bench --ranks 4 --min 1KiB --max 256MiB
#include "all_reduce_table.hpp"

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/sum/sum_rows.hpp>

#include "bare_read.hpp"

using namespace collprobe;

namespace {

/// Of the processor, so that others' work on the machine costs cache and bandwidth, but no time slices.
template <class Fn>
double seconds(Fn fn)
{
    const auto now = [] {
        timespec used{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
    };
    const double start = now();
    fn();
    return now() - start;
}

volatile std::uint64_t sink; // or the compiler would leave out the read

/// The GB/s that are read by the sum of `terms` rows, and their ratio to a plain read's; medians of rounds in turn.
template <accumulation in, floating_element T>
void time_sum(const std::vector<T>& rows, std::uint64_t terms, std::vector<T>& result, double least_seconds)
{
    if constexpr (holds<T>(in)) {
        constexpr int width = static_cast<int>(host::device::body_bytes / sizeof(T));
        const std::uint64_t count = rows.size() / terms;
        const sum_rows<in, T, width> body{{rows.data(), 1, count, count}, terms, result.data(), count, 1};
        std::vector<double> times, ratios;
        double spent = 0;
        while (times.empty() || spent < least_seconds) {
            const double read = seconds([&] {
                sink = bench::bare_read(reinterpret_cast<const unsigned char*>(rows.data()), rows.size() * sizeof(T));
            });
            times.push_back(seconds([&] {
                for (std::uint64_t block = 0; block < body.blocks(); ++block) body(block);
            }));
            ratios.push_back(read / times.back());
            spent += read + times.back();
        }
        std::printf("| %8s | %11s | %5llu | %6.2f | %12.2f |\n", element_traits<T>::name, name(in),
            static_cast<unsigned long long>(terms),
            static_cast<double>(rows.size() * sizeof(T)) / bench::median_of(times) * 1e-9, bench::median_of(ratios));
    }
}

template <floating_element T>
void time_sums(double least_seconds)
{
    std::vector<T> rows((std::uint64_t{16} << 20) / sizeof(T));
    const bench::fill_like_gradient<T> fill{rows.data(), 1};
    for (std::uint64_t i = 0; i < rows.size(); ++i) fill(i);
    std::vector<T> result(rows.size() / 2);
    for (const std::uint64_t terms : {2u, 4u, 8u, 64u}) {
        time_sum<accumulation::native>(rows, terms, result, least_seconds);
        time_sum<accumulation::float32>(rows, terms, result, least_seconds);
        time_sum<accumulation::float64>(rows, terms, result, least_seconds);
        time_sum<accumulation::exact>(rows, terms, result, least_seconds);
    }
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const bench::all_reduce_options given = bench::parse_all_reduce_options("all_reduce_bench", argc, argv);
        for (const element_type type : given.types) {
            collprobe::with_floating_type(type, [&]<class T>(T) {
                for (const int ranks : given.ranks) {
                    local::run(ranks, {.timeout_ms = 120'000, .order = local::reduction_order::ring},
                        [&](local::communicator& comm) {
                            bench::all_reduce_table<T>(comm, "local", given, [](auto&) {});
                        });
                }
            });
        }
        std::printf("\nThe sum alone, one thread, 16 MiB of terms\n\n| %8s | %11s | %5s | %6s | of plain read |\n"
                    "|---|---|---|---|---|\n", "type", "added in", "terms", "GB/s");
        for (const element_type type : given.types) {
            collprobe::with_floating_type(type, [&]<class T>(T) { time_sums<T>(given.settings.seconds); });
        }
        return 0;
    } catch (const std::exception& problem) {
        return trainer::explain("all_reduce_bench", problem);
    }
}
