// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/scan/copy_statistics.hpp>
#include <collprobe/scan/cuda/detail/scan_reduction.cuh>
#include <collprobe/scan/statistics.hpp>

/// The kernels of `statistics_reducer` and `copy_statistics_reducer`.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

template <class T>
__device__ scan::byte_source bytes_at(const T* data, std::uint64_t count)
{
    return {reinterpret_cast<const unsigned char*>(data), data == nullptr ? 0 : count * sizeof(T)};
}

template <class T, bool with_digest>
__device__ scan::scan_input<T> input_of(const statistics_reducer<T, with_digest>& reducer)
{
    return {bytes_at(reducer.input.data(), reducer.input.count()), {}, nullptr};
}

template <class T, bool with_digest>
__device__ scan::scan_input<T> input_of(const collprobe::detail::copy_statistics_reducer<T, with_digest>& reducer)
{
    return {bytes_at(reducer.source.data(), reducer.source.count()), {},
        reinterpret_cast<unsigned char*>(reducer.destination)};
}

template <class Reducer, class T, bool with_digest, bool with_copy>
struct statistics_block {
    using block = scan_block<T, scan::scan_features{true, with_digest, with_copy, false}>;
    using partial = typename block::partial;
    using shared = typename block::shared;
    static constexpr unsigned element_bytes = block::element_bytes;
    static constexpr unsigned blocks_per_multiprocessor = block::blocks_per_multiprocessor;

    scan::scan_input<T> input;
    block scanned;

    __device__ statistics_block(const Reducer& reducer, shared& memory) : input(input_of(reducer)), scanned(memory)
    {
    }
    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        scanned.reduce_slot(input, first, count, Reducer::identity().value, to, slot);
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result)
    {
        const partial all = scanned.combine(from, slots, Reducer::identity().value);
        if (threadIdx.x == 0) *result = Reducer::finish({all.value, all.digest});
    }
};

template <class T, bool with_digest>
struct block_reduction<statistics_reducer<T, with_digest>>
    : statistics_block<statistics_reducer<T, with_digest>, T, with_digest, false> {
    using statistics_block<statistics_reducer<T, with_digest>, T, with_digest, false>::statistics_block;
};

template <class T, bool with_digest>
struct block_reduction<collprobe::detail::copy_statistics_reducer<T, with_digest>>
    : statistics_block<collprobe::detail::copy_statistics_reducer<T, with_digest>, T, with_digest, true> {
    using statistics_block<collprobe::detail::copy_statistics_reducer<T, with_digest>, T, with_digest,
        true>::statistics_block;
};

} // namespace collprobe::cuda::detail
