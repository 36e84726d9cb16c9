// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// The order of default streams.
namespace collprobe::order_cases {

inline const order_case default_streams[] = {
    {"the legacy default stream is ordered with blocking streams only", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            const cudaStream_t stream = right ? on.blocking : on.first;
            writes(stream, on.data);
            reads(cudaStreamLegacy, on.data);
        }},
    {"calls that name no stream are on the legacy default stream", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemsetAsync(on.other, 0, size));
            if (!right) must(cudaEventRecord(on.event));
            must(cudaMemcpyAsync(on.data, on.other, size, cudaMemcpyDeviceToDevice));
            if (right) must(cudaEventRecord(on.event));
            must(cudaStreamWaitEvent(on.first, on.event, 0));
            reads(on.first, on.data);
        }},
    {"the default stream of a thread is another one on each thread", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(cudaStreamPerThread, on.data);
            on_a_thread(true, [&] {
                if (right) writes(cudaStreamLegacy, on.other);
                reads(cudaStreamPerThread, on.data);
            });
        }},
    {"the legacy streams of two devices are not ordered", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(cudaStreamLegacy, on.data);
            must(cudaEventRecord(on.event, cudaStreamLegacy));
            must(cudaSetDevice(1));
            if (right) must(cudaStreamWaitEvent(cudaStreamLegacy, on.event, 0));
            reads(cudaStreamLegacy, on.data);
            must(cudaDeviceSynchronize());
            must(cudaSetDevice(0));
        }},
};

} // namespace collprobe::order_cases
