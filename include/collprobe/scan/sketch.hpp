// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/detail/sketch_rows.hpp>
#include <collprobe/scan/detail/sketch_thread.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The size of a count-sketch and its hash. Equal on all ranks.
struct sketch_options {
    std::uint32_t bins = 4096; ///< a power of two, 64 to 2^20
    std::uint64_t seed = 0x452821e638d01377u; ///< seed of the signs; the same on all ranks
};

/// The number of values in a sketch: a sum for each bin, and behind the sums an energy for each bin.
constexpr std::uint64_t sketch_numbers(const sketch_options& options) noexcept { return 2 * options.bins; }

namespace detail {

inline void require_sketch_options(const sketch_options& options, const char* call, call_site where)
{
    const bool power_of_two = (options.bins & (options.bins - 1)) == 0;
    if (power_of_two && options.bins >= 64 && options.bins <= 1u << 20) return;
    refuse(call, "bins is " + std::to_string(options.bins) + ", not a power of two from 64 to 2^20", where);
}

template <floating_element T>
[[gnu::noinline]] void sketch_on_host(isa path, const sketch_source<T>& from, double* sketch) noexcept
{
    const gradual_underflow as_ieee_has_it;
    add_rows(path, from, 0, from.rows(), false, sketch);
}

/// Computes the whole sketch on one thread. A body for `for_each` on the host, for one index.
template <floating_element T>
struct sketch_at_once {
    sketch_source<T> from;
    double* sketch;

    void operator()(std::uint64_t) const noexcept { sketch_on_host(best_isa(), from, sketch); }
};

/// Whether an index of a body for `for_each` is a thread of its own.
template <class Device>
inline constexpr bool is_threaded = Device::body_bytes == 16;

/// The size of the scratch memory of a sketch, in numbers, for any count and type.
template <class Device>
constexpr std::uint64_t sketch_scratch_numbers(std::uint64_t bins) noexcept
{
    if (!is_threaded<Device>) return 0;
    constexpr std::uint64_t of_slots = std::uint64_t{sketched<float16>::most_slots} * round_bytes; // of any type
    return larger(most_sketch_parts * 2 * bins, of_slots);
}

/// Enqueues the sketch of `from` into `sketch`; `scratch` belongs to the stream until that is done.
template <class Device, floating_element T>
void enqueue_sketch(
    typename Device::stream_ref stream, const sketch_source<T>& from, double* sketch, [[maybe_unused]] double* scratch)
{
    if constexpr (is_threaded<Device>) {
        const sketch_parts<T> parts{from, scratch};
        if (parts.indices() != 0) Device::for_each(stream, parts.indices(), parts);
        Device::sum_each(stream, 2 * from.bins, join_sketch_parts{scratch, from.parts(), 2 * from.bins, sketch});
    } else {
        Device::for_each(stream, 1, sketch_at_once<T>{from, sketch});
    }
}

} // namespace detail

/// The count-sketch of a buffer, a linear map to `bins` sums: element i, with a pseudo-random sign, is added to bin i
/// mod bins. The sketch of a sum of buffers is the sum of their sketches, except for rounding.
///
/// Signs: bit i mod 64 of mix64(seed + (i / 64 + 1) * 0x9e3779b97f4a7c15), SplitMix64; 1 is a minus. Sums are in
/// double, and each bin's energy, its sum of squares, follows them. (Elements of 8 and 16 bits are first added up in
/// float, at most 32: relative error 2e-6.) NaN, infinities and doubles beyond 2^511 make the energy of their bin NaN
/// or infinite. The order of the additions is fixed: the bits depend on count, `first` and options alone, and are equal
/// on all processors. A GPU has an order of its own.
///
/// Shapes: `input`: elements in host memory, aligned. `first`: index of its first element in the whole buffer, for
/// the sketch of a part; the sketches of disjoint parts add up to that of the whole. `result`:
/// `sketch_numbers(options)` numbers.
/// \throws error `invalid_argument` for null, misaligned or wrongly sized views, and for an invalid number of bins.
/// Cost: one read at about the speed of memory.
/// Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams" (2002).
template <floating_element T>
void sketch(view<const T> input, view<double> result, const sketch_options& options = {}, std::uint64_t first = 0,
    call_site where = call_site::current())
{
    detail::require_data(input, "sketch", where);
    detail::require_aligned(input, "sketch", where);
    detail::require_sketch_options(options, "sketch", where);
    if (result.count() != sketch_numbers(options) || result.data() == nullptr || !result.aligned()) {
        detail::refuse("sketch",
            "result must hold " + std::to_string(sketch_numbers(options)) + " aligned numbers, and has "
                + std::to_string(result.count()), where);
    }
    detail::sketch_on_host(detail::best_isa(), detail::sketch_source<T>{input, first, options.bins, options.seed},
        result.data());
}

} // namespace collprobe
