// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/device/cuda/kernels.cuh>
#include <collprobe/scan/one_read.hpp>
#include <collprobe/scan/sketched_read.hpp>

/// The kernel of `one_read`. A block takes every n-th chunk of 16 KiB of a buffer: each thread has 64 bytes in flight
/// and keeps in registers what the accumulators take in. The threads merge once, at the end of a slot; the last block
/// of all merges the slots, two or three a thread, in one pass.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

namespace scan = collprobe::detail;

/// Merges what the threads of a block took in, one accumulator after the other, so that few registers are needed.
/// Thread 0 gets the result. Behind it the memory can be used again.
template <class Taken>
struct merge_of {
    using storage = typename block_merge<Taken>::storage;
    __device__ static void run(storage& memory, Taken& mine)
    {
        mine = block_merge<Taken>::run(memory, mine);
        __syncthreads();
    }
};
template <class A, class B>
struct merge_of<scan::pair_of<A, B>> {
    union storage {
        typename merge_of<A>::storage first;
        typename merge_of<B>::storage second;
        __device__ storage() {}
    };
    __device__ static void run(storage& memory, scan::pair_of<A, B>& mine)
    {
        merge_of<A>::run(memory.first, mine.first);
        merge_of<B>::run(memory.second, mine.second);
    }
};

/// `Read`: the `one_read` whose accumulators read. `Reducer`: it, or one that adds something to it.
template <class Reducer, class Read, unsigned most_blocks, unsigned most_slots>
struct block_read {
    using element = typename Read::value_type;
    using threads = typename Read::accumulator_type::thread;
    using partial = typename Read::partial;
    using parts = typename threads::part;
    static constexpr unsigned element_bytes = sizeof(element);
    static constexpr unsigned blocks_per_multiprocessor = most_blocks;

    struct shared {
        typename threads::shared of_threads;
        union merge_storage {
            typename merge_of<parts>::storage of_parts;
            typename merge_of<partial>::storage of_slots;
            __device__ merge_storage() {}
        } merging;
        unsigned item; // of the slot
    };

    const Reducer& reducer;
    shared& memory;
    unsigned slots = 1;
    unsigned first_item = 0; ///< that of this buffer's first slot

    __device__ block_read(const Reducer& from, shared& shared_memory) : reducer(from), memory(shared_memory)
    {
        memory.of_threads.fill(threadIdx.x);
    }

    /// The kernel finds a slot's chunks itself: a slot has no length.
    static scan::slot_plan plan(std::uint64_t count, unsigned most) noexcept
    {
        return {0, scan::lesser(scan::chunks_of(count * sizeof(element)), scan::lesser(most_slots, most))};
    }

    /// `extra`: takes in the chunks of the slot, too.
    template <class Extra>
    __device__ void reduce_slot(const Read& read, Extra& extra, partial_results to, unsigned item)
    {
        if (threadIdx.x == 0) memory.item = item;
        const unsigned slot = item - first_item;
        const scan::byte_source source{
            reinterpret_cast<const unsigned char*>(read.data.data()), read.data.count() * sizeof(element)};
        const auto chunks = static_cast<unsigned>(scan::chunks_of(source.bytes)); // of 2^46 bytes at most
        threads mine(read.of, memory.of_threads, threadIdx.x);
        memory.of_threads.begin_slot(threadIdx.x);
        unsigned step = 0;
        COLLPROBE_NO_UNROLL
        for (unsigned index = slot; index < chunks; index += slots) {
            if (step == 0) {
                __syncthreads();
                memory.of_threads.prepare(index, slots, threadIdx.x);
                __syncthreads();
            }
            const std::uint64_t byte = std::uint64_t{index} * scan::chunk_bytes + threadIdx.x * 16;
            const scan::chunk at{byte, source.bytes, step, source.data};
            scan::words16 words[scan::chunk_runs];
            at.load(source, words);
            mine.take(words, at);
            extra.take(words, at);
            step = (step + 1) % scan::prepared_chunks;
        }
        extra.end_slot(slot, threadIdx.x);
        parts all = mine.taken_in();
        merge_of<parts>::run(memory.merging.of_parts, all); // a barrier is among it
        if (threadIdx.x == 0) to.write(memory.item, threads::whole(all, memory.of_threads));
    }

    template <class Result>
    __device__ void combine(partial_results from, unsigned all_slots, Result* result)
    {
        partial mine = Reducer::identity();
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < all_slots; slot += block_threads)
            mine.merge(from.template read<partial>(slot));
        merge_of<partial>::run(memory.merging.of_slots, mine);
        if (threadIdx.x == 0) *result = reducer.finish(mine);
    }
};

/// Registers for four blocks on a multiprocessor, each with 16 KiB in flight.
template <class Reducer>
    requires requires { typename Reducer::accumulator_type; }
struct block_reduction<Reducer> : block_read<Reducer, Reducer, 4, scan::read_slots> {
    using block_read<Reducer, Reducer, 4, scan::read_slots>::block_read;

    struct nothing {
        __device__ void take(const scan::words16 (&)[scan::chunk_runs], const scan::chunk&) {}
        __device__ void end_slot(unsigned, unsigned) {}
    };
    __device__ void reduce_slot(std::uint64_t, std::uint32_t, partial_results to, unsigned item)
    {
        nothing extra;
        block_read<Reducer, Reducer, 4, scan::read_slots>::reduce_slot(this->reducer, extra, to, item);
    }
};

template <class Inner, class T>
struct block_reduction<scan::sketched_reducer<Inner, T>>
    : block_read<scan::sketched_reducer<Inner, T>, Inner, 2, scan::sketched<T>::most_slots> {
    using base = block_read<scan::sketched_reducer<Inner, T>, Inner, 2, scan::sketched<T>::most_slots>;
    using base::base;

    __device__ void reduce_slot(std::uint64_t, std::uint32_t, partial_results to, unsigned item)
    {
        typename scan::sketched<T>::thread bins(this->reducer.from, this->reducer.sketch);
        base::reduce_slot(this->reducer.inner, bins, to, item);
    }
};

} // namespace collprobe::cuda::detail
