// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// MPI dropped its C++ binding in 2012. It is not needed here, and would need a library of its own.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <collprobe/core/error.hpp>

/// Includes MPI's own header in the same way everywhere, and translates MPI's return codes.
namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

/// A return code of MPI other than MPI_SUCCESS. Never leaves this library: it becomes an `error`.
struct refusal {
    int code;
    const char* function;
};

/// \throws refusal
inline void require(int code, const char* function)
{
    if (code != MPI_SUCCESS) throw refusal{code, function};
}

/// "MPI_Allreduce failed: MPI_ERR_TRUNCATE: message truncated"
inline std::string describe(const refusal& said)
{
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(said.code, text, &length);
    return std::string(said.function) + " failed: " + text;
}

inline status status_of(int code) noexcept
{
    int kind = MPI_ERR_OTHER;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) return status::mismatch; // a peer sent more data than this rank expects
    if (kind == MPI_ERR_NO_MEM) return status::device_failure;
    return status::peer_failure;
}

/// \throws error `invalid_argument` unless MPI is initialised and not finalised; `unsupported` unless it can be called
///   from any thread, because a stream calls it from its own.
inline void require_threads(const error_origin& origin)
{
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized != 0) throw error(status::invalid_argument, "MPI is finalized already", origin);
    if (initialized == 0) {
        throw error(status::invalid_argument, "MPI is not initialized: call MPI_Init_thread first", origin);
    }
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_MULTIPLE) return;
    throw error(status::unsupported,
        "MPI was initialized for calls from one thread at a time, but each stream calls it from a thread of its own: "
        "ask MPI_Init_thread for MPI_THREAD_MULTIPLE",
        origin);
}

} // namespace collprobe::mpi::detail
