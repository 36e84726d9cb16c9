// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/detail/exchange_value.hpp>
#include <collprobe/comm/detail/file_exchange.hpp>
#include <collprobe/comm/detail/job_variables.hpp>
#include <collprobe/core/error.hpp>

/// How ranks that are separate processes agree on a small value of rank 0 before they have a communicator. In
/// practice the value is the `ncclUniqueId` with which they make one.
///
/// | Way | Asks for | Call |
/// |---|---|---|
/// | shared files | COLLPROBE_PATH: a directory that all ranks see | `bootstrap::exchange(job, value)` |
/// | MPI | MPI_Init | `bootstrap::exchange_mpi(MPI_COMM_WORLD, value)`, comm/mpi/bootstrap.hpp |
/// | NCCL itself | NCCL_COMM_ID: host:port of rank 0, equal on all ranks | `nccl::unique_id(job)` of comm/nccl/ |
/// | the trainer's own store (torchrun's TCPStore, say) | that store | none of this library |
///
/// With NCCL_COMM_ID, `ncclGetUniqueId` makes the same id on every rank, and rank 0 listens at that address while the
/// communicator is made. NCCL then uses only network interfaces in the subnet of the address. `nccl::unique_id(job)`
/// exchanges nothing then; otherwise it gives rank 0's id to all ranks through files.
///
/// Needs a POSIX system. No umbrella header includes this: only the file that starts a rank needs it.
namespace collprobe::inline COLLPROBE_ABI::bootstrap {

/// The place of a process in its job, known before the ranks can communicate.
struct job {
    int rank = 0; ///< 0 <= rank < size
    int size = 1;
    int local_rank = 0; ///< among the ranks of this machine; -1 if the launcher does not say
    int local_size = 1; ///< ranks on this machine; -1 if the launcher does not say
    std::string path; ///< directory for `exchange`; empty if not given
    std::string key; ///< the same on all ranks of a job and different for each job: distinguishes their files

    /// The job that the environment describes; a job of one rank if it describes none.
    ///
    /// | | torchrun, or by hand | Open MPI | MPICH, Intel MPI | Slurm |
    /// |---|---|---|---|---|
    /// | rank | RANK | OMPI_COMM_WORLD_RANK | PMI_RANK | SLURM_PROCID |
    /// | size | WORLD_SIZE | OMPI_COMM_WORLD_SIZE | PMI_SIZE | SLURM_STEP_NUM_TASKS, SLURM_NTASKS |
    /// | local_rank | LOCAL_RANK | OMPI_COMM_WORLD_LOCAL_RANK | MPI_LOCALRANKID | SLURM_LOCALID |
    /// | local_size | LOCAL_WORLD_SIZE | OMPI_COMM_WORLD_LOCAL_SIZE | MPI_LOCALNRANKS | |
    /// | key | TORCHELASTIC_RUN_ID | PMIX_NAMESPACE | | SLURM_JOB_ID and SLURM_STEP_ID |
    ///
    /// The leftmost launcher that is set counts. Other launchers that are set must agree with it, except a launcher
    /// that started it: Slurm under mpirun, any under torchrun (recognised by TORCHELASTIC_RUN_ID). COLLPROBE_PATH is
    /// the directory; COLLPROBE_JOB_KEY replaces the key.
    /// \throws error `invalid_argument` that names the variable, its value and the expected value.
    static job from_environment(call_site where = call_site::current())
    {
        const detail::environment variables{where};
        const detail::place ranks = variables.ranks();
        job result;
        result.rank = ranks.rank;
        result.size = ranks.size;
        result.local_rank = ranks.local_rank;
        result.local_size = ranks.local_size;
        result.path = variables.text("COLLPROBE_PATH");
        result.key = variables.text("COLLPROBE_JOB_KEY");
        if (result.key.empty()) result.key = ranks.job_number;
        return result;
    }
};

struct options {
    std::int64_t timeout_ms = 300'000; ///< how long a rank waits for all others; negative: for ever
};

/// Gives every rank the `value` of rank 0, through files in the directory `job.path`. Collective. With one rank it
/// does nothing.
///
/// Shapes: `value` is any trivially copyable object except a pointer, or a `view` of such elements, of the same size
/// on all ranks, at most 64 KiB. The value of other ranks than 0 is ignored; a rank gets the value only if all ranks
/// do.
/// Preconditions: the parent of the directory is there. The call makes the directory, and removes it at the end if it
/// is empty. NFS is supported: no locks are used, and a file appears under its name only when it is complete (written
/// beside it, then renamed). The files of an earlier run do no harm: their key differs, or rank 0 removes them.
/// Stream behaviour: blocks the calling thread; no stream is involved.
/// \throws error on every rank: `invalid_argument`: no path, value null or too large; `timeout`: ranks are missing,
///   in `culprits()`; `mismatch`: ranks differ in size of job or value, or two processes are one rank;
///   `peer_failure`: a rank left in between; `device_failure`: a file cannot be read or written. Messages name the
///   file or directory.
/// Cost: two small files a rank, looked at every 1 to 20 ms.
template <detail::exchangeable T>
void exchange(const job& of, T&& value, const options& settings = {}, call_site where = call_site::current())
{
    detail::exchange_files({of.rank, of.size, of.path, of.key, detail::memory_of(value), settings.timeout_ms}, where);
}

} // namespace collprobe::bootstrap
