// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <nccl.h>

// What every trainer has, and collprobe needs not: the place of a process among the ranks that a launcher has started,
// and how they get NCCL's id.

struct job {
    int rank = 0;
    int size = 1;
    int local_rank = 0; // on its machine
};

/// By the variables of torchrun, mpirun or srun; one rank alone without them.
inline job started_job()
{
    constexpr const char* launchers[][3] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    };
    for (const auto& names : launchers) {
        const char* const rank = std::getenv(names[0]);
        const char* const size = std::getenv(names[1]);
        const char* const local = std::getenv(names[2]);
        if (rank != nullptr && size != nullptr)
            return {std::atoi(rank), std::atoi(size), std::atoi(local != nullptr ? local : rank)};
    }
    return {};
}

/// For several ranks NCCL_COMM_ID must be set, to the same host:port of rank 0's machine on all of them: NCCL makes the
/// same id of it everywhere, and rank 0 listens there while the communicator is made.
inline ncclUniqueId id_of(const job& of)
{
    if (of.size > 1 && std::getenv("NCCL_COMM_ID") == nullptr)
        throw std::runtime_error("set NCCL_COMM_ID to host:port of rank 0, the same on all ranks");
    ncclUniqueId id{};
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
        throw std::runtime_error(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result));
    return id;
}
