// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/chunk.hpp>

/// What a thread of a GPU does in `one_read`: it keeps what each accumulator of the list takes in of its chunks.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A buffer is cut into at most so many slots, and slot s has every chunk c of which c mod slots is s. So a block of
/// each GPU that has as many at once (H100: 132 multiprocessors, 4 blocks each) leaves one partial result. The number
/// does not depend on the GPU, so neither do the bits.
inline constexpr unsigned read_slots = 528;
COLLPROBE_HD constexpr std::uint64_t chunks_of(std::uint64_t bytes) noexcept
{
    return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

template <class T, class List>
struct thread_list {
    struct shared {
        COLLPROBE_HD void fill(unsigned) noexcept {}
        COLLPROBE_HD void begin_slot(unsigned) noexcept {}
        COLLPROBE_HD void prepare(std::uint64_t, std::uint64_t, unsigned) noexcept {}
    };
    COLLPROBE_HD thread_list(const List&, shared&, unsigned) noexcept {}
    COLLPROBE_HD void take(const words16 (&)[chunk_runs], const chunk&) noexcept {}
    using parts = typename List::taken;
    COLLPROBE_HD parts taken_in() const noexcept { return {}; }
    COLLPROBE_HD static typename List::taken whole(const parts&, const shared&) noexcept { return {}; }
};
template <class T, class First, class... Rest>
struct thread_list<T, accumulators<First, Rest...>> {
    using list = accumulators<First, Rest...>;
    using own = typename First::thread;
    using others = thread_list<T, accumulators<Rest...>>;

    /// Memory that the threads of a block share.
    struct shared {
        typename own::shared first;
        typename others::shared rest;

        /// Once, by each thread.
        COLLPROBE_HD void fill(unsigned lane) noexcept
        {
            if constexpr (requires { first.fill(lane); }) first.fill(lane);
            rest.fill(lane);
        }
        COLLPROBE_HD void begin_slot(unsigned lane) noexcept
        {
            if constexpr (requires { first.begin_slot(lane); }) first.begin_slot(lane);
            rest.begin_slot(lane);
        }
        /// Before `prepared_chunks` chunks: `chunk` and each `stride` further.
        COLLPROBE_HD void prepare(std::uint64_t chunk, std::uint64_t stride, unsigned lane) noexcept
        {
            if constexpr (requires { first.prepare(chunk, stride, lane); }) first.prepare(chunk, stride, lane);
            rest.prepare(chunk, stride, lane);
        }
    };
    own first;
    others rest;

    COLLPROBE_HD thread_list(const list& of, shared& memory, unsigned lane) noexcept
        : first(of.first, memory.first, lane), rest(of.rest, memory.rest, lane)
    {
    }
    COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
    {
        first.take(words, at);
        rest.take(words, at);
    }
    /// What the threads of a block merge: of an accumulator that says no more, its `taken`.
    struct parts {
        decltype(std::declval<const own&>().taken_in()) first;
        typename others::parts rest;

        COLLPROBE_HD void merge(const parts& next) noexcept
        {
            first.merge(next.first);
            rest.merge(next.rest);
        }
    };
    COLLPROBE_HD parts taken_in() const noexcept { return {first.taken_in(), rest.taken_in()}; }
    /// Behind the merge. By one thread.
    COLLPROBE_HD static typename list::taken whole(const parts& of_block, const shared& memory) noexcept
    {
        if constexpr (requires { own::whole(of_block.first, memory.first); })
            return {own::whole(of_block.first, memory.first), others::whole(of_block.rest, memory.rest)};
        else return {of_block.first, others::whole(of_block.rest, memory.rest)};
    }
};

} // namespace collprobe::detail
