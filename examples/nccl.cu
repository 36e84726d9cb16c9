// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A trainer's own ncclComm_t, streams and bfloat16 gradients, one thread and rank for each GPU of this machine: one call
// is replaced, one is added for each step, and nobody hands anything over.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <cuda_bf16.h>
#include <nccl.h>

#include <collprobe/collprobe.cuh>

using namespace collprobe;

void train(unsigned rank, int ranks, ncclUniqueId id)
{
    cudaSetDevice(int(rank));
    ncclComm_t comm;
    if (ncclCommInitRank(&comm, ranks, id, int(rank)) != ncclSuccess) std::exit(1);
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    constexpr std::size_t count = 1 << 16;
    __nv_bfloat16* gradient;
    float* loss;
    cudaMalloc(&gradient, count * sizeof(__nv_bfloat16));
    cudaMalloc(&loss, sizeof(float));
    {
        probed probe{nccl::communicator_ref(comm)}; // borrows comm
        for (unsigned step = 0; step < 3; ++step) {
            std::vector<__nv_bfloat16> computed(count);
            for (unsigned i = 0; i < count; ++i) computed[i] = __float2bfloat16(float((i * 7919 + step * 31 + rank * 17) % 101));
            const float mean_loss = 1.0f / static_cast<float>(step + 1);
            cudaMemcpyAsync(gradient, computed.data(), count * sizeof computed[0], cudaMemcpyHostToDevice, stream);
            cudaMemcpyAsync(loss, &mean_loss, sizeof mean_loss, cudaMemcpyHostToDevice, stream);
            // In place of ncclAllReduce(gradient, gradient, count, ncclBfloat16, ncclAvg, comm, stream):
            probe.all_reduce(gradient, gradient, count, ncclAvg, stream);
            probe.end_step(step, {.loss = loss}, stream); // a device pointer: the host does not wait for the loss
            cudaStreamSynchronize(stream); // the host's buffers end here
        }
        for (step_record record; probe.poll(record);) { // the same on every rank
            if (probe.rank() == 0) std::printf("%s", report::step_table(record).c_str());
        }
    }
    cudaFree(loss), cudaFree(gradient);
    cudaStreamDestroy(stream), ncclCommDestroy(comm);
}

int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU here"), 77;
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess) return 1;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < devices; ++rank) ranks.emplace_back(train, unsigned(rank), devices, id);
    for (std::thread& rank : ranks) rank.join();
}
