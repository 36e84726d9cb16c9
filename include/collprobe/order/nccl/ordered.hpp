// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/order/cuda/ordered.hpp>

/// NCCL's own calls on raw handles, as cuda/ordered.hpp has CUDA's: the same arguments, with a report to the checker. A
/// program that wraps one of its groups must wrap all of them.
namespace collprobe::inline COLLPROBE_ABI::ordered {

namespace detail {

constexpr std::size_t bytes_of(ncclDataType_t type) noexcept
{
    switch (type) {
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1; // 8-bit integers and floats
    }
}

/// What a rank's call reads or writes.
struct nccl_bytes {
    const void* data = nullptr;
    std::size_t bytes = 0; ///< of a part, if there are parts
    bool has_parts = false; ///< one for each rank
    int only_rank = -1; ///< the rank that alone does so; -1: all do

    memory_range of(int ranks, int rank) const noexcept
    {
        if (only_rank >= 0 && rank != only_rank) return {};
        return {data, has_parts ? static_cast<std::size_t>(ranks) * bytes : bytes};
    }
};
/// Called before NCCL's function.
inline void tell(ncclComm_t comm, cudaStream_t stream, const char* what, const nccl_bytes& reads,
    const nccl_bytes& writes, call_site where, bool is_transfer = false)
{
    if_checked([&](stream_order& to) {
        int ranks = 1;
        int rank = 0;
        if (ncclCommCount(comm, &ranks) != ncclSuccess || ncclCommUserRank(comm, &rank) != ncclSuccess) return;
        // A communicator of one rank enqueues its collectives at once, even in a group.
        const bool deferrable = ranks > 1 || is_transfer;
        to.collective(stream_of(stream), {reads.of(ranks, rank)}, {writes.of(ranks, rank)}, what, deferrable, where);
    });
}

} // namespace detail

inline ncclResult_t group_start()
{
    const ncclResult_t result = ncclGroupStart();
    if (result == ncclSuccess) if_checked([](stream_order& to) { to.group_begin(); });
    return result;
}
inline ncclResult_t group_end()
{
    const ncclResult_t result = ncclGroupEnd();
    if_checked([&](stream_order& to) { to.group_end(result == ncclSuccess || result == ncclInProgress); });
    return result;
}

inline ncclResult_t all_gather(const void* send, void* receive, std::size_t send_count, ncclDataType_t type,
    ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = send_count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclAllGather", {send, bytes}, {receive, bytes, true}, where);
    return ncclAllGather(send, receive, send_count, type, comm, stream);
}
inline ncclResult_t all_reduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclAllReduce", {send, bytes}, {receive, bytes}, where);
    return ncclAllReduce(send, receive, count, type, operation, comm, stream);
}
inline ncclResult_t reduce_scatter(const void* send, void* receive, std::size_t receive_count, ncclDataType_t type,
    ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = receive_count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclReduceScatter", {send, bytes, true}, {receive, bytes}, where);
    return ncclReduceScatter(send, receive, receive_count, type, operation, comm, stream);
}
inline ncclResult_t broadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
    ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclBroadcast", {send, bytes, false, root}, {receive, bytes}, where);
    return ncclBroadcast(send, receive, count, type, root, comm, stream);
}
inline ncclResult_t reduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclReduce", {send, bytes}, {receive, bytes, false, root}, where);
    return ncclReduce(send, receive, count, type, operation, root, comm, stream);
}
/// In place.
inline ncclResult_t bcast(void* memory, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
    cudaStream_t stream, call_site where = call_site::current())
{
    return broadcast(memory, memory, count, type, root, comm, stream, where);
}
#if NCCL_VERSION_CODE >= 22800
inline ncclResult_t all_to_all(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclComm_t comm, cudaStream_t stream, call_site where = call_site::current())
{
    const std::size_t bytes = count * detail::bytes_of(type);
    detail::tell(comm, stream, "ncclAlltoAll", {send, bytes, true}, {receive, bytes, true}, where);
    return ncclAlltoAll(send, receive, count, type, comm, stream);
}
#endif
inline ncclResult_t send(const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
    cudaStream_t stream, call_site where = call_site::current())
{
    detail::tell(comm, stream, "ncclSend", {memory, count * detail::bytes_of(type)}, {}, where, true);
    return ncclSend(memory, count, type, peer, comm, stream);
}
inline ncclResult_t recv(void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
    cudaStream_t stream, call_site where = call_site::current())
{
    detail::tell(comm, stream, "ncclRecv", {}, {memory, count * detail::bytes_of(type)}, where, true);
    return ncclRecv(memory, count, type, peer, comm, stream);
}

} // namespace collprobe::ordered
