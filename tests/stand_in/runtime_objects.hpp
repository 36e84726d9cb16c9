// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <latch>
#include <thread>

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include "support/needs_gpu.hpp"

/// Streams, events and memory of the CUDA runtime's own interface, for tests that run over it and over its stand-in.
namespace collprobe::testing {

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
inline void a_while() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }
/// Whether an event comes without more ado. A minute is for tests that fail.
inline bool comes(cudaEvent_t event)
{
    for (int i = 0; i < 60'000 && cudaEventQuery(event) == cudaErrorNotReady; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return cudaEventQuery(event) == cudaSuccess;
}

} // namespace collprobe::testing
