// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>

#include <mpi.h>

/// MPI from here to the end of the scope, for calls from any thread, as streams make them. If an exception leaves the
/// scope, the job ends: MPI_Finalize would wait for peers that wait for this rank.
class mpi_session {
public:
    explicit mpi_session(int* argc = nullptr, char*** argv = nullptr)
    {
        int provided = MPI_THREAD_SINGLE;
        if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS || provided < MPI_THREAD_MULTIPLE)
            throw std::runtime_error("MPI cannot be called from any thread (MPI_THREAD_MULTIPLE)");
    }
    mpi_session(const mpi_session&) = delete;
    ~mpi_session()
    {
        if (std::uncaught_exceptions() > exceptions_) {
            std::fputs("an exception ends the job\n", stderr);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Finalize();
    }

    /// A communicator of its own with the ranks of `of`, for streams that call MPI at their time. MPI_Finalize ends it.
    static MPI_Comm duplicate(MPI_Comm of = MPI_COMM_WORLD)
    {
        MPI_Comm made = MPI_COMM_NULL;
        MPI_Comm_dup(of, &made);
        return made;
    }

private:
    int exceptions_ = std::uncaught_exceptions();
};
