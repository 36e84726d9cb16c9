// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the communicator adds to MPI: the time of a collective called directly, through a stream, and with calls that the
// ranks compare before (agreed), in turn, best of several; of float. Run as: mpirun -n 4 mpi_table
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>

#include "../examples/support/mpi_session.hpp"
#include "cpu_timing.hpp"

using namespace collprobe;

namespace {

/// Of the slowest rank, for one of `calls`.
template <class Call>
double microseconds(int calls, const host::stream& stream, Call call)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double own = 1e6 / calls * bench::seconds([&] {
        for (int i = 0; i < calls; ++i) call();
        stream.synchronize();
    }, &bench::real_seconds);
    double most = 0;
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

} // namespace

int main(int argc, char** argv)
{
    const mpi_session session(&argc, &argv);
    mpi::communicator_ref plain(mpi_session::duplicate());
    agreed compared{mpi::communicator_ref(mpi_session::duplicate())};
    const host::stream stream;
    const int n = plain.size();
    const auto parts = static_cast<std::uint64_t>(n);
    if (plain.rank() == 0) {
        std::printf("%d ranks; microseconds per call, best of all rounds\n%-12s %10s %12s %12s %12s\n", n, "", "KiB",
            "MPI", "stream", "agreed");
    }
    for (std::uint64_t bytes = 1024; bytes <= (64u << 20); bytes *= 4) {
        const std::uint64_t part = bytes / sizeof(float) / parts, count = part * parts;
        std::vector<float> send(count, 1.0f), receive(count);
        const view<const float> in(send);
        const view<float> out(receive);
        const int calls = bytes <= (1u << 18) ? 500 : 2; // many: threads must wake up once
        const auto row = [&](const char* name, auto of_mpi, auto of_comm) {
            double best[3] = {1e30, 1e30, 1e30};
            for (int round = 0; round < 5; ++round) {
                best[0] = std::min(best[0], microseconds(calls, stream, of_mpi));
                best[1] = std::min(best[1], microseconds(calls, stream, [&] { of_comm(plain); }));
                best[2] = std::min(best[2], microseconds(calls, stream, [&] { of_comm(compared); }));
            }
            if (plain.rank() != 0) return;
            std::printf("%-12s %10d %12.1f %12.1f %12.1f\n", name, static_cast<int>(bytes / 1024), best[0], best[1], best[2]);
            std::fflush(stdout);
        };
        const int whole = static_cast<int>(count);
        const int some = static_cast<int>(part);
        row("all_reduce",
            [&] { MPI_Allreduce(send.data(), receive.data(), whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
            [&](auto& comm) { comm.all_reduce(in, out, reduction::sum, stream); });
        row("all_to_all",
            [&] { MPI_Alltoall(send.data(), some, MPI_FLOAT, receive.data(), some, MPI_FLOAT, MPI_COMM_WORLD); },
            [&](auto& comm) { comm.all_to_all(in, out, stream); });
        row("all_gather",
            [&] { MPI_Allgather(send.data(), some, MPI_FLOAT, receive.data(), some, MPI_FLOAT, MPI_COMM_WORLD); },
            [&](auto& comm) { comm.all_gather(in.part(0, part), out, stream); });
    }
}
