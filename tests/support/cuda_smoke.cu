// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <vector>

#include <collprobe/collprobe.hpp>

/// Widens every half on the device; the host must get the same bits. Exit status 77 (skip) without a
/// device: then it is proved only that nvcc compiles and links the umbrella header.
__global__ void widen(collprobe::view<float> to)
{
    const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < to.count()) to[i] = static_cast<float>(collprobe::half::from_bits(static_cast<std::uint16_t>(i)));
}

int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("no CUDA device: skipped");
        return 77;
    }
    constexpr unsigned count = 65536;
    std::vector<float> result(count);
    float* memory = nullptr;
    if (cudaMalloc(&memory, count * sizeof(float)) != cudaSuccess) return 1;
    widen<<<count / 256, 256>>>({memory, count});
    const cudaError_t code = cudaMemcpy(result.data(), memory, count * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(memory);
    if (code != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorString(code));
        return 1;
    }
    for (unsigned i = 0; i < count; ++i) {
        const float expected = static_cast<float>(collprobe::half::from_bits(static_cast<std::uint16_t>(i)));
        if (collprobe::to_bits(expected) != collprobe::to_bits(result[i])) {
            std::printf("half 0x%04x differs on the device\n", i);
            return 1;
        }
    }
    return 0;
}
