// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C++ bindings of old MPIs would be linked to.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>

/// The program's MPI. The layer is not linked to one: an interpreter loads it later, out of sight of other libraries.
namespace collprobe_mpi {

/// Calls that the layer stands in for.
#define COLLPROBE_MPI_CALLS(X)                                                                                         \
    X(Allreduce)                                                                                                       \
    X(Reduce_scatter)                                                                                                  \
    X(Reduce_scatter_block)                                                                                            \
    X(Allgather)                                                                                                       \
    X(Allgatherv)                                                                                                      \
    X(Bcast)                                                                                                           \
    X(Reduce)                                                                                                          \
    X(Iallreduce)                                                                                                      \
    X(Ireduce_scatter)                                                                                                 \
    X(Ireduce_scatter_block)                                                                                           \
    X(Iallgather)                                                                                                      \
    X(Iallgatherv)                                                                                                     \
    X(Ibcast)                                                                                                          \
    X(Ireduce)                                                                                                         \
    X(Wait)                                                                                                            \
    X(Waitall)                                                                                                         \
    X(Waitany)                                                                                                         \
    X(Waitsome)                                                                                                        \
    X(Test)                                                                                                            \
    X(Testall)                                                                                                         \
    X(Testany)                                                                                                         \
    X(Testsome)                                                                                                        \
    X(Request_free)

/// The same with counts of MPI_Count, which came with MPI 4.
#if MPI_VERSION >= 4
#define COLLPROBE_MPI_LARGE_CALLS(X)                                                                                   \
    X(Allreduce_c)                                                                                                     \
    X(Reduce_scatter_c)                                                                                                \
    X(Reduce_scatter_block_c)                                                                                          \
    X(Allgather_c)                                                                                                     \
    X(Allgatherv_c)                                                                                                    \
    X(Bcast_c)                                                                                                         \
    X(Reduce_c)                                                                                                        \
    X(Iallreduce_c)                                                                                                    \
    X(Ireduce_scatter_c)                                                                                               \
    X(Ireduce_scatter_block_c)                                                                                         \
    X(Iallgather_c)                                                                                                    \
    X(Iallgatherv_c)                                                                                                   \
    X(Ibcast_c)                                                                                                        \
    X(Ireduce_c)
#else
#define COLLPROBE_MPI_LARGE_CALLS(X)
#endif

/// Calls that the layer makes for itself.
#define COLLPROBE_MPI_TOOLS(X)                                                                                         \
    X(Comm_rank)                                                                                                       \
    X(Comm_size)                                                                                                       \
    X(Comm_test_inter)                                                                                                 \
    X(Comm_compare)                                                                                                    \
    X(Comm_idup)                                                                                                       \
    X(Comm_free)                                                                                                       \
    X(Comm_group)                                                                                                      \
    X(Comm_get_name)                                                                                                   \
    X(Comm_set_errhandler)                                                                                             \
    X(Comm_create_keyval)                                                                                              \
    X(Comm_get_attr)                                                                                                   \
    X(Comm_set_attr)                                                                                                   \
    X(Group_translate_ranks)                                                                                           \
    X(Group_free)                                                                                                      \
    X(Type_size)                                                                                                       \
    X(Type_get_name)

#if defined(OPEN_MPI)
/// For its Fortran bindings, which call no function of C that could be stood in for.
#define COLLPROBE_MPI_CONVERSIONS(X)                                                                                   \
    X(Comm_f2c)                                                                                                        \
    X(Type_f2c)                                                                                                        \
    X(Op_f2c)                                                                                                          \
    X(Request_f2c)                                                                                                     \
    X(Request_c2f)
#else
#define COLLPROBE_MPI_CONVERSIONS(X)
#endif

struct mpi_library {
#define COLLPROBE_MEMBER(name) decltype(&MPI_##name) name = nullptr;
    COLLPROBE_MPI_CALLS(COLLPROBE_MEMBER)
    COLLPROBE_MPI_LARGE_CALLS(COLLPROBE_MEMBER)
    COLLPROBE_MPI_TOOLS(COLLPROBE_MEMBER)
    COLLPROBE_MPI_CONVERSIONS(COLLPROBE_MEMBER)
#undef COLLPROBE_MEMBER
    // Objects of the library in Open MPI, numbers in MPICH.
    MPI_Comm world{};
    MPI_Comm self{};
    MPI_Request no_request{};
    MPI_Errhandler errors_return{};
    MPI_Datatype byte{};
    MPI_Datatype floats[3]{}; ///< MPI_FLOAT, MPI_REAL, MPI_REAL4
    MPI_Datatype doubles[3]{}; ///< MPI_DOUBLE, MPI_DOUBLE_PRECISION, MPI_REAL8
    MPI_Op operations[4]{}; ///< MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN

    /// Whether the program's MPI has the binary interface that this layer was built for. If not, the calls lead to the
    /// next object that has them, and nothing else may be used.
    bool is_known = false;
};

/// Found by the first call.
const mpi_library& mpi() noexcept;

/// The function behind this layer. Without one the process ends.
void* require_behind(const char* symbol) noexcept;

/// A handle in a register. A program of another MPI may come to this layer, and Open MPI's handles are addresses.
#if defined(OPEN_MPI)
template <class Handle>
using wide = Handle;
#else
template <class Handle>
struct wide {
    std::intptr_t bits;
    operator Handle() const noexcept { return static_cast<Handle>(bits); }
};
#endif

/// Calls the function behind this layer.
template <class Result, class... Arguments>
Result pass_on(const char* name, Arguments... arguments)
{
    return reinterpret_cast<Result (*)(Arguments...)>(require_behind(name))(arguments...);
}

} // namespace collprobe_mpi
