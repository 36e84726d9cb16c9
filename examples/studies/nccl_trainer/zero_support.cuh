// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a trainer with sharded weights has anyway: the tensors of a small GPT-2, kernels, ranks. The gradient is that of
// a parabola with noise, so that the loss falls. Nothing here knows of probes.

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_bf16.h>

#include "checks.cuh"

constexpr int blocks = 12;
constexpr int tensors = 4 + 12 * blocks; // 148, as many as GPT-2 has
constexpr int channels = 16;

struct shape {
    std::string name;
    size_t count;
};

inline std::vector<shape> gpt2()
{
    constexpr size_t c = channels;
    std::vector<shape> all{{"wte", 256 * c}, {"wpe", 64 * c}};
    for (int b = 0; b < blocks; ++b) {
        const std::string h = "h" + std::to_string(b) + ".";
        for (const shape& each : {shape{"ln_1.w", c}, {"ln_1.b", c}, {"qkv.w", 3 * c * c}, {"qkv.b", 3 * c},
                 {"proj.w", c * c}, {"proj.b", c}, {"ln_2.w", c}, {"ln_2.b", c}, {"fc.w", 4 * c * c}, {"fc.b", 4 * c},
                 {"fc_proj.w", 4 * c * c}, {"fc_proj.b", c}}) {
            all.push_back({h + each.name, each.count});
        }
    }
    all.push_back({"ln_f.w", c});
    all.push_back({"ln_f.b", c});
    return all;
}

__device__ inline float noise(unsigned i, unsigned rank, unsigned step)
{
    unsigned h = i * 0x9e3779b1u + rank * 0x85ebca77u + step * 0xc2b2ae3du;
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    return static_cast<float>(h ^ (h >> 15)) * 0x1p-32f - 0.5f;
}
__device__ inline float target(unsigned i) { return noise(i, 99, 99); }

static __global__ void start_weights(__nv_bfloat16* weight, unsigned count)
{
    for (unsigned i = threadIdx.x + blockIdx.x * blockDim.x; i < count; i += blockDim.x * gridDim.x)
        weight[i] = __float2bfloat16(1 + noise(i, 98, 98));
}
static __global__ void start_masters(float* master, const __nv_bfloat16* weight, unsigned count)
{
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) master[i] = __bfloat162float(weight[i]);
}
static __global__ void gradient_of(
    __nv_bfloat16* gradient, const __nv_bfloat16* weight, float* loss, unsigned count, unsigned rank, unsigned step)
{
    for (unsigned i = threadIdx.x + blockIdx.x * blockDim.x; i < count; i += blockDim.x * gridDim.x) {
        const float distance = __bfloat162float(weight[i]) - target(i);
        gradient[i] = __float2bfloat16(distance + noise(i, rank, step));
        atomicAdd(loss, distance * distance / static_cast<float>(count));
    }
}
static __global__ void adjust(float* master, __nv_bfloat16* weight, const __nv_bfloat16* gradient, unsigned count)
{
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        master[i] -= 0.3f * __bfloat162float(gradient[i]);
        weight[i] = __float2bfloat16(master[i]);
    }
}
static __global__ void overwrite(__nv_bfloat16* at, unsigned short pattern, bool flip)
{
    auto* const bits = reinterpret_cast<unsigned short*>(at);
    *bits = flip ? *bits ^ pattern : pattern;
}

/// A rank of the process: it has all weights and gradients in 16 bits, and its part of the weights in 32.
struct model {
    std::vector<shape> shapes = gpt2();
    std::vector<__nv_bfloat16*> weight, gradient;
    std::vector<float*> master;
    float* loss;
    size_t total = 0;
    int rank, ranks;

    size_t count(int t) const { return shapes[static_cast<size_t>(t)].count; }
    /// The elements of a tensor that a rank owns, and where they begin.
    size_t part(int t) const { return count(t) / static_cast<size_t>(ranks); }
    size_t begin(int t) const { return part(t) * static_cast<size_t>(rank); }
    const char* name(int t) const { return shapes[static_cast<size_t>(t)].name.c_str(); }
};

inline model make_model(int rank, int ranks, cudaStream_t stream)
{
    model net;
    net.rank = rank;
    net.ranks = ranks;
    for (const shape& each : net.shapes) net.total += each.count;
    __nv_bfloat16 *weights, *gradients;
    float* masters;
    CUDA_CHECK(cudaMalloc(&weights, net.total * sizeof *weights));
    CUDA_CHECK(cudaMalloc(&gradients, net.total * sizeof *gradients));
    CUDA_CHECK(cudaMalloc(&masters, net.total / static_cast<size_t>(ranks) * sizeof *masters));
    CUDA_CHECK(cudaMalloc(&net.loss, sizeof *net.loss));
    start_weights<<<8, 128, 0, stream>>>(weights, static_cast<unsigned>(net.total));
    for (int t = 0; t < tensors; ++t) {
        net.weight.push_back(weights);
        net.gradient.push_back(gradients);
        net.master.push_back(masters);
        start_masters<<<1, 128, 0, stream>>>(masters, weights + net.begin(t), static_cast<unsigned>(net.part(t)));
        weights += net.shapes[static_cast<size_t>(t)].count;
        gradients += net.shapes[static_cast<size_t>(t)].count;
        masters += net.part(t);
    }
    return net;
}
inline void free_model(const model& net)
{
    CUDA_CHECK(cudaFree(net.weight[0]));
    CUDA_CHECK(cudaFree(net.gradient[0]));
    CUDA_CHECK(cudaFree(net.master[0]));
    CUDA_CHECK(cudaFree(net.loss));
}

inline void backward(const model& net, int step, cudaStream_t stream)
{
    CUDA_CHECK(cudaMemsetAsync(net.loss, 0, sizeof *net.loss, stream));
    gradient_of<<<8, 128, 0, stream>>>(net.gradient[0], net.weight[0], net.loss, static_cast<unsigned>(net.total),
        static_cast<unsigned>(net.rank), static_cast<unsigned>(step));
}
inline void update(const model& net, int t, cudaStream_t stream)
{
    adjust<<<1, 128, 0, stream>>>(net.master[static_cast<size_t>(t)], net.weight[static_cast<size_t>(t)] + net.begin(t),
        net.gradient[static_cast<size_t>(t)] + net.begin(t), static_cast<unsigned>(net.part(t)));
}

/// A fault to try: in step 2, on the last rank.
struct fault {
    std::string kind; // "bit", "nan" or "stale"
    bool strikes(const char* which, const model& net, int step) const
    {
        return kind == which && step == 2 && net.rank == net.ranks - 1;
    }
    /// Before gradients are reduced: a NaN in one of h3.fc.w.
    void in_gradients(const model& net, int step, cudaStream_t stream) const
    {
        if (strikes("nan", net, step)) overwrite<<<1, 1, 0, stream>>>(net.gradient[2 + 3 * 12 + 8] + 5, 0x7fc0, false);
    }
    /// Whether the optimizer skips a tensor, so that the rank sends an old part of it: h7.qkv.w.
    bool skips(const model& net, int t, int step) const { return t == 2 + 7 * 12 + 2 && strikes("stale", net, step); }
    /// While weights are sent: a bit flips in the part of wpe.
    void while_sending(const model& net, int t, int step, cudaStream_t stream) const
    {
        if (t == 1 && strikes("bit", net, step)) overwrite<<<1, 1, 0, stream>>>(net.weight[1] + net.begin(1), 4, true);
    }
};

/// Runs `train(communicator, rank, ranks, stream)` on a thread for each GPU, of which at most four are used.
template <class Train>
void run_ranks(const Train& train)
{
    const int devices = count_gpus();
    const int ranks = devices >= 4 ? 4 : devices >= 2 ? 2 : 1;
    ncclUniqueId id;
    NCCL_CHECK(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            CUDA_CHECK(cudaSetDevice(rank));
            ncclComm_t comm;
            NCCL_CHECK(ncclCommInitRank(&comm, ranks, id, rank));
            cudaStream_t stream;
            CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            train(comm, rank, ranks, stream);
            CUDA_CHECK(cudaStreamDestroy(stream));
            NCCL_CHECK(ncclCommDestroy(comm));
        });
    }
    for (std::thread& thread : threads) thread.join();
}
