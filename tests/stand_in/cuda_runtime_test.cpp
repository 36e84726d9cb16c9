// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the tests without a GPU take for granted of CUDA: checked over the stand-in, and over CUDA's own runtime where
// there is a GPU. Nothing here may use what only a stand-in has.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/memory.hpp>

#include "support/needs_gpu.hpp"

namespace collprobe::testing::cuda_runtime_test {
namespace {

struct runtime_stream {
    cudaStream_t handle = nullptr;

    explicit runtime_stream(unsigned flags = cudaStreamNonBlocking)
    {
        REQUIRE(cudaStreamCreateWithFlags(&handle, flags) == cudaSuccess);
    }
    runtime_stream(const runtime_stream&) = delete;
    ~runtime_stream()
    {
        if (handle != nullptr) (void)cudaStreamDestroy(handle);
    }
    bool synchronize() const { return cudaStreamSynchronize(handle) == cudaSuccess; }
};

struct runtime_event {
    cudaEvent_t handle = nullptr;

    explicit runtime_event(unsigned flags = cudaEventDisableTiming)
    {
        REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
    }
    runtime_event(const runtime_event&) = delete;
    ~runtime_event() { (void)cudaEventDestroy(handle); }
};

/// Bytes on the device, and their copy on the host.
struct runtime_bytes {
    static constexpr std::size_t size = 4096;
    unsigned char* device = nullptr;
    unsigned char* host = nullptr;

    runtime_bytes()
    {
        REQUIRE(cudaMalloc(reinterpret_cast<void**>(&device), size) == cudaSuccess);
        REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&host), size, cudaHostAllocDefault) == cudaSuccess);
        REQUIRE(cudaMemset(device, 0, size) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    }
    runtime_bytes(const runtime_bytes&) = delete;
    ~runtime_bytes()
    {
        (void)cudaFree(device);
        (void)cudaFreeHost(host);
    }
    void fill(cudaStream_t on, int value) { REQUIRE(cudaMemsetAsync(device, value, size, on) == cudaSuccess); }
    void fetch(cudaStream_t on)
    {
        REQUIRE(cudaMemcpyAsync(host, device, size, cudaMemcpyDeviceToHost, on) == cudaSuccess);
    }
    int seen() const { return host[size - 1]; }
};

/// Holds a stream up until opened. CUDA may run the host functions of all streams one after the other, so while a gate
/// is closed a test enqueues no other host function.
class runtime_gate {
public:
    explicit runtime_gate(cudaStream_t on)
    {
        REQUIRE(cudaLaunchHostFunc(on, [](void* closed) { static_cast<std::latch*>(closed)->wait(); }, &closed_)
            == cudaSuccess);
    }
    runtime_gate(const runtime_gate&) = delete;
    ~runtime_gate()
    {
        open();
        (void)cudaDeviceSynchronize(); // the function is through with the latch
    }
    void open()
    {
        if (!open_) closed_.count_down();
        open_ = true;
    }

private:
    std::latch closed_{1};
    bool open_ = false;
};

/// Long enough for work that nothing holds up to be done, were it enqueued.
void a_while() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }
/// Whether an event comes without more ado. A minute is for tests that fail.
bool comes(cudaEvent_t event)
{
    for (int i = 0; i < 60'000 && cudaEventQuery(event) == cudaErrorNotReady; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return cudaEventQuery(event) == cudaSuccess;
}

} // namespace

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

TEST_CASE("a stream joins a capture by a wait, and must be joined again before the end")
{
    const runtime_stream stream;
    const runtime_stream branch;
    const runtime_event fork;
    const runtime_event join;
    runtime_bytes bytes;
    for (const bool joined : {true, false}) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t runnable = nullptr;
        REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
        CHECK(cudaEventRecord(fork.handle, stream.handle) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(branch.handle, fork.handle, 0) == cudaSuccess);
        bytes.fill(branch.handle, 6);
        CHECK(cudaEventRecord(join.handle, branch.handle) == cudaSuccess);
        if (joined) CHECK(cudaStreamWaitEvent(stream.handle, join.handle, 0) == cudaSuccess);
        CHECK(cudaStreamEndCapture(stream.handle, &graph) == (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
        (void)cudaGetLastError();
        if (!joined) continue;
        REQUIRE(cudaGraphInstantiateWithFlags(&runnable, graph, 0) == cudaSuccess);
        CHECK(cudaGraphLaunch(runnable, stream.handle) == cudaSuccess);
        bytes.fetch(stream.handle);
        CHECK(stream.synchronize());
        CHECK(bytes.seen() == 6);
        CHECK(cudaGraphExecDestroy(runnable) == cudaSuccess);
        CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    }
}

} // namespace collprobe::testing::cuda_runtime_test
