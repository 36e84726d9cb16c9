// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A program that lacks an edge between two streams, and has the checker by one include. While it has installed a checker
// of its own, that one hears of the same mistake, and stderr does not.

#include <cuda_runtime_api.h>

#include <collprobe/order/cuda/intercept.hpp>

int main()
{
    constexpr std::size_t bytes = 256;
    float* shard = nullptr;
    float* host = nullptr;
    cudaStream_t copies = nullptr;
    cudaStream_t compute = nullptr;
    bool good = cudaMalloc(&shard, bytes) == cudaSuccess && cudaMallocHost(&host, bytes) == cudaSuccess;
    good = good && cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking) == cudaSuccess;
    good = good && cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking) == cudaSuccess;
    {
        collprobe::stream_order own;
        own.install();
        collprobe::ordered::touch(copies, {}, {{shard, bytes}});
        collprobe::ordered::touch(compute, {}, {{shard, bytes}});
        good = good && own.hazard_count() == 1;
    }
    collprobe::ordered::name(copies, "copies");
    good = good && cudaMemcpyAsync(shard, host, bytes, cudaMemcpyHostToDevice, copies) == cudaSuccess;
    good = good && (cudaStreamSynchronize)(copies) == cudaSuccess; // so that the program has no race of its own
    good = good && cudaMemsetAsync(shard, 0, bytes, compute) == cudaSuccess;
    good = good && cudaDeviceSynchronize() == cudaSuccess;
    good = good && cudaFree(shard) == cudaSuccess && cudaFreeHost(host) == cudaSuccess;
    good = good && cudaStreamDestroy(copies) == cudaSuccess && cudaStreamDestroy(compute) == cudaSuccess;
    return good ? 0 : 1;
}
