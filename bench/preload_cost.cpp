// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the preload's engine costs the host at each call: hooks around nothing, over a CUDA runtime that does nothing.
// Launches, copies and events cost nothing here: what they cost on a GPU comes on top, and is counted below.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <vector>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/device.hpp>

#include "bench/cpu_timing.hpp"
#include "examples/preload/engine/engine.hpp"

namespace {

std::uint64_t launches = 0;
std::uint64_t runtime_calls = 0;
thread_local std::uint64_t allocations = 0; ///< of the thread that makes the calls

/// A handle that is not null.
template <class Handle>
cudaError_t make(Handle* handle)
{
    static char one = 0;
    return *handle = reinterpret_cast<Handle>(&one), cudaSuccess;
}

} // namespace

void* operator new(std::size_t bytes)
{
    ++allocations;
    if (void* const memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// A runtime without a device: every call succeeds, and all work is done at once.
extern "C" {
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
const char* cudaGetErrorString(cudaError_t) { return "error"; }
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t bytes) { return *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256), cudaSuccess; }
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) { return *memory = std::calloc(bytes + 1, 1), cudaSuccess; }
cudaError_t cudaFreeHost(void*) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return ++runtime_calls, cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) { return ++runtime_calls, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) { return make(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int) { return ++runtime_calls, cudaSuccess; }
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* number) { return *number = 1, cudaSuccess; }
cudaError_t cudaStreamGetDevice(cudaStream_t, int* ordinal) { return *ordinal = 0, cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* state)
{
    return ++runtime_calls, *state = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return ++runtime_calls, cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char*, void** function, unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* result)
{
    return *function = nullptr, *result = cudaDriverEntryPointSymbolNotFound, cudaSuccess;
}
}

// Kernels that do nothing.
namespace collprobe::cuda {

template <class Body>
void device::for_each(stream_ref, std::uint64_t, Body) { ++launches; }
template <class Body>
void device::sum_each(stream_ref, std::uint64_t, Body) { ++launches; }
template <class Reducer, class Result>
void device::reduce(stream_ref, Reducer, std::uint64_t, Result*, workspace&, reduction_times)
{
    ++launches;
}

} // namespace collprobe::cuda

#include "examples/preload/engine/reads.ipp"

namespace {

/// Prints the median over rounds of the time of a call, in steps of eight. `calls`: of a round, a multiple of that.
void measure(const char* name, const collprobe_hooks& hooks, const collprobe_call& call, int calls, int rounds)
{
    constexpr int buckets = 8; // a step's calls, which differ
    constexpr std::size_t count = 1 << 16;
    std::vector<double> times;
    times.reserve(static_cast<std::size_t>(rounds));
    launches = runtime_calls = allocations = 0;
    for (int round = 0; round < rounds; ++round) {
        times.push_back(1e9 / calls * collprobe::bench::seconds([&] {
            for (int i = 0; i < calls; ++i) {
                collprobe_call next = call;
                next.count = count - static_cast<std::size_t>(i % buckets);
                hooks.before(&next);
                hooks.after(&next, 0);
            }
        }, &collprobe::bench::real_seconds));
        // The writing thread empties the ring.
        const timespec nap{0, 30'000'000};
        nanosleep(&nap, nullptr);
    }
    const std::uint64_t allocated = allocations;
    const auto all = static_cast<std::uint64_t>(calls) * static_cast<std::uint64_t>(rounds);
    if (name != nullptr)
        std::printf("%s%8.1f   %8" PRIu64 "  %16" PRIu64 "  %18" PRIu64 "\n", name, collprobe::bench::median(times), launches / all,
            runtime_calls / all, allocated);
}

} // namespace

int main()
{
    ::setenv("COLLPROBE_SINKS", "none", 1);
    ::setenv("COLLPROBE_EVERY", "1", 1);
    const collprobe_hooks* const hooks = collprobe_engine_open(COLLPROBE_PRELOAD_ABI);
    if (hooks == nullptr) return 1;
    static collprobe_nccl nccl{};
    nccl.path = "none";
    unsigned char id[128] = {1};
    int handle = 0;
    collprobe_made made{};
    made.nccl = &nccl;
    made.comm = &handle;
    made.id = id;
    made.id_bytes = sizeof id;
    made.ranks = 8;
    made.rank = 0;
    made.device = -1;
    made.blocking = 1;
    hooks->comm_made(&made);

    static float data[1 << 16];
    collprobe_call call{};
    call.nccl = &nccl;
    call.comm = &handle;
    call.send = call.receive = data;
    call.kind = collprobe_all_reduce;
    call.type = 7; // ncclFloat32

    measure(nullptr, *hooks, call, 200, 5); // warm-up
    collprobe_call other = call;
    other.kind = collprobe_broadcast; // not in COLLPROBE_OPS
    std::printf("call           host ns   launches  other CUDA calls  allocations in all\n");
    measure("not probed    ", *hooks, other, 100'000, 11);
    measure("probed        ", *hooks, call, 200, 51); // fits the ring
    return 0;
}
