// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include <unistd.h>

#include <collprobe/comm/mpi/detail/types.hpp>
#include <collprobe/core/error.hpp>

#include "../../examples/support/mpi_session.hpp"
#include "support/errors.hpp"

/// For programs that mpirun starts with several ranks. Plain checks, since each rank is a process: the
/// first that fails ends the job, with its line.
namespace collprobe::testing {

inline void check_at(bool good, const char* what, const char* file, int line)
{
    if (good) return;
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}
#define CHECK(condition) collprobe::testing::check_at(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

/// A communicator of its own for a test, of all ranks or of those with the same color; MPI_Finalize ends it. MPI's errors
/// return.
inline MPI_Comm made_of(MPI_Comm ranks = MPI_COMM_WORLD, int color = 0, int key = 0)
{
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Comm_split(ranks, color, key, &made);
    if (made != MPI_COMM_NULL) MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return made;
}

/// Ends the process after that many seconds, and mpirun then the job.
inline void end_after(unsigned seconds) { alarm(seconds); }

inline bool says(const std::optional<error>& failure, status code, const std::string& part)
{
    const bool good = failure && failure->code() == code && contains(failure->what(), part);
    if (!good) std::fprintf(stderr, "%s\n", failure ? failure->what() : "nothing was thrown");
    return good;
}

} // namespace collprobe::testing
