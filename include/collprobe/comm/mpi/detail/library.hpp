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

/// Whether MPI can be called: initialised, and not finalised.
inline bool usable() noexcept
{
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

/// \throws error `invalid_argument` unless MPI can be called. `call_first`: what initialises it.
inline void require_usable(const error_origin& origin, const std::string& call_first)
{
    if (usable()) return;
    int finalized = 0;
    MPI_Finalized(&finalized);
    throw error(status::invalid_argument,
        finalized != 0 ? "MPI is finalized already" : "MPI is not initialized: call " + call_first + " first", origin);
}

/// \throws error as `require_usable`; `unsupported` unless MPI can be called from any thread, because a stream calls it
///   from its own.
inline void require_threads(const error_origin& origin)
{
    require_usable(origin, "MPI_Init_thread, or make an mpi::environment");
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_MULTIPLE) return;
    throw error(status::unsupported,
        "MPI was initialized for calls from one thread at a time, but each stream calls it from a thread of its own: "
        "ask MPI_Init_thread for MPI_THREAD_MULTIPLE, or make an mpi::environment instead of calling MPI_Init",
        origin);
}

} // namespace collprobe::mpi::detail
