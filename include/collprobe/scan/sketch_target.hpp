// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/scan/statistics.hpp>

/// The reads of a step with sketches, declared: scan/sketched_read.hpp defines them, for those who ask for a sketch.
namespace collprobe::inline COLLPROBE_ABI::detail {

template <floating_element T>
struct sketch_source;

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

/// Enqueues one read of a call's input: its statistics with digest to `*to` unless that is null, and its sketch to
/// `sketch` unless that is empty. The statistics have the bits of `statistics_reducer`. `times`: of the reading for
/// `to`.
/// Stream behaviour: enqueued on `stream`; `scratch` and the sketch's scratch belong to it until the work is done.
/// Cost: one read of memory where `is_read_once`, else two.
template <class Device, floating_element T>
void read_input(typename Device::stream_ref stream, view<const T> input, statistics* to, const sketch_target& sketch,
    typename Device::workspace& scratch, reduction_times times = {});
/// Enqueues one read of a call's result: the record to `*to` unless null, and the sketch to `sketch` unless that
/// is empty. `surviving_input`: as many elements as the result, or null if the collective overwrote them. Bits, stream
/// behaviour and cost: as of `read_input`, for `result_reducer`.
template <class Device, floating_element T>
void read_result(typename Device::stream_ref stream, view<const T> result, const T* surviving_input,
    result_record* to, const sketch_target& sketch, typename Device::workspace& scratch, reduction_times times = {});
/// Makes a sketch of what was read for `made`: of that sketch, if it can.
template <class Device, floating_element T>
void make_sketch(
    typename Device::stream_ref stream, view<const T> data, const sketch_target& made, const sketch_target& wanted);

} // namespace collprobe::inline COLLPROBE_ABI::detail
