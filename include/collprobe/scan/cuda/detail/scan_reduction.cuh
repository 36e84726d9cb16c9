// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
/// Shared memory: 29 KiB with a digest (its multipliers and factors), else 1 KiB. Each multiprocessor runs at least
/// three blocks, so 768 threads with 64 bytes each in flight. That is twice what a multiprocessor's share of 4.8 TB/s
/// needs at 700 ns latency.
template <class T, scan::scan_features features>
struct scan_block {
    using thread_scan = scan::thread_scan<T, features>;
    using ranges = scan::range_totals<T>;
    struct plain_sum {
        double value = 0;
        __device__ void merge(const plain_sum& next) { value += next.value; }
    };
    static constexpr unsigned element_bytes = sizeof(T);
    static constexpr unsigned blocks_per_multiprocessor = 3;
    static constexpr unsigned per_round = scan::per_words16<T> * block_threads;
    static constexpr unsigned chunk = 256; // rounds
    /// Whether extrema are wanted: a result, or for the scale of doubles.
    static constexpr bool has_extrema = features.moments || std::is_same_v<T, double>;

    struct partial {
        statistics value;
        collprobe::detail::digest_state digest;
        double dot;
    };

    struct nothing {
    };
    template <class Value>
    using storage_of = typename block_merge<Value>::storage;

    /// Each merge has its own memory, so that no barrier is needed between them.
    struct slot_memory {
        scan::digest_factors factors[features.digest ? chunk : 1];
        storage_of<scan::shifted_sums> sums;
        storage_of<ranges> range;
        storage_of<scan::digest_totals> digest;
        storage_of<plain_sum> squares;
        storage_of<plain_sum> dot;
        storage_of<scan::shifted_sums> scaled;
        storage_of<scan::centred_sums> centred;
    };
    struct combining_memory {
        storage_of<scan::slot_counts> counts;
        storage_of<scan::slot_extent> extent;
        storage_of<scan::digest_totals> digest;
        storage_of<plain_sum> dot;
        storage_of<scan::slot_sums> sums;
        storage_of<scan::slot_distances> distances;
    };
    struct shared {
        union {
            slot_memory slot;
            combining_memory all;
        };
        std::conditional_t<features.digest, scan::digest_multipliers, nothing> multipliers;
        scan::rare_counts rare;
        // What thread 0 tells the others.
        scan::slot_request scaling;
        scan::slot_request centring;
        double mean;
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
        if (threadIdx.x == 0) memory.rare = scan::rare_counts::none();
        const scan::digest_multipliers* multipliers = nullptr;
        if constexpr (features.digest) multipliers = &memory.multipliers;
        thread_scan thread(multipliers, threadIdx.x);
        const std::uint32_t rounds = count / per_round;
        const std::uint32_t rest = count % per_round;
        for (std::uint32_t begin = 0; begin < rounds + (rest != 0 ? 1 : 0); begin += chunk) {
            const bool is_last = rounds - begin < chunk;
            const std::uint32_t whole = is_last ? rounds - begin : chunk;
            // All have used the factors; those of the slot before are behind its merges.
            if (features.digest && begin != 0) __syncthreads();
            if (features.digest && threadIdx.x < whole + 1)
                memory.slot.factors[threadIdx.x]
                    = scan::digest_factors::of_round(first / per_round + begin + threadIdx.x);
            __syncthreads();
            const std::uint32_t offset = begin * per_round;
            const std::uint64_t from = first + offset;
            scan::scan_rounds(
                thread, input, from, offset, whole, is_last ? rest : 0, threadIdx.x, memory.slot.factors, memory.rare);
        }
        finish_slot(
            thread, first, count,
            [&](const scan::slot_request& request) { return shifted(input, first, count, request); }, identity, to,
            slot);
    }

    /// Makes the partial result of a slot from what its threads took in. `again(request)`: a thread's part of the sums
    /// that are asked for.
    template <class Again>
    __device__ void finish_slot(const thread_scan& thread, std::uint64_t first, std::uint64_t count, Again again,
        const statistics& identity, partial_results to, unsigned slot)
    {
        scan::shifted_sums sums;
        if constexpr (features.moments) sums = merged(memory.slot.sums, thread.sums);
        else sums.squares = merged(memory.slot.squares, plain_sum{thread.sums.squares}).value;
        ranges range;
        if constexpr (has_extrema) range = merged(memory.slot.range, thread.counts);
        collprobe::detail::digest_state digest;
        if constexpr (features.digest) {
            const scan::digest_totals all = merged(memory.slot.digest, thread.digest);
            digest = {all.first, all.second, count * sizeof(T)};
        }
        plain_sum dot;
        if constexpr (features.dot) dot = merged(memory.slot.dot, plain_sum{thread.dot});
        if (threadIdx.x == 0) {
            memory.value = identity;
            memory.scaling = scan::describe_slot<T>(range, memory.rare, first, count, memory.value);
        }
        if constexpr (std::is_same_v<T, double>) {
            __syncthreads();
            if (memory.scaling.again) sums = merged(memory.slot.scaled, again(memory.scaling));
        }
        if constexpr (features.moments) {
            if (threadIdx.x == 0) memory.centring = scan::sum_slot(sums, memory.value);
            __syncthreads();
            if (memory.centring.again) {
                const auto centred = merged(memory.slot.centred, scan::centred_sums::of(again(memory.centring)));
                if (threadIdx.x == 0) scan::refine_slot(centred, memory.value);
            }
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
            counts.merge(scan::slot_counts::of(from.template read<partial>(slot).value));
        counts = merged(memory.all.counts, counts);
        scan::slot_extent extent;
        scan::digest_totals digest;
        plain_sum dot;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads) {
            const partial next = from.template read<partial>(slot);
            if constexpr (has_extrema) extent.merge(scan::slot_extent::of(next.value));
            if constexpr (features.digest) digest.merge({next.digest.first, next.digest.second});
            if constexpr (features.dot) dot.value += next.dot;
        }
        if constexpr (features.digest) digest = merged(memory.all.digest, digest);
        if constexpr (has_extrema) extent = merged(memory.all.extent, extent);
        if constexpr (features.dot) dot = merged(memory.all.dot, dot);
        if (threadIdx.x == 0) {
            memory.value = identity;
            scan::open_result<T>(counts, extent, memory.value);
        }
        std::int32_t scale = 0;
        if constexpr (std::is_same_v<T, double>) {
            __syncthreads();
            scale = memory.value.scale;
        }
        scan::slot_sums sums;
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
            sums.merge(scan::slot_sums::of<T>(from.template read<partial>(slot).value, scale));
        sums = merged(memory.all.sums, sums);
        if (threadIdx.x == 0) memory.mean = scan::sum_result(sums, memory.value);
        if constexpr (features.moments) {
            __syncthreads();
            const double mean = memory.mean;
            scan::slot_distances distances;
            COLLPROBE_NO_UNROLL
            for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
                distances.merge(scan::slot_distances::of<T>(from.template read<partial>(slot).value, scale, mean));
            distances = merged(memory.all.distances, distances);
            if (threadIdx.x == 0) scan::close_result(distances, mean, memory.value);
        }
        // The other threads would read the value while thread 0 writes it.
        if (threadIdx.x != 0) return {};
        return {memory.value, {digest.first, digest.second, memory.value.count * sizeof(T)}, dot.value};
    }

private:
    template <class Value>
    __device__ static Value merged(storage_of<Value>& own, const Value& mine)
    {
        return block_merge<Value>::run(own, mine);
    }

    /// This thread's part of the sums that are asked for.
    __device__ static scan::shifted_sums shifted(const scan::scan_input<T>& input, std::uint64_t first,
        std::uint32_t count, const scan::slot_request& request)
    {
        scan::shifted_sums mine;
        scan::sum_shifted<T>(mine, input.source, first, count, threadIdx.x, request.factor, request.pivot);
        return mine;
    }
};

} // namespace collprobe::cuda::detail
