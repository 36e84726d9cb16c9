// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What cmake/kernel_resources.sh must find: 64 numbers that are all needed at once, in 32 registers.
__global__ void __launch_bounds__(1024, 2) spilling(double* data)
{
    double values[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) values[i] = data[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) data[i * 1024 + threadIdx.x] = values[63 - i] * values[i * 7 % 64];
}

// And an array that is indexed at run time, which has to stand in memory.
__global__ void with_stack(int* data, const int* order)
{
    int values[32];
    for (int i = 0; i < 32; ++i) values[i] = data[i * 256 + threadIdx.x];
    for (int i = 0; i < 32; ++i) values[order[i] & 31] += values[i];
    for (int i = 0; i < 32; ++i) data[i * 256 + threadIdx.x] = values[31 - i];
}
