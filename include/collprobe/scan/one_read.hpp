// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/clock.hpp>
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

template <class Device, element T>
void enqueue_sketch(typename Device::stream_ref stream, view<const T> data, const sketch_target<T>& sketch)
{
    if (!sketch.empty()) enqueue_sketch<Device>(stream, sketch.source(data), sketch.sums, sketch.scratch);
}

/// Enqueues one read of a call's input: its statistics with digest to `*to` unless that is null, and its sketch to
/// `sketch` unless that is empty. Both have the bits that `statistics_reducer` and `enqueue_sketch` give. `times`: of
/// the reading for `to`.
/// Stream behaviour: enqueued on `stream`; `scratch` and the sketch's scratch belong to it until the work is done.
template <class Device, element T>
void read_input(typename Device::stream_ref stream, view<const T> input, statistics* to,
    const sketch_target<T>& sketch, typename Device::workspace& scratch, reduction_times times = {})
{
    if (to != nullptr) Device::reduce(stream, statistics_reducer<T, true>{input}, input.count(), to, scratch, times);
    enqueue_sketch<Device>(stream, input, sketch);
}

/// Enqueues one read of a call's result: the record to `*to` unless null, and the sketch to `sketch` unless that
/// is empty. `surviving_input`: as many elements as the result, or null if the collective overwrote them. Both have the
/// bits that `result_reducer` and `enqueue_sketch` give.
/// Stream behaviour: as of `read_input`.
template <class Device, element T>
void read_result(typename Device::stream_ref stream, view<const T> result, const T* surviving_input,
    result_record* to, const sketch_target<T>& sketch, typename Device::workspace& scratch, reduction_times times = {})
{
    if (to != nullptr)
        Device::reduce(stream, result_reducer<T>{result, surviving_input}, result.count(), to, scratch, times);
    enqueue_sketch<Device>(stream, result, sketch);
}

} // namespace collprobe::detail
