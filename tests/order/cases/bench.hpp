// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/device/cuda/stream.hpp>

// The last include: from here on CUDA's and NCCL's names tell the checker.
#include <collprobe/order/nccl/intercept.hpp>

/// Small programs in CUDA's own words, one for each rule of order that its calls have, with a mistake, and without it.
/// (How order passes on is stream_order_random_test.cpp's.) What they touch in kernels or on the host is said and not
/// done, so that no case has a race of its own.
namespace collprobe::order_cases {

constexpr std::size_t count = 64;
constexpr std::size_t size = count * sizeof(float);

inline void must(cudaError_t code)
{
    if (code != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code));
}
inline void must(ncclResult_t code)
{
    if (code != ncclSuccess) throw std::runtime_error(std::string("NCCL: ") + ncclGetErrorString(code));
}

/// The streams and the memory of a case.
struct bench {
    cudaStream_t first, second, third; ///< ordered with nothing
    cudaStream_t blocking, another_blocking; ///< ordered with the legacy default stream
    float *data, *other; ///< on the device
    float *pinned, *managed;
    std::vector<float> host = std::vector<float>(count), host_too = std::vector<float>(count);
    cudaEvent_t event, later;

    bench()
    {
        must(cudaSetDevice(0));
        for (cudaStream_t* each : {&first, &second, &third})
            must(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
        for (cudaStream_t* each : {&blocking, &another_blocking}) must(cudaStreamCreate(each));
        for (float** each : {&data, &other}) must(cudaMalloc(each, size));
        must(cudaMallocHost(&pinned, size));
        must(cudaMallocManaged(&managed, size));
        must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        must(cudaEventCreate(&later));
    }
    bench(const bench&) = delete;
    ~bench()
    {
        // Not seen by the checker: a case's mistakes are its own. A case sets those to null that it ends itself.
        (void)(cudaDeviceSynchronize)();
        for (const cudaStream_t each : {first, second, third, blocking, another_blocking}) {
            if (each != nullptr) (void)(cudaStreamDestroy)(each);
        }
        for (float* const each : {data, other, managed}) (void)(cudaFree)(each);
        (void)(cudaFreeHost)(pinned);
        for (const cudaEvent_t each : {event, later}) (void)(cudaEventDestroy)(each);
    }
};

inline void writes(cudaStream_t stream, const void* memory, std::size_t bytes = size,
    call_site where = call_site::current())
{
    ordered::touch(stream, {}, {{memory, bytes}}, "writer", where);
}
inline void reads(cudaStream_t stream, const void* memory, std::size_t bytes = size,
    call_site where = call_site::current())
{
    ordered::touch(stream, {{memory, bytes}}, {}, "reader", where);
}
inline void host_reads(const void* memory, std::size_t bytes = size, call_site where = call_site::current())
{
    ordered::touch_host({memory, bytes}, memory_access::read, where);
}
inline void host_writes(const void* memory, std::size_t bytes = size, call_site where = call_site::current())
{
    ordered::touch_host({memory, bytes}, memory_access::write, where);
}
inline void edge(const bench& on, cudaStream_t from, cudaStream_t to)
{
    must(cudaEventRecord(on.event, from));
    must(cudaStreamWaitEvent(to, on.event, 0));
}
/// Order between host threads, as a join or a lock gives it.
template <class Body>
void on_a_thread(bool told, const Body& body)
{
    const int begin = 0;
    const int end = 0;
    if (told) ordered::if_checked([&](stream_order& to) { to.handoff_release(&begin); });
    std::thread([&] {
        if (told) ordered::if_checked([&](stream_order& to) { to.handoff_acquire(&begin); });
        body();
        if (told) ordered::if_checked([&](stream_order& to) { to.handoff_release(&end); });
    }).join();
    if (told) ordered::if_checked([&](stream_order& to) { to.handoff_acquire(&end); });
}

struct order_case {
    const char* rule;
    std::vector<hazard_kind> found; ///< with the mistake, in this order; nothing without it
    void (*run)(bench& on, bool right);
    bool free_synchronizes = false;
};

} // namespace collprobe::order_cases
