// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <collprobe/comm/mpi/bootstrap.hpp>

#include "mpi/mpi_checks.hpp"

using namespace collprobe;
using testing::says;
using testing::thrown_by;

int main(int argc, char** argv)
{
    testing::end_after(100);
    int number = 0;
    const auto exchange = [&] { bootstrap::exchange_mpi(MPI_COMM_WORLD, number); };
    const auto early = thrown_by(exchange);
    MPI_Init(&argc, &argv);
    CHECK(says(early, status::invalid_argument, "MPI is not initialized"));

    const bootstrap::job job = bootstrap::job_from_mpi(MPI_COMM_WORLD);
    int rank = -1;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size > 1);
    CHECK(job.rank == rank && job.size == size);
    CHECK(job.local_rank == rank && job.local_size == size); // this test runs on one machine
    if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr) {
        const bootstrap::job told = bootstrap::job::from_environment();
        CHECK(told.rank == rank && told.size == size && told.local_rank == rank);
    }

    std::array<std::uint8_t, 128> id{};
    if (rank == 0) id.fill(77);
    bootstrap::exchange_mpi(MPI_COMM_WORLD, id);
    for (const std::uint8_t byte : id) CHECK(byte == 77);

    std::vector<double> many(1000, rank == 0 ? 2.5 : 0);
    bootstrap::exchange_mpi(MPI_COMM_WORLD, view(many));
    for (const double each : many) CHECK(each == 2.5);

    // Every rank gets an error that names rank 1, and nobody hangs.
    const auto differing = thrown_by(
        [&] { bootstrap::exchange_mpi(MPI_COMM_WORLD, view<double>(many.data(), rank == 1 ? 2 : 3)); });
    CHECK(says(differing, status::mismatch, "rank 1 expected a value of 16 bytes, rank 0 has one of 24"));
    CHECK(differing->culprits() == std::vector<int>{1});
    CHECK(differing->rank() == rank);

    std::vector<std::uint8_t> large(70'000);
    const auto too_large = thrown_by([&] {
        bootstrap::exchange_mpi(MPI_COMM_WORLD, view<std::uint8_t>(large.data(), rank == 1 ? 70'000 : 16));
    });
    CHECK(rank == 1 ? says(too_large, status::invalid_argument, "70000 bytes")
                    : says(too_large, status::mismatch, "rank 1 passed a value that no exchange carries"));
    const auto null = thrown_by([&] {
        bootstrap::exchange_mpi(MPI_COMM_WORLD, view<std::uint8_t>(rank == 1 ? nullptr : large.data(), 16));
    });
    CHECK(rank == 1 ? says(null, status::invalid_argument, "value is null")
                    : says(null, status::mismatch, "rank 1 passed"));
    CHECK(says(thrown_by([&] { bootstrap::exchange_mpi(MPI_COMM_NULL, number); }), status::invalid_argument,
        "MPI_COMM_NULL"));

    bootstrap::exchange_mpi(MPI_COMM_WORLD, id); // the communicator is as it was
    MPI_Finalize();
    CHECK(says(thrown_by(exchange), status::invalid_argument, "finalized"));
}
