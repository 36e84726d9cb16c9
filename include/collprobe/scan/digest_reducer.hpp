// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Reduces a buffer to its digest alone: the bits of `digest(input)`, on every device. A reducer for the devices'
/// `reduce`, with a result of `std::uint64_t`. Only bytes count, so one kernel reduces buffers of any type as bytes:
/// `digest_reducer<std::uint8_t>{{bytes, size_bytes}}`.
///
/// Shapes: `input`: elements in memory of the device, of any alignment.
/// Cost: one read; no allocation.
template <element T>
struct digest_reducer {
    using partial = digest_state;
    using has_own_kernel = void; // on a GPU: scan/cuda/digest_reducer.cuh
    /// Elements of a block: eight periods of the digest's keys.
    static constexpr std::uint64_t block = 8 * 4 * digest_period / sizeof(T);

    view<const T> input;

    /// Of the part `index`, if the input has parts of `count` elements.
    COLLPROBE_HD digest_reducer part(std::uint64_t index, std::uint64_t count) const noexcept
    {
        return {input.part(index * count, count)};
    }
    /// Of all parts from `index` on.
    digest_reducer from_part(std::uint64_t index, std::uint64_t count) const noexcept
    {
        return {input.part(index * count, input.count() - index * count)};
    }
    COLLPROBE_HD static constexpr partial identity() noexcept { return {}; }
    /// Takes in the `count` elements from `first` on. Host only.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        into.merge(digest_bytes(best_isa(), reinterpret_cast<const unsigned char*>(input.data() + first),
            count * sizeof(T), first * sizeof(T)));
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept { into.merge(next); }
    COLLPROBE_HD static constexpr std::uint64_t finish(const partial& all) noexcept { return all.finish(); }
};

} // namespace detail

} // namespace collprobe
