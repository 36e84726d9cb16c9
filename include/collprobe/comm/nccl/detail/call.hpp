// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/device/cuda/device.hpp>

/// The calls of NCCL for each collective; and refusals of what NCCL or the device could not use, before NCCL sees it.
/// Nothing is enqueued then, and the communicator stays usable.
namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

using collprobe::detail::caller;

/// Refuses streams of other devices, and streams that mean different things to different threads or libraries.
template <class Comm>
void require_stream(const caller<Comm>& who, const handle& comm, cuda::stream_ref on)
{
    const blocking_mode mode = comm.settings().mode;
    if (on.is_per_thread()) {
        if (mode == blocking_mode::blocking) return;
        // NVIDIA/nccl issue 1976.
        who.refuse("stream is cudaStreamPerThread, and the communicator is non-blocking or not known to be blocking: "
                   "NCCL may enqueue from another thread, on that thread's stream, and the data are silently wrong",
            status::unsupported);
    }
    if (on.is_default()) {
        if (mode != blocking_mode::non_blocking) return;
        // Work on this stream is ordered by the time at which it is enqueued, and another thread decides that time
        // here. NCCL's copy-engine collectives do not work on it either (NVIDIA/nccl issue 2003).
        who.refuse("stream is the legacy default stream, which a non-blocking communicator cannot use",
            status::unsupported);
    }
    if (const int device = on.device(who.where()); device != comm.device()) {
        who.refuse("stream is on device " + std::to_string(device) + ", the communicator on device "
            + std::to_string(comm.device()));
    }
}

/// Requires that the device can read and write `count` elements, and that these lie in one allocation.
/// Precondition: the communicator's device is current.
template <class Comm>
void require_memory(const caller<Comm>& who, const handle& comm, cuda::stream_ref on, const void* data,
    std::uint64_t count, std::uint64_t element_bytes, const char* argument)
{
    if (count == 0) return;
    cudaPointerAttributes found{};
    cuda::check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes", comm.device(), on.get(),
        who.where());
    if (found.type == cudaMemoryTypeUnregistered) {
        int reads_all = 0; // on machines whose GPU reads any memory of the process
        cuda::check(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, comm.device()),
            "cudaDeviceGetAttribute", comm.device(), on.get(), who.where());
        if (reads_all != 0) return;
        who.refuse(std::string(argument) + " is host memory that the device cannot read (neither pinned nor managed)");
    }
    if (found.type == cudaMemoryTypeDevice && found.device != comm.device()) {
        who.refuse(std::string(argument) + " is on device " + std::to_string(found.device)
            + ", the communicator on device " + std::to_string(comm.device()));
    }
    const std::uint64_t bytes = count * element_bytes;
    if (const std::uint64_t held = cuda::detail::bytes_in_allocation(data, bytes); held < bytes) {
        who.refuse(std::string(argument) + " reaches beyond its allocation: it has " + std::to_string(count)
            + " elements, " + std::to_string(bytes) + " bytes, and the rest of the allocation has "
            + std::to_string(held) + " bytes");
    }
}

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
