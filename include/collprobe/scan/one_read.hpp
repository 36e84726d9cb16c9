// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/scan/detail/thread_rows.hpp>
#include <collprobe/scan/result_reducer.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/scan/statistics.hpp>

/// What a step with checks reads of a call's input and result, each in one pass over memory.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Where the sketch of a buffer goes, and what it is. Empty: no sketch.
template <element T>
struct sketch_target {
    std::uint64_t first = 0; ///< index of the buffer's first element in the whole buffer
    std::uint64_t bins = 0; ///< a power of two, 64 to 2^20
    std::uint64_t seed = 0;
    sketch_sum<T>* sums = nullptr; ///< `sketch_numbers<T>(bins)` of them
    sketch_sum<T>* scratch = nullptr; ///< `sketch_scratch_numbers<Device>(bins)` numbers

    bool empty() const noexcept { return sums == nullptr; }
    sketch_source<T> source(view<const T> data) const noexcept { return {data, first, bins, seed}; }
};

/// Whether a sketch of the same buffer is that of another one whose bins are added up.
template <element T>
bool is_foldable(const sketch_target<T>& from, const sketch_target<T>& to) noexcept
{
    return from.seed == to.seed && from.first == to.first && from.bins >= to.bins;
}

/// Adds the bins of a sketch to fewer: bin i of b has the elements of the bins i, i + b, i + 2 b, ... A body for
/// `for_each`, over the numbers of the smaller sketch.
template <class Sum>
struct fold_sketch {
    const Sum* from;
    std::uint64_t from_bins;
    Sum* to;
    std::uint64_t to_bins;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const bool is_energy = index >= to_bins;
        Sum sum = 0;
        for (std::uint64_t bin = is_energy ? index - to_bins : index; bin < from_bins; bin += to_bins) {
            sum += from[is_energy ? from_bins + bin : bin];
        }
        to[index] = sum;
    }
};

template <class Device, element T>
void enqueue_sketch(typename Device::stream_ref stream, view<const T> data, const sketch_target<T>& sketch)
{
    if (!sketch.empty()) enqueue_sketch<Device>(stream, sketch.source(data), sketch.sums, sketch.scratch);
}

/// Reduces a buffer and sketches it in the same read. A reducer for the devices' `reduce`: `Inner` is the reducer of
/// the same elements. On the host each block's rows are read a second time from the cache, and blocks come in their
/// order. On a GPU, and in its stand-in, `join_sketch_parts` makes the sketch of the parts.
template <class Inner, element T>
struct sketched_reducer {
    static constexpr std::uint64_t block = Inner::block;
    using partial = typename Inner::partial;
    using has_own_kernel = void; // on a GPU: scan/cuda/one_read.cuh

    Inner inner;
    sketch_source<T> from; ///< of the elements that `inner` reads; not empty
    sketch_memory<T> sketch;

    COLLPROBE_HD static constexpr partial identity() noexcept { return Inner::identity(); }
    /// Host only. Precondition: the elements before `first` have been taken in.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        inner.run(into, first, count);
        const gradual_underflow guard;
        add_rows_by_parts(best_isa(), from, rows_before(first), rows_before(first + count), true, sketch);
    }
    static void merge(partial& into, const partial& next) noexcept { Inner::merge(into, next); }
    COLLPROBE_HD static auto finish(const partial& all) noexcept { return Inner::finish(all); }

private:
    /// The rows to add by the time that the elements before `end` have been read: as many as are fast together.
    std::uint64_t rows_before(std::uint64_t end) const noexcept
    {
        if (end == from.data.count()) return from.rows();
        const std::uint64_t rows = (from.first_column() + end) >> log2_of_power(from.bins);
        return rows - rows % sketch_tile<T>;
    }
};

/// Whether statistics and sketch come from one read. On the host the rows that are added together must fit the cache.
/// On a GPU rows must be as long as the threads of a block want them (of 8 KiB to 128 KiB), and aligned.
template <class Device, element T>
bool is_read_once(const sketch_source<T>& from) noexcept
{
    if constexpr (is_threaded<Device>) return row_strip<T>::fits(from.bins) && row_strip<T>::aligned(from);
    else return sketch_tile<T> * from.bins * sizeof(T) <= 4 * sketch_tile_bytes;
}

template <class Device, class Reducer, element T, class Result>
void read_once(typename Device::stream_ref stream, const Reducer& reducer, view<const T> data, Result* to,
    const sketch_target<T>& sketch, typename Device::workspace& scratch, reduction_times times)
{
    const sketch_source<T> from = sketch.source(data);
    if (to == nullptr || sketch.empty() || data.empty() || !is_read_once<Device>(from)) {
        if (to != nullptr) Device::reduce(stream, reducer, data.count(), to, scratch, times);
        return enqueue_sketch<Device>(stream, data, sketch);
    }
    const sketch_memory<T> memory{sketch.sums, sketch.scratch, is_threaded<Device>};
    Device::reduce(stream, sketched_reducer<Reducer, T>{reducer, from, memory}, data.count(), to, scratch, times);
    if constexpr (is_threaded<Device>) {
        const std::uint64_t numbers = sketch_numbers<T>(from.bins);
        Device::for_each(stream, numbers, join_sketch_parts<T>{sketch.scratch, from.parts(), numbers, sketch.sums});
    }
}

/// Enqueues one read of a call's input: its statistics with digest to `*to` unless that is null, and its sketch to
/// `sketch` unless that is empty. Both have the bits that `statistics_reducer` and `enqueue_sketch` give, but on a GPU
/// moments are added up in another order (detail/thread_rows.hpp). `times`: of the reading for `to`.
/// Stream behaviour: enqueued on `stream`; `scratch` and the sketch's scratch belong to it until the work is done.
/// Cost: one read of memory where `is_read_once`, else two.
template <class Device, element T>
void read_input(typename Device::stream_ref stream, view<const T> input, statistics* to,
    const sketch_target<T>& sketch, typename Device::workspace& scratch, reduction_times times = {})
{
    read_once<Device>(stream, statistics_reducer<T, true>{input}, input, to, sketch, scratch, times);
}

/// Enqueues one read of a call's result: the record to `*to` unless null, and the sketch to `sketch` unless that
/// is empty. `surviving_input`: as many elements as the result, or null if the collective overwrote them. Bits, stream
/// behaviour and cost: as of `read_input`, for `result_reducer`.
template <class Device, floating_element T>
void read_result(typename Device::stream_ref stream, view<const T> result, const T* surviving_input,
    result_record* to, const sketch_target<T>& sketch, typename Device::workspace& scratch, reduction_times times = {})
{
    read_once<Device>(stream, result_reducer<T>{result, surviving_input}, result, to, sketch, scratch, times);
}

} // namespace collprobe::detail
