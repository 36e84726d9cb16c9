// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/order/stream_order.hpp>

/// CUDA's own calls on raw handles, for programs that report them to the checker of stream order. Each function makes
/// the CUDA call of its name, with the same arguments, and reports it to the installed checker. With
/// COLLPROBE_STREAM_ORDER=0 it makes that call and nothing else.
///
///     ordered::memcpy_async(shard, master, bytes, cudaMemcpyDeviceToDevice, copies);
///     adam<<<grid, block, 0, compute>>>(weights, gradient);
///     ordered::touch(compute, {{gradient, bytes}}, {{weights, bytes}}, "adam");
///
/// Returns the result of CUDA. Throws any exception of `stream_order::options::on_hazard`, and `error` for an invalid
/// stream handle. As thread-safe as CUDA's call. Cost if the checker is on: some hundred nanoseconds, mostly to ask
/// CUDA which stream the handle denotes.
namespace collprobe::inline COLLPROBE_ABI::ordered {

namespace detail {

template <class Tell>
void tell(const Tell& tell_it)
{
    stream_order::tell_installed(tell_it);
}
inline order_stream stream_of([[maybe_unused]] cudaStream_t handle)
{
#if COLLPROBE_STREAM_ORDER
    return order_hooks::stream_of(cuda::stream_ref(handle));
#else
    return {};
#endif
}
/// Reports a call that succeeded.
template <class Tell>
cudaError_t told(cudaError_t code, const Tell& tell_it)
{
    if (code == cudaSuccess) tell(tell_it);
    return code;
}

} // namespace detail

/// Reports a kernel, or other work on the stream that is no call of this file. Call it before the launch.
inline void touch(cudaStream_t stream, stream_order::ranges reads, stream_order::ranges writes,
    const char* what = "kernel", call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) { to.launch(detail::stream_of(stream), reads, writes, what, where); });
}
/// Reports an access by the calling thread.
inline void touch_host(memory_range bytes, memory_access mode, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) { to.touch_host(bytes, mode, "host access", where); });
}

// --- Copies ---

namespace detail {

/// The work that the calling thread has waited for when cudaMemcpy returns.
enum class copy_wait : std::uint8_t {
    none,
    source, ///< all earlier work of the stream, and the read of the source, which was staged
    all,
};

inline cudaMemoryType memory_type(const void* memory)
{
    cudaPointerAttributes attributes{};
    cuda::check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
    return attributes.type;
}
inline bool is_on_host(cudaMemoryType type) noexcept
{
    return type == cudaMemoryTypeUnregistered || type == cudaMemoryTypeHost;
}
/// Follows "API synchronization behavior" of the CUDA Runtime API. Managed memory counts as the device's.
inline copy_wait wait_of_copy(const void* to_memory, const void* from)
{
    const cudaMemoryType source = memory_type(from);
    if (is_on_host(memory_type(to_memory)) || source == cudaMemoryTypeHost) return copy_wait::all;
    return source == cudaMemoryTypeUnregistered ? copy_wait::source : copy_wait::none;
}

} // namespace detail

inline cudaError_t memcpy_async(void* to_memory, const void* from, std::size_t bytes, cudaMemcpyKind kind,
    cudaStream_t stream = nullptr, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.launch(detail::stream_of(stream), {{from, bytes}}, {{to_memory, bytes}}, "memcpy", where);
    });
    return cudaMemcpyAsync(to_memory, from, bytes, kind, stream);
}
/// On the default stream. When it returns, the calling thread has waited for a copy to the host or from pinned memory.
/// For a copy from pageable memory to the device it has waited for the read of the source only, and for a copy within
/// devices not at all.
inline cudaError_t memcpy(void* to_memory, const void* from, std::size_t bytes, cudaMemcpyKind kind,
    call_site where = call_site::current())
{
    auto waits = detail::copy_wait::none;
    order_point waited;
    detail::tell([&](stream_order& to) {
        const order_stream on = detail::stream_of(nullptr);
        waits = detail::wait_of_copy(to_memory, from);
        if (waits != detail::copy_wait::source) to.launch(on, {{from, bytes}}, {{to_memory, bytes}}, "memcpy", where);
        to.record(waited, on);
    });
    return detail::told(cudaMemcpy(to_memory, from, bytes, kind), [&](stream_order& to) {
        if (waits == detail::copy_wait::none) return;
        to.reached(waited);
        if (waits == detail::copy_wait::all) return;
        to.touch_host({from, bytes}, memory_access::read, "memcpy", where);
        to.launch(detail::stream_of(nullptr), {}, {{to_memory, bytes}}, "memcpy", where);
    });
}
inline cudaError_t memset_async(void* memory, int value, std::size_t bytes, cudaStream_t stream = nullptr,
    call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.launch(detail::stream_of(stream), {}, {{memory, bytes}}, "memset", where);
    });
    return cudaMemsetAsync(memory, value, bytes, stream);
}
/// On the default stream. The calling thread waits for it only if the memory is pinned or managed.
inline cudaError_t memset(void* memory, int value, std::size_t bytes, call_site where = call_site::current())
{
    bool waits = false;
    order_point waited;
    detail::tell([&](stream_order& to) {
        const order_stream on = detail::stream_of(nullptr);
        waits = detail::memory_type(memory) != cudaMemoryTypeDevice;
        to.launch(on, {}, {{memory, bytes}}, "memset", where);
        to.record(waited, on);
    });
    return detail::told(cudaMemset(memory, value, bytes), [&](stream_order& to) {
        if (waits) to.reached(waited);
    });
}

// --- Events and synchronisation ---

inline cudaError_t event_record(cudaEvent_t event, cudaStream_t stream = nullptr)
{
    return detail::told(cudaEventRecord(event, stream),
        [&](stream_order& to) { to.record(order_object(event), detail::stream_of(stream)); });
}
inline cudaError_t stream_wait_event(
    cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0, call_site where = call_site::current())
{
    return detail::told(cudaStreamWaitEvent(stream, event, flags),
        [&](stream_order& to) { to.wait(detail::stream_of(stream), order_object(event), where); });
}
inline cudaError_t event_query(cudaEvent_t event)
{
    return detail::told(cudaEventQuery(event), [&](stream_order& to) { to.reached(order_object(event)); });
}
inline cudaError_t event_synchronize(cudaEvent_t event)
{
    return detail::told(cudaEventSynchronize(event), [&](stream_order& to) { to.reached(order_object(event)); });
}
inline cudaError_t event_destroy(cudaEvent_t event)
{
    return detail::told(cudaEventDestroy(event), [&](stream_order& to) { to.event_ended(order_object(event)); });
}
inline cudaError_t stream_query(cudaStream_t stream)
{
    order_point before;
    detail::tell([&](stream_order& to) { to.record(before, detail::stream_of(stream)); });
    return detail::told(cudaStreamQuery(stream), [&](stream_order& to) { to.reached(before); });
}
inline cudaError_t stream_synchronize(cudaStream_t stream)
{
    order_point before;
    detail::tell([&](stream_order& to) { to.record(before, detail::stream_of(stream)); });
    return detail::told(cudaStreamSynchronize(stream), [&](stream_order& to) { to.reached(before); });
}
inline cudaError_t stream_destroy(cudaStream_t stream)
{
    order_stream ended;
    detail::tell([&](stream_order&) { ended = detail::stream_of(stream); });
    return detail::told(cudaStreamDestroy(stream), [&](stream_order& to) { to.stream_ended(ended); });
}
/// Synchronises with the current device.
inline cudaError_t device_synchronize()
{
    order_point before; // it is unknown whether work that other threads enqueue meanwhile is waited for
    detail::tell([&](stream_order& to) {
        to.record_space(before, 2 + static_cast<std::uint32_t>(cuda::detail::current_device()));
    });
    return detail::told(cudaDeviceSynchronize(), [&](stream_order& to) { to.reached(before); });
}

// --- Memory ---

inline cudaError_t malloc(void** memory, std::size_t bytes)
{
    return detail::told(cudaMalloc(memory, bytes), [&](stream_order& to) { to.allocate({*memory, bytes}); });
}
inline cudaError_t malloc_managed(void** memory, std::size_t bytes, unsigned int flags = cudaMemAttachGlobal)
{
    return detail::told(
        cudaMallocManaged(memory, bytes, flags), [&](stream_order& to) { to.allocate({*memory, bytes}); });
}
/// Allocates pinned memory.
inline cudaError_t malloc_host(void** memory, std::size_t bytes)
{
    return detail::told(cudaMallocHost(memory, bytes), [&](stream_order& to) { to.allocate({*memory, bytes}); });
}
/// The calling thread must know that all work with the bytes is done; CUDA does not promise that cudaFree waits.
inline cudaError_t free(void* memory, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.release({memory, to.allocated_bytes(memory)}, true, where);
    });
    return cudaFree(memory);
}
/// As `free`, for pinned memory.
inline cudaError_t free_host(void* memory, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.release({memory, to.allocated_bytes(memory)}, true, where);
    });
    return cudaFreeHost(memory);
}
#if CUDART_VERSION >= 11020
inline cudaError_t malloc_async(
    void** memory, std::size_t bytes, cudaStream_t stream, call_site where = call_site::current())
{
    return detail::told(cudaMallocAsync(memory, bytes, stream),
        [&](stream_order& to) { to.allocate({*memory, bytes}, detail::stream_of(stream), where); });
}
inline cudaError_t free_async(void* memory, cudaStream_t stream, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.release({memory, to.allocated_bytes(memory)}, detail::stream_of(stream), where);
    });
    return cudaFreeAsync(memory, stream);
}
#endif

// --- Captures and graphs ---

inline cudaError_t stream_begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    return detail::told(cudaStreamBeginCapture(stream, mode),
        [&](stream_order& to) { to.capture_begin(detail::stream_of(stream).capture); });
}
inline cudaError_t stream_end_capture(cudaStream_t stream, cudaGraph_t* graph)
{
    std::uint64_t capture = 0;
    detail::tell([&](stream_order&) { capture = detail::stream_of(stream).capture; });
    const cudaError_t code = cudaStreamEndCapture(stream, graph);
    detail::tell([&](stream_order& to) {
        to.capture_end(capture);
        if (code == cudaSuccess) to.set_capture_of(order_object(*graph), capture);
    });
    return code;
}
inline cudaError_t graph_instantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned long long flags = 0)
{
    return detail::told(cudaGraphInstantiateWithFlags(runnable, graph, flags), [&](stream_order& to) {
        to.set_capture_of(order_object(*runnable), to.capture_of(order_object(graph)));
        to.event_ended(order_object(*runnable)); // an earlier graph may have had the same handle
    });
}
inline cudaError_t graph_launch(
    cudaGraphExec_t runnable, cudaStream_t stream, call_site where = call_site::current())
{
    detail::tell([&](stream_order& to) {
        to.launch_graph(order_object(runnable), detail::stream_of(stream), where);
    });
    return cudaGraphLaunch(runnable, stream);
}

} // namespace collprobe::ordered
