// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <collprobe/detail/math.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/device/cuda/detail/kernel_loading.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/slots.hpp>

/// The kernels behind `cuda::device`. A plain C++ file that uses it links if one `.cu` file includes this and
/// instantiates what that file calls (for probes, include `collprobe.cuh` and instantiate the `probed`: README):
///
///     template void collprobe::cuda::device::reduce(collprobe::cuda::stream_ref, Reducer,
///         std::uint64_t, Result*, collprobe::cuda::workspace&, collprobe::reduction_times);
namespace collprobe::inline COLLPROBE_ABI::cuda {
namespace detail {

inline constexpr unsigned block_threads = collprobe::detail::block_threads;

/// The number of blocks of a kernel that the current device runs at once. CUDA is asked once for each kernel and
/// device. Legal in a capture.
template <auto kernel>
unsigned resident_blocks(cudaStream_t stream)
{
    constexpr int remembered = 64;
    static std::atomic<unsigned> known[remembered];
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    if (device < remembered) {
        if (const unsigned blocks = known[device].load(std::memory_order_relaxed); blocks != 0) return blocks;
    }
    int multiprocessors = 0;
    int per_multiprocessor = 0;
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute", device, stream);
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
              &per_multiprocessor, kernel, static_cast<int>(block_threads), 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor", device, stream);
    const auto blocks = static_cast<unsigned>(multiprocessors * (per_multiprocessor > 0 ? per_multiprocessor : 1));
    if (device < remembered) known[device].store(blocks, std::memory_order_relaxed);
    return blocks;
}

/// Launches a kernel and checks the return code of the launch itself, so an older error of the program is not taken
/// for an error of the launch.
template <auto kernel, class... Arguments>
void launch(const char* what, cudaStream_t stream, std::uint64_t blocks_wanted, Arguments... arguments)
{
    const unsigned most = resident_blocks<kernel>(stream);
    const unsigned blocks = blocks_wanted < most ? static_cast<unsigned>(blocks_wanted) : most;
    void* values[] = {&arguments...};
    check(cudaLaunchKernel(entry_of<kernel>.kernel(), dim3(blocks), dim3(block_threads), values, 0, stream),
        what, -1, stream);
}

template <class Body>
__global__ void __launch_bounds__(block_threads) for_each_kernel(
    std::uint64_t count, const __grid_constant__ Body body)
{
    const std::uint64_t stride = std::uint64_t{gridDim.x} * block_threads;
    for (std::uint64_t index = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x; index < count; index += stride)
        body(index);
}

template <class T>
struct merge_parts {
    __device__ T operator()(T into, const T& next) const
    {
        into.merge(next);
        return into;
    }
};

/// Merges the values of the first `lanes` threads of a warp, at distances 1, 2, 4 and so on; `lanes` is a power of two.
/// The first gets the result. The others merge what they happen to get: so no thread asks which one it is.
template <unsigned lanes, class T, class Merge>
__device__ T merge_lanes(T mine, Merge merge)
{
    struct words {
        std::uint32_t of[sizeof(T) / 4];
    };
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0, "what merges is plain memory of whole words");
    COLLPROBE_UNROLL
    for (unsigned distance = 1; distance < lanes; distance *= 2) {
        auto next = collprobe::detail::bit_cast<words>(mine);
        COLLPROBE_UNROLL
        for (std::uint32_t& word : next.of)
            word = __shfl_down_sync(static_cast<unsigned>((std::uint64_t{1} << lanes) - 1), word, distance, lanes);
        mine = merge(mine, collprobe::detail::bit_cast<T>(next));
    }
    return mine;
}

/// Merges one value of each thread in a fixed order, those of a warp and then those of the warps; thread 0 gets the
/// result. A barrier is among it. The storage can be used again behind the block's next barrier.
template <class T, class Merge = merge_parts<T>>
struct block_merge {
    static constexpr unsigned warp = 32;
    static constexpr unsigned warps = block_threads / warp;
    struct storage {
        alignas(T) unsigned char of_warp[warps][sizeof(T)];
    };

    __device__ static T run(storage& memory, const T& mine, Merge merge = {})
    {
        if constexpr (std::is_empty_v<T>) return mine;
        else {
            T all = merge_lanes<warp>(mine, merge);
            T* const of_warp = reinterpret_cast<T*>(memory.of_warp);
            if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = all;
            __syncthreads();
            if (threadIdx.x < warps) all = merge_lanes<warps>(of_warp[threadIdx.x], merge);
            return all;
        }
    }
};

/// Adds without fusing, whatever the compiler's flags say of fused operations.
struct add_doubles {
    __device__ double operator()(double a, double b) const { return __dadd_rn(a, b); }
};

/// The slots' partial results in a workspace: the first word of each slot, then the second word of each slot and so
/// on. So threads that read neighbouring slots read neighbouring words.
struct partial_results {
    unsigned long long* words;

    /// The first word; the others are at constant distances from it.
    __device__ unsigned long long* at(unsigned slot) const { return words + slot; }

    template <class Partial>
    struct words_of {
        static_assert(std::is_trivially_copyable_v<Partial> && sizeof(Partial) % 8 == 0,
            "a partial result is plain memory, of a multiple of 8 bytes");
        static_assert(sizeof(Partial) <= workspace::max_partial_bytes);
        static constexpr unsigned count = sizeof(Partial) / 8;
        std::uint64_t word[count];
    };

    template <class Partial>
    __device__ void write(unsigned slot, const Partial& partial) const
    {
        const auto raw = collprobe::detail::bit_cast<words_of<Partial>>(partial);
        COLLPROBE_UNROLL
        for (std::size_t i = 0; i < words_of<Partial>::count; ++i) at(slot)[i * workspace::slots] = raw.word[i];
    }
    template <class Partial>
    __device__ Partial read(unsigned slot) const
    {
        words_of<Partial> raw;
        COLLPROBE_UNROLL
        for (std::size_t i = 0; i < words_of<Partial>::count; ++i) raw.word[i] = at(slot)[i * workspace::slots];
        return collprobe::detail::bit_cast<Partial>(raw);
    }
};

/// The merges of partial results by `Reducer::merge`: those of a slot's threads, and those of the slots.
template <class Reducer>
struct partials_merge {
    using partial = typename Reducer::partial;

    struct merge_partials {
        __device__ partial operator()(partial into, const partial& next) const
        {
            Reducer::merge(into, next);
            return into;
        }
    };
    using merge = block_merge<partial, merge_partials>;
    using shared = typename merge::storage;

    /// Behind it the memory can be used again.
    __device__ static void write_slot(shared& memory, const partial& mine, partial_results to, unsigned slot)
    {
        const partial all = merge::run(memory, mine);
        if (threadIdx.x == 0) to.write(slot, all);
        __syncthreads();
    }
    template <class Result>
    __device__ static void combine(
        const Reducer& reducer, shared& memory, partial_results from, unsigned slots, Result* result)
    {
        partial mine = Reducer::identity();
        COLLPROBE_NO_UNROLL
        for (unsigned slot = threadIdx.x; slot < slots; slot += block_threads)
            Reducer::merge(mine, from.template read<partial>(slot));
        const partial all = merge::run(memory, mine);
        if (threadIdx.x == 0) *result = reducer.finish(all);
    }
};

/// The reduction of a slot by the 256 threads of a block, and of the slots of a buffer. The general form calls
/// `reducer.add(partial, index)` for each element, which must be usable in device code, as must `identity`, `merge`
/// and `finish`. Specialised for reducers with a faster form.
template <class Reducer>
struct block_reduction {
    static_assert(!requires { typename Reducer::has_own_kernel; },
        "this reducer's kernel is in a header of its own: include collprobe/collprobe.cuh");
    using partials = partials_merge<Reducer>;
    using shared = typename partials::shared;

    /// For the slots' length only. Or a function `element_bytes_of(reducer)`, where that is known at run time.
    static constexpr unsigned element_bytes = 4;
    static constexpr unsigned blocks_per_multiprocessor = 1;

    const Reducer& reducer;
    shared& memory;

    __device__ void reduce_slot(std::uint64_t first, std::uint32_t count, partial_results to, unsigned slot)
    {
        typename Reducer::partial mine = Reducer::identity();
        for (std::uint64_t index = first + threadIdx.x; index < first + count; index += block_threads)
            reducer.add(mine, index);
        partials::write_slot(memory, mine, to, slot);
    }

    template <class Result>
    __device__ void combine(partial_results from, unsigned slots, Result* result)
    {
        partials::combine(reducer, memory, from, slots, result);
    }
};

template <class Reducer>
collprobe::detail::slot_plan plan_of(const Reducer& reducer, std::uint64_t count)
{
    using reduction = block_reduction<Reducer>;
    if constexpr (requires { reduction::plan(count, 1u); }) return reduction::plan(count, workspace::slots);
    else if constexpr (requires { reduction::element_bytes_of(reducer); })
        return collprobe::detail::plan_slots(count, reduction::element_bytes_of(reducer));
    else return collprobe::detail::plan_slots(count, reduction::element_bytes);
}

/// Has an effect on memory, so that the compiler leaves it where it stands.
__device__ inline clock_stamp device_stamp()
{
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
    return collprobe::detail::stamp_of(nanoseconds);
}

/// One launch: blocks take the slots in turn, and the last block to finish combines the partial results of all
/// blocks. The result does not depend on which block reduced a slot, or on which block was the last.
template <class Reducer, class Result>
__global__ void __launch_bounds__(block_threads, block_reduction<Reducer>::blocks_per_multiprocessor)
    reduce_kernel(Reducer reducer, std::uint64_t count, collprobe::detail::slot_plan plan, Result* result,
        partial_results partials, std::uint32_t* ticket, reduction_times times)
{
    using reduction = block_reduction<Reducer>;
    if (times.begun != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *times.begun = device_stamp();
    // As bytes: a shared variable cannot have a constructor.
    __shared__ alignas(16) unsigned char memory[sizeof(typename reduction::shared)];
    __shared__ bool is_last;
    reduction block{reducer, *reinterpret_cast<typename reduction::shared*>(memory)};
    if constexpr (requires { block.slots; }) block.slots = static_cast<unsigned>(plan.slots);
    // The slot's number is in shared memory: the registers are for the work.
    __shared__ unsigned slot;
    if (threadIdx.x == 0) slot = blockIdx.x;
    __syncthreads();
    while (slot < static_cast<unsigned>(plan.slots)) {
        const std::uint64_t first = slot * plan.length;
        const std::uint64_t left = count - first;
        block.reduce_slot(first, static_cast<std::uint32_t>(left < plan.length ? left : plan.length), partials, slot);
        __syncthreads();
        if (threadIdx.x == 0) slot += gridDim.x;
        __syncthreads();
    }
    // Thread 0 wrote the partials of this block: its first fence makes them visible before its ticket is. Its second
    // fence lets the block see those of other blocks, also where its first-level cache has older values.
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1; // back to 0 with the last block
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    block.combine(partials, static_cast<unsigned>(plan.slots), result); // thread 0 writes the result
    if (times.done != nullptr && threadIdx.x == 0) *times.done = device_stamp();
}

/// The same for several parts: blocks take the slots of all parts in turn, and of the last block to finish each warp
/// combines the partial results of a part at a time.
template <class Reducer, class Result>
__global__ void __launch_bounds__(block_threads, block_reduction<Reducer>::blocks_per_multiprocessor)
    reduce_parts_kernel(Reducer whole, std::uint64_t parts, std::uint64_t count, collprobe::detail::slot_plan plan,
        Result* results, partial_results partials, std::uint32_t* ticket)
{
    using reduction = block_reduction<Reducer>;
    using partial = typename Reducer::partial;
    constexpr unsigned warp = 32;
    __shared__ alignas(16) unsigned char memory[sizeof(typename reduction::shared)];
    __shared__ bool is_last;
    const auto slots = static_cast<unsigned>(plan.slots);
    for (unsigned item = blockIdx.x; item < static_cast<unsigned>(parts) * slots; item += gridDim.x) {
        reduction block{whole.part(item / slots, count), *reinterpret_cast<typename reduction::shared*>(memory)};
        if constexpr (requires { block.slots; }) {
            block.slots = slots;
            block.first_item = item - item % slots;
        }
        const std::uint64_t first = item % slots * plan.length;
        const std::uint64_t left = count - first;
        block.reduce_slot(first, static_cast<std::uint32_t>(left < plan.length ? left : plan.length), partials, item);
        __syncthreads(); // the next part writes the shared memory
    }
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1; // as in `reduce_kernel`
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    const unsigned lane = threadIdx.x % warp;
    for (unsigned part = threadIdx.x / warp; part < static_cast<unsigned>(parts); part += block_threads / warp) {
        partial mine = Reducer::identity();
        for (unsigned slot = lane; slot < slots; slot += warp)
            Reducer::merge(mine, partials.template read<partial>(part * slots + slot));
        mine = merge_lanes<warp>(mine, typename partials_merge<Reducer>::merge_partials{});
        if (lane == 0) results[part] = whole.part(part, count).finish(mine);
    }
}

/// Thread 0 hands the sum of the values that the block's threads return to the body.
template <class Body>
__global__ void __launch_bounds__(block_threads) sum_each_kernel(
    std::uint64_t items, const __grid_constant__ Body body)
{
    using merge = block_merge<double, add_doubles>;
    __shared__ typename merge::storage memory;
    for (std::uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const double sum = merge::run(memory, body.part(item, threadIdx.x, block_threads));
        if (threadIdx.x == 0) body.store(item, sum);
        __syncthreads(); // the next item uses the memory
    }
}

/// The same for a body with its own number of lanes: that of a block's warps. A warp is a lane of 32 items, so that
/// neighbouring threads read what stands beside each other.
template <class Body>
__global__ void __launch_bounds__(block_threads) sum_neighbours_kernel(
    std::uint64_t items, const __grid_constant__ Body body)
{
    constexpr unsigned warp = 32;
    constexpr unsigned lanes = block_threads / warp;
    static_assert(Body::lanes == lanes);
    __shared__ double sums[lanes][warp];
    const unsigned lane = threadIdx.x / warp;
    const unsigned neighbour = threadIdx.x % warp;
    const std::uint64_t stride = std::uint64_t{gridDim.x} * warp;
    for (std::uint64_t first = std::uint64_t{blockIdx.x} * warp; first < items; first += stride) {
        const std::uint64_t item = first + neighbour;
        if (item < items) sums[lane][neighbour] = body.part(item, lane, lanes);
        __syncthreads();
        if (lane == 0 && item < items) {
            double sum = sums[0][neighbour];
            COLLPROBE_UNROLL
            for (unsigned k = 1; k < lanes; ++k) sum = __dadd_rn(sum, sums[k][neighbour]);
            body.store(item, sum);
        }
        __syncthreads(); // the next items use the memory
    }
}

} // namespace detail

// Marked as used, because other files may call a function that this file only inlines.
template <class Body>
[[gnu::used]] void device::for_each(stream_ref on, std::uint64_t count, Body body)
{
    if (count == 0) return;
    detail::launch<&detail::for_each_kernel<Body>>(
        "for_each", on.get(), (count - 1) / detail::block_threads + 1, count, body);
}

template <class Body>
[[gnu::used]] void device::sum_each(stream_ref on, std::uint64_t items, Body body)
{
    if (items == 0) return;
    if constexpr (requires { Body::lanes; })
        detail::launch<&detail::sum_neighbours_kernel<Body>>("sum_each", on.get(), (items - 1) / 32 + 1, items, body);
    else detail::launch<&detail::sum_each_kernel<Body>>("sum_each", on.get(), items, items, body);
}

template <class Reducer, class Result>
[[gnu::used]] void device::reduce(stream_ref on, Reducer reducer, std::uint64_t count, Result* result,
    workspace& scratch, reduction_times times)
{
    const collprobe::detail::slot_plan plan = detail::plan_of(reducer, count);
    collprobe::detail::require(collprobe::detail::has_countable_slots(plan), "reduce",
        "more elements than any GPU has room for", call_site::current());
    detail::launch<&detail::reduce_kernel<Reducer, Result>>("reduce", on.get(), plan.slots == 0 ? 1 : plan.slots,
        reducer, count, plan, result, detail::partial_results{static_cast<unsigned long long*>(scratch.partials())},
        scratch.ticket(), times);
}

template <class Reducer, class Result>
[[gnu::used]] void device::reduce_parts(stream_ref on, Reducer reducer, std::uint64_t parts, std::uint64_t count,
    Result* results, workspace& scratch)
{
    constexpr std::uint64_t most = workspace::slots;
    for (std::uint64_t first = 0; first < parts; first += most) {
        const std::uint64_t some = parts - first < most ? parts - first : most;
        const auto most_of_part = static_cast<unsigned>(most / some);
        const collprobe::detail::slot_plan plan = detail::block_reduction<Reducer>::plan(count, most_of_part);
        collprobe::detail::require(collprobe::detail::has_countable_slots(plan), "reduce_parts",
            "more elements than any GPU has room for", call_site::current());
        const std::uint64_t items = some * plan.slots;
        detail::launch<&detail::reduce_parts_kernel<Reducer, Result>>("reduce_parts", on.get(), items == 0 ? 1 : items,
            reducer.from_part(first, count), some, count, plan, results + first,
            detail::partial_results{static_cast<unsigned long long*>(scratch.partials())}, scratch.ticket());
    }
}

} // namespace collprobe::cuda
