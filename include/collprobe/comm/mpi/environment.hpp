// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>

#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi {

/// Owns MPI's initialisation. The constructor initialises MPI for calls from any thread (MPI_THREAD_MULTIPLE) unless
/// the program has done so. The destructor finalises MPI if the constructor initialised it. Make it first in `main`:
/// communicators and streams must end before it does.
///
/// If an exception leaves its scope, the destructor ends the whole job by MPI_Abort. MPI_Finalize would wait for
/// peers that wait for this rank, and MPI has no milder way to tell them. (An uncaught exception ends the process,
/// and then mpirun ends the job.)
class environment {
public:
    /// \throws error `unsupported` if MPI was initialised for fewer threads, or cannot do better;
    ///   `invalid_argument` if it is finalised already.
    explicit environment(int* argc = nullptr, char*** argv = nullptr, call_site where = call_site::current())
    {
        int initialized = 0;
        MPI_Initialized(&initialized);
        if (initialized == 0) {
            int provided = MPI_THREAD_SINGLE;
            if (const int code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided); code != MPI_SUCCESS) {
                throw error(status::device_failure, detail::describe({code, "MPI_Init_thread"}), origin(where));
            }
            owns_ = true;
        }
        try {
            detail::require_threads(origin(where));
        } catch (const error&) {
            if (owns_) MPI_Finalize();
            throw;
        }
    }
    environment(const environment&) = delete;
    environment& operator=(const environment&) = delete;
    ~environment()
    {
        if (!owns_ || !detail::usable()) return;
        if (std::uncaught_exceptions() > exceptions_) {
            std::fputs("collprobe: an exception leaves mpi::environment: the job ends\n", stderr);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Finalize();
    }

private:
    static error_origin origin(call_site where)
    {
        return {.call = "mpi::environment", .where = where};
    }

    bool owns_ = false;
    int exceptions_ = std::uncaught_exceptions();
};

} // namespace collprobe::mpi
