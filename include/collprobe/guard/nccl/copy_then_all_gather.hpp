// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// `copy_then_all_gather` for a trainer's own handles. `count` elements from `source` become this rank's slot of
/// `destination`, which has `slot_count` elements for each rank. `slot_count` is equal on all ranks; `count` is at most
/// `slot_count`.
///
///     copy_then_all_gather(shard, count, parameters, slot_count, comm, comm_stream, {compute}, {compute});
///
/// Everything else is as for views. It makes an `nccl::communicator_ref` for the call; a caller that passes its own
/// saves about a microsecond on the host. CUDA's `__half` counts as `float16`, `__nv_bfloat16` as `bfloat16`.
template <class Source, class T>
    requires(element<detail::element_for<Source>> && element<detail::element_for<T>>)
gather_handle<cuda::device> copy_then_all_gather(const Source* source, std::uint64_t count, T* destination,
    std::uint64_t slot_count, ncclComm_t comm, cudaStream_t on, stream_list<cuda::stream_ref> producers,
    stream_list<cuda::stream_ref> consumers,
    const gather_options<cuda::device, detail::element_for<T>>& options = {},
    call_site where = call_site::current())
{
    nccl::communicator_ref ranks(comm, {}, where);
    const auto size = static_cast<std::uint64_t>(ranks.size());
    if (slot_count > UINT64_MAX / sizeof(T) / size) {
        detail::caller(ranks, "copy_then_all_gather", where)
            .fail(status::invalid_argument, "slot_count is impossibly large");
    }
    return copy_then_all_gather(view(source, count), view(destination, slot_count * size), ranks,
        cuda::stream_ref(on), producers, consumers, options, where);
}

} // namespace collprobe
