// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Several devices, and streams that have ended.
namespace collprobe::order_cases {

inline const order_case devices[] = {
    {"an event orders streams of two devices", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.data);
            must(cudaEventRecord(on.event, on.first));
            must(cudaSetDevice(1));
            cudaStream_t remote = nullptr;
            must(cudaStreamCreateWithFlags(&remote, cudaStreamNonBlocking));
            if (right) must(cudaStreamWaitEvent(remote, on.event, 0));
            reads(remote, on.data);
            must(cudaStreamDestroy(remote));
            must(cudaSetDevice(0));
        }},
    {"a device that is synchronised with has run its ended streams, and what they waited for",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.managed);
            must(cudaEventRecord(on.event, on.first));
            must(cudaSetDevice(1));
            cudaStream_t remote = nullptr;
            must(cudaStreamCreateWithFlags(&remote, cudaStreamNonBlocking));
            if (right) must(cudaStreamWaitEvent(remote, on.event, 0));
            must(cudaStreamDestroy(remote));
            must(cudaStreamCreateWithFlags(&remote, cudaStreamNonBlocking));
            writes(remote, on.other);
            must(cudaDeviceSynchronize());
            must(cudaStreamDestroy(remote));
            must(cudaSetDevice(0));
            host_reads(on.managed);
        }},
    {"the legacy stream is behind blocking streams that have ended", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            cudaStream_t& ended = right ? on.blocking : on.first;
            writes(ended, on.data);
            must(cudaStreamDestroy(ended));
            ended = nullptr;
            reads(cudaStreamLegacy, on.data);
        }},
};

} // namespace collprobe::order_cases
