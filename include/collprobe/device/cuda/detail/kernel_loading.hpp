// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include <collprobe/device/cuda/error.hpp>

/// Loading of kernels before they are needed.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// The kernels of the program, by the addresses that launches name. All its libraries share this list if the linker
/// joins their copies of it.
class kernel_list {
public:
    /// The first entry makes the list, so the list outlives all entries.
    static kernel_list& instance() noexcept
    {
        static kernel_list list;
        return list;
    }

    /// Returns the place of the kernel in the list.
    std::size_t add(const void* kernel)
    {
        const std::lock_guard lock(guard_);
        kernels_.push_back(kernel);
        return kernels_.size() - 1;
    }
    void remove(std::size_t place) noexcept
    {
        const std::lock_guard lock(guard_);
        kernels_[place] = nullptr;
    }

    /// Loads the kernels that were not loaded onto the current device yet.
    void load() noexcept
    {
        const int device = current_device();
        const bool is_known = device >= 0 && device < devices;
        std::size_t place = is_known ? loaded_[device].load(std::memory_order_acquire) : 0;
        const void* kernel = nullptr;
        if (!read(place, kernel)) return;
        const relaxed_capture_mode relaxed;
        // Not under the lock, because CUDA may wait for the work of other threads, which may open a library meanwhile.
        // If a library is closed meanwhile, CUDA does not know its kernel any more and returns an error, which is
        // dropped here.
        do {
            // CUDA must load the kernel to answer this question.
            cudaFuncAttributes ignored{};
            const cudaError_t code = kernel != nullptr ? cudaFuncGetAttributes(&ignored, kernel) : cudaSuccess;
            if (code != cudaSuccess) forget(code);
        } while (read(++place, kernel));
        if (is_known) loaded_[device].store(place, std::memory_order_release);
    }

private:
    static constexpr int devices = 64;

    /// The kernel at `place`, null if its library was closed. False behind the last place.
    bool read(std::size_t place, const void*& kernel) noexcept
    {
        const std::lock_guard lock(guard_);
        if (place >= kernels_.size()) return false;
        kernel = kernels_[place];
        return true;
    }

    std::mutex guard_; ///< libraries are opened and closed while other threads load
    std::vector<const void*> kernels_; ///< in the order in which they came
    std::atomic<std::size_t> loaded_[devices] = {}; ///< by device: how many of them were loaded
};

/// A kernel that the program contains. It enters the list when the program starts or the library with the kernel is
/// opened. It leaves the list when that library is closed.
class kernel_entry {
public:
    explicit kernel_entry(const void* kernel) noexcept
        : kernel_(kernel), place_(kernel_list::instance().add(kernel))
    {
    }
    kernel_entry(const kernel_entry&) = delete;
    kernel_entry& operator=(const kernel_entry&) = delete;
    ~kernel_entry() { kernel_list::instance().remove(place_); }

    const void* kernel() const noexcept { return kernel_; }

private:
    const void* kernel_;
    std::size_t place_;
};

/// The entry of a kernel. Any use of it, executed or not, puts the kernel on the list.
template <auto kernel>
inline kernel_entry entry_of{reinterpret_cast<const void*>(kernel)};

/// The function behind `device::load_kernels`.
inline void load_kernels() noexcept
{
    kernel_list::instance().load();
}

} // namespace collprobe::cuda::detail
