// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/comm/detail/bootstrap_environment.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap {

/// What a process knows of the job that it is a rank of, before the ranks can talk to each other.
struct job {
    int rank = 0; ///< 0 <= rank < size
    int size = 1;
    int local_rank = 0; ///< among the ranks of this machine; -1 if the launcher does not say
    int local_size = 1; ///< ranks on this machine; -1 if the launcher does not say
    std::string master_address; ///< machine of rank 0, as a name or a number; empty if not given
    int port = 0; ///< TCP port where rank 0 listens during `exchange_tcp`; 0 if not given
    std::string path; ///< directory for `exchange_file`; empty if not given
    std::string token; ///< what the ranks share and others do not know

    /// The job that the environment describes; one of a single rank where it describes none.
    ///
    /// | | torchrun, or by hand | Open MPI | MPICH, Intel MPI | Slurm |
    /// |---|---|---|---|---|
    /// | rank | RANK | OMPI_COMM_WORLD_RANK | PMI_RANK | SLURM_PROCID |
    /// | size | WORLD_SIZE | OMPI_COMM_WORLD_SIZE | PMI_SIZE | SLURM_STEP_NUM_TASKS, SLURM_NTASKS |
    /// | local_rank | LOCAL_RANK | OMPI_COMM_WORLD_LOCAL_RANK | MPI_LOCALRANKID | SLURM_LOCALID |
    /// | local_size | LOCAL_WORLD_SIZE | OMPI_COMM_WORLD_LOCAL_SIZE | MPI_LOCALNRANKS | |
    ///
    /// The leftmost that is set counts. Others that are set must agree with it, except those of a
    /// launcher that started the launcher: Slurm under mpirun, any under torchrun (which is known by
    /// TORCHELASTIC_RUN_ID).
    ///
    /// Where to meet: MASTER_ADDR, and COLLPROBE_PORT or else MASTER_PORT + 1: torchrun itself listens
    /// on MASTER_PORT for as long as the job runs. COLLPROBE_PATH is the directory of `exchange_file`.
    ///
    /// The token is COLLPROBE_JOB_TOKEN. Without it, it is made of the launcher's job number
    /// (TORCHELASTIC_RUN_ID, PMIX_NAMESPACE, or SLURM_JOB_ID and SLURM_STEP_ID), which keeps two jobs
    /// apart that meet by accident, but not an attacker out: job numbers are no secrets.
    /// \throws error `invalid_argument` that names the variable, its value and what is expected.
    static job from_environment(call_site where = call_site::current())
    {
        const detail::environment variables{where};
        const detail::place ranks = variables.ranks();
        job result;
        result.rank = ranks.rank;
        result.size = ranks.size;
        result.local_rank = ranks.local_rank;
        result.local_size = ranks.local_size;
        result.master_address = variables.text("MASTER_ADDR");
        result.port = variables.port();
        result.path = variables.text("COLLPROBE_PATH");
        result.token = variables.text("COLLPROBE_JOB_TOKEN");
        if (result.token.empty()) result.token = ranks.job_number;
        return result;
    }
};

} // namespace collprobe::bootstrap
