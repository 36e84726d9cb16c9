// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Order by events.
namespace collprobe::order_cases {

inline const order_case events[] = {
    {"an event of the library is waited for by its handle", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            collprobe::cuda::event ready;
            writes(on.first, on.data);
            ready.record(on.first);
            if (right) must(cudaStreamWaitEvent(on.second, ready.get(), 0));
            reads(on.second, on.data);
        }},
    {"a wait for an event that was never recorded is none",
        {hazard_kind::unrecorded_event, hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.data);
            if (right) must(cudaEventRecord(on.event, on.first));
            must(cudaStreamWaitEvent(on.second, on.event, 0));
            reads(on.second, on.data);
        }},
    {"a new event is not recorded, whatever the last one of that handle was",
        {hazard_kind::unrecorded_event, hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.data);
            must(cudaEventRecord(on.event, on.first));
            // Destroyed by a library, say, of which the checker hears nothing.
            must((cudaEventDestroy)(on.event));
            must(cudaEventCreateWithFlags(&on.event, cudaEventDisableTiming));
            if (right) must(cudaEventRecord(on.event, on.first));
            must(cudaStreamWaitEvent(on.second, on.event, 0));
            reads(on.second, on.data);
        }},
    {"a stream that is made anew with an old handle is another one", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.data);
            if (right) must(cudaEventRecord(on.event, on.first));
            must(cudaStreamDestroy(on.first));
            must(cudaStreamCreateWithFlags(&on.first, cudaStreamNonBlocking));
            if (right) must(cudaStreamWaitEvent(on.first, on.event, 0));
            reads(on.first, on.data);
        }},
};

} // namespace collprobe::order_cases
