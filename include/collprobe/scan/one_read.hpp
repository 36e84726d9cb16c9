// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/target.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/float_sums.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class A, class B, class T>
struct lanes<both<A, B>, T> {
    lanes<A, T> first;
    lanes<B, T> second;

    [[gnu::always_inline]] lanes(const both<A, B>& of, std::uint64_t index) noexcept
        : first(of.first, index), second(of.second, index)
    {
    }
    [[gnu::always_inline]] void add_line(const unsigned char* line) noexcept
    {
        first.add_line(line);
        second.add_line(line);
    }
    [[gnu::always_inline]] void add_last_line(const unsigned char* line, std::uint64_t bytes) noexcept
    {
        first.add_last_line(line, bytes);
        second.add_last_line(line, bytes);
    }
    [[gnu::always_inline]] void end_group() noexcept
    {
        first.end_group();
        second.end_group();
    }
    [[gnu::always_inline]] void finish(typename both<A, B>::taken& into, const T* tile, std::uint64_t count,
        std::uint64_t index, std::uint64_t padding) noexcept
    {
        first.finish(into.first, tile, count, index, padding);
        second.finish(into.second, tile, count, index, padding);
    }
};

template <class T, class A>
[[gnu::noinline]] void read_tile(
    A of, typename A::taken& into, const T* tile, std::uint64_t count, std::uint64_t first) noexcept
{
    lanes<A, T> all(of, first);
    const std::uint64_t padding = add_lines(all, reinterpret_cast<const unsigned char*>(tile), count * sizeof(T));
    all.finish(into, tile, count, first, padding / sizeof(T));
}

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Reads `data` once for the accumulator `A`. A reducer for the devices' `reduce`, whose result is `A::taken`. On the
/// host its bits depend on the buffer alone, not on threads, alignment or processor; on GPUs, too, though they add up
/// in another order (scan/cuda/one_read.cuh).
///
/// Shapes: `data`: elements in memory of the device; a GPU takes them at any alignment.
/// Cost: one read of memory; no allocation.
template <element T, accumulator<T> A>
struct one_read {
    using accumulator_type = A;
    using partial = typename A::taken;
    using has_own_kernel = void; // on a GPU: scan/cuda/one_read.cuh
    using value_type = T;
    /// Elements of a block: 64 KiB.
    static constexpr std::uint64_t block = 8 * tile_elements<T>;

    view<const T> data;
    A of;

    COLLPROBE_HD constexpr explicit one_read(view<const T> input, A accumulator = {}) noexcept
        : data(input), of(accumulator)
    {
    }

    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    /// Takes in the `count` elements from `first` on, a multiple of a tile's. Host only.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        run(into, first, count, best_isa());
    }
    /// The same on a path that this machine supports: for tests and benchmarks.
    void run(partial& into, std::uint64_t first, std::uint64_t count, isa path) const noexcept
    {
        const gradual_underflow as_ieee_has_it;
        for (std::uint64_t done = 0; done < count; done += tile_elements<T>) {
            const std::uint64_t some = count - done < tile_elements<T> ? count - done : tile_elements<T>;
            const T* const tile = data.data() + first + done;
            COLLPROBE_ON_ISA(path, of.take(into, tile, some, first + done),
                read_tile<T>(of, into, tile, some, first + done));
        }
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept
    {
        const gradual_underflow as_ieee_has_it;
        merge_taken(into, next);
    }
    COLLPROBE_HD constexpr partial finish(const partial& from) const noexcept { return from; }

private:
    COLLPROBE_HD COLLPROBE_HOST_NOINLINE static void merge_taken(partial& into, const partial& next) noexcept
    {
        into.merge(next);
    }
};

} // namespace collprobe::detail
