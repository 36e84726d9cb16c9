// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/chunk.hpp>

/// A read of a buffer feeds an accumulator: `one_read<T, A>`. It says what it keeps (`taken`), how it takes elements
/// in, and how two that saw different elements merge. `both<A, B>` makes one of two. An accumulator has three forms, of
/// which the first two give the same bits; see norm.hpp, digested.hpp and dotted.hpp:
/// - `take(into, tile, count, first)`: a tile of at most `tile_bytes`, portably;
/// - `vectors::lanes<A, T>`: the same by vectors, a line of 64 bytes at a time (detail/float_sums.hpp), so that
///   both of two keep their sums in registers and memory is read once;
/// - `thread`: what a thread of a GPU keeps in registers, and how it takes in sixteen bytes of each of four runs
///   (detail/chunk.hpp).
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A tile begins where a period of the digest does.
inline constexpr std::uint64_t tile_bytes = 8192;
template <class T>
inline constexpr std::uint64_t tile_elements = tile_bytes / sizeof(T);

template <class A, class T>
concept accumulator = requires(
    const A& of, typename A::taken& into, const T* tile, std::uint64_t number, typename A::thread* thread) {
    into.merge(into);
    of.take(into, tile, number, number);
};

/// What two accumulators have taken in.
template <class A, class B>
struct pair_of {
    A first;
    B second;

    COLLPROBE_HD constexpr void merge(const pair_of& next) noexcept
    {
        first.merge(next.first);
        second.merge(next.second);
    }
};

/// What the threads of a block share for an accumulator: by default nothing.
struct thread_memory {
    /// Once, by each thread.
    COLLPROBE_HD void fill(unsigned) noexcept {}
    COLLPROBE_HD void begin_slot(unsigned) noexcept {}
    /// Before `prepared_chunks` chunks: `chunk` and each `stride` further.
    COLLPROBE_HD void prepare(std::uint64_t, std::uint64_t, unsigned) noexcept {}
};

template <class A, class B>
struct both {
    A first;
    B second;

    using taken = pair_of<typename A::taken, typename B::taken>;

    template <class T>
    void take(taken& into, const T* tile, std::uint64_t count, std::uint64_t index) const noexcept
    {
        first.take(into.first, tile, count, index);
        second.take(into.second, tile, count, index);
    }

    struct thread {
        struct shared {
            typename A::thread::shared first;
            typename B::thread::shared second;

            COLLPROBE_HD void fill(unsigned lane) noexcept
            {
                first.fill(lane);
                second.fill(lane);
            }
            COLLPROBE_HD void begin_slot(unsigned lane) noexcept
            {
                first.begin_slot(lane);
                second.begin_slot(lane);
            }
            COLLPROBE_HD void prepare(std::uint64_t chunk, std::uint64_t stride, unsigned lane) noexcept
            {
                first.prepare(chunk, stride, lane);
                second.prepare(chunk, stride, lane);
            }
        };
        typename A::thread first;
        typename B::thread second;

        COLLPROBE_HD thread(const both& of, shared& memory, unsigned lane) noexcept
            : first(of.first, memory.first, lane), second(of.second, memory.second, lane)
        {
        }
        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            first.take(words, at);
            second.take(words, at);
        }
        /// What the threads of a block merge.
        using part = pair_of<typename A::thread::part, typename B::thread::part>;
        COLLPROBE_HD part taken_in() const noexcept { return {first.taken_in(), second.taken_in()}; }
        /// Behind the merge, by one thread.
        COLLPROBE_HD static taken whole(const part& of_block, const shared& memory) noexcept
        {
            return {A::thread::whole(of_block.first, memory.first), B::thread::whole(of_block.second, memory.second)};
        }
    };
};

} // namespace collprobe::detail
