// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/words.hpp>

/// One read of a buffer feeds a list of accumulators: `one_read<T, A...>`. An accumulator says what it keeps (`taken`),
/// how it takes an element in (`add`), and how two that saw different elements merge. That suffices on the host and on
/// a GPU: README.md has an example. Where its speed counts, faster forms stand in place of `add`; on the host they give
/// the same bits:
/// - `take(into, tile, count, first)`: a tile of at most `tile_bytes`, portably;
/// - `vectors::lanes<A, T>`: the same by vectors, a line of 64 bytes at a time (detail/float_sums.hpp), so that all
///   accumulators of a list keep their sums in registers and memory is read once;
/// - `thread`: what a thread of a GPU keeps in registers, and how it takes in sixteen bytes of each of four runs
///   (detail/chunk.hpp).
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A tile begins where a period of the digest does.
inline constexpr std::uint64_t tile_bytes = 8192;
template <class T>
inline constexpr std::uint64_t tile_elements = tile_bytes / sizeof(T);

template <class A, class T>
concept accumulator = requires(typename A::taken& into) { into.merge(into); }
    && (requires(const A& of, typename A::taken& into, T element, std::uint64_t index) { of.add(into, element, index); }
        || requires(const A& of, typename A::taken& into, const T* tile, std::uint64_t n, typename A::thread* thread) {
               of.take(into, tile, n, n);
           });

/// A list of accumulators, and what each has taken in.
template <class... A>
struct accumulators {
    struct taken {
        COLLPROBE_HD constexpr void merge(const taken&) noexcept {}
    };
};
template <class First, class... Rest>
struct accumulators<First, Rest...> {
    First first;
    accumulators<Rest...> rest;

    struct taken {
        typename First::taken first;
        typename accumulators<Rest...>::taken rest;

        COLLPROBE_HD constexpr void merge(const taken& next) noexcept
        {
            first.merge(next.first);
            rest.merge(next.rest);
        }
    };
};

/// Takes in a tile: the portable path. `first`: index of its first element in the buffer.
template <class A, class T>
void take_tile(A of, typename A::taken& into, const T* tile, std::uint64_t count, std::uint64_t first) noexcept
{
    if constexpr (requires { of.take(into, tile, count, first); }) of.take(into, tile, count, first);
    else
        for (std::uint64_t i = 0; i < count; ++i) of.add(into, tile[i], first + i);
}

} // namespace collprobe::detail
