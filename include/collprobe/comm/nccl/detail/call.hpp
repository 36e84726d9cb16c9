// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <nccl.h>

#include <collprobe/comm/detail/call.hpp>
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

/// Precondition: `what` moves data.
inline ncclResult_t make_call(const collprobe::detail::call_description& what, const void* send, void* receive,
    int ranks, ncclComm_t comm, cudaStream_t on)
{
    const ncclDataType_t type = data_type(what.type);
    const auto count = static_cast<std::size_t>(what.count);
    switch (what.call) {
    case collective::all_reduce:
        return ncclAllReduce(send, receive, count, type, operation(what.operation), comm, on);
    case collective::reduce_scatter:
        return ncclReduceScatter(send, receive, count, type, operation(what.operation), comm, on);
    case collective::all_gather: return ncclAllGather(send, receive, count, type, comm, on);
    case collective::all_to_all:
#if NCCL_VERSION_CODE >= 22800
        static_cast<void>(ranks);
        return ncclAlltoAll(send, receive, count, type, comm, on);
#else
        return exchange_parts(
            send, receive, count, static_cast<std::size_t>(bytes_of(what.type)), type, ranks, comm, on);
#endif
    case collective::broadcast: return ncclBroadcast(send, receive, count, type, what.root, comm, on);
    case collective::barrier:
    case collective::split: break;
    }
    return ncclInvalidArgument;
}

} // namespace collprobe::nccl::detail
