// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What Fortran's bindings do not reach by the functions of C.
// Open MPI: all. mpif.h and the module mpi call mpi_allreduce_, the module mpi_f08 ompi_allreduce_f and pmpi_test_.
// MPICH: that requests are completed by the module mpi_f08, which calls PMPI_Wait.
#include <cstddef>
#include <vector>

#include <dlfcn.h>

#include "calls.hpp"
#include "layer.hpp"
#include "mpi_library.hpp"

using namespace collprobe_mpi;

static_assert(sizeof(MPI_Fint) == sizeof(int));

namespace {

MPI_Request request_of(MPI_Fint handle)
{
#if defined(OPEN_MPI)
    return mpi().Request_f2c(handle);
#else
    return handle;
#endif
}

template <class Call>
void complete(MPI_Fint count, MPI_Fint* requests, MPI_Fint* error, const Call& call, bool has_results = true)
{
    MPI_Fint own_error = MPI_SUCCESS; // the argument is optional in the module mpi_f08
    MPI_Fint* const status = error != nullptr ? error : &own_error;
    if (!mpi().is_known || count <= 0 || !layer::get().has_kept()) {
        call(status);
        return;
    }
    std::vector<MPI_Request> handles(static_cast<std::size_t>(count));
    const auto convert = [&] {
        for (std::size_t at = 0; at < handles.size(); ++at) handles[at] = request_of(requests[at]);
    };
    convert();
    completing(
        handles.size(), handles.data(),
        [&] {
            call(status);
            convert();
            return *status;
        },
        has_results);
}

} // namespace

// A program of another MPI comes here, too, where both layers are preloaded.
#if defined(OPEN_MPI)
#define COLLPROBE_BEHIND(name) "mpi_" #name "_"
#define COLLPROBE_FORTRAN(name, parameters)                                                                            \
    COLLPROBE_EXPORT void mpi_##name##_ parameters __attribute__((alias("ompi_" #name "_f")));                         \
    COLLPROBE_EXPORT void pmpi_##name##_ parameters __attribute__((alias("ompi_" #name "_f")));                        \
    COLLPROBE_EXPORT void ompi_##name##_f parameters
#else
#define COLLPROBE_BEHIND(name) "mpi_" #name "_f08_"
#define COLLPROBE_FORTRAN(name, parameters) COLLPROBE_EXPORT void mpi_##name##_f08_ parameters
#endif

COLLPROBE_FORTRAN(wait, (MPI_Fint* request, void* status, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) { pass_on<void>(COLLPROBE_BEHIND(wait), request, status, given); };
    complete(1, request, error, call);
}
COLLPROBE_FORTRAN(test, (MPI_Fint* request, MPI_Fint* flag, void* status, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) { pass_on<void>(COLLPROBE_BEHIND(test), request, flag, status, given); };
    complete(1, request, error, call);
}
COLLPROBE_FORTRAN(request_free, (MPI_Fint* request, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) { pass_on<void>(COLLPROBE_BEHIND(request_free), request, given); };
    complete(1, request, error, call, false);
}
COLLPROBE_FORTRAN(waitall, (MPI_Fint* count, MPI_Fint* requests, void* statuses, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(waitall), count, requests, statuses, given);
    };
    complete(*count, requests, error, call);
}
COLLPROBE_FORTRAN(testall, (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* flag, void* statuses, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(testall), count, requests, flag, statuses, given);
    };
    complete(*count, requests, error, call);
}
COLLPROBE_FORTRAN(waitany, (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* place, void* status, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(waitany), count, requests, place, status, given);
    };
    complete(*count, requests, error, call);
}
COLLPROBE_FORTRAN(
    testany, (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* place, MPI_Fint* flag, void* status, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(testany), count, requests, place, flag, status, given);
    };
    complete(*count, requests, error, call);
}
COLLPROBE_FORTRAN(
    waitsome, (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* done, MPI_Fint* places, void* statuses, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(waitsome), count, requests, done, places, statuses, given);
    };
    complete(*count, requests, error, call);
}
COLLPROBE_FORTRAN(
    testsome, (MPI_Fint* count, MPI_Fint* requests, MPI_Fint* done, MPI_Fint* places, void* statuses, MPI_Fint* error))
{
    const auto call = [&](MPI_Fint* given) {
        pass_on<void>(COLLPROBE_BEHIND(testsome), count, requests, done, places, statuses, given);
    };
    complete(*count, requests, error, call);
}

#if defined(OPEN_MPI)
namespace {

MPI_Comm comm_of(const MPI_Fint* handle)
{
    return mpi().Comm_f2c(*handle);
}
MPI_Datatype type_of(const MPI_Fint* handle)
{
    return mpi().Type_f2c(*handle);
}
MPI_Op op_of(const MPI_Fint* handle)
{
    return mpi().Op_f2c(*handle);
}

/// Fortran's MPI_IN_PLACE and MPI_BOTTOM are common blocks.
void* buffer(void* data)
{
    static void* const in_place = dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_"); // those of the program
    static void* const bottom = dlsym(RTLD_DEFAULT, "mpi_fortran_bottom_");
    return data == in_place ? MPI_IN_PLACE : data == bottom ? MPI_BOTTOM : data;
}

void give(MPI_Fint* error, int status)
{
    if (error != nullptr) *error = status;
}

} // namespace

#define COLLPROBE_COLLECTIVE(name, Name, parameters, given, converted)                                                 \
    COLLPROBE_FORTRAN(name, parameters)                                                                                \
    {                                                                                                                  \
        if (mpi().is_known) give(error, MPI_##Name converted);                                                         \
        else pass_on<void>(COLLPROBE_BEHIND(name), COLLPROBE_LIST given);                                              \
    }
#define COLLPROBE_STARTED(name, Name, parameters, given, converted)                                                    \
    COLLPROBE_FORTRAN(i##name, parameters)                                                                             \
    {                                                                                                                  \
        if (!mpi().is_known) return pass_on<void>(COLLPROBE_BEHIND(i##name), COLLPROBE_LIST given);                    \
        MPI_Request started = mpi().no_request;                                                                        \
        give(error, MPI_I##name converted);                                                                            \
        *request = mpi().Request_c2f(started);                                                                         \
    }
#define COLLPROBE_LIST(...) __VA_ARGS__

COLLPROBE_COLLECTIVE(allreduce, Allreduce,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* error),
    (send, receive, count, type, op, comm, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), comm_of(comm)))
COLLPROBE_COLLECTIVE(reduce_scatter, Reduce_scatter,
    (void* send, void* receive, MPI_Fint* counts, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* error),
    (send, receive, counts, type, op, comm, error),
    (buffer(send), buffer(receive), counts, type_of(type), op_of(op), comm_of(comm)))
COLLPROBE_COLLECTIVE(reduce_scatter_block, Reduce_scatter_block,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* error),
    (send, receive, count, type, op, comm, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), comm_of(comm)))
COLLPROBE_COLLECTIVE(allgather, Allgather,
    (void* send, MPI_Fint* send_count, MPI_Fint* send_type, void* receive, MPI_Fint* count, MPI_Fint* type,
    MPI_Fint* comm, MPI_Fint* error),
    (send, send_count, send_type, receive, count, type, comm, error),
    (buffer(send), *send_count, type_of(send_type), buffer(receive), *count, type_of(type), comm_of(comm)))
COLLPROBE_COLLECTIVE(allgatherv, Allgatherv,
    (void* send, MPI_Fint* send_count, MPI_Fint* send_type, void* receive, MPI_Fint* counts, MPI_Fint* places,
    MPI_Fint* type, MPI_Fint* comm, MPI_Fint* error),
    (send, send_count, send_type, receive, counts, places, type, comm, error),
    (buffer(send), *send_count, type_of(send_type), buffer(receive), counts, places, type_of(type), comm_of(comm)))
COLLPROBE_COLLECTIVE(bcast, Bcast,
    (void* data, MPI_Fint* count, MPI_Fint* type, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error),
    (data, count, type, root, comm, error),
    (buffer(data), *count, type_of(type), *root, comm_of(comm)))
COLLPROBE_COLLECTIVE(reduce, Reduce,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* root, MPI_Fint* comm,
    MPI_Fint* error),
    (send, receive, count, type, op, root, comm, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), *root, comm_of(comm)))

COLLPROBE_STARTED(allreduce, Allreduce,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* request,
    MPI_Fint* error),
    (send, receive, count, type, op, comm, request, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), comm_of(comm), &started))
COLLPROBE_STARTED(reduce_scatter, Reduce_scatter,
    (void* send, void* receive, MPI_Fint* counts, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* request,
    MPI_Fint* error),
    (send, receive, counts, type, op, comm, request, error),
    (buffer(send), buffer(receive), counts, type_of(type), op_of(op), comm_of(comm), &started))
COLLPROBE_STARTED(reduce_scatter_block, Reduce_scatter_block,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* comm, MPI_Fint* request,
    MPI_Fint* error),
    (send, receive, count, type, op, comm, request, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), comm_of(comm), &started))
COLLPROBE_STARTED(allgather, Allgather,
    (void* send, MPI_Fint* send_count, MPI_Fint* send_type, void* receive, MPI_Fint* count, MPI_Fint* type,
    MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error),
    (send, send_count, send_type, receive, count, type, comm, request, error),
    (buffer(send), *send_count, type_of(send_type), buffer(receive), *count, type_of(type), comm_of(comm), &started))
COLLPROBE_STARTED(allgatherv, Allgatherv,
    (void* send, MPI_Fint* send_count, MPI_Fint* send_type, void* receive, MPI_Fint* counts, MPI_Fint* places,
    MPI_Fint* type, MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error),
    (send, send_count, send_type, receive, counts, places, type, comm, request, error),
    (buffer(send), *send_count, type_of(send_type), buffer(receive), counts, places, type_of(type), comm_of(comm),
    &started))
COLLPROBE_STARTED(bcast, Bcast,
    (void* data, MPI_Fint* count, MPI_Fint* type, MPI_Fint* root, MPI_Fint* comm, MPI_Fint* request, MPI_Fint*
    error),
    (data, count, type, root, comm, request, error),
    (buffer(data), *count, type_of(type), *root, comm_of(comm), &started))
COLLPROBE_STARTED(reduce, Reduce,
    (void* send, void* receive, MPI_Fint* count, MPI_Fint* type, MPI_Fint* op, MPI_Fint* root, MPI_Fint* comm,
    MPI_Fint* request, MPI_Fint* error),
    (send, receive, count, type, op, root, comm, request, error),
    (buffer(send), buffer(receive), *count, type_of(type), op_of(op), *root, comm_of(comm), &started))
#endif
