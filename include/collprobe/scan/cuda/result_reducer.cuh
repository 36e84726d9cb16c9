// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/scan/cuda/statistics.cuh>
#include <collprobe/scan/result_reducer.hpp>

/// The kernel of `result_reducer`.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

template <class T>
__device__ scan::scan_input<T> input_of(const scan::result_reducer<T>& reducer)
{
    return {bytes_at(reducer.result.data(), reducer.result.count()), bytes_at(reducer.input, reducer.result.count()),
        nullptr};
}

template <class T>
struct block_reduction<scan::result_reducer<T>> {
    using block = scan_block<T, scan::scan_features{false, true, false, true}>;
    using partial = typename block::partial;
    using shared = typename block::shared;
    using inner = statistics_reducer<T, true>;
    static constexpr unsigned element_bytes = block::element_bytes;
    static constexpr unsigned blocks_per_multiprocessor = block::blocks_per_multiprocessor;

    scan::scan_input<T> input;
    block scanned;

    __device__ block_reduction(const scan::result_reducer<T>& reducer, shared& memory)
        : input(input_of(reducer)), scanned(memory)
    {
    }
    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        scanned.reduce_slot(input, first, count, inner::identity().value, to, slot);
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result)
    {
        const partial all = scanned.combine(from, slots, inner::identity().value);
        if (threadIdx.x == 0) *result = finish(input, all);
    }
    template <class Partial>
    __device__ static scan::result_record finish(const scan::scan_input<T>& input, const Partial& all)
    {
        const bool no_input = input.other.data == nullptr && all.value.count != 0;
        return scan::result_reducer<T>::finish({all.digest, all.value.sum_of_squares,
            no_input ? scan::not_a_number() : all.dot, all.value.scale, false, all.value.nonfinite(),
            all.value.first_nonfinite});
    }
};

} // namespace collprobe::cuda::detail
