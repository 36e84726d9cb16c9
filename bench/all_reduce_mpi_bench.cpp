// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// All-reduce over MPI: MPI_Allreduce called directly, the communicator's own, and those under contracts.
//
//     mpirun -n 4 ./all_reduce_mpi_bench --min 1KiB --max 64MiB --types float,bfloat16 --levels size_invariant
#include "all_reduce_table.hpp"

#include <cstdio>
#include <exception>

#include <collprobe/comm/mpi/communicator.hpp>

#include "../examples/support/mpi_session.hpp"

using namespace collprobe;

namespace {

template <floating_element T>
void table(const mpi::communicator_ref& comm, const bench::all_reduce_options& given)
{
    bench::all_reduce_table<T>(comm, "MPI", given, [](auto& added_to) {
        if constexpr (sizeof(T) < 4) return; // MPI has no such type
        added_to.add("MPI_Allreduce", [&added_to] {
            MPI_Allreduce(added_to.send().data(), added_to.receive().data(), static_cast<int>(added_to.send().count()),
                sizeof(T) == 8 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        });
    });
}

} // namespace

int main(int argc, char** argv)
{
    const mpi_session session(&argc, &argv);
    mpi::communicator_ref world(mpi_session::duplicate(), {.timeout_ms = 120'000});
    try {
        const bench::all_reduce_options given = bench::parse_all_reduce_options("mpirun -n N all_reduce_mpi_bench", argc, argv);
        for (const element_type type : given.types) {
            collprobe::with_floating_type(type, [&]<class T>(T) { table<T>(world, given); });
        }
        return 0;
    } catch (const trainer::usage_error& problem) { // all ranks have found it
        return world.rank() == 0 ? trainer::explain("all_reduce_mpi_bench", problem) : 2;
    } catch (const trainer::help_request& problem) {
        return world.rank() == 0 ? trainer::explain("all_reduce_mpi_bench", problem) : 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "all_reduce_mpi_bench: %s\n", problem.what());
        throw; // the session ends the job
    }
}
