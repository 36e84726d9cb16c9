// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Copies a buffer and reduces it to its `statistics` in the same read. The statistics have the bits
/// that `statistics_reducer` gives, whatever the alignments.
template <element T, bool with_digest>
struct copy_statistics_reducer {
    using inner = statistics_reducer<T, with_digest>;
    using partial = typename inner::partial;
    using has_own_kernel = void; // on a GPU: scan/cuda/statistics.cuh
    static constexpr std::uint64_t block = inner::block;

    view<const T> source;
    T* destination; ///< memory for as many elements, disjoint from `source`

    COLLPROBE_HD static constexpr partial identity() noexcept { return inner::identity(); }
    /// Host only, as in `statistics_reducer`. The block is read a second time from the cache.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        if (count == 0) return;
        std::memcpy(destination + first, source.data() + first, static_cast<std::size_t>(count * sizeof(T)));
        inner{source}.run(into, first, count);
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept { inner::merge(into, next); }
    COLLPROBE_HD static constexpr statistics finish(const partial& from) noexcept { return inner::finish(from); }
};

} // namespace detail

/// Copies `source` to `destination` and writes the statistics of the copied elements, with digest, to `*result`. If a
/// copy happens anyway, the probe then costs no read of its own.
///
/// Shapes: equal counts; 0 is legal. `Device` can compute on the memory, which may have any alignment (a GPU stores
/// 16 bytes at once if `destination` is aligned to 16). `result` is in device or pinned memory.
/// Stream behaviour: enqueued on `on`; `scratch` belongs to that stream until the work is done.
/// \throws error `invalid_argument` if the counts differ, the ranges overlap, `result` is null, or a buffer is null
///   with a count above 0.
/// Cost: one read and one write; on a GPU one launch.
template <class Device, element T>
void copy_with_statistics(typename Device::stream_ref on, view<const T> source, view<T> destination,
    statistics* result, typename Device::workspace& scratch, call_site where = call_site::current())
{
    const auto require = [&](bool condition, const char* message) {
        detail::require(condition, "copy_with_statistics", message, where);
    };
    require(source.count() == destination.count(), "source and destination differ in count");
    require(source.empty() || (source.data() != nullptr && destination.data() != nullptr),
        "source or destination is null with a count above 0");
    require(!detail::overlap(source, destination), "source and destination overlap");
    require(result != nullptr, "the result is null");
    Device::reduce(on, detail::copy_statistics_reducer<T, true>{source, destination.data()}, source.count(), result,
        scratch);
}

} // namespace collprobe
