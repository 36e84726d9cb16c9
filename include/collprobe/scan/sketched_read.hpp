// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/scan/statistics.hpp>

/// What a step with checks reads of a call's input and result, each in one pass over memory.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Where the sketch of a buffer goes, and what it is. Empty: no sketch.
struct sketch_target {
    std::uint64_t first = 0; ///< index of the buffer's first element in the whole buffer
    std::uint64_t bins = 0; ///< a power of two, 64 to 2^20
    std::uint64_t seed = 0;
    double* sums = nullptr; ///< `2 * bins` numbers
    double* scratch = nullptr; ///< `sketch_scratch_numbers<Device>(bins)` numbers

    bool empty() const noexcept { return sums == nullptr; }
    template <floating_element T>
    sketch_source<T> source(view<const T> data) const noexcept
    {
        return {data, first, bins, seed};
    }
};

/// Whether a sketch of the same buffer is that of another one whose bins are added up.
inline bool is_foldable(const sketch_target& from, const sketch_target& to) noexcept
{
    return from.seed == to.seed && from.first == to.first && from.bins >= to.bins;
}

/// Adds the bins of a sketch to fewer: bin i of b has the elements of the bins i, i + b, i + 2 b, ... A body for
/// `for_each`, over the numbers of the smaller sketch.
struct fold_sketch {
    const double* from;
    std::uint64_t from_bins;
    double* to;
    std::uint64_t to_bins;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const bool is_energy = index >= to_bins;
        double sum = 0;
        for (std::uint64_t bin = is_energy ? index - to_bins : index; bin < from_bins; bin += to_bins)
            sum += from[is_energy ? from_bins + bin : bin];
        to[index] = sum;
    }
};

template <class Device, floating_element T>
void enqueue_sketch(typename Device::stream_ref stream, view<const T> data, const sketch_target& sketch)
{
    if (!sketch.empty()) enqueue_sketch<Device>(stream, sketch.source(data), sketch.sums, sketch.scratch);
}

/// Reduces a buffer and sketches it in the same read. A reducer for the devices' `reduce`: `Inner` is the reducer of
/// the same elements. On the host each block's rows are read a second time from the cache, and blocks come in their
/// order. On a GPU the sketch is one more accumulator: it leaves parts, which `join_sketch_parts` adds up.
template <class Inner, floating_element T>
struct sketched_reducer {
    static constexpr std::uint64_t block = Inner::block;
    using value_type = T;
    using partial = typename Inner::partial;
    using has_own_kernel = void; // on a GPU: scan/cuda/one_read.cuh

    Inner inner;
    sketch_source<T> from; ///< of the elements that `inner` reads; not empty
    double* sketch;
    std::uint64_t parts = 1; ///< on a GPU: in `sketch`, one behind the other

    COLLPROBE_HD static constexpr partial identity() noexcept { return Inner::identity(); }
    /// Host only. Precondition: the elements before `first` have been taken in.
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        inner.run(into, first, count);
        const gradual_underflow guard;
        const std::uint64_t last = rows_before(first + count);
        if (last != 0) add_rows(best_isa(), from, rows_before(first), last, true, sketch);
        // In place of a GPU, all is in the first part.
        if (first + count != from.data.count()) return;
        for (std::uint64_t i = 2 * from.bins; i < parts * 2 * from.bins; ++i) sketch[i] = 0;
    }
    COLLPROBE_HD static void merge(partial& into, const partial& next) noexcept { Inner::merge(into, next); }
    COLLPROBE_HD auto finish(const partial& all) const noexcept { return inner.finish(all); }

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
template <class Device, floating_element T>
bool is_read_once(const sketch_source<T>& from) noexcept
{
    if constexpr (is_threaded<Device>) return sketched<T>::fits(from);
    else return sketch_tile<T> * from.bins * sizeof(T) <= 4 * sketch_tile_bytes;
}

template <class Device, class Reducer, floating_element T, class Result>
void read_once(typename Device::stream_ref stream, const Reducer& reducer, view<const T> data, Result* to,
    const sketch_target& sketch, typename Device::workspace& scratch, reduction_times times)
{
    const sketch_source<T> from = sketch.source(data);
    if (to == nullptr || sketch.empty() || data.empty() || !is_read_once<Device>(from)) {
        if (to != nullptr) Device::reduce(stream, reducer, data.count(), to, scratch, times);
        if (!sketch.empty()) enqueue_sketch<Device>(stream, from, sketch.sums, sketch.scratch);
        return;
    }
    if constexpr (is_threaded<Device> && sizeof(T) >= 2) {
        const std::uint64_t parts = sketched<T>::parts_of(from);
        Device::reduce(stream, sketched_reducer<Reducer, T>{reducer, from, sketch.scratch, parts}, data.count(), to,
            scratch, times);
        Device::sum_each(stream, 2 * from.bins, join_sketch_parts{sketch.scratch, parts, 2 * from.bins, sketch.sums});
    } else if constexpr (!is_threaded<Device>) {
        Device::reduce(
            stream, sketched_reducer<Reducer, T>{reducer, from, sketch.sums}, data.count(), to, scratch, times);
    }
}

/// Enqueues one read of a call's input: its statistics with digest to `*to` unless that is null, and its sketch to
/// `sketch` unless that is empty. The statistics have the bits of `statistics_reducer`. `times`: of the reading for
/// `to`.
/// Stream behaviour: enqueued on `stream`; `scratch` and the sketch's scratch belong to it until the work is done.
/// Cost: one read of memory where `is_read_once`, else two.
template <class Device, floating_element T>
void read_input(typename Device::stream_ref stream, view<const T> input, statistics* to, const sketch_target& sketch,
    typename Device::workspace& scratch, reduction_times times = {})
{
    read_once<Device>(stream, statistics_reducer<T>(input), input, to, sketch, scratch, times);
}

/// Enqueues one read of a call's result: the record to `*to` unless null, and the sketch to `sketch` unless that
/// is empty. `surviving_input`: as many elements as the result, or null if the collective overwrote them. Bits, stream
/// behaviour and cost: as of `read_input`, for `result_reducer`.
template <class Device, floating_element T>
void read_result(typename Device::stream_ref stream, view<const T> result, const T* surviving_input,
    result_record* to, const sketch_target& sketch, typename Device::workspace& scratch, reduction_times times = {})
{
    read_once<Device>(stream, result_reducer<T>(result, surviving_input), result, to, sketch, scratch, times);
}

/// Makes a sketch of what was read for `made`: of that sketch, if it can.
template <class Device, floating_element T>
void make_sketch(
    typename Device::stream_ref stream, view<const T> data, const sketch_target& made, const sketch_target& wanted)
{
    if (!is_foldable(made, wanted)) return enqueue_sketch<Device, T>(stream, data, wanted);
    Device::for_each(stream, 2 * wanted.bins, fold_sketch{made.sums, made.bins, wanted.sums, wanted.bins});
}

} // namespace collprobe::detail
