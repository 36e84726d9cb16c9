// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

// MPI dropped its C++ binding in 2012. It is not needed here, and would need a library of its own.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/sum/combine.hpp>

/// MPI's names of the library's errors, element types and reductions. Includes MPI's own header in the same way
/// everywhere.
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

/// An element of which only the bits matter.
template <element T>
MPI_Datatype bits_type() noexcept
{
    if constexpr (sizeof(T) == 1) return MPI_UINT8_T;
    else if constexpr (sizeof(T) == 2) return MPI_UINT16_T;
    else if constexpr (sizeof(T) == 4) return MPI_UINT32_T;
    else return MPI_UINT64_T;
}

/// An element in a reduction. If an operation of this library reduces it, it travels as its bits. Signed integers are
/// added and multiplied as unsigned ones, because these wrap.
template <element T>
MPI_Datatype value_type() noexcept
{
    if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
    else if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
    else return bits_type<T>();
}

/// An operation of this library's arithmetic: the same hop as `local` makes. It lives as long as MPI.
template <element T, reduction operation>
MPI_Op own_operation()
{
    static const MPI_Op created = [] {
        MPI_Op made = MPI_OP_NULL;
        const auto apply = [](void* in, void* in_out, int* count, MPI_Datatype*) {
            collprobe::detail::combine(operation, static_cast<T*>(in_out), static_cast<const T*>(in), *count);
        };
        require(MPI_Op_create(apply, 1, &made), "MPI_Op_create");
        return made;
    }();
    return created;
}

/// Whether `operation` is one of this library's. MPI has no floating point of 8 or 16 bits, and does not define the
/// minimum of a NaN and a number (here the number). For integers, Open MPI 4.1 saturates sums of 8 bits (in its
/// vector code), and MPICH 4.0 compares unsigned values as if they were signed.
template <element T>
constexpr bool takes_own_operation(reduction operation) noexcept
{
    return sizeof(T) <= 2 || operation == reduction::min || operation == reduction::max;
}

/// MPI's operation for `operation` on T.
/// \throws refusal
template <element T>
MPI_Op operation_of(reduction operation)
{
    const auto choose = [&]<reduction own>(MPI_Op of_mpi) {
        if constexpr (takes_own_operation<T>(own)) return own_operation<T, own>();
        else return of_mpi;
    };
    switch (operation) {
    case reduction::sum:
    case reduction::average: return choose.template operator()<reduction::sum>(MPI_SUM);
    case reduction::min: return choose.template operator()<reduction::min>(MPI_MIN);
    case reduction::max: return choose.template operator()<reduction::max>(MPI_MAX);
    case reduction::product: return choose.template operator()<reduction::product>(MPI_PROD);
    }
    return MPI_OP_NULL;
}

} // namespace collprobe::mpi::detail
