// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/detail/words.hpp>

/// One read of a buffer feeds a list of accumulators: `one_read<T, A...>`. An accumulator says what it keeps (`taken`),
/// how it takes elements in, and how two that saw different elements merge. It takes them in by three forms, of which
/// the first two give the same bits; norm.hpp, digested.hpp and dotted.hpp have them:
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
concept accumulator = requires(
    const A& of, typename A::taken& into, const T* tile, std::uint64_t number, typename A::thread* thread) {
    into.merge(into);
    of.take(into, tile, number, number);
};

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

} // namespace collprobe::detail
