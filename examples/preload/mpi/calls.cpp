// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the program calls in place of its MPI: the functions of C, which Fortran's of MPICH call as well.
#include <cstddef>
#include <cstdint>

#include "calls.hpp"
#include "layer.hpp"
#include "mpi_library.hpp"

namespace collprobe_mpi {
namespace {

template <class Count>
std::uint64_t positive(Count count)
{
    return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

int ranks_of(MPI_Comm comm)
{
    int ranks = 1;
    mpi().Comm_size(comm, &ranks);
    return ranks;
}

const void* after(const void* data, std::uint64_t elements, MPI_Datatype type)
{
    int size = 0;
    mpi().Type_size(type, &size);
    return static_cast<const char*>(data) + elements * static_cast<std::uint64_t>(size);
}

collective_call reduction_of(const char* function, operation what, const void* send, const void* receive,
    MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    collective_call call;
    call.function = function;
    call.what = what;
    call.comm = comm;
    call.type = type;
    call.op = op;
    call.input = send == MPI_IN_PLACE ? receive : send;
    call.result = receive;
    return call;
}

template <class Count>
collective_call all_reduce(const char* function, const void* send, const void* receive, Count count, MPI_Datatype type,
    MPI_Op op, MPI_Comm comm)
{
    collective_call call = reduction_of(function, operation::all_reduce, send, receive, type, op, comm);
    call.elements = call.input_count = call.result_count = positive(count);
    return call;
}

template <class Count>
collective_call reduce_scatter_block(const char* function, const void* send, const void* receive, Count count,
    MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    collective_call call = reduction_of(function, operation::reduce_scatter, send, receive, type, op, comm);
    call.result_count = positive(count);
    call.elements = call.input_count = call.result_count * positive(ranks_of(comm));
    return call;
}

template <class Count>
collective_call reduce_scatter(const char* function, const void* send, const void* receive, const Count* counts,
    MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    collective_call call = reduction_of(function, operation::reduce_scatter, send, receive, type, op, comm);
    const int ranks = ranks_of(comm);
    for (int rank = 0; rank < ranks; ++rank) {
        call.elements += positive(counts[rank]);
        if (counts[rank] != counts[0]) call.unseen = "with unequal counts";
    }
    call.input_count = call.elements;
    call.result_count = positive(counts[0]);
    return call;
}

/// Told by what is received: each rank may describe what it sends by another type.
template <class Count>
collective_call all_gather(const char* function, const void* send, Count send_count, MPI_Datatype send_type,
    const void* receive, Count count, MPI_Datatype type, MPI_Comm comm)
{
    collective_call call;
    call.function = function;
    call.what = operation::all_gather;
    call.comm = comm;
    call.type = type;
    call.elements = call.input_count = positive(count);
    call.result = receive;
    call.result_count = call.input_count * positive(ranks_of(comm));
    if (send == MPI_IN_PLACE) {
        int rank = 0;
        mpi().Comm_rank(comm, &rank);
        call.input = after(receive, positive(rank) * call.input_count, type);
    } else {
        call.input = send_type == type && send_count == count ? send : COLLPROBE_NO_BUFFER;
    }
    return call;
}

/// Calls that are only counted.
collective_call counted(const char* function, operation what, MPI_Comm comm, MPI_Datatype type, std::uint64_t elements,
    MPI_Op op = MPI_Op{}, int root = 0)
{
    collective_call call;
    call.function = function;
    call.what = what;
    call.comm = comm;
    call.type = type;
    call.op = op;
    call.elements = elements;
    call.root = root;
    call.unseen = "";
    return call;
}

collective_call broadcast(
    const char* function, MPI_Comm comm, MPI_Datatype type, std::uint64_t elements, int root)
{
    return counted(function, operation::broadcast, comm, type, elements, MPI_Op{}, root);
}

/// Of an array of counts each rank knows all; the elements are their sum.
template <class Count>
collective_call all_gather_v(const char* function, MPI_Comm comm, MPI_Datatype type, const Count* counts)
{
    std::uint64_t elements = 0;
    const int ranks = ranks_of(comm);
    for (int rank = 0; rank < ranks; ++rank) elements += positive(counts[rank]);
    return counted(function, operation::all_gather_v, comm, type, elements);
}

/// Whether the program's MPI is known and has the call.
template <class Call>
bool has(Call call)
{
    return mpi().is_known && call != nullptr;
}

template <class Describe, class Call>
int blocking(const Describe& describe, const Call& call)
{
    layer& own = layer::get();
    const open_call opened = own.begin(describe());
    const int status = call();
    if (opened.of != nullptr) own.end(opened, status == MPI_SUCCESS);
    return status;
}

template <class Describe, class Call>
int non_blocking(MPI_Request* request, const Describe& describe, const Call& call)
{
    layer& own = layer::get();
    const open_call opened = own.begin(describe());
    const int status = call();
    if (opened.of == nullptr) return status;
    if (status == MPI_SUCCESS) own.keep(*request, opened);
    else own.end(opened, false);
    return status;
}

} // namespace
} // namespace collprobe_mpi

using namespace collprobe_mpi;

// A call of the program: described and looked at by `how`, unless its MPI is not known or lacks the call. The name in the
// object file keeps the types of <mpi.h> away, which has another name for each of its own.
#define COLLPROBE_WITHOUT_BRACKETS(...) __VA_ARGS__
#define COLLPROBE_CALL(name, parameters, arguments, how, ...)                                                          \
    COLLPROBE_EXPORT int layer_##name parameters __asm__("MPI_" #name);                                                \
    int layer_##name parameters                                                                                        \
    {                                                                                                                  \
        if (!has(mpi().name)) return pass_on<int>("MPI_" #name, COLLPROBE_WITHOUT_BRACKETS arguments);                 \
        constexpr const char* function = "MPI_" #name;                                                                 \
        return how([&] { return __VA_ARGS__; }, [&] { return mpi().name arguments; });                                 \
    }
#define COLLPROBE_LATER(describe, call) non_blocking(request, describe, call)

// Each as it is, with a count of MPI_Count, and both without a wait; what is only counted has nothing to wait for.
#define COLLPROBE_CALLS(suffix, Count, Displacement)                                                                   \
    COLLPROBE_CALL(Allreduce##suffix, (const void* send, void* receive, Count count, wide<MPI_Datatype> type,          \
        wide<MPI_Op> op, wide<MPI_Comm> comm), (send, receive, count, type, op, comm), blocking,                       \
        all_reduce(function, send, receive, count, type, op, comm))                                                    \
    COLLPROBE_CALL(Iallreduce##suffix, (const void* send, void* receive, Count count, wide<MPI_Datatype> type,         \
        wide<MPI_Op> op, wide<MPI_Comm> comm, MPI_Request* request), (send, receive, count, type, op, comm,            \
        request), COLLPROBE_LATER, all_reduce(function, send, receive, count, type, op, comm))                         \
    COLLPROBE_CALL(Reduce_scatter##suffix, (const void* send, void* receive, const Count* counts,                      \
        wide<MPI_Datatype> type, wide<MPI_Op> op, wide<MPI_Comm> comm), (send, receive, counts, type, op, comm),       \
        blocking, reduce_scatter(function, send, receive, counts, type, op, comm))                                     \
    COLLPROBE_CALL(Ireduce_scatter##suffix, (const void* send, void* receive, const Count* counts,                     \
        wide<MPI_Datatype> type, wide<MPI_Op> op, wide<MPI_Comm> comm, MPI_Request* request), (send, receive,          \
        counts, type, op, comm, request), COLLPROBE_LATER, reduce_scatter(function, send, receive, counts, type,       \
        op, comm))                                                                                                     \
    COLLPROBE_CALL(Reduce_scatter_block##suffix, (const void* send, void* receive, Count count, wide<MPI_Datatype>     \
        type, wide<MPI_Op> op, wide<MPI_Comm> comm), (send, receive, count, type, op, comm), blocking,                 \
        reduce_scatter_block(function, send, receive, count, type, op, comm))                                          \
    COLLPROBE_CALL(Ireduce_scatter_block##suffix, (const void* send, void* receive, Count count,                       \
        wide<MPI_Datatype> type, wide<MPI_Op> op, wide<MPI_Comm> comm, MPI_Request* request), (send, receive,          \
        count, type, op, comm, request), COLLPROBE_LATER, reduce_scatter_block(function, send, receive, count,         \
        type, op, comm))                                                                                               \
    COLLPROBE_CALL(Allgather##suffix, (const void* send, Count send_count, wide<MPI_Datatype> send_type, void*         \
        receive, Count count, wide<MPI_Datatype> type, wide<MPI_Comm> comm), (send, send_count, send_type,             \
        receive, count, type, comm), blocking, all_gather(function, send, send_count, send_type, receive, count,       \
        type, comm))                                                                                                   \
    COLLPROBE_CALL(Iallgather##suffix, (const void* send, Count send_count, wide<MPI_Datatype> send_type, void*        \
        receive, Count count, wide<MPI_Datatype> type, wide<MPI_Comm> comm, MPI_Request* request), (send,              \
        send_count, send_type, receive, count, type, comm, request), COLLPROBE_LATER, all_gather(function, send,       \
        send_count, send_type, receive, count, type, comm))                                                            \
    COLLPROBE_CALL(Allgatherv##suffix, (const void* send, Count send_count, wide<MPI_Datatype> send_type, void*        \
        receive, const Count* counts, const Displacement* places, wide<MPI_Datatype> type, wide<MPI_Comm> comm),       \
        (send, send_count, send_type, receive, counts, places, type, comm), blocking, all_gather_v(function, comm,     \
        type, counts))                                                                                                 \
    COLLPROBE_CALL(Iallgatherv##suffix, (const void* send, Count send_count, wide<MPI_Datatype> send_type, void*       \
        receive, const Count* counts, const Displacement* places, wide<MPI_Datatype> type, wide<MPI_Comm> comm,        \
        MPI_Request* request), (send, send_count, send_type, receive, counts, places, type, comm, request),            \
        blocking, all_gather_v(function, comm, type, counts))                                                          \
    COLLPROBE_CALL(Bcast##suffix, (void* data, Count count, wide<MPI_Datatype> type, int root, wide<MPI_Comm>          \
        comm), (data, count, type, root, comm), blocking, broadcast(function, comm, type, positive(count), root))      \
    COLLPROBE_CALL(Ibcast##suffix, (void* data, Count count, wide<MPI_Datatype> type, int root, wide<MPI_Comm>         \
        comm, MPI_Request* request), (data, count, type, root, comm, request), blocking, broadcast(function, comm,     \
        type, positive(count), root))                                                                                  \
    COLLPROBE_CALL(Reduce##suffix, (const void* send, void* receive, Count count, wide<MPI_Datatype> type,             \
        wide<MPI_Op> op, int root, wide<MPI_Comm> comm), (send, receive, count, type, op, root, comm), blocking,       \
        counted(function, operation::reduce, comm, type, positive(count), op, root))                                   \
    COLLPROBE_CALL(Ireduce##suffix, (const void* send, void* receive, Count count, wide<MPI_Datatype> type,            \
        wide<MPI_Op> op, int root, wide<MPI_Comm> comm, MPI_Request* request), (send, receive, count, type, op,        \
        root, comm, request), blocking, counted(function, operation::reduce, comm, type, positive(count), op,          \
        root))

COLLPROBE_CALLS(, int, int)
#if MPI_VERSION >= 4
COLLPROBE_CALLS(_c, MPI_Count, MPI_Aint)
#endif

COLLPROBE_EXPORT int MPI_Wait(MPI_Request* request, MPI_Status* status)
{
    return completing(1, request, [&] { return mpi().Wait(request, status); });
}
COLLPROBE_EXPORT int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status)
{
    return completing(1, request, [&] { return mpi().Test(request, flag, status); });
}
COLLPROBE_EXPORT int MPI_Request_free(MPI_Request* request)
{
    return completing(1, request, [&] { return mpi().Request_free(request); }, false);
}
COLLPROBE_EXPORT int MPI_Waitall(int count, MPI_Request requests[], MPI_Status* statuses)
{
    return completing(positive(count), requests, [&] { return mpi().Waitall(count, requests, statuses); });
}
COLLPROBE_EXPORT int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status* statuses)
{
    return completing(positive(count), requests, [&] { return mpi().Testall(count, requests, flag, statuses); });
}
COLLPROBE_EXPORT int MPI_Waitany(int count, MPI_Request requests[], int* place, MPI_Status* status)
{
    return completing(positive(count), requests, [&] { return mpi().Waitany(count, requests, place, status); });
}
COLLPROBE_EXPORT int MPI_Testany(int count, MPI_Request requests[], int* place, int* flag, MPI_Status* status)
{
    return completing(positive(count), requests, [&] { return mpi().Testany(count, requests, place, flag, status); });
}
COLLPROBE_EXPORT int MPI_Waitsome(int count, MPI_Request requests[], int* done, int places[], MPI_Status* statuses)
{
    return completing(
        positive(count), requests, [&] { return mpi().Waitsome(count, requests, done, places, statuses); });
}
COLLPROBE_EXPORT int MPI_Testsome(int count, MPI_Request requests[], int* done, int places[], MPI_Status* statuses)
{
    return completing(
        positive(count), requests, [&] { return mpi().Testsome(count, requests, done, places, statuses); });
}

/// As the preload for NCCL has it: the calls from here on are of this step.
COLLPROBE_EXPORT void collprobe_mark_step(std::uint64_t step)
{
    if (mpi().is_known) layer::get().mark(step);
}
