// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Kernels for the tests of the engine that executes PTX: right ones, and ones with the faults that it must find.
/// Compiled to PTX.

extern "C" {

// --- Right ---

__global__ void with_barrier(int* out)
{
    __shared__ int x[64];
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = x[63 - threadIdx.x];
}

__global__ void dynamic_shared(int* out)
{
    extern __shared__ int y[];
    y[threadIdx.x] = static_cast<int>(threadIdx.x) * 3;
    __syncthreads();
    out[threadIdx.x] = y[63 - threadIdx.x];
}

__global__ void warp_operations(int* out)
{
    const unsigned t = threadIdx.x % 32;
    int v = __shfl_xor_sync(~0u, static_cast<int>(t), 5);
    v += __popc(__ballot_sync(~0u, t % 3 == 0));
    v += __any_sync(~0u, t == 7);
    if (t < 16) v += __shfl_down_sync(0xffff, v, 1, 16);
    out[threadIdx.x] = v;
}

/// Lanes exchange values through shared memory, a warp alone.
__global__ void with_syncwarp(int* out)
{
    __shared__ int x[32];
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncwarp();
    out[threadIdx.x] = x[31 - threadIdx.x];
}

/// The register of the address is negative where the offset is not.
__global__ void shared_window(int* out, int reach)
{
    __shared__ int x[64];
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    const int first = static_cast<int>(threadIdx.x) - reach;
    out[threadIdx.x] = threadIdx.x < 60 ? x[first + 2] + x[first + 4] : 0;
}

/// Diverged lanes that wait for each other: lane 0 for a flag that lane 1 sets.
__global__ void lanes_wait(int* out, volatile int* flag)
{
    if (threadIdx.x == 0) {
        while (*flag == 0) {}
        out[0] = 1;
    } else if (threadIdx.x == 1) {
        *flag = 1;
    }
}

/// All blocks meet; each adds what the others wrote.
__global__ void grid_barrier(unsigned* arrived, volatile int* part, int* out)
{
    if (threadIdx.x == 0) {
        part[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
        __threadfence();
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) != gridDim.x) {}
        __threadfence();
        int sum = 0;
        for (unsigned k = 0; k < gridDim.x; ++k) sum += part[k];
        out[blockIdx.x] = sum;
    }
}

/// The last block adds up what all blocks wrote. The threads write, one fences.
__global__ void last_block_sums(int* part, unsigned* ticket, int* out)
{
    __shared__ bool is_last;
    part[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        int sum = 0;
        for (unsigned k = 0; k < gridDim.x * blockDim.x; ++k) sum += __ldcg(part + k);
        *out = sum;
    }
}

__global__ void message_passing(int* data, int* flag, int* out)
{
    if (blockIdx.x == 0) {
        *data = 42;
        __threadfence();
        *static_cast<volatile int*>(flag) = 1;
    } else {
        out[1] = *data; // the first-level cache has it
        while (*static_cast<volatile int*>(flag) == 0) {}
        __threadfence();
        *out = *data;
    }
}

/// Stores of one thread to one address keep their order.
__global__ void same_address(int* x)
{
    for (int k = 0; k < 100; ++k) *static_cast<volatile int*>(x) = k;
}

// --- Wrong ---

__global__ void missing_barrier(int* out)
{
    __shared__ int x[64];
    x[threadIdx.x] = 0;
    __syncthreads();
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] = *const_cast<volatile int*>(x + (63 - threadIdx.x));
}

/// The second round overwrites what others still read.
__global__ void missing_second_barrier(int* out)
{
    __shared__ int x[64];
    for (int round = 0; round < 2; ++round) {
        x[threadIdx.x] = round;
        __syncthreads();
        out[threadIdx.x] += x[63 - threadIdx.x];
    }
}

__global__ void missing_syncwarp(int* out)
{
    __shared__ volatile int x[32];
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] = x[31 - threadIdx.x];
}

/// Not supported.
__global__ void half_syncwarp(int* out)
{
    if (threadIdx.x < 16) __syncwarp(0xffff);
    __syncthreads();
    out[threadIdx.x] = 0;
}

__global__ void beyond(int* out) { out[threadIdx.x + 1] = 1; }

__global__ void misaligned(int* out) { *reinterpret_cast<int*>(reinterpret_cast<char*>(out) + 2) = 1; }

__global__ void shared_beyond(int* out, int n)
{
    __shared__ int x[64];
    x[threadIdx.x + n] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}

__global__ void static_beyond(int* out, int n)
{
    extern __shared__ int behind[];
    __shared__ int x[64];
    behind[threadIdx.x] = 1;
    x[threadIdx.x + n] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x] + behind[threadIdx.x];
}

__device__ __noinline__ int element(const int* x, int k) { return x[k]; }
__global__ void local_beyond(int* out, int n)
{
    int x[8];
    for (int k = 0; k < 8; ++k) x[(k + n) & 7] = k;
    out[threadIdx.x] = element(n > 0 ? x : out, n); // by a generic address
}

__global__ void divergent_barrier(int* out)
{
    if (threadIdx.x % 2 != 0) {
        out[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = 2;
    } else {
        out[threadIdx.x] = 3;
        __syncthreads();
        out[threadIdx.x] = 4;
    }
}

__global__ void missing_members(int* out)
{
    int v = static_cast<int>(threadIdx.x);
    if (threadIdx.x < 16) v = __shfl_xor_sync(0xffffffff, v, 16);
    __syncthreads();
    out[threadIdx.x] = v;
}

__global__ void inactive_source(int* out)
{
    int v = static_cast<int>(threadIdx.x);
    if (threadIdx.x < 16) v = __shfl_xor_sync(0xffff, v, 16);
    out[threadIdx.x] = v;
}

__global__ void no_member(int* out)
{
    int v = static_cast<int>(threadIdx.x);
    if (threadIdx.x < 16) v = __shfl_xor_sync(0xff, v, 2);
    out[threadIdx.x] = v;
}

__global__ void unwritten_shared(int* out)
{
    __shared__ int x[64];
    if (threadIdx.x != 5) x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}

__global__ void no_fence_before_flag(int* data, int* flag, int* out)
{
    if (blockIdx.x == 0) {
        *data = 42;
        *static_cast<volatile int*>(flag) = 1;
    } else {
        while (*static_cast<volatile int*>(flag) == 0) {}
        __threadfence();
        *out = *data;
    }
}

__global__ void no_fence_after_flag(int* data, int* flag, int* out)
{
    if (blockIdx.x == 0) {
        *data = 42;
        __threadfence();
        *static_cast<volatile int*>(flag) = 1;
    } else {
        out[1] = *data;
        while (*static_cast<volatile int*>(flag) == 0) {}
        asm volatile("" ::: "memory");
        *out = *data;
    }
}

/// Atomic operations order nothing by themselves.
__global__ void relaxed_atomic(int* data, int* flag, int* out)
{
    if (blockIdx.x == 0) {
        *data = 42;
        atomicAdd(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        *out = __ldcg(data);
    }
}

/// The threads write, but the fence of one thread comes without a barrier behind their stores.
__global__ void fence_without_barrier(int* part, unsigned* ticket, int* out)
{
    __shared__ bool is_last;
    part[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        int sum = 0;
        for (unsigned k = 0; k < gridDim.x * blockDim.x; ++k) sum += __ldcg(part + k);
        *out = sum;
    }
}

// --- Counted ---

__global__ void copy_16(const uint4* from, uint4* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void copy_strided(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x * 8]; }
__global__ void transpose(int* out)
{
    __shared__ int x[32 * 32];
    for (int k = 0; k < 32; ++k) x[k * 32 + threadIdx.x] = k;
    __syncthreads();
    int sum = 0;
    for (int k = 0; k < 32; ++k) sum += x[threadIdx.x * 32 + k];
    out[threadIdx.x] = sum;
}

} // extern "C"
