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

/// An accumulator that keeps nothing: it copies the elements to memory that does not overlap with theirs.
template <element T>
struct copied {
    struct taken {
        COLLPROBE_HD constexpr void merge(const taken&) noexcept {}
    };

    T* to;

    void take(taken&, const T* tile, std::uint64_t count, std::uint64_t first) const noexcept
    {
        std::memcpy(static_cast<void*>(to + first), tile, static_cast<std::size_t>(count) * sizeof(T));
    }
    struct thread {
        unsigned char* to;

        struct shared {
        };
        COLLPROBE_HD thread(const copied& of, shared&, unsigned) noexcept : to(reinterpret_cast<unsigned char*>(of.to))
        {
        }
        COLLPROBE_HD void take(const words16 (&words)[chunk_runs], const chunk& at) noexcept
        {
            COLLPROBE_UNROLL
            for (unsigned k = 0; k < chunk_runs; ++k)
                store_words(to + at.byte + k * round_bytes, words[k], at.bytes_of(k));
        }
        COLLPROBE_HD taken taken_in() const noexcept { return {}; }
    };
};

template <floating_element T>
struct copy_statistics_reducer : one_read<T, copied<T>, digested, norm<T>> {
    using base = one_read<T, copied<T>, digested, norm<T>>;
    using typename base::partial;

    constexpr copy_statistics_reducer(view<const T> source, T* destination) noexcept
        : base(source, copied<T>{destination}, {}, {})
    {
    }
    COLLPROBE_HD statistics finish(const partial& from) const noexcept
    {
        return make_statistics(this->data, from.rest.first, from.rest.rest.first);
    }
};

} // namespace detail

/// Copies `source` to `destination` and writes the statistics of the copied elements to `*result`. If a copy happens
/// anyway, the probe then costs no read of its own.
///
/// Shapes: equal counts; 0 is legal. `Device` can compute on the memory, which may have any alignment (a GPU stores
/// 16 bytes at once if `destination` is aligned to 16). `result` is in device or pinned memory.
/// Stream behaviour: enqueued on `on`; `scratch` belongs to that stream until the work is done.
/// \throws error `invalid_argument` if the counts differ, the ranges overlap, `result` is null, or a buffer is null
///   with a count above 0.
/// Cost: one read and one write; on a GPU one launch.
template <class Device, floating_element T>
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
    Device::reduce(
        on, detail::copy_statistics_reducer<T>(source, destination.data()), source.count(), result, scratch);
}

} // namespace collprobe
