// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The command line and the tables of the all-reduce benchmarks on the CPU.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "../examples/studies/digits/words.hpp"
#include "all_reduce.hpp"

namespace collprobe::bench {

struct all_reduce_options {
    std::uint64_t min = 1 << 10;
    std::uint64_t max = std::uint64_t{64} << 20;
    std::uint64_t factor = 4;
    std::vector<element_type> types = {element_type::float32, element_type::bfloat16};
    std::vector<method> methods
        = {method::size_invariant, method::float32, method::correctly_rounded, method::fixed_point, method::upcast};
    all_reduce_settings settings;
    std::vector<int> ranks = {2, 4, 8};
    bool best = false;
};

/// \throws trainer::usage_error for anything it cannot follow, trainer::help_request
inline all_reduce_options parse_all_reduce_options(const char* program, int argc, char** argv)
{
    trainer::command_line line(program, "0, 1 if the run failed, 2 if the command line is wrong.");
    all_reduce_options result;
    const auto bytes = [](auto& size) {
        return [&size](const std::string& option, std::string_view text) { size = trainer::parse_bytes(option, text); };
    };
    line.value("--min", "BYTES", bytes(result.min), "first size (1KiB)");
    line.value("--max", "BYTES", bytes(result.max), "last size (64MiB)");
    line.number("--factor", result.factor, 2, 1024, "from one size to the next");
    line.choices("--types", result.types,
        {{"float", element_type::float32}, {"double", element_type::float64}, {"bfloat16", element_type::bfloat16},
            {"half", element_type::float16}},
        "of float, double, bfloat16, half (float,bfloat16)");
    line.choices("--levels", result.methods,
        {{"size_invariant", method::size_invariant}, {"float32", method::float32},
            {"correctly_rounded", method::correctly_rounded}, {"fixed_point", method::fixed_point},
            {"upcast", method::upcast}, {"int8", method::int8}, {"int4", method::int4}},
        "of size_invariant, float32 (that level with another accumulator),\ncorrectly_rounded, fixed_point, "
        "upcast (to float, of\n16-bit types), int8, int4 (by codes) (size_invariant,float32,correctly_rounded,fixed_point,upcast)");
    line.choice("--algorithm", "NAME", result.settings.algorithm,
        {{"automatic", reduction_algorithm::automatic}, {"exchange", reduction_algorithm::exchange},
            {"one_shot", reduction_algorithm::one_shot}},
        "automatic, exchange or one_shot");
    line.value("--scratch", "BYTES", bytes(result.settings.scratch_bytes), "memory of each contract (16MiB)");
    line.number("--seconds", result.settings.seconds, 0, 3600,
        "that a line takes, if its least number of rounds is no longer", "X");
    line.flag("--best", result.best,
        "the shortest times and their ratios, in place of medians: for a machine\nthat others use too");
    line.numbers("--ranks", result.ranks, 1, 256, "threads, of the benchmark over `local`");
    line.parse(std::vector<std::string>(argv + 1, argv + argc));
    return result;
}

/// 1 KiB, 64 MiB.
inline std::string bytes_text(std::uint64_t bytes)
{
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
    if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
    return std::to_string(bytes) + " B";
}

/// One table, a line for each size, as Markdown. Collective; rank 0 prints. `add_first(bench)` may add what ratios are to
/// in place of the communicator's own.
template <floating_element T, class Comm, class Add>
void all_reduce_table(const Comm& comm, const char* over, const all_reduce_options& given, Add add_first)
{
    all_reduce_bench<T, Comm> bench(comm, given.max, given.settings);
    add_first(bench);
    bench.add_native();
    for (const method which : given.methods) bench.add(which);
    const bool speaks = comm.rank() == 0;
    const auto n = static_cast<double>(comm.size());
    bool headed = false;
    for (std::uint64_t bytes = given.min; bytes <= given.max; bytes *= given.factor) {
        const std::vector<timed_call>& calls = bench.measure(bytes);
        if (!speaks) continue;
        if (!headed) {
            std::printf("\n%s, %d rank%s over %s\n\n| %9s | %13s ms | %9s | %9s |", element_traits<T>::name, comm.size(),
                comm.size() == 1 ? "" : "s", over, "bytes", calls[0].name.c_str(), "algbw GBs",
                "busbw GBs");
            std::string rule = "|---|---|---|---|";
            for (std::size_t i = 1; i < calls.size(); ++i) {
                std::printf(" %10s ms | ratio |", calls[i].name.c_str());
                rule += "---|---|";
            }
            std::printf("\n%s\n", rule.c_str());
            headed = true;
        }
        const auto seconds = [&](const timed_call& of) { return given.best ? of.best() : of.seconds(); };
        const double first = seconds(calls[0]);
        const double algbw = static_cast<double>(bytes) / first * 1e-9;
        std::printf("| %9s | %16.4f | %9.3f | %9.3f |", bytes_text(bytes).c_str(), first * 1e3, algbw,
            algbw * 2 * (n - 1) / n);
        for (std::size_t i = 1; i < calls.size(); ++i) {
            const int width = static_cast<int>(std::max<std::size_t>(calls[i].name.size(), 10)) + 3;
            std::printf(" %*.4f | %5.2f |", width, seconds(calls[i]) * 1e3,
                given.best ? calls[i].best() / calls[0].best() : calls[i].ratio());
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

} // namespace collprobe::bench
