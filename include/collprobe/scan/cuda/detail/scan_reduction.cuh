// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/scan/detail/slot_statistics.hpp>
#include <collprobe/scan/detail/thread_scan.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

namespace scan = collprobe::detail;

/// A block's part of a scan of elements: statistics, and other results of the same read. The derived class says what
/// the reducer reads, and makes the result.
///
/// Shared memory: 28 KiB with a digest (its multipliers and factors), else 1 KiB. Each multiprocessor runs at least
/// three blocks, so 768 threads with 64 bytes each in flight. That is twice what a multiprocessor's share of 4.8 TB/s
/// needs at 700 ns latency.
template <class T, scan::scan_features features>
struct scan_block {
    using thread_scan = scan::thread_scan<T, features>;
    using ranges = scan::range_totals<T>;
    struct dot_product {
        double value = 0;
        __device__ void merge(const dot_product& next) { value += next.value; }
    };
    static constexpr unsigned element_bytes = sizeof(T);
    static constexpr unsigned blocks_per_multiprocessor = 3;
    static constexpr unsigned per_round = scan::per_words16<T> * block_threads;
    static constexpr unsigned chunk = 256; // rounds

    struct partial {
        statistics value;
        collprobe::detail::digest_state digest;
        double dot;
    };

    struct nothing {
    };
    struct shared {
        union {
            scan::digest_factors factors[features.digest ? chunk : 1];
            typename block_merge<ranges>::storage ranges;
            typename block_merge<scan::digest_totals>::storage digest;
            typename block_merge<dot_product>::storage dot;
            typename block_merge<scan::shifted_sums>::storage shifted;
            typename block_merge<scan::slot_counts>::storage counts;
            typename block_merge<scan::slot_extent>::storage extent;
            typename block_merge<scan::slot_sums>::storage sums;
            typename block_merge<scan::slot_distances>::storage distances;
        };
        std::conditional_t<features.digest, scan::digest_multipliers, nothing> multipliers;
        scan::rare_counts rare;
        scan::slot_request request;
        statistics value;
    };

    shared& memory;

    __device__ explicit scan_block(shared& shared_memory) : memory(shared_memory)
    {
        if constexpr (features.digest) memory.multipliers.fill(threadIdx.x);
    }

    __device__ void reduce_slot(const scan::scan_input<T>& input, std::uint64_t first, std::uint32_t count,
        const statistics& identity, partial_results to, unsigned slot)
    {
        const bool aligned = input.aligned();
        if (threadIdx.x == 0) memory.rare = scan::rare_counts::none();
        const scan::digest_multipliers* multipliers = nullptr;
        if constexpr (features.digest) multipliers = &memory.multipliers;
        thread_scan thread(multipliers, threadIdx.x);
        const std::uint32_t rounds = count / per_round;
        const std::uint32_t rest = count % per_round;
        for (std::uint32_t begin = 0; begin < rounds + (rest != 0 ? 1 : 0); begin += chunk) {
            const bool is_last = rounds - begin < chunk;
            const std::uint32_t whole = is_last ? rounds - begin : chunk;
            __syncthreads();
            if (features.digest && threadIdx.x < whole + 1)
                memory.factors[threadIdx.x] = scan::digest_factors::of_round(first / per_round + begin + threadIdx.x);
            __syncthreads();
            const std::uint32_t offset = begin * per_round;
            const std::uint64_t from = first + offset;
            if (aligned)
                scan::scan_rounds<true>(
                    thread, input, from, offset, whole, is_last ? rest : 0, threadIdx.x, memory.factors, memory.rare);
            else
                scan::scan_rounds<false>(
                    thread, input, from, offset, whole, is_last ? rest : 0, threadIdx.x, memory.factors, memory.rare);
        }
        __syncthreads();
        scan::shifted_sums sums = block_merge<scan::shifted_sums>::run(memory.shifted, thread.sums);
        const ranges range = block_merge<ranges>::run(memory.ranges, thread.counts);
        collprobe::detail::digest_state digest;
        if constexpr (features.digest) {
            const scan::digest_totals all = block_merge<scan::digest_totals>::run(memory.digest, thread.digest);
            digest = {all.first, all.second, std::uint64_t{count} * sizeof(T)};
        }
        dot_product dot;
        if constexpr (features.dot) dot = block_merge<dot_product>::run(memory.dot, {thread.dot});
        if (threadIdx.x == 0) {
            memory.value = identity;
            memory.request = scan::describe_slot<T>(range, memory.rare, first, count, memory.value);
        }
        if constexpr (std::is_same_v<T, double>) sum_again(input, first, count, aligned, sums);
        if constexpr (features.moments) {
            if (threadIdx.x == 0) memory.request = scan::sum_slot(sums, memory.value);
            if (sum_again(input, first, count, aligned, sums) && threadIdx.x == 0)
                scan::refine_slot(sums, memory.value);
            if (threadIdx.x == 0) scan::close_slot(memory.value);
        } else {
            if (threadIdx.x == 0) memory.value.sum_of_squares = sums.squares;
        }
        if (threadIdx.x == 0)
            to.write(slot, partial{memory.value, digest, dot.value});
    }

    /// Merges the slots. Thread 0 gets the result; the return value of the other threads is not valid. Each pass
    /// reads the words that it needs. (The first two passes in one would need more registers than there are.)
    __device__ partial combine(partial_results from, unsigned slots, const statistics& identity)
    {
        scan::slot_counts counts;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
            counts.merge(scan::slot_counts::of(from.template read<partial, words::counts>(slot).value));
        counts = block_merge<scan::slot_counts>::run(memory.counts, counts);
        scan::slot_extent extent;
        scan::digest_totals digest;
        dot_product dot;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads) {
            const partial next = from.template read<partial, second_pass>(slot);
            extent.merge(scan::slot_extent::of(next.value));
            if constexpr (features.digest) digest.merge({next.digest.first, next.digest.second});
            if constexpr (features.dot) dot.value += next.dot;
        }
        if constexpr (features.digest) digest = block_merge<scan::digest_totals>::run(memory.digest, digest);
        extent = block_merge<scan::slot_extent>::run(memory.extent, extent);
        if constexpr (features.dot) dot = block_merge<dot_product>::run(memory.dot, dot);
        if (threadIdx.x == 0) {
            memory.value = identity;
            scan::open_result<T>(counts, extent, memory.value);
        }
        __syncthreads();
        const std::int32_t scale = memory.value.scale;
        scan::slot_sums sums;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
            sums.merge(scan::slot_sums::of<T>(from.template read<partial, words::sums>(slot).value, scale));
        sums = block_merge<scan::slot_sums>::run(memory.sums, sums);
        if (threadIdx.x == 0) memory.request.pivot = scan::sum_result(sums, memory.value);
        if constexpr (features.moments) {
            __syncthreads();
            const double mean = memory.request.pivot;
            scan::slot_distances distances;
            COLLPROBE_NO_UNROLL
            for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
                distances.merge(scan::slot_distances::of<T>(
                    from.template read<partial, words::distances>(slot).value, scale, mean));
            distances = block_merge<scan::slot_distances>::run(memory.distances, distances);
            if (threadIdx.x == 0) scan::close_result(distances, mean, memory.value);
        }
        // The other threads would read the value while thread 0 writes it.
        if (threadIdx.x != 0) return {};
        return {memory.value, {digest.first, digest.second, memory.value.count * sizeof(T)}, dot.value};
    }

private:
    static_assert(offsetof(partial, value) == 0);
    static_assert(offsetof(collprobe::detail::digest_state, first) == 0
        && offsetof(collprobe::detail::digest_state, second) == 8);
    using words = scan::slot_words<T>;
    static constexpr std::uint32_t second_pass = words::extent
        | (features.digest ? words::at(offsetof(partial, digest)) | words::at(offsetof(partial, digest) + 8) : 0)
        | (features.dot ? words::at(offsetof(partial, dot)) : 0);

    /// Computes the sums that `memory.request` asks for, and returns whether it asked for any.
    __device__ bool sum_again(const scan::scan_input<T>& input, std::uint64_t first, std::uint32_t count, bool aligned,
        scan::shifted_sums& sums)
    {
        __syncthreads();
        const scan::slot_request request = memory.request;
        if (request.again) {
            scan::shifted_sums mine;
            if (aligned)
                scan::sum_shifted<true, T>(
                    mine, input.source, first, count, threadIdx.x, request.factor, request.pivot);
            else
                scan::sum_shifted<false, T>(
                    mine, input.source, first, count, threadIdx.x, request.factor, request.pivot);
            sums = block_merge<scan::shifted_sums>::run(memory.shifted, mine);
        }
        __syncthreads();
        return request.again;
    }
};

} // namespace collprobe::cuda::detail
