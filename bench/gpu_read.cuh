// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ceiling of what reads device memory once: a plain read, in several shapes, of which the fastest counts.
#include <cstdint>

#include "gpu_timing.cuh"

namespace collprobe::bench {

__device__ inline unsigned sum_of(const uint4& words) { return words.x + words.y + words.z + words.w; }

/// Reads tiles of `unroll` 16-byte words a thread, all of a tile in flight at once. `count` is in such words.
template <unsigned threads, unsigned unroll>
__global__ void __launch_bounds__(threads)
    read_kernel(const uint4* __restrict__ from, std::uint64_t count, unsigned* sink)
{
    constexpr std::uint64_t tile = std::uint64_t{threads} * unroll;
    unsigned sums[unroll] = {};
    std::uint64_t first = blockIdx.x * tile;
    for (; first + tile <= count; first += gridDim.x * tile) {
        uint4 words[unroll];
#pragma unroll
        for (unsigned k = 0; k < unroll; ++k) words[k] = __ldg(from + first + k * threads + threadIdx.x);
#pragma unroll
        for (unsigned k = 0; k < unroll; ++k) sums[k] += sum_of(words[k]);
    }
    // At most one block has the rest, for its tile is the one that does not fit.
    for (std::uint64_t index = first + threadIdx.x; index < count; index += threads)
        sums[0] += sum_of(__ldg(from + index));
    unsigned sum = 0;
#pragma unroll
    for (unsigned k = 0; k < unroll; ++k) sum += sums[k];
    if (sum == 0x2545f491u) *sink = sum; // or the compiler would leave out the loads
}

/// One of the ways to read a buffer.
struct reader {
    const void* kernel;
    unsigned threads;
    unsigned unroll;
    unsigned most_blocks; ///< 0: as many as tiles

    /// `persistent`: no more blocks than fit on the device.
    template <unsigned threads, unsigned unroll>
    static reader of(bool persistent)
    {
        const auto kernel = &read_kernel<threads, unroll>;
        int resident = 0;
        cuda::check(
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), 0),
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
        return {reinterpret_cast<const void*>(kernel), threads, unroll,
            persistent ? static_cast<unsigned>(resident * attribute(cudaDevAttrMultiProcessorCount)) : 0};
    }
    void run(cuda::stream_ref on, const void* from, std::uint64_t bytes) const
    {
        static const cuda::buffer<unsigned>& sink = *new cuda::buffer<unsigned>(1); // CUDA may be gone before it
        unsigned* to = sink.data();
        std::uint64_t count = bytes / sizeof(uint4);
        const std::uint64_t tile = std::uint64_t{threads} * unroll;
        std::uint64_t blocks = (count + tile - 1) / tile;
        if (most_blocks != 0 && blocks > most_blocks) blocks = most_blocks;
        void* arguments[] = {&from, &count, &to};
        cuda::check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), arguments, 0, on.get()), "read_kernel");
    }
};

} // namespace collprobe::bench
