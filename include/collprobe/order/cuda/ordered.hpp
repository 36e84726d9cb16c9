// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/order/ordered.hpp>
#include <collprobe/order/stream_order.hpp>

/// CUDA's own calls on raw handles, for programs that report them to the checker of stream order. Each function makes
/// the CUDA call of its name, with the same arguments, and reports it to the installed checker. With
/// COLLPROBE_STREAM_ORDER=0 it makes that call and nothing else.
///
///     ordered::memcpy_async(shard, master, bytes, cudaMemcpyDeviceToDevice, copies);
///     adam<<<grid, block, 0, compute>>>(weights, gradient);
///     ordered::touch(compute, {{gradient, bytes}}, {{weights, bytes}}, "adam");
///
/// Work is told before the call, so that a hazard is reported first: work that CUDA then refuses counts as done.
/// Returns the result of CUDA. Throws any exception of `stream_order::options::on_hazard`, and `error` for an invalid
/// stream handle. As thread-safe as CUDA's call. Cost if the checker is on: some hundred nanoseconds, mostly to ask
/// CUDA which stream the handle denotes.
namespace collprobe::inline COLLPROBE_ABI::ordered {

inline order_stream stream_of(cudaStream_t handle) { return order_hooks::stream_of(cuda::stream_ref(handle)); }

namespace detail {

/// Of the streams of the current device.
inline stream_space space_of_device() { return stream_space::of_cuda(cuda::detail::current_device()); }
/// Of a null pointer those of the host's pageable memory.
inline cudaPointerAttributes attributes_of(const void* memory)
{
    cudaPointerAttributes attributes{};
    attributes.device = -1;
    if (memory != nullptr) {
        cuda::check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
    }
    return attributes;
}
/// Of the streams of the device that the memory belongs to; of the current one if CUDA does not know the memory.
inline stream_space space_of(const void* memory)
{
    const int device = attributes_of(memory).device;
    return device < 0 ? space_of_device() : stream_space::of_cuda(device);
}
/// Where a call puts the address of memory. (CUDA's own templates take pointers to constant elements, too.)
template <class T>
void** address_of(T** memory) noexcept
{
    return static_cast<void**>(const_cast<void*>(static_cast<const volatile void*>(memory)));
}
/// Reports a call that succeeded.
template <class Tell>
cudaError_t told(cudaError_t code, const Tell& tell)
{
    if (code == cudaSuccess) if_checked(tell);
    return code;
}

} // namespace detail

/// Reports a kernel, or other work on the stream that is no call of this file. Call it before the launch.
///
///     ordered::touch(compute, strided_range{image, width, pitch, height}, {{sums, bytes}}, "sum of rows");
inline void touch(cudaStream_t stream, const memory_ranges& reads, const memory_ranges& writes,
    const char* what = "kernel", call_site where = call_site::current())
{
    if_checked([&](stream_order& to) { to.launch(stream_of(stream), reads, writes, what, where); });
}
/// Gives a stream a name for messages.
inline void name(cudaStream_t stream, const char* text)
{
    if_checked([&](stream_order& to) { to.name(stream_of(stream), text); });
}

// --- Copies and fills: order/README.md has a table of which ones the calling thread waits for ---

namespace detail {

/// What the calling thread has waited for when a copy or a fill returns.
enum class copy_wait : std::uint8_t {
    none,
    source, ///< all earlier work of the stream, and the read of the source, which was staged
    all,
};

inline bool is_on_host(cudaMemoryType type) noexcept
{
    return type == cudaMemoryTypeUnregistered || type == cudaMemoryTypeHost;
}
/// By "API synchronization behavior" of the CUDA Runtime API. Managed memory counts as the device's. "May wait" counts
/// as no wait.
inline copy_wait wait_of_copy(const void* to_memory, const void* from, bool is_async)
{
    const cudaMemoryType source = attributes_of(from).type;
    const bool to_host = is_on_host(attributes_of(to_memory).type);
    if (is_async) return to_host && is_on_host(source) ? copy_wait::all : copy_wait::none;
    if (to_host || source == cudaMemoryTypeHost) return copy_wait::all;
    return source == cudaMemoryTypeUnregistered ? copy_wait::source : copy_wait::none;
}

struct copy_call {
    const char* what;
    strided_range to;
    strided_range from;
    cudaStream_t stream;
    bool is_async;
    call_site where;
};
/// Makes a copy by `make`, and reports it.
template <class Make>
cudaError_t copy(const copy_call& call, const Make& make)
{
    auto waits = copy_wait::none;
    order_point waited;
    if_checked([&](stream_order& to) {
        const order_stream on = stream_of(call.stream);
        if (on.capture == 0) waits = wait_of_copy(call.to.data, call.from.data, call.is_async);
        if (waits != copy_wait::source) to.launch(on, call.from, call.to, call.what, call.where);
        to.look(waited, on);
    });
    return told(make(), [&](stream_order& to) {
        if (waits == copy_wait::none) return;
        to.reached(waited);
        if (waits == copy_wait::all) return;
        for (const memory_range row : memory_ranges(call.from))
            to.touch_host(row, memory_access::read, call.what, call.where);
        to.launch(stream_of(call.stream), {}, call.to, call.what, call.where);
    });
}
/// Makes a fill by `make`, and reports it.
template <class Make>
cudaError_t fill(const char* what, const strided_range& memory, cudaStream_t stream, bool is_async, call_site where,
    const Make& make)
{
    bool waits = false;
    order_point waited;
    if_checked([&](stream_order& to) {
        const order_stream on = stream_of(stream);
        waits = !is_async && attributes_of(memory.data).type != cudaMemoryTypeDevice;
        to.launch(on, {}, memory, what, where);
        to.look(waited, on);
    });
    return told(make(), [&](stream_order& to) {
        if (waits) to.reached(waited);
    });
}
inline strided_range run(const void* memory, std::size_t bytes) noexcept { return {memory, bytes, bytes, 1}; }

} // namespace detail

inline cudaError_t memcpy(void* to_memory, const void* from, std::size_t bytes, cudaMemcpyKind kind,
    call_site where = call_site::current())
{
    return detail::copy({"cudaMemcpy", detail::run(to_memory, bytes), detail::run(from, bytes), nullptr, false, where},
        [&] { return cudaMemcpy(to_memory, from, bytes, kind); });
}
inline cudaError_t memcpy_async(void* to_memory, const void* from, std::size_t bytes, cudaMemcpyKind kind,
    cudaStream_t stream = nullptr, call_site where = call_site::current())
{
    return detail::copy(
        {"cudaMemcpyAsync", detail::run(to_memory, bytes), detail::run(from, bytes), stream, true, where},
        [&] { return cudaMemcpyAsync(to_memory, from, bytes, kind, stream); });
}
inline cudaError_t memcpy_peer_async(void* to_memory, int to_device, const void* from, int from_device,
    std::size_t bytes, cudaStream_t stream = nullptr, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) {
        to.launch(stream_of(stream), {{from, bytes}}, {{to_memory, bytes}}, "cudaMemcpyPeerAsync", where);
    });
    return cudaMemcpyPeerAsync(to_memory, to_device, from, from_device, bytes, stream);
}
inline cudaError_t memcpy_2d(void* to_memory, std::size_t to_pitch, const void* from, std::size_t from_pitch,
    std::size_t width, std::size_t height, cudaMemcpyKind kind, call_site where = call_site::current())
{
    return detail::copy({"cudaMemcpy2D", {to_memory, width, to_pitch, height}, {from, width, from_pitch, height},
                            nullptr, false, where},
        [&] { return cudaMemcpy2D(to_memory, to_pitch, from, from_pitch, width, height, kind); });
}
inline cudaError_t memcpy_2d_async(void* to_memory, std::size_t to_pitch, const void* from, std::size_t from_pitch,
    std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream = nullptr,
    call_site where = call_site::current())
{
    return detail::copy({"cudaMemcpy2DAsync", {to_memory, width, to_pitch, height}, {from, width, from_pitch, height},
                            stream, true, where},
        [&] { return cudaMemcpy2DAsync(to_memory, to_pitch, from, from_pitch, width, height, kind, stream); });
}
inline cudaError_t memset(void* memory, int value, std::size_t bytes, call_site where = call_site::current())
{
    return detail::fill("cudaMemset", detail::run(memory, bytes), nullptr, false, where,
        [&] { return cudaMemset(memory, value, bytes); });
}
inline cudaError_t memset_async(void* memory, int value, std::size_t bytes, cudaStream_t stream = nullptr,
    call_site where = call_site::current())
{
    return detail::fill("cudaMemsetAsync", detail::run(memory, bytes), stream, true, where,
        [&] { return cudaMemsetAsync(memory, value, bytes, stream); });
}
inline cudaError_t memset_2d(void* memory, std::size_t pitch, int value, std::size_t width, std::size_t height,
    call_site where = call_site::current())
{
    return detail::fill("cudaMemset2D", {memory, width, pitch, height}, nullptr, false, where,
        [&] { return cudaMemset2D(memory, pitch, value, width, height); });
}
inline cudaError_t memset_2d_async(void* memory, std::size_t pitch, int value, std::size_t width, std::size_t height,
    cudaStream_t stream = nullptr, call_site where = call_site::current())
{
    return detail::fill("cudaMemset2DAsync", {memory, width, pitch, height}, stream, true, where,
        [&] { return cudaMemset2DAsync(memory, pitch, value, width, height, stream); });
}
/// `reads` and `writes`: the bytes that the function touches when the stream runs it. The function itself must not
/// tell the checker anything: that would be later than calls that are enqueued behind it.
inline cudaError_t launch_host_func(cudaStream_t stream, cudaHostFn_t function, void* data,
    const memory_ranges& reads = {}, const memory_ranges& writes = {}, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) {
        to.launch(stream_of(stream), reads, writes, "cudaLaunchHostFunc", where);
    });
    return cudaLaunchHostFunc(stream, function, data);
}

// --- Events and synchronisation ---

inline cudaError_t event_create(cudaEvent_t* event, unsigned int flags = cudaEventDefault)
{
    // An earlier event, of whose end nothing was told, may have had the same handle.
    return detail::told(
        cudaEventCreateWithFlags(event, flags), [&](stream_order& to) { to.event_created(order_object(*event)); });
}
inline cudaError_t event_record(cudaEvent_t event, cudaStream_t stream = nullptr)
{
    return detail::told(cudaEventRecord(event, stream),
        [&](stream_order& to) { to.record(order_object(event), stream_of(stream)); });
}
inline cudaError_t event_record_with_flags(cudaEvent_t event, cudaStream_t stream = nullptr, unsigned int flags = 0)
{
    return detail::told(cudaEventRecordWithFlags(event, stream, flags),
        [&](stream_order& to) { to.record(order_object(event), stream_of(stream)); });
}
inline cudaError_t stream_wait_event(
    cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0, call_site where = call_site::current())
{
    return detail::told(cudaStreamWaitEvent(stream, event, flags),
        [&](stream_order& to) { to.wait(stream_of(stream), order_object(event), where); });
}
inline cudaError_t event_query(cudaEvent_t event)
{
    order_point now; // another thread may record the event anew meanwhile
    if_checked([&](stream_order& to) { now = to.point_of(order_object(event)); });
    return detail::told(cudaEventQuery(event), [&](stream_order& to) { to.reached(now); });
}
inline cudaError_t event_synchronize(cudaEvent_t event)
{
    order_point now; // as above
    if_checked([&](stream_order& to) { now = to.point_of(order_object(event)); });
    return detail::told(cudaEventSynchronize(event), [&](stream_order& to) { to.reached(now); });
}
inline cudaError_t event_destroy(cudaEvent_t event)
{
    return detail::told(cudaEventDestroy(event), [&](stream_order& to) { to.event_ended(order_object(event)); });
}
/// `flags`, `priority`: as cudaStreamCreateWithPriority has them.
inline cudaError_t stream_create(cudaStream_t* stream, unsigned int flags = cudaStreamDefault, int priority = 0)
{
    return detail::told(cudaStreamCreateWithPriority(stream, flags, priority),
        [&](stream_order& to) { to.stream_began(stream_of(*stream)); });
}
inline cudaError_t stream_query(cudaStream_t stream)
{
    order_point before;
    if_checked([&](stream_order& to) { to.look(before, stream_of(stream)); });
    return detail::told(cudaStreamQuery(stream), [&](stream_order& to) { to.reached(before); });
}
inline cudaError_t stream_synchronize(cudaStream_t stream)
{
    order_point before;
    if_checked([&](stream_order& to) { to.look(before, stream_of(stream)); });
    return detail::told(cudaStreamSynchronize(stream), [&](stream_order& to) { to.reached(before); });
}
inline cudaError_t stream_destroy(cudaStream_t stream)
{
    order_stream ended;
    if_checked([&](stream_order&) { ended = stream_of(stream); });
    return detail::told(cudaStreamDestroy(stream), [&](stream_order& to) { to.stream_ended(ended); });
}
/// Synchronises with the current device.
inline cudaError_t device_synchronize()
{
    order_point before; // it is unknown whether work that other threads enqueue meanwhile is waited for
    if_checked([&](stream_order& to) { to.record_space(before, detail::space_of_device()); });
    return detail::told(cudaDeviceSynchronize(), [&](stream_order& to) { to.reached(before); });
}

// --- Memory ---

template <class T>
cudaError_t malloc(T** memory, std::size_t bytes)
{
    return detail::told(cudaMalloc(detail::address_of(memory), bytes),
        [&](stream_order& to) { to.allocate({*detail::address_of(memory), bytes}); });
}
template <class T>
cudaError_t malloc_pitch(T** memory, std::size_t* pitch, std::size_t width, std::size_t height)
{
    return detail::told(cudaMallocPitch(detail::address_of(memory), pitch, width, height),
        [&](stream_order& to) { to.allocate({*detail::address_of(memory), *pitch * height}); });
}
template <class T>
cudaError_t malloc_managed(T** memory, std::size_t bytes, unsigned int flags = cudaMemAttachGlobal)
{
    return detail::told(cudaMallocManaged(detail::address_of(memory), bytes, flags),
        [&](stream_order& to) { to.allocate({*detail::address_of(memory), bytes}); });
}
/// Allocates pinned memory.
template <class T>
cudaError_t host_alloc(T** memory, std::size_t bytes, unsigned int flags = cudaHostAllocDefault)
{
    return detail::told(cudaHostAlloc(detail::address_of(memory), bytes, flags),
        [&](stream_order& to) { to.allocate({*detail::address_of(memory), bytes}); });
}
template <class T>
cudaError_t malloc_host(T** memory, std::size_t bytes, unsigned int flags = cudaHostAllocDefault)
{
    return host_alloc(memory, bytes, flags);
}
/// The calling thread must know that all work with the bytes is done: CUDA does not promise that cudaFree waits
/// (`stream_order::options::free_synchronizes`).
inline cudaError_t free(void* memory, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) { to.free(memory, detail::space_of(memory), "cudaFree", where); });
    return cudaFree(memory);
}
/// As `free`, for pinned memory.
inline cudaError_t free_host(void* memory, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) { to.free(memory, detail::space_of(memory), "cudaFreeHost", where); });
    return cudaFreeHost(memory);
}
/// Pins memory of the host, which may have been in use before.
inline cudaError_t host_register(void* memory, std::size_t bytes, unsigned int flags = cudaHostRegisterDefault)
{
    return detail::told(
        cudaHostRegister(memory, bytes, flags), [&](stream_order& to) { to.bound({memory, bytes}); });
}
/// The calling thread must know that all work with the bytes is done.
inline cudaError_t host_unregister(void* memory, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) {
        to.release({memory, to.allocated_bytes(memory)}, false, where, "cudaHostUnregister");
    });
    return cudaHostUnregister(memory);
}
template <class T>
cudaError_t malloc_async(
    T** memory, std::size_t bytes, cudaStream_t stream, call_site where = call_site::current())
{
    return detail::told(cudaMallocAsync(detail::address_of(memory), bytes, stream),
        [&](stream_order& to) { to.allocate({*detail::address_of(memory), bytes}, stream_of(stream), where); });
}
template <class T>
cudaError_t malloc_async(T** memory, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream,
    call_site where = call_site::current())
{
    void** const to_address = detail::address_of(memory);
    return detail::told(cudaMallocFromPoolAsync(to_address, bytes, pool, stream),
        [&](stream_order& to) { to.allocate({*to_address, bytes}, stream_of(stream), where); });
}
inline cudaError_t free_async(void* memory, cudaStream_t stream, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) {
        to.release({memory, to.allocated_bytes(memory)}, stream_of(stream), where);
    });
    return cudaFreeAsync(memory, stream);
}

// --- Captures and graphs ---

inline cudaError_t stream_begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    return detail::told(cudaStreamBeginCapture(stream, mode),
        [&](stream_order& to) { to.capture_begin(stream_of(stream).capture); });
}
inline cudaError_t stream_end_capture(cudaStream_t stream, cudaGraph_t* graph)
{
    std::uint64_t capture = 0;
    if_checked([&](stream_order&) { capture = stream_of(stream).capture; });
    const cudaError_t code = cudaStreamEndCapture(stream, graph);
    if_checked([&](stream_order& to) {
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
/// The older form, which cuda_runtime.h has for C++.
inline cudaError_t graph_instantiate(
    cudaGraphExec_t* runnable, cudaGraph_t graph, cudaGraphNode_t*, char*, std::size_t)
{
    return graph_instantiate(runnable, graph);
}
/// `result`: what CUDA's version has behind the graph.
template <class... Result>
cudaError_t graph_exec_update(cudaGraphExec_t runnable, cudaGraph_t graph, Result*... result)
{
    return detail::told(cudaGraphExecUpdate(runnable, graph, result...), [&](stream_order& to) {
        to.set_capture_of(order_object(runnable), to.capture_of(order_object(graph)));
    });
}
inline cudaError_t graph_destroy(cudaGraph_t graph)
{
    return detail::told(cudaGraphDestroy(graph), [&](stream_order& to) { to.set_capture_of(order_object(graph), 0); });
}
inline cudaError_t graph_exec_destroy(cudaGraphExec_t runnable)
{
    return detail::told(cudaGraphExecDestroy(runnable), [&](stream_order& to) {
        to.set_capture_of(order_object(runnable), 0);
        to.event_ended(order_object(runnable));
    });
}
inline cudaError_t graph_launch(
    cudaGraphExec_t runnable, cudaStream_t stream, call_site where = call_site::current())
{
    if_checked([&](stream_order& to) {
        to.launch_graph(order_object(runnable), stream_of(stream), where);
    });
    return cudaGraphLaunch(runnable, stream);
}

} // namespace collprobe::ordered
