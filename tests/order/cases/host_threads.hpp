// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// What host threads know, and tell.
namespace collprobe::order_cases {

inline const order_case host_threads[] = {
    {"the host fills the next batch into a buffer that is still copied", {hazard_kind::write_after_read},
        [](bench& on, bool right) {
            must(cudaMemcpyAsync(on.data, on.pinned, size, cudaMemcpyHostToDevice, on.first));
            must(cudaEventRecord(on.event, on.first));
            if (right) must(cudaEventSynchronize(on.event));
            host_writes(on.pinned);
        }},
    {"an event whose query succeeds was reached", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.managed);
            must(cudaEventRecord(on.event, on.first));
            while (right && cudaEventQuery(on.event) != cudaSuccess) std::this_thread::yield();
            host_reads(on.managed);
        }},
    {"a stream whose query succeeds is done", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.managed);
            while (right && cudaStreamQuery(on.first) != cudaSuccess) std::this_thread::yield();
            host_reads(on.managed);
        }},
    {"a device synchronisation tells of all streams of the device", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.managed);
            if (!right) must(cudaSetDevice(1));
            must(cudaDeviceSynchronize());
            must(cudaSetDevice(0));
            host_reads(on.managed);
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
    {"a thread that polls a stream tells the stream nothing of what it has waited for",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.data);
            if (right) edge(on, on.first, on.second);
            on_a_thread(false, [&] {
                must(cudaStreamSynchronize(on.first));
                (void)cudaStreamQuery(on.second);
                must(cudaStreamSynchronize(on.second));
            });
            reads(on.second, on.data);
        }},
    {"a stream begins behind what its creator knows", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            cudaStream_t made = nullptr;
            if (right) host_writes(on.pinned);
            must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
            if (!right) host_writes(on.pinned);
            on_a_thread(false, [&] { reads(made, on.pinned); });
            must(cudaStreamDestroy(made));
        }},
    {"a host function runs in the order of its stream", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            const auto nothing = [](void*) {};
            must(collprobe::ordered::launch_host_func(
                on.first, nothing, nullptr, {}, {{on.host.data(), size}}));
            if (right) must(cudaStreamSynchronize(on.first));
            host_reads(on.host.data());
        }},
    {"a host function reads what another stream copies", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            const auto nothing = [](void*) {};
            must(cudaMemcpyAsync(on.pinned, on.data, size, cudaMemcpyDeviceToHost, on.first));
            if (right) edge(on, on.first, on.second);
            must(collprobe::ordered::launch_host_func(on.second, nothing, nullptr, {{on.pinned, size}}));
        }},
};

} // namespace collprobe::order_cases
