// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "order/cases/bench.hpp"

/// What the host has waited for when a copy or a fill returns: "API synchronization behavior" of the CUDA
/// Runtime API.
namespace collprobe::order_cases {

inline const order_case copies[] = {
    {"a copy to pageable memory may wait, but does not have to", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemcpyAsync(on.host.data(), on.data, size, cudaMemcpyDeviceToHost, on.first));
            if (right) must(cudaStreamSynchronize(on.first));
            host_reads(on.host.data());
        }},
    {"a copy from pageable memory may wait, but does not have to", {hazard_kind::write_after_read},
        [](bench& on, bool right) {
            must(cudaMemcpyAsync(on.data, on.host.data(), size, cudaMemcpyHostToDevice, on.first));
            if (right) must(cudaStreamSynchronize(on.first));
            host_writes(on.host.data());
        }},
    {"an asynchronous copy from host to host waits; one within devices does not",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(cudaStreamLegacy, on.managed);
            const bool within = !right;
            must(cudaMemcpyAsync(within ? on.data : on.host.data(), within ? on.other : on.host_too.data(),
                size, cudaMemcpyDefault, on.blocking));
            host_reads(on.managed);
        }},
    {"a copy from host to host has read and written when it returns", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemcpyAsync(on.pinned, on.host.data(), size, cudaMemcpyHostToHost, on.first));
            else must(cudaMemcpyAsync(on.pinned, on.data, size, cudaMemcpyDeviceToHost, on.first));
            host_reads(on.pinned);
        }},
    {"a synchronous copy within devices does not wait", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemcpy(on.managed, on.data, size, cudaMemcpyDeviceToDevice));
            if (right) must(cudaDeviceSynchronize());
            host_reads(on.managed);
        }},
    {"a synchronous copy to the host is done when it returns", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemcpy(on.host.data(), on.data, size, cudaMemcpyDeviceToHost));
            else must(cudaMemcpyAsync(on.host.data(), on.data, size, cudaMemcpyDeviceToHost));
            host_reads(on.host.data());
        }},
    {"a synchronous copy from pageable memory has read its source, but not written its destination",
        {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemcpy(on.data, on.host.data(), size, cudaMemcpyHostToDevice));
            host_writes(on.host.data());
            if (right) must(cudaDeviceSynchronize());
            reads(on.first, on.data);
        }},
    {"a synchronous copy from pinned memory is done when it returns; an asynchronous one is not",
        {hazard_kind::write_after_read},
        [](bench& on, bool right) {
            if (right) must(cudaMemcpy(on.data, on.pinned, size, cudaMemcpyHostToDevice));
            else must(cudaMemcpyAsync(on.data, on.pinned, size, cudaMemcpyHostToDevice));
            host_writes(on.pinned);
        }},
    {"a synchronous copy is behind the legacy stream only", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            writes(right ? on.blocking : on.first, on.data);
            must(cudaMemcpy(on.host.data(), on.data, size, cudaMemcpyDeviceToHost));
        }},
    {"a fill of device memory does not wait", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemset(on.data, 0, size));
            if (right) must(cudaDeviceSynchronize());
            reads(on.first, on.data);
        }},
    {"a fill of managed memory waits, unless it is asynchronous", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemset(on.managed, 0, size));
            else must(cudaMemsetAsync(on.managed, 0, size));
            host_reads(on.managed);
        }},
    {"a fill of pinned memory waits, unless it is asynchronous", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemset(on.pinned, 0, size));
            else must(cudaMemsetAsync(on.pinned, 0, size, on.first));
            host_reads(on.pinned);
        }},
    {"a copy to a peer runs in its stream", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemcpyPeerAsync(on.other, 1, on.data, 0, size, on.first));
            if (right) edge(on, on.first, on.second);
            reads(on.second, on.other);
        }},
    {"a copy of rows leaves the gaps alone", {hazard_kind::write_after_write},
        [](bench& on, bool right) {
            must(cudaMemcpy2DAsync(on.data, 32, on.other, 16, 16, 8, cudaMemcpyDeviceToDevice, on.first));
            writes(on.second, on.data + (right ? 4 : 3), 16);
        }},
    {"a synchronous copy of rows to the host is done when it returns", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemcpy2D(on.host.data(), 16, on.data, 32, 16, 8, cudaMemcpyDeviceToHost));
            else
                must(cudaMemcpy2DAsync(
                    on.host.data(), 16, on.data, 32, 16, 8, cudaMemcpyDeviceToHost, on.first));
            host_reads(on.host.data(), 16 * 8);
        }},
    {"a fill of rows leaves the gaps alone", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            must(cudaMemset2DAsync(on.data, 32, 0, 16, 8, on.first));
            reads(on.second, on.data + (right ? 4 : 7), 8);
        }},
    {"a fill of rows of managed memory waits, unless it is asynchronous", {hazard_kind::read_after_write},
        [](bench& on, bool right) {
            if (right) must(cudaMemset2D(on.managed, 32, 0, 16, 8));
            else must(cudaMemset2DAsync(on.managed, 32, 0, 16, 8, on.first));
            host_reads(on.managed);
        }},
};

} // namespace collprobe::order_cases
