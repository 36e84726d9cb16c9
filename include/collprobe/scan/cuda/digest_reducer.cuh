// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/scan/cuda/statistics.cuh>
#include <collprobe/scan/digest_reducer.hpp>

/// The kernel of `digest_reducer`: the scan of `statistics_reducer` without the statistics.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

template <class T>
struct block_reduction<collprobe::detail::digest_reducer<T>> {
    static constexpr scan::scan_features features{false, true, false, false, true};
    using thread_scan = scan::thread_scan<T, features>;
    static constexpr unsigned element_bytes = sizeof(T);
    static constexpr unsigned blocks_per_multiprocessor = 3;
    static constexpr unsigned per_round = scan::per_words16<T> * block_threads;
    static constexpr unsigned chunk = 256; // rounds

    struct shared {
        scan::digest_factors factors[chunk];
        typename block_merge<scan::digest_totals>::storage totals;
        scan::digest_multipliers multipliers;
        scan::rare_counts rare; // stays empty: the scan does not look at values
    };

    scan::scan_input<T> input;
    shared& memory;

    __device__ block_reduction(const collprobe::detail::digest_reducer<T>& reducer, shared& shared_memory)
        : input{bytes_at(reducer.input.data(), reducer.input.count()), {}, nullptr}, memory(shared_memory)
    {
        memory.multipliers.fill(threadIdx.x);
    }

    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        thread_scan thread(&memory.multipliers, threadIdx.x);
        const std::uint32_t rounds = count / per_round;
        const std::uint32_t rest = count % per_round;
        for (std::uint32_t begin = 0; begin < rounds + (rest != 0 ? 1 : 0); begin += chunk) {
            const bool is_last = rounds - begin < chunk;
            const std::uint32_t whole = is_last ? rounds - begin : chunk;
            if (begin != 0) __syncthreads(); // all have used the factors; those of a slot before are behind its merge
            // One factor more, for the rest. There is room for it, because a chunk with a rest is not full.
            if (threadIdx.x < whole + 1)
                memory.factors[threadIdx.x] = scan::digest_factors::of_round(first / per_round + begin + threadIdx.x);
            __syncthreads();
            const std::uint32_t offset = begin * per_round;
            scan::scan_rounds(thread, input, first + offset, offset, whole, is_last ? rest : 0, threadIdx.x,
                memory.factors, memory.rare);
        }
        const scan::digest_totals all = block_merge<scan::digest_totals>::run(memory.totals, thread.digest);
        if (threadIdx.x == 0)
            to.write(slot,
                collprobe::detail::digest_state{all.first, all.second, std::uint64_t{count} * sizeof(T)});
    }

    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result)
    {
        scan::digest_totals all;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads) {
            const auto next = from.template read<collprobe::detail::digest_state>(slot);
            all.merge({next.first, next.second});
        }
        all = block_merge<scan::digest_totals>::run(memory.totals, all);
        if (threadIdx.x == 0)
            *result = collprobe::detail::digest_state{all.first, all.second, input.source.bytes}.finish();
    }
};

} // namespace collprobe::cuda::detail
