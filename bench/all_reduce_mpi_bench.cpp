// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// All-reduce over MPI: MPI_Allreduce called directly, the communicator's own, and those under contracts. A Markdown table
// for each type, a line for each size:
//
//     mpirun -n 4 ./all_reduce_mpi_bench --min 1KiB --max 64MiB --types float,bfloat16 --levels size_invariant
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <collprobe/comm/mpi/communicator.hpp>

#include "../examples/support/command_line.hpp"
#include "../examples/support/mpi_session.hpp"
#include "all_reduce.hpp"

using namespace collprobe;
using bench::method;

namespace {

struct options {
    std::uint64_t min = 1 << 10;
    std::uint64_t max = std::uint64_t{64} << 20;
    std::vector<element_type> types = {element_type::float32, element_type::bfloat16};
    std::vector<method> methods
        = {method::size_invariant, method::float32, method::correctly_rounded, method::fixed_point, method::upcast};
    bench::all_reduce_settings settings;
};

options parse(int argc, char** argv)
{
    support::command_line line("All-reduce over MPI, under contracts", "0, 1 if the run failed, 2 if the command line is wrong.");
    options result;
    const auto bytes = [&](const char* name, std::uint64_t& size, const char* help) {
        line.value(name, "BYTES", [&size](auto& option, auto text) { size = support::parse_bytes(option, text); }, help);
    };
    bytes("--min", result.min, "first size (1KiB)");
    bytes("--max", result.max, "last size (64MiB); each is four times the one before");
    line.choices("--types", result.types,
        {{"float", element_type::float32}, {"double", element_type::float64}, {"bfloat16", element_type::bfloat16},
            {"half", element_type::float16}},
        "of float, double, bfloat16, half (float,bfloat16)");
    std::vector<support::word<method>> methods;
    for (int each = 0; each <= static_cast<int>(method::int4); ++each)
        methods.push_back({name(static_cast<method>(each)), static_cast<method>(each)});
    line.choices("--levels", result.methods, methods,
        "of size_invariant, float32 (that level with another accumulator),\ncorrectly_rounded, fixed_point, "
        "upcast (to float, of\n16-bit types), int8, int4 (by codes) (size_invariant,float32,correctly_rounded,fixed_point,upcast)");
    bytes("--scratch", result.settings.scratch_bytes, "memory of each contract (16MiB)");
    line.number("--seconds", result.settings.seconds, 0, 3600,
        "that a line takes, if its least number of rounds is no longer", "X");
    line.parse({argv + 1, argv + argc});
    return result;
}

/// 1 KiB, 64 MiB.
std::string bytes_text(std::uint64_t bytes)
{
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
    if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
    return std::to_string(bytes) + " B";
}

/// Collective; rank 0 prints.
template <floating_element T>
void print_table(const mpi::communicator_ref& comm, const options& given)
{
    bench::all_reduce_bench<T, mpi::communicator_ref> own(comm, given.max, given.settings);
    if constexpr (sizeof(T) >= 4) { // MPI has no others
        own.add("MPI_Allreduce", [&own] {
            MPI_Allreduce(own.send().data(), own.receive().data(), static_cast<int>(own.send().count()),
                sizeof(T) == 8 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        });
    }
    own.add_native();
    for (const method which : given.methods) own.add(which);
    const auto n = static_cast<double>(comm.size());
    for (std::uint64_t bytes = given.min; bytes <= given.max; bytes *= 4) {
        const std::vector<bench::timed_call>& calls = own.measure(bytes);
        if (comm.rank() != 0) continue;
        if (bytes == given.min) {
            std::printf("\n%s, %d rank%s over MPI\n\n| %9s | %13s ms | %9s | %9s |", element_traits<T>::name, comm.size(),
                comm.size() == 1 ? "" : "s", "bytes", calls[0].name.c_str(), "algbw GBs", "busbw GBs");
            for (std::size_t i = 1; i < calls.size(); ++i) std::printf(" %10s ms | ratio |", calls[i].name.c_str());
            std::printf("\n|---|---|---|---|");
            for (std::size_t i = 1; i < calls.size(); ++i) std::printf("---|---|");
            std::printf("\n");
        }
        const double first = calls[0].seconds();
        const double algbw = static_cast<double>(bytes) / first * 1e-9;
        std::printf("| %9s | %16.4f | %9.3f | %9.3f |", bytes_text(bytes).c_str(), first * 1e3, algbw, algbw * 2 * (n - 1) / n);
        for (std::size_t i = 1; i < calls.size(); ++i) {
            const int width = static_cast<int>(std::max<std::size_t>(calls[i].name.size(), 10)) + 3;
            std::printf(" %*.4f | %5.2f |", width, calls[i].seconds() * 1e3, calls[i].ratio());
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv)
{
    const mpi_session session(&argc, &argv);
    const mpi::communicator_ref world(mpi_session::duplicate(), {.timeout_ms = 120'000});
    options given;
    try {
        given = parse(argc, argv);
    } catch (const std::exception& problem) { // all ranks have found it
        const bool is_help = dynamic_cast<const support::help_request*>(&problem) != nullptr;
        return world.rank() == 0 ? support::explain("all_reduce_mpi_bench", problem) : is_help ? 0 : 2;
    }
    try {
        for (const element_type type : given.types) with_floating_type(type, [&]<class T>(T) { print_table<T>(world, given); });
        return 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "all_reduce_mpi_bench: %s\n", problem.what());
        throw; // the session ends the job
    }
}
