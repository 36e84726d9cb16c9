// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "tests/support/stand_in/stand_in.hpp"

/// What the files of the stand-in runtime share.
namespace collprobe::stand_in::detail {

inline constexpr int most_devices = 16;

int current_device();
int device_count();
/// Nearly every call of the runtime creates the primary context of the current device.
void enter_context();
/// What the current device answers after a fault; else success.
cudaError_t broken_here();
/// The answer to a call that could disturb a capture of this thread, or of any thread.
cudaError_t forbid_during_capture();

/// An allocation of any of CUDA's calls; nothing is at 0.
struct live_memory {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
};
/// The allocation that holds `address`.
live_memory find_memory(std::uintptr_t address);
/// Of all allocations on a device; not those of the host.
std::size_t allocated_bytes(int device);

/// Whether a kernel has code, if the program contains the code of its kernels.
using find_function = cudaError_t (*)(const void* kernel);
void find_kernels_by(find_function find);

/// The attributes of a device that runs kernels; false for another.
using attribute_function = bool (*)(int& value, cudaDeviceAttr what);
void give_attributes_by(attribute_function give);

} // namespace collprobe::stand_in::detail

// Counts the call and gives out a scripted failure, or that of a broken device.
// (CUDA's headers define some of the names as macros: the first macro must make a string of them.)
#define STAND_IN_ENTER(name) \
    static collprobe::stand_in::scripted& own_script = collprobe::stand_in::scripted::named(name); \
    if (const int scripted_code = own_script.enter(); scripted_code != 0) \
    return collprobe::stand_in::detail::finish(static_cast<cudaError_t>(scripted_code))
#define STAND_IN_CALL_WITHOUT_CONTEXT(function) STAND_IN_ENTER(#function)
#define STAND_IN_CALL_ON_ANY_DEVICE(function) \
    STAND_IN_ENTER(#function); \
    collprobe::stand_in::detail::enter_context()
#define STAND_IN_CALL(function) \
    STAND_IN_CALL_ON_ANY_DEVICE(function); \
    if (const cudaError_t broken = collprobe::stand_in::detail::broken_here(); broken != cudaSuccess) \
    return collprobe::stand_in::detail::finish(broken)
#define STAND_IN_CALL_OUTSIDE_CAPTURES(function) \
    STAND_IN_CALL(function); \
    if (const cudaError_t forbidden = collprobe::stand_in::detail::forbid_during_capture(); forbidden != cudaSuccess) \
    return collprobe::stand_in::detail::finish(forbidden)
