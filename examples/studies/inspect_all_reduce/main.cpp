// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What arithmetic does an all-reduce do? For each type and size: order, accumulator, roundings, stability of the
// bits, error against the exact sum, and speed as nccl-tests defines it.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/core/version.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/report/inspection.hpp>

#include "../../report_files.hpp"
#include "local_ranks.hpp"
#ifdef COLLPROBE_EXAMPLE_MPI
#include "mpi_ranks.hpp"
#endif
#ifdef COLLPROBE_EXAMPLE_NCCL
#include "nccl_ranks.hpp"
#endif
#include "options.hpp"

namespace {

using namespace collprobe;
using inspect_all_reduce::communicator_kind;

template <class Comm>
inspection inspect_type(Comm& comm, stream_ref_of<Comm> stream, element_type type, std::uint64_t bytes,
    const inspect_options& how)
{
    const std::uint64_t count = std::max<std::uint64_t>(bytes / static_cast<std::uint64_t>(bytes_of(type)), 1);
    inspection result;
    with_floating_type(type, [&]<class T>(T) {
        if constexpr (sizeof(T) > 1) result = inspect<T>(comm, stream, count, how); // no --types has 8 bits
    });
    return result;
}

/// The same of an adaptor that keeps a contract. On a GPU that takes kernels, so a file that nvcc compiles.
template <class Comm>
inspection inspect_contract(Comm& comm, stream_ref_of<Comm> stream, element_type type, std::uint64_t bytes,
    reproducibility level, const inspect_options& how)
{
    const auto keeping = [&]<class Contract>(Contract contract, reduction_algorithm algorithm) {
        reproducible<Comm, Contract> kept(comm, contract, {.algorithm = algorithm});
        return inspect_type(kept, stream, type, bytes, how);
    };
    switch (level) {
    case reproducibility::order_invariant:
        return keeping(contract<reproducibility::order_invariant>{}, reduction_algorithm::fixed_point);
    case reproducibility::correctly_rounded:
        return keeping(contract<reproducibility::correctly_rounded>{}, reduction_algorithm::exchange);
    default: return keeping(contract<reproducibility::size_invariant>{}, reduction_algorithm::exchange);
    }
}

/// Every type and size; `found` gets each inspection.
template <class Comm, class Found>
void sweep(const inspect_all_reduce::options& given, Comm& comm, Found found)
{
    const inspect_options how{.warm_ups = given.warm_ups, .timed = given.iterations, .seed = given.seed};
    typename Comm::device::stream stream;
    for (const element_type type : given.types) {
        for (std::uint64_t bytes = given.min_bytes; bytes <= given.max_bytes; bytes *= given.factor) {
            if (given.contract == reproducibility::unspecified) {
                found(inspect_type(comm, stream, type, bytes, how));
            } else if constexpr (std::is_same_v<typename Comm::device, host::device>) {
                found(inspect_contract(comm, stream, type, bytes, given.contract, how));
            }
        }
    }
}

template <class Ranks>
int run(const inspect_all_reduce::options& given, Ranks&& ranks)
{
    run_reports reports(ranks.speaks() ? given.files : report_files()); // before anything that takes long
    reports.begin("inspect_all_reduce", ranks.size());
    std::vector<inspection> rows;
    ranks.run([&](auto& comm) {
        const bool first = comm.rank() == 0;
        sweep(given, comm, [&](inspection found) {
            if (!first) return;
            if (given.contract != reproducibility::unspecified) {
                found.communicator += std::string(" with ") + name(given.contract);
            }
            reports.put(found);
            rows.push_back(std::move(found));
        });
    });
    reports.end();
    if (!ranks.speaks()) return 0;
    std::printf("# inspect_all_reduce, collprobe %d.%d.%d\n# communicator %s: %s, %d rank%s\n", COLLPROBE_VERSION_MAJOR,
        COLLPROBE_VERSION_MINOR, COLLPROBE_VERSION_PATCH, rows[0].communicator.c_str(), ranks.library().c_str(),
        ranks.size(), ranks.size() == 1 ? "" : "s");
    std::printf("# stable: r run to run, s over sizes and places, p over who has which value; no difference was seen\n"
                "# reproduced: random sums that order and accumulator, as found, reproduce bit for bit\n\n%s",
        report::inspection_table(rows).c_str());
    for (const inspection& row : rows) {
        if (given.verbose) {
            std::printf("\n%s, %llu bytes: %s, found in %llu calls\n%s", name(row.element),
                static_cast<unsigned long long>(row.bytes()), name(row.order),
                static_cast<unsigned long long>(row.order_calls), report::order_list(row).c_str());
        }
        if (row.reproduced < 1) {
            std::printf("\n%s, %llu bytes: the order differs from what the probes showed\n", name(row.element),
                static_cast<unsigned long long>(row.bytes()));
        }
        if (!row.ranks_agree) {
            std::printf("\n%s, %llu bytes: the ranks got different bits\n", name(row.element),
                static_cast<unsigned long long>(row.bytes()));
        }
    }
    if (std::fflush(stdout) != 0) throw std::runtime_error("the report could not be written to stdout");
    return 0;
}

int run_over_mpi([[maybe_unused]] const inspect_all_reduce::options& given)
{
#ifdef COLLPROBE_EXAMPLE_MPI
    const mpi_session mpi;
    inspect_all_reduce::mpi_ranks ranks;
    try {
        return run(given, ranks);
    } catch (const std::exception& problem) {
        trainer::explain("inspect_all_reduce", problem); // said now: the session ends the job
        throw;
    }
#else
    throw std::runtime_error("--communicator mpi: this program was built without MPI");
#endif
}

int run_over_nccl([[maybe_unused]] const inspect_all_reduce::options& given)
{
#ifdef COLLPROBE_EXAMPLE_NCCL
    return run(given, inspect_all_reduce::nccl_ranks());
#else
    throw std::runtime_error("--communicator nccl: this program was built without NCCL (cmake --preset cuda)");
#endif
}

} // namespace

int main(int argc, char** argv)
{
    try {
        const auto given = inspect_all_reduce::parse_options(std::vector<std::string>(argv + 1, argv + argc));
        switch (given.communicator) {
        case communicator_kind::mpi: return run_over_mpi(given);
        case communicator_kind::nccl: return run_over_nccl(given);
        case communicator_kind::local: break;
        }
        return run(given, inspect_all_reduce::local_ranks(given));
    } catch (const std::exception& problem) {
        return trainer::explain("inspect_all_reduce", problem);
    }
}
