// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// Allocation, release and bounds.
namespace collprobe::order_cases {

inline const order_case memory_life[] = {
    {"memory is freed when the work with it is done", {hazard_kind::released_in_use},
        [](bench& on, bool right) {
            reads(on.first, on.data);
            if (right) must(cudaStreamSynchronize(on.first));
            must(cudaFree(on.data));
            on.data = nullptr;
        }},
    {"pinned memory is freed when the copy is done", {hazard_kind::released_in_use},
        [](bench& on, bool right) {
            must(cudaMemcpyAsync(on.other, on.data, size, cudaMemcpyDeviceToDevice, on.first));
            reads(on.first, on.pinned);
            if (right) must(cudaDeviceSynchronize());
            must(cudaFreeHost(on.pinned));
            on.pinned = nullptr;
        }},
    {"memory that was freed is not used", {hazard_kind::use_after_release},
        [](bench& on, bool right) {
            if (right) reads(on.first, on.data);
            must(cudaDeviceSynchronize());
            must(cudaFree(on.data));
            if (!right) reads(on.first, on.data);
            on.data = nullptr;
        }},
    {"with the option, a free is a device synchronisation: but not of what is enqueued behind it",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(on.first, on.managed);
            if (right) must(cudaFree(on.data));
            on.data = nullptr;
            host_reads(on.managed);
        },
        true},
    {"with the option, a free waits for the device of the memory, whatever device is current",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            float* remote = nullptr;
            must(cudaSetDevice(1));
            must(cudaMalloc(&remote, size));
            reads(cudaStreamLegacy, remote);
            if (right) writes(cudaStreamLegacy, on.managed);
            must(cudaSetDevice(0));
            if (!right) writes(cudaStreamLegacy, on.managed);
            must(cudaFree(remote));
            host_reads(on.managed);
        },
        true},
    {"memory of a pool is used behind its allocation", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            float* pooled = nullptr;
            must(cudaMallocAsync(&pooled, size, on.first));
            if (right) edge(on, on.first, on.second);
            reads(on.second, pooled);
            edge(on, on.second, on.first);
            must(cudaFreeAsync(pooled, on.first));
        }},
    {"memory of a pool is given back behind its use", {hazard_kind::released_in_use},
        [](bench& on, bool right) {
            float* pooled = nullptr;
            must(cudaMallocAsync(&pooled, size, on.first));
            edge(on, on.first, on.second);
            reads(on.second, pooled);
            if (right) edge(on, on.second, on.first);
            must(cudaFreeAsync(pooled, on.first));
        }},
    {"host memory is unregistered when the copy is done", {hazard_kind::released_in_use},
        [](bench& on, bool right) {
            must(cudaHostRegister(on.host.data(), size, cudaHostRegisterDefault));
            must(cudaMemcpyAsync(on.data, on.host.data(), size, cudaMemcpyHostToDevice, on.first));
            if (right) must(cudaStreamSynchronize(on.first));
            else must((cudaStreamSynchronize)(on.first)); // the copy itself must be over
            must(cudaHostUnregister(on.host.data()));
        }},
    {"an access ends in the allocation in which it begins", {hazard_kind::beyond_allocation},
        [](bench& on, bool right) { reads(on.first, on.data, right ? size : size * sizeof(float)); }},
    {"rows end in the allocation in which they begin", {hazard_kind::beyond_allocation},
        [](bench& on, bool right) {
            std::size_t pitch = 0;
            float* image = nullptr;
            must(cudaMallocPitch(&image, &pitch, 100, 4));
            ordered::touch(on.first, strided_range{image, 100, pitch, right ? 4u : 5u}, {}, "reader");
            must(cudaStreamSynchronize(on.first));
            must(cudaFree(image));
        }},
    {"memory of the host is bounded while it is registered", {hazard_kind::beyond_allocation},
        [](bench& on, bool right) {
            must(cudaHostRegister(on.host.data(), size, cudaHostRegisterDefault));
            reads(on.first, on.host.data() + 1, right ? size - 4 : size);
            must(cudaDeviceSynchronize());
            must(cudaHostUnregister(on.host.data()));
        }},
    {"memory of cudaHostAlloc is bounded", {hazard_kind::beyond_allocation},
        [](bench& on, bool right) {
            float* own = nullptr;
            must(cudaHostAlloc(&own, size, cudaHostAllocDefault));
            reads(on.first, own + 1, right ? size - 4 : size);
            must(cudaDeviceSynchronize());
            must(cudaFreeHost(own));
        }},
};

} // namespace collprobe::order_cases
