// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include <collprobe/core/error.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/cuda/error.hpp>

/// The functions that ranks in one process need for several GPUs (comm/local/device.hpp). The first argument is a
/// tag, so that generic code can call these functions for any device that has them.
namespace collprobe::inline COLLPROBE_ABI::cuda {

/// The number of devices that the process sees.
inline int ordinal_count(device, call_site where = call_site::current())
{
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount", -1, where);
    return count;
}

/// The calling thread's device.
inline int current_ordinal(device, call_site where = call_site::current())
{
    int ordinal = -1;
    check(cudaGetDevice(&ordinal), "cudaGetDevice", -1, where);
    return ordinal;
}

/// Makes `ordinal` the calling thread's device.
inline void make_current(device, int ordinal, call_site where = call_site::current())
{
    check(cudaSetDevice(ordinal), "cudaSetDevice", ordinal, where);
}

/// Makes `ordinal` the calling thread's device while the result lives.
[[nodiscard]] inline device_guard scope_of(device, int ordinal, call_site where = call_site::current())
{
    return device_guard(ordinal, where);
}

/// Lets kernels on `ordinal` read and write memory that is allocated on `peer`, from now on and for the whole
/// process. Does nothing if the two are one device or if the access was enabled before.
///
/// This concerns memory of `cudaMalloc`, and so all buffers of this library. Memory of a pool (`cudaMallocAsync`) or
/// of `cuMemCreate` stays closed to peers until its owner opens it: by `cudaMemPoolSetAccess` on the pool, by
/// `cuMemSetAccess` on the range.
/// \throws error `unsupported` if the machine does not connect the two devices; `device_failure`.
inline void enable_peer_access(device, int ordinal, int peer, call_site where = call_site::current())
{
    if (ordinal == peer) return;
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, ordinal, peer), "cudaDeviceCanAccessPeer", ordinal, where);
    if (possible == 0) {
        throw error(status::unsupported,
            "device " + std::to_string(ordinal) + " cannot access the memory of device " + std::to_string(peer),
            {.call = "enable_peer_access", .communicator = {}, .where = where});
    }
    const device_guard current(ordinal, where);
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) return detail::forget(code);
    check(code, "cudaDeviceEnablePeerAccess", ordinal, where);
}

} // namespace collprobe::cuda
