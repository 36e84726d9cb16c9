// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda_error.hpp>

/// Loading of kernels before they are needed.
namespace collprobe::cuda {

namespace detail {

/// A kernel that the program contains. They enter one list when the program starts, or the library that
/// they are in is opened.
class kernel_entry {
public:
    explicit kernel_entry(const void* kernel) noexcept : kernel_(kernel), next_(first().load(std::memory_order_relaxed))
    {
        while (!first().compare_exchange_weak(next_, this, std::memory_order_release, std::memory_order_relaxed)) {
        }
    }
    kernel_entry(const kernel_entry&) = delete;
    kernel_entry& operator=(const kernel_entry&) = delete;

    /// What launches name it by.
    const void* kernel() const noexcept { return kernel_; }
    const kernel_entry* next() const noexcept { return next_; }

    static std::atomic<kernel_entry*>& first() noexcept
    {
        static std::atomic<kernel_entry*> list{nullptr};
        return list;
    }

private:
    const void* kernel_;
    kernel_entry* next_;
};

/// The entry of a kernel. Any use of it, executed or not, puts the kernel on the list.
template <auto kernel>
inline kernel_entry entry_of{reinterpret_cast<const void*>(kernel)};

} // namespace detail

/// Loads all kernels of this library that the program contains onto the current device, once.
///
/// CUDA loads a kernel when it is first used, unless CUDA_MODULE_LOADING=EAGER, and may wait for all work
/// of the device before it does. Behind a collective that waits for another rank, whose thread needs CUDA
/// to come that far, this is a deadlock: so kernels are loaded before the first collective. `workspace`
/// calls this, and with it `probed`. Who launches `for_each`, `sum_each` or captures them before there is a
/// `workspace` on the device calls it himself.
///
/// Stream behaviour: may wait for the device the first time; invalidates no capture.
/// Errors: none. A kernel that cannot be loaded is an error of its launch.
/// Cost: set-up only; the first time on a device some 100 us per kernel, later a few loads from memory.
/// Source: CUDA C++ Programming Guide, Lazy Loading, "Concurrent Execution".
inline void load_kernels() noexcept
{
    constexpr int remembered = 64;
    static std::atomic<const detail::kernel_entry*> loaded[remembered];
    const detail::kernel_entry* const first = detail::kernel_entry::first().load(std::memory_order_acquire);
    const int device = detail::current_device();
    const bool is_known = device >= 0 && device < remembered;
    const detail::kernel_entry* const before
        = is_known ? loaded[device].load(std::memory_order_acquire) : nullptr;
    if (first == before) return;
    const detail::relaxed_capture_mode relaxed;
    for (const detail::kernel_entry* each = first; each != nullptr && each != before; each = each->next()) {
        // What has to load the kernel to answer.
        cudaFuncAttributes ignored{};
        if (const cudaError_t code = cudaFuncGetAttributes(&ignored, each->kernel()); code != cudaSuccess) {
            detail::forget(code);
        }
    }
    if (is_known) loaded[device].store(first, std::memory_order_release);
}

} // namespace collprobe::cuda
