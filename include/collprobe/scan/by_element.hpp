// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/accumulator.hpp>
#include <collprobe/scan/detail/chunk.hpp>
#include <collprobe/scan/detail/float_sums.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The accumulator that `A` makes by looking at one element after the other: `A` has `taken`, as every accumulator, and
/// `add(into, element, index)`. In a tile the indices ascend. Elements come from the cache: several times slower than
/// `norm`.
template <element T, class A>
struct by_element {
    using taken = typename A::taken;

    A of;

    void take(taken& into, const T* tile, std::uint64_t count, std::uint64_t first) const noexcept
    {
        for (std::uint64_t i = 0; i < count; ++i) of.add(into, tile[i], first + i);
    }

    struct thread {
        using shared = thread_memory;
        using part = taken;

        A of;
        taken total{};

        COLLPROBE_HD thread(const by_element& from, shared&, unsigned) noexcept : of(from.of) {}
        COLLPROBE_HD void take(const words16 (&)[chunk_runs], const chunk& at) noexcept
        {
            each_element_again<T, chunk_runs>(at, [&](T x, std::uint64_t index) { of.add(total, x, index); });
        }
        COLLPROBE_HD part taken_in() const noexcept { return total; }
        COLLPROBE_HD static taken whole(const part& of_block, const shared&) noexcept { return of_block; }
    };
};

} // namespace collprobe::detail

#if COLLPROBE_VECTORS
COLLPROBE_BEGIN_VECTORS
namespace collprobe::inline COLLPROBE_ABI::detail::vectors {

template <class A, class T>
struct lanes<by_element<T, A>, T> {
    by_element<T, A> of;

    [[gnu::always_inline]] lanes(const by_element<T, A>& accumulator, std::uint64_t) noexcept : of(accumulator) {}
    [[gnu::always_inline]] void add_line(const unsigned char*) noexcept {}
    [[gnu::always_inline]] void add_last_line(const unsigned char*, std::uint64_t) noexcept {}
    [[gnu::always_inline]] void end_group() noexcept {}
    [[gnu::always_inline]] void finish(typename A::taken& into, const T* tile, std::uint64_t count, std::uint64_t index,
        std::uint64_t) noexcept
    {
        of.take(into, tile, count, index);
    }
};

} // namespace collprobe::detail::vectors
COLLPROBE_END_VECTORS
#endif
