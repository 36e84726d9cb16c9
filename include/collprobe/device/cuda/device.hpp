// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/device/cuda/error.hpp>
#include <collprobe/device/cuda/memory.hpp>
#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/device/host/device.hpp>

/// CUDA as a device, for any C++ compiler: only CUDA's runtime header is needed, and no nvcc.
namespace collprobe::inline COLLPROBE_ABI::cuda {

namespace detail {

template <class T>
struct fill_body {
    T* data;
    T value;
    COLLPROBE_HD void operator()(std::uint64_t index) const { data[index] = value; }
};

} // namespace detail

/// A CUDA GPU as a device: the operations that an algorithm needs, under the names that every device of the library
/// has. `for_each`, `sum_each` and `reduce` launch kernels. They are declared here and defined in
/// `device/cuda/kernels.cuh`: a program of plain C++ files links once one `.cu` file instantiates the functions that
/// the program uses.
///
/// Precondition: the device of the stream is the current one (`device_guard`).
/// Stream behaviour: every operation is enqueued on a stream and returns at once. None synchronises the host. All may
/// be captured into a graph, except copies of pageable memory, which also wait.
struct device {
    using stream = cuda::stream;
    using stream_ref = cuda::stream_ref;
    using event = cuda::event;
    /// Memory that the device computes on.
    template <class T>
    using buffer = cuda::buffer<T>;
    /// Memory that the device can write. The host can read it once an event says that the write is done.
    template <class T>
    using host_buffer = cuda::pinned_buffer<T>;
    using workspace = cuda::workspace;

    static constexpr const char* name = "cuda";
    /// The best number of bytes of each buffer for one index of a body for `for_each`: one word of a thread.
    static constexpr std::uint64_t body_bytes = 16;

    /// Loads all kernels of this library that the program contains onto the current device, once. The next call loads
    /// the kernels of a shared library that was opened later. The kernels of a closed library are forgotten.
    ///
    /// CUDA loads a kernel at its first use (unless CUDA_MODULE_LOADING=EAGER) and may wait for all work of the device
    /// before. This is a deadlock behind a collective that waits for another rank whose thread needs CUDA to reach the
    /// collective. So kernels are loaded before the first collective. `workspace` calls this function, and so does
    /// `probed` by its workspace. Call it yourself before `for_each` or `sum_each` is launched or captured on a device
    /// that has no `workspace` yet.
    ///
    /// Stream behaviour: may wait for the device the first time; invalidates no capture.
    /// Errors: none. If a kernel cannot be loaded, its launch fails.
    /// Cost: set-up only; the first time on a device some 100 us per kernel, later a lock.
    /// Source: CUDA C++ Programming Guide, Lazy Loading, "Concurrent Execution".
    static void load_kernels() noexcept { detail::load_kernels(); }

    /// Copies `source` to `destination`, each on any device or the host. Shapes: equal counts, ranges that do not
    /// overlap.
    /// \throws error `invalid_argument` otherwise, or if either is null with a count above 0; `device_failure`.
    /// Cost: one read and one write; the host waits only if either is ordinary host memory.
    template <class T>
    static void copy(
        stream_ref on, view<const T> source, view<T> destination, call_site where = call_site::current())
    {
        if (!collprobe::detail::begin_copy(on, source, destination, where)) return;
        check(cudaMemcpyAsync(destination.data(), source.data(),
                  static_cast<std::size_t>(source.size_bytes()), cudaMemcpyDefault, on.get()),
            "cudaMemcpyAsync", -1, on.get(), where);
    }

    /// Sets every element of `destination` to `value`.
    /// \throws error `invalid_argument` if it is null with a count above 0 or not aligned for its elements;
    ///   `device_failure`.
    /// Cost: one write.
    template <class T>
    static void fill(stream_ref on, view<T> destination, std::type_identity_t<T> value,
        call_site where = call_site::current())
    {
        collprobe::detail::require(
            destination.aligned(), "fill", "destination is not aligned for its elements", where);
        if (!collprobe::detail::begin_write(on, "fill", destination, where)) return;
        for_each(on, destination.count(), detail::fill_body<T>{destination.data(), value});
    }

    /// Sets every byte of `destination` to 0.
    /// \throws error `invalid_argument` if it is null with a count above 0; `device_failure`.
    /// Cost: one write.
    template <class T>
    static void zero(stream_ref on, view<T> destination, call_site where = call_site::current())
    {
        static_assert(std::is_trivially_copyable_v<T>);
        if (!collprobe::detail::begin_write(on, "zero", destination, where)) return;
        check(cudaMemsetAsync(destination.data(), 0, static_cast<std::size_t>(destination.size_bytes()), on.get()),
            "cudaMemsetAsync", -1, on.get(), where);
    }

    /// Calls `body(index)` for every index below `count`, in no promised order. Under nvcc `body` is
    /// a functor whose call operator is `COLLPROBE_HD`.
    template <class Body>
    static void for_each(stream_ref on, std::uint64_t count, Body body);

    /// Whether work on one stream costs messages of another one no time: as good as none.
    static constexpr bool overlaps_messages = true;

    /// The least number of sums for `sum_each`, if the caller can choose: two blocks for each multiprocessor of a
    /// large GPU. A constant, so that results do not depend on the GPU.
    static constexpr std::uint64_t parallel_sums = 264;

    /// For every item below `items`: adds up `body.part(item, lane, lanes)` over 256 lanes in a fixed order, and
    /// calls `body.store(item, sum)` once.
    /// Cost: one launch. A block of threads takes an item; or 32 items, each of 8 lanes, if the body says so
    /// (`static constexpr unsigned lanes = 8`): for items of few terms that stand beside those of their neighbours.
    template <class Body>
    static void sum_each(stream_ref on, std::uint64_t items, Body body);

    /// Reduces `count` elements to `*result` in one pass over the memory that `reducer` reads. `result` is in device
    /// or pinned memory. Partial results cover fixed blocks and are merged in a fixed order: the same input gives the
    /// same bits. `times`: where the device notes its clock (`%globaltimer`; most GPUs advance it once a microsecond).
    /// Stream behaviour: `scratch` belongs to this stream until the reduction is done.
    /// \throws error `invalid_argument` from about 2^44 elements on; `device_failure`.
    template <class Reducer, class Result>
    static void reduce(stream_ref on, Reducer reducer, std::uint64_t count, Result* result, workspace& scratch,
        reduction_times times = {});

    /// As `reduce` of `reducer.part(i, count)` to `results[i]`, for each of `parts`, in one launch. `results` is device
    /// memory. For reducers whose partial results may be merged in any order.
    template <class Reducer, class Result>
    static void reduce_parts(stream_ref on, Reducer reducer, std::uint64_t parts, std::uint64_t count, Result* results,
        workspace& scratch);

    // For ranks of one process, each a thread that must have the device of its rank.

    /// The calling thread's device.
    static int current_ordinal(call_site where = call_site::current())
    {
        int ordinal = -1;
        check(cudaGetDevice(&ordinal), "cudaGetDevice", -1, where);
        return ordinal;
    }
    /// Makes `ordinal` the calling thread's device.
    static void make_current(int ordinal, call_site where = call_site::current())
    {
        check(cudaSetDevice(ordinal), "cudaSetDevice", ordinal, where);
    }
    /// Makes `ordinal` the calling thread's device while the result lives.
    [[nodiscard]] static device_guard scope_of(int ordinal, call_site where = call_site::current())
    {
        return device_guard(ordinal, where);
    }
};

} // namespace collprobe::cuda
