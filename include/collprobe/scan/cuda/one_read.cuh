// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/scan/cuda/result_reducer.cuh>
#include <collprobe/scan/cuda/statistics.cuh>
#include <collprobe/scan/one_read.hpp>

/// The kernels of `sketched_reducer`. A block takes in strips of rows: `scan::row_strip`.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

template <class T, scan::scan_features features>
struct sketched_block {
    using block = scan_block<T, features>;
    using strip = scan::row_strip<T>;
    struct shared {
        typename block::shared scanned;
        std::uint64_t signs[strip::sign_words];
    };
    static_assert(2 * strip::chunk <= block::chunk);

    scan::sketch_source<T> from;
    scan::sketch_sum<T>* parts;
    shared& memory;
    block scanned;

    __device__ sketched_block(const scan::sketch_source<T>& source, scan::sketch_sum<T>* sums, shared& shared_memory)
        : from(source), parts(sums), memory(shared_memory), scanned(shared_memory.scanned)
    {
    }

    /// Slots take the strips in turn.
    __device__ void reduce_slot(
        const scan::scan_input<T>& input, const statistics& identity, partial_results to, unsigned slot)
    {
        const std::uint64_t slots = scan::plan_slots(from.data.count(), sizeof(T)).slots;
        for (std::uint64_t index = slot; index < strip::strips(from); index += slots)
            reduce_strip(input, strip::of(from, index), identity, to, static_cast<unsigned>(index));
    }
    __device__ typename block::partial combine(partial_results partials, const statistics& identity)
    {
        return scanned.combine(partials, static_cast<unsigned>(strip::strips(from)), identity);
    }

private:
    __device__ void reduce_strip(const scan::scan_input<T>& input, const strip& mine, const statistics& identity,
        partial_results to, unsigned slot)
    {
        typename block::shared& own = memory.scanned;
        if (threadIdx.x == 0) own.rare = scan::rare_counts::none();
        const scan::strip_lane<T> lane(mine, threadIdx.x);
        typename block::thread_scan thread(
            &own.multipliers, lane.place % block_threads, static_cast<std::uint32_t>(from.bins));
        scan::thread_bins<T> bins;
        for (std::uint64_t row = mine.first_row; row < mine.last_row; row += strip::chunk) {
            const std::uint64_t last = mine.last_row - row < strip::chunk ? mine.last_row : row + strip::chunk;
            __syncthreads(); // all have used what is written here
            for (unsigned i = threadIdx.x; i < strip::sign_words; i += block_threads)
                memory.signs[i] = from.signs(row + i / strip::words_of_row, mine.column + i % strip::words_of_row * 64);
            if (threadIdx.x < 2 * strip::chunk) {
                const std::uint64_t period = mine.period(row + threadIdx.x % strip::chunk) + threadIdx.x / strip::chunk;
                own.slot.factors[threadIdx.x] = scan::digest_factors::of_round(2 * period);
            }
            __syncthreads();
            scan::scan_rows(thread, bins, input, lane, row, last, memory.signs, own.slot.factors, own.rare);
        }
        bins.store(parts + mine.part() * scan::sketch_numbers<T>(from.bins), from.bins, lane.column);
        scanned.finish_slot(
            thread, mine.origin(), mine.elements(),
            [&](const scan::slot_request& request) {
                scan::shifted_sums sums;
                scan::sum_shifted(sums, input.source, lane, request.factor, request.pivot);
                return sums;
            },
            identity, to, slot);
    }
};

/// What a block reads, and how it makes the result of its reducer. Registers for two blocks on a multiprocessor.
template <class T>
struct block_reduction<scan::sketched_reducer<statistics_reducer<T, true>, T>> {
    using inner = statistics_reducer<T, true>;
    using block = sketched_block<T, scan::scan_features{true, true, false, false, false, true}>;
    using shared = typename block::shared;
    static constexpr unsigned element_bytes = sizeof(T);
    static constexpr unsigned blocks_per_multiprocessor = 2;

    scan::scan_input<T> input;
    block scanned;

    __device__ block_reduction(const scan::sketched_reducer<inner, T>& reducer, shared& memory)
        : input(input_of(reducer.inner)), scanned(reducer.from, reducer.sketch.scratch, memory)
    {
    }
    __device__ void reduce_slot(std::uint64_t, std::uint32_t, partial_results to, unsigned slot)
    {
        scanned.reduce_slot(input, inner::identity().value, to, slot);
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned, Result* result)
    {
        const auto all = scanned.combine(from, inner::identity().value);
        if (threadIdx.x == 0) *result = inner::finish({all.value, all.digest});
    }
};

template <class T>
struct block_reduction<scan::sketched_reducer<scan::result_reducer<T>, T>> {
    using inner = block_reduction<scan::result_reducer<T>>;
    using block = sketched_block<T, scan::scan_features{false, true, false, true, false, true}>;
    using shared = typename block::shared;
    static constexpr unsigned element_bytes = sizeof(T);
    static constexpr unsigned blocks_per_multiprocessor = 2;

    scan::scan_input<T> input;
    block scanned;

    __device__ block_reduction(const scan::sketched_reducer<scan::result_reducer<T>, T>& reducer, shared& memory)
        : input(input_of(reducer.inner)), scanned(reducer.from, reducer.sketch.scratch, memory)
    {
    }
    __device__ void reduce_slot(std::uint64_t, std::uint32_t, partial_results to, unsigned slot)
    {
        scanned.reduce_slot(input, statistics_reducer<T, true>::identity().value, to, slot);
    }
    template <class Result>
    __device__ void combine(partial_results from, unsigned, Result* result)
    {
        const auto all = scanned.combine(from, statistics_reducer<T, true>::identity().value);
        if (threadIdx.x == 0) *result = inner::finish(input, all);
    }
};

} // namespace collprobe::cuda::detail
