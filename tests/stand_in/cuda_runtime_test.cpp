// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the tests without a GPU take for granted of CUDA: checked over the stand-in, and over CUDA's own runtime where
// there is a GPU. Nothing here may use what only a stand-in has.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/memory.hpp>

#include "stand_in/runtime_objects.hpp"

namespace collprobe::testing::cuda_runtime_test {

TEST_CASE("without a wait two streams are not ordered")
{
    const runtime_stream held;
    const runtime_stream free;
    runtime_gate closed(held.handle);
    CHECK(free.synchronize());
    CHECK(free.done());
    CHECK(cudaStreamQuery(held.handle) == cudaErrorNotReady);
    closed.open();
    CHECK(held.synchronize());
    CHECK(held.done());
}

TEST_CASE("an event orders what follows a wait behind what came before its record")
{
    const runtime_stream producer;
    const runtime_stream consumer;
    const runtime_event ready;
    runtime_bytes bytes;
    runtime_gate closed(producer.handle);
    bytes.fill(producer.handle, 7);
    CHECK(cudaEventRecord(ready.handle, producer.handle) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(consumer.handle, ready.handle, 0) == cudaSuccess);
    bytes.fetch(consumer.handle);
    a_while();
    CHECK(cudaEventQuery(ready.handle) == cudaErrorNotReady);
    CHECK_FALSE(consumer.done());
    closed.open();
    CHECK(cudaEventSynchronize(ready.handle) == cudaSuccess);
    CHECK(consumer.synchronize());
    CHECK(bytes.seen() == 7);
    CHECK(cudaEventQuery(ready.handle) == cudaSuccess);
}

TEST_CASE("a stream that waits already is not affected by a later record")
{
    const runtime_stream producer;
    const runtime_stream consumer;
    const runtime_event ready;
    CHECK(cudaEventRecord(ready.handle, producer.handle) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(consumer.handle, ready.handle, 0) == cudaSuccess);
    runtime_gate closed(producer.handle);
    CHECK(cudaEventRecord(ready.handle, producer.handle) == cudaSuccess);
    CHECK(consumer.synchronize());
    CHECK(cudaEventQuery(ready.handle) == cudaErrorNotReady);
}

TEST_CASE("an event that was never recorded is over, and a wait for it is none")
{
    const runtime_stream stream;
    const runtime_event never;
    CHECK(cudaEventQuery(never.handle) == cudaSuccess);
    CHECK(cudaEventSynchronize(never.handle) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(stream.handle, never.handle, 0) == cudaSuccess);
    CHECK(stream.synchronize());
}

TEST_CASE("the default stream and blocking streams wait for each other, non-blocking ones for nobody")
{
    const runtime_stream blocking(cudaStreamDefault);
    const runtime_stream apart;
    runtime_bytes bytes;
    const auto check_order = [&](cudaStream_t first, cudaStream_t second, bool is_ordered) {
        const runtime_event end;
        runtime_gate closed(first);
        bytes.fill(second, 3);
        CHECK(cudaEventRecord(end.handle, second) == cudaSuccess);
        if (is_ordered) {
            a_while();
            CHECK(cudaEventQuery(end.handle) == cudaErrorNotReady);
        } else {
            CHECK(comes(end.handle));
        }
        closed.open();
        CHECK(cudaEventSynchronize(end.handle) == cudaSuccess);
    };
    for (const cudaStream_t legacy : {cudaStream_t{}, cudaStreamLegacy}) {
        check_order(blocking.handle, legacy, true);
        check_order(legacy, blocking.handle, true);
        check_order(legacy, apart.handle, false);
        check_order(apart.handle, legacy, false);
    }
    check_order(blocking.handle, apart.handle, false);
}

TEST_CASE("a query of the default stream sees the work of blocking streams, and orders no stream")
{
    const runtime_stream blocking(cudaStreamDefault);
    const runtime_stream another(cudaStreamDefault);
    const runtime_stream apart;
    runtime_bytes bytes;
    {
        const runtime_gate closed(apart.handle);
        CHECK(cudaStreamQuery(cudaStreamLegacy) == cudaSuccess);
    }
    runtime_gate closed(blocking.handle);
    CHECK(cudaStreamQuery(cudaStreamLegacy) == cudaErrorNotReady);
    CHECK(another.done());
    bytes.fill(another.handle, 5);
    CHECK(another.synchronize());
    closed.open();
    CHECK(cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess);
    CHECK(blocking.done());
}

TEST_CASE("each thread begins on device 0 and has a per-thread stream of its own")
{
    runtime_bytes bytes;
    runtime_gate closed(cudaStreamPerThread);
    int device = -1;
    bool done = false;
    std::thread([&] {
        (void)cudaGetDevice(&device);
        done = cudaStreamQuery(cudaStreamPerThread) == cudaSuccess;
    }).join();
    CHECK(device == 0);
    CHECK(done);
    CHECK(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady);
}

TEST_CASE("pointers are told apart")
{
    const runtime_bytes bytes;
    int on_stack = 0;
    cudaPointerAttributes attributes{};
    CHECK(cudaPointerGetAttributes(&attributes, bytes.device + 1) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeDevice);
    CHECK(attributes.device == 0);
    CHECK(cudaPointerGetAttributes(&attributes, bytes.host + 1) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&attributes, &on_stack) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("a copy that leaves its allocation is refused, and writes nothing")
{
    const runtime_bytes data;
    const runtime_stream stream;
    const std::size_t bytes = runtime_bytes::size;
    CHECK(cudaMemset(data.device, 1, bytes) == cudaSuccess);
    CHECK(cudaMemset(data.device + 1, 2, bytes) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(data.device + 1, data.host, bytes, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(data.host, data.device + 1, bytes, cudaMemcpyDeviceToHost, stream.handle)
        == cudaErrorInvalidValue);
    CHECK(cudaMemsetAsync(data.device + 1, 2, bytes, stream.handle) == cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CHECK(cudaMemcpy(data.host, data.device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(data.host[bytes - 1] == 1);
}

TEST_CASE("an upload from pageable memory has read its source when the call returns, and arrives on the default stream")
{
    const runtime_bytes data;
    std::vector<unsigned char> pageable(runtime_bytes::size, 3);
    CHECK(cudaMemset(data.device, 1, runtime_bytes::size) == cudaSuccess);
    CHECK(cudaMemcpy(data.device, pageable.data(), pageable.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    std::fill(pageable.begin(), pageable.end(), static_cast<unsigned char>(9));
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(cudaMemcpy(data.host, data.device, runtime_bytes::size, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(data.host[0] == 3);
    CHECK(data.host[runtime_bytes::size - 1] == 3);
}

TEST_CASE("copies and fills of rows leave the gaps alone")
{
    const runtime_stream stream;
    unsigned char* rows = nullptr;
    std::size_t pitch = 0;
    REQUIRE(cudaMallocPitch(reinterpret_cast<void**>(&rows), &pitch, 10, 4) == cudaSuccess);
    REQUIRE(pitch >= 10);
    REQUIRE(cudaMemset(rows, 9, pitch * 4) == cudaSuccess);
    unsigned char from[4][8];
    unsigned char all[4][12] = {};
    for (int row = 0; row < 4; ++row)
        for (int at = 0; at < 8; ++at) from[row][at] = static_cast<unsigned char>(10 * row + at);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy2DAsync(rows, pitch, from, 8, 6, 4, cudaMemcpyHostToDevice, stream.handle) == cudaSuccess);
    REQUIRE(cudaMemset2DAsync(rows + 1, pitch, 77, 1, 3, stream.handle) == cudaSuccess);
    REQUIRE(stream.synchronize());
    REQUIRE(cudaMemcpy2D(all, 12, rows, pitch, 10, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int row = 0; row < 4; ++row) {
        for (int at = 0; at < 12; ++at) {
            const int filled = at >= 10 ? 0 : at >= 6 ? 9 : at == 1 && row < 3 ? 77 : 10 * row + at;
            CHECK(int{all[row][at]} == filled);
        }
    }
    CHECK(cudaMemcpy2D(all, 5, rows, pitch, 10, 4, cudaMemcpyDeviceToHost) != cudaSuccess);
    (void)cudaGetLastError();
    REQUIRE(cudaMemset2D(rows, pitch, 1, 10, 4) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaFree(rows) == cudaSuccess);
}

TEST_CASE("a copy from host to host waits, also an asynchronous one")
{
    const runtime_stream stream;
    unsigned char from[16] = {1, 2, 3};
    unsigned char to[16] = {};
    REQUIRE(cudaMemcpyAsync(to, from, sizeof from, cudaMemcpyHostToHost, stream.handle) == cudaSuccess);
    CHECK(to[2] == 3);
    CHECK(stream.done());
}

TEST_CASE("the driver tells how long an allocation is")
{
    const auto held = [](const void* data) { return cuda::detail::bytes_in_allocation(data, 1 << 20); };
    char* memory[4] = {};
    const auto out = [&](int which) { return reinterpret_cast<void**>(&memory[which]); };
    REQUIRE(cudaMalloc(out(0), 4) == cudaSuccess);
    REQUIRE(cudaMallocManaged(out(1), 4, cudaMemAttachGlobal) == cudaSuccess);
    REQUIRE(cudaMallocHost(out(2), 4) == cudaSuccess);
    REQUIRE(cudaMallocAsync(out(3), 4, nullptr) == cudaSuccess);
    CHECK(held(memory[0]) == 4);
    CHECK(held(memory[0] + 3) == 1);
    // CUDA documents no exact size of these: not less than was asked for.
    for (const int which : {1, 2, 3}) {
        CHECK(held(memory[which]) >= 4);
        CHECK(cuda::detail::bytes_in_allocation(memory[which], 4) == 4);
    }
    int on_stack = 0;
    CHECK(held(&on_stack) == 1 << 20); // it cannot tell
    CHECK(cudaFree(memory[0]) == cudaSuccess);
    CHECK(cudaFree(memory[1]) == cudaSuccess);
    CHECK(cudaFreeHost(memory[2]) == cudaSuccess);
    CHECK(cudaFreeAsync(memory[3], nullptr) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("host memory that is registered is pinned, piece by piece")
{
    const std::size_t page = 4096;
    std::vector<char> room(4 * page);
    char* const first = room.data() + (page - reinterpret_cast<std::uintptr_t>(room.data()) % page);
    cudaPointerAttributes attributes{};
    REQUIRE(cudaHostRegister(first, page, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaHostRegister(first, page, cudaHostRegisterDefault) != cudaSuccess);
    CHECK(cuda::detail::bytes_in_allocation(first, 2 * page) == page);
    REQUIRE(cudaHostRegister(first + page, page, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, first + 1) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(cuda::detail::bytes_in_allocation(first, 2 * page) == 2 * page);
    CHECK(cudaHostUnregister(first) == cudaSuccess);
    CHECK(cudaHostUnregister(first + page) == cudaSuccess);
    CHECK(cudaHostUnregister(first) != cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, first) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    (void)cudaGetLastError();
}

TEST_CASE("the id of a stream that is being captured cannot be asked for")
{
    const runtime_stream stream;
    unsigned long long number = 0;
    CHECK(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaStreamGetId(stream.handle, &number) == cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream.handle, &graph);
    (void)cudaGetLastError();
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaStreamGetId(stream.handle, &number) == cudaSuccess);
}

TEST_CASE("an event belongs to the device on which it was created")
{
    if (device_count() < 2) {
        MESSAGE("SKIPPED: needs two devices");
        return;
    }
    const runtime_event of_first;
    CHECK(cudaSetDevice(1) == cudaSuccess);
    {
        const runtime_stream of_second;
        CHECK(cudaEventRecord(of_first.handle, of_second.handle) == cudaErrorInvalidResourceHandle);
        CHECK(cudaStreamWaitEvent(of_second.handle, of_first.handle, 0) == cudaSuccess); // waits may cross
    }
    CHECK(cudaSetDevice(0) == cudaSuccess);
    (void)cudaGetLastError();
}

TEST_CASE("the time between two events is that of the work between them, once both are over")
{
    const runtime_stream stream;
    const runtime_event begin(cudaEventDefault);
    const runtime_event end(cudaEventDefault);
    const runtime_event without_times;
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(begin.handle, stream.handle) == cudaSuccess);
    CHECK(cudaEventSynchronize(begin.handle) == cudaSuccess);
    {
        runtime_gate closed(stream.handle);
        CHECK(cudaEventRecord(end.handle, stream.handle) == cudaSuccess);
        a_while();
        CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaErrorNotReady);
    }
    CHECK(cudaEventSynchronize(end.handle) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle) == cudaSuccess);
    CHECK(milliseconds > 20); // of the 30 that the stream was held up
    CHECK(cudaEventRecord(without_times.handle, stream.handle) == cudaSuccess);
    CHECK(stream.synchronize());
    CHECK(cudaEventElapsedTime(&milliseconds, begin.handle, without_times.handle) == cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}

namespace {

/// A capture of a stream that is ended, and its graph, once.
struct runtime_capture {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;

    runtime_capture() = default;
    runtime_capture(const runtime_capture&) = delete;
    ~runtime_capture()
    {
        if (runnable != nullptr) (void)cudaGraphExecDestroy(runnable);
        if (graph != nullptr) (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();
    }
    cudaError_t begin(cudaStream_t on, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal)
    {
        return cudaStreamBeginCapture(on, mode);
    }
    cudaError_t end(cudaStream_t on)
    {
        const cudaError_t code = cudaStreamEndCapture(on, &graph);
        return code == cudaSuccess ? cudaGraphInstantiateWithFlags(&runnable, graph, 0) : code;
    }
};

cudaStreamCaptureStatus state_of(cudaStream_t stream)
{
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    CHECK(cudaStreamIsCapturing(stream, &state) == cudaSuccess);
    return state;
}

} // namespace

TEST_CASE("a stream joins a capture by a wait, and must be joined again before the end")
{
    const runtime_stream stream;
    const runtime_stream branch;
    const runtime_event fork;
    const runtime_event join;
    runtime_bytes bytes;
    for (const bool joined : {true, false}) {
        runtime_capture captured;
        REQUIRE(captured.begin(stream.handle) == cudaSuccess);
        CHECK(cudaEventRecord(fork.handle, stream.handle) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(branch.handle, fork.handle, 0) == cudaSuccess);
        CHECK(state_of(branch.handle) == cudaStreamCaptureStatusActive);
        bytes.fill(branch.handle, 6);
        CHECK(cudaEventRecord(join.handle, branch.handle) == cudaSuccess);
        if (joined) CHECK(cudaStreamWaitEvent(stream.handle, join.handle, 0) == cudaSuccess);
        CHECK(captured.end(stream.handle) == (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
        if (!joined) continue;
        CHECK(cudaGraphLaunch(captured.runnable, stream.handle) == cudaSuccess);
        bytes.fetch(stream.handle);
        CHECK(stream.synchronize());
        CHECK(bytes.seen() == 6);
    }
}

TEST_CASE("waiting for a stream that is being captured is refused, and the capture is lost")
{
    const runtime_stream stream;
    runtime_capture captured;
    REQUIRE(captured.begin(stream.handle, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream.handle) == cudaErrorStreamCaptureUnsupported);
    CHECK(state_of(stream.handle) == cudaStreamCaptureStatusInvalidated);
    CHECK(captured.end(stream.handle) == cudaErrorStreamCaptureInvalidated);
    CHECK(stream.synchronize());
}

TEST_CASE("an allocation is refused while a thread captures, unless it has relaxed its mode")
{
    const runtime_stream stream;
    for (const bool relaxed : {true, false}) {
        runtime_capture captured;
        void* memory = nullptr;
        REQUIRE(captured.begin(stream.handle) == cudaSuccess);
        cudaStreamCaptureMode mode = relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
        CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
        CHECK(cudaMalloc(&memory, 64) == (relaxed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
        CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
        CHECK(captured.end(stream.handle) == (relaxed ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
        if (relaxed) CHECK(cudaFree(memory) == cudaSuccess);
    }
}

TEST_CASE("the default stream is not captured")
{
    runtime_capture captured;
    CHECK(captured.begin(cudaStreamLegacy) == cudaErrorStreamCaptureUnsupported);
    CHECK(captured.begin(cudaStream_t{}) == cudaErrorStreamCaptureUnsupported);
}

} // namespace collprobe::testing::cuda_runtime_test
