// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/device/cuda/detail/kernel_loading.hpp>
#include <collprobe/device/cuda/device.hpp>

#include "tests/support/stand_in/stand_in.hpp"

/// The kernels of `cuda::device` as host loops on the stand-in's streams: what
/// `device/cuda/kernels.cuh` defines under nvcc. Include one of the two, never both.
namespace collprobe::cuda {

namespace detail {

/// What a launch of the stand-in names its kernel by: one for each that nvcc would make.
enum class kernel_kind { for_each, sum_each, reduce, reduce_parts };
template <kernel_kind, class...>
void stand_in_kernel()
{
}
template <kernel_kind kind, class... Types>
const void* stand_in_kernel_of()
{
    return entry_of<&stand_in_kernel<kind, Types...>>.kernel();
}

} // namespace detail

template <class Body>
void device::for_each(stream_ref on, std::uint64_t count, Body body)
{
    if (count == 0) return;
    check(stand_in::launch(on.get(), detail::stand_in_kernel_of<detail::kernel_kind::for_each, Body>(),
              [count, body] {
                  for (std::uint64_t index = 0; index < count; ++index) body(index);
              }),
        "cudaLaunchKernel", on.device(), on.get());
}

template <class Body>
void device::sum_each(stream_ref on, std::uint64_t items, Body body)
{
    if (items == 0) return;
    check(stand_in::launch(on.get(), detail::stand_in_kernel_of<detail::kernel_kind::sum_each, Body>(),
              [items, body] {
                  // A few lanes, so that a body that forgets one is seen.
                  constexpr unsigned lanes = 4;
                  for (std::uint64_t item = 0; item < items; ++item) {
                      double sum = 0;
                      for (unsigned lane = 0; lane < lanes; ++lane) sum += body.part(item, lane, lanes);
                      body.store(item, sum);
                  }
              }),
        "cudaLaunchKernel", on.device(), on.get());
}

template <class Reducer, class Result>
void device::reduce(stream_ref on, Reducer reducer, std::uint64_t count, Result* result, workspace& scratch,
    reduction_times times)
{
    static_assert(sizeof(typename Reducer::partial) <= workspace::max_partial_bytes);
    std::uint32_t* const ticket = scratch.ticket();
    check(stand_in::launch(on.get(), detail::stand_in_kernel_of<detail::kernel_kind::reduce, Reducer, Result>(),
              [reducer, count, result, ticket, times] {
                  // As on the device: two streams that share a workspace race, and leave a wrong ticket.
                  ++*ticket;
                  collprobe::detail::note_times(times,
                      [&] { *result = reducer.finish(collprobe::detail::reduce_blocks(reducer, count)); });
                  --*ticket;
              }),
        "cudaLaunchKernel", on.device(), on.get());
}

template <class Reducer, class Result>
void device::reduce_parts(stream_ref on, Reducer reducer, std::uint64_t parts, std::uint64_t count, Result* results,
    workspace& scratch)
{
    std::uint32_t* const ticket = scratch.ticket();
    check(stand_in::launch(on.get(), detail::stand_in_kernel_of<detail::kernel_kind::reduce_parts, Reducer, Result>(),
              [reducer, parts, count, results, ticket] {
                  ++*ticket;
                  for (std::uint64_t i = 0; i < parts; ++i) {
                      const Reducer own = reducer.part(i, count);
                      results[i] = own.finish(collprobe::detail::reduce_blocks(own, count));
                  }
                  --*ticket;
              }),
        "cudaLaunchKernel", on.device(), on.get());
}

} // namespace collprobe::cuda
