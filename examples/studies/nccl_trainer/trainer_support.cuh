// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a trainer has anyway: error checks, data, a model of plain kernels, and a way to start its
// ranks. Nothing here knows of probes.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "../../support/job.hpp"
#include "checks.cuh"

constexpr int pixels = 64;
constexpr int hidden = 128;
constexpr int classes = 10;
constexpr int layers = 3;
constexpr int batch = 32; // samples of a rank in a step
constexpr int width[layers + 1] = {pixels, hidden, hidden, classes};

constexpr size_t parameters_of(int layer)
{
    return static_cast<size_t>((width[layer] + 1) * width[layer + 1]);
}

/// Handwritten digits: pixels in [0, 1], one sample after the other, and their classes.
struct digits {
    std::vector<float> images;
    std::vector<int> labels;
    int count() const { return static_cast<int>(labels.size()); }
};

inline digits read_digits(const char* path)
{
    digits data;
    std::FILE* const file = std::fopen(path, "r");
    if (file == nullptr) {
        std::fprintf(stderr, "cannot open %s\n", path);
        std::exit(1);
    }
    int value = 0;
    for (int column = 0; std::fscanf(file, "%d%*[,\n\r]", &value) == 1;
         column = (column + 1) % (pixels + 1)) {
        if (column < pixels) data.images.push_back(static_cast<float>(value) / 16);
        else data.labels.push_back(value);
    }
    std::fclose(file);
    if (data.labels.empty()) {
        std::fprintf(stderr, "%s holds no samples\n", path);
        std::exit(1);
    }
    return data;
}

/// This process's place among the ranks of the job, and what they need to make a communicator.
struct ranks {
    int rank;
    int size;
    ncclUniqueId id;
};

/// From the variables that torchrun, mpirun or srun set, and NCCL_COMM_ID; one rank alone without them. Makes the rank's GPU
/// current.
inline ranks start_ranks()
{
    const int devices = count_gpus();
    const job own = started_job();
    CUDA_CHECK(cudaSetDevice(own.local_rank % devices));
    return {own.rank, own.size, id_of(own)};
}

// Parameters and gradients of a layer are one run: weights as [input][output], then the biases.

/// output[sample][o] = act(bias[o] + sum over i of input[sample][i] * weight[i][o])
__global__ void forward_layer(
    const float* input, const float* parameters, float* output, int inputs, int outputs, bool rectify)
{
    const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= batch * outputs) return;
    const int sample = at / outputs;
    const int o = at % outputs;
    float sum = parameters[inputs * outputs + o];
    for (int i = 0; i < inputs; ++i) sum += input[sample * inputs + i] * parameters[i * outputs + o];
    output[at] = rectify && sum < 0 ? 0 : sum;
}

/// Mean softmax cross-entropy of the batch, and its derivative by the scores. One block.
__global__ void softmax_loss(const float* scores, const int* labels, float* delta, float* loss)
{
    __shared__ float losses[batch];
    const int sample = static_cast<int>(threadIdx.x);
    const float* const own = scores + sample * classes;
    float top = own[0];
    for (int c = 1; c < classes; ++c) top = own[c] > top ? own[c] : top;
    float sum = 0;
    for (int c = 0; c < classes; ++c) sum += expf(own[c] - top);
    for (int c = 0; c < classes; ++c) {
        const float p = expf(own[c] - top) / sum;
        delta[sample * classes + c] = (p - (c == labels[sample] ? 1.0f : 0.0f)) / batch;
    }
    losses[sample] = logf(sum) + top - own[labels[sample]];
    __syncthreads();
    if (sample != 0) return;
    float total = 0;
    for (int s = 0; s < batch; ++s) total += losses[s];
    *loss = total / batch;
}

/// gradient[i][o] = sum over samples of input[sample][i] * delta[sample][o]; row `inputs`: the biases.
__global__ void backward_parameters(
    const float* input, const float* delta, float* gradient, int inputs, int outputs)
{
    const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= (inputs + 1) * outputs) return;
    const int i = at / outputs;
    const int o = at % outputs;
    float sum = 0;
    for (int s = 0; s < batch; ++s)
        sum += (i < inputs ? input[s * inputs + i] : 1.0f) * delta[s * outputs + o];
    gradient[at] = sum;
}

/// below[sample][i] = sum over o of weight[i][o] * delta[sample][o] where the unit was on.
__global__ void backward_input(
    const float* input, const float* parameters, const float* delta, float* below, int inputs, int outputs)
{
    const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= batch * inputs) return;
    const int sample = at / inputs;
    const int i = at % inputs;
    float sum = 0;
    for (int o = 0; o < outputs; ++o) sum += parameters[i * outputs + o] * delta[sample * outputs + o];
    below[at] = input[at] > 0 ? sum : 0;
}

__global__ void descend(float* parameters, const float* gradient, size_t count, float rate)
{
    const size_t at = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (at < count) parameters[at] -= rate * gradient[at];
}

/// A batch of samples, the model and its gradients, in device memory.
struct model {
    float* parameters[layers];
    float* gradient[layers];
    float* output[layers + 1]; // output[0] is the input
    float* delta[layers + 1]; // delta[k] belongs to output[k]
    int* labels;
    float* loss;
};

inline unsigned blocks(size_t threads) { return static_cast<unsigned>((threads + 127) / 128); }

inline model make_model()
{
    model m{};
    std::uint32_t state = 1;
    for (int k = 0; k < layers; ++k) {
        std::vector<float> initial(parameters_of(k), 0.0f);
        const float bound = std::sqrt(6.0f / static_cast<float>(width[k])); // He: right for ReLU
        for (int i = 0; i < width[k] * width[k + 1]; ++i) {
            state = state * 1664525u + 1013904223u;
            initial[static_cast<std::size_t>(i)] = bound * (static_cast<float>(state >> 8) / 8388608.0f - 1);
        }
        const std::size_t bytes = initial.size() * sizeof(float);
        CUDA_CHECK(cudaMalloc(&m.parameters[k], bytes));
        CUDA_CHECK(cudaMalloc(&m.gradient[k], bytes));
        CUDA_CHECK(cudaMemcpy(m.parameters[k], initial.data(), bytes, cudaMemcpyHostToDevice));
    }
    for (int k = 0; k <= layers; ++k) {
        CUDA_CHECK(cudaMalloc(&m.output[k], sizeof(float) * batch * static_cast<std::size_t>(width[k])));
        CUDA_CHECK(cudaMalloc(&m.delta[k], sizeof(float) * batch * static_cast<std::size_t>(width[k])));
    }
    CUDA_CHECK(cudaMalloc(&m.labels, sizeof(int) * batch));
    CUDA_CHECK(cudaMalloc(&m.loss, sizeof(float)));
    CUDA_CHECK(cudaDeviceSynchronize()); // the parameters are there, also for streams that wait for no other
    return m;
}

inline void free_model(model& m)
{
    for (int k = 0; k < layers; ++k) {
        CUDA_CHECK(cudaFree(m.parameters[k]));
        CUDA_CHECK(cudaFree(m.gradient[k]));
    }
    for (int k = 0; k <= layers; ++k) {
        CUDA_CHECK(cudaFree(m.output[k]));
        CUDA_CHECK(cudaFree(m.delta[k]));
    }
    CUDA_CHECK(cudaFree(m.labels));
    CUDA_CHECK(cudaFree(m.loss));
}

/// The samples of a rank in a step: every rank gets others.
inline void load_batch(model& m, const digits& data, int step, int rank, int size, cudaStream_t stream)
{
    for (int s = 0; s < batch; ++s) {
        const int sample = ((step * size + rank) * batch + s) * 7 % data.count();
        CUDA_CHECK(cudaMemcpyAsync(m.output[0] + s * pixels, data.images.data() + sample * pixels,
            sizeof(float) * pixels, cudaMemcpyHostToDevice, stream));
        CUDA_CHECK(cudaMemcpyAsync(
            m.labels + s, data.labels.data() + sample, sizeof(int), cudaMemcpyHostToDevice, stream));
    }
}

inline void forward(model& m, cudaStream_t stream)
{
    for (int k = 0; k < layers; ++k) {
        forward_layer<<<blocks(size_t{batch} * static_cast<size_t>(width[k + 1])), 128, 0, stream>>>(
            m.output[k], m.parameters[k], m.output[k + 1], width[k], width[k + 1], k + 1 < layers);
    }
    softmax_loss<<<1, batch, 0, stream>>>(m.output[layers], m.labels, m.delta[layers], m.loss);
    CUDA_CHECK(cudaGetLastError());
}

inline void backward(model& m, int k, cudaStream_t stream)
{
    backward_parameters<<<blocks(parameters_of(k)), 128, 0, stream>>>(
        m.output[k], m.delta[k + 1], m.gradient[k], width[k], width[k + 1]);
    if (k > 0) {
        backward_input<<<blocks(size_t{batch} * static_cast<size_t>(width[k])), 128, 0, stream>>>(
            m.output[k], m.parameters[k], m.delta[k + 1], m.delta[k], width[k], width[k + 1]);
    }
    CUDA_CHECK(cudaGetLastError());
}

inline void update(model& m, int k, cudaStream_t stream)
{
    descend<<<blocks(parameters_of(k)), 128, 0, stream>>>(
        m.parameters[k], m.gradient[k], parameters_of(k), 0.2f);
    CUDA_CHECK(cudaGetLastError());
}
