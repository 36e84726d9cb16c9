// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <nccl.h>

#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>

/// The calls of NCCL for each collective.
namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// All-to-all by sends and receives, for an NCCL without that call. `part` is the number of elements for each rank.
inline ncclResult_t exchange_parts(const void* send, void* receive, std::size_t part, std::size_t element_bytes,
    ncclDataType_t type, int ranks, ncclComm_t comm, cudaStream_t on)
{
    ncclResult_t first = ncclGroupStart();
    if (first != ncclSuccess) return first;
    const auto note = [&first](ncclResult_t result) {
        if (result != ncclSuccess && result != ncclInProgress && first == ncclSuccess) first = result;
    };
    const std::size_t bytes = part * element_bytes;
    for (int peer = 0; peer < ranks; ++peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
        note(ncclSend(static_cast<const char*>(send) + offset, part, type, peer, comm, on));
        note(ncclRecv(static_cast<char*>(receive) + offset, part, type, peer, comm, on));
    }
    const ncclResult_t end = ncclGroupEnd();
    return first != ncclSuccess ? first : end;
}

/// NCCL's name of the call, for messages.
constexpr const char* function_of(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "ncclAllReduce";
    case collective::reduce_scatter: return "ncclReduceScatter";
    case collective::all_gather: return "ncclAllGather";
    case collective::all_to_all: return "ncclAlltoAll";
    case collective::broadcast: return "ncclBroadcast";
    case collective::barrier: return "ncclAllReduce (of a barrier)";
    case collective::split: break;
    }
    return "unknown";
}

/// Precondition: `call` moves data.
inline ncclResult_t make_call(const collective_call& call, int rank, int ranks, ncclComm_t comm, cudaStream_t on)
{
    const void* const send = call.sends(rank) ? call.send : call.receive;
    const ncclDataType_t type = data_type(call.type);
    const auto count = static_cast<std::size_t>(collprobe::detail::agreed_count(call, ranks));
    switch (call.what) {
    case collective::all_reduce:
        return ncclAllReduce(send, call.receive, count, type, operation(call.operation), comm, on);
    case collective::reduce_scatter:
        return ncclReduceScatter(send, call.receive, count, type, operation(call.operation), comm, on);
    case collective::all_gather: return ncclAllGather(send, call.receive, count, type, comm, on);
    case collective::all_to_all:
#if NCCL_VERSION_CODE >= 22800
        return ncclAlltoAll(send, call.receive, count, type, comm, on);
#else
        return exchange_parts(
            send, call.receive, count, static_cast<std::size_t>(call.element_bytes()), type, ranks, comm, on);
#endif
    case collective::broadcast: return ncclBroadcast(send, call.receive, count, type, call.root, comm, on);
    case collective::barrier:
    case collective::split: break;
    }
    return ncclInvalidArgument;
}

} // namespace collprobe::nccl::detail
