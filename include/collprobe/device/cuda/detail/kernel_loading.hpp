// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <collprobe/detail/mutex.hpp>
#include <collprobe/device/cuda/error.hpp>

/// Loading of kernels before they are needed.
namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

class kernel_entry;

/// The kernels of the program. All its libraries share this list if the linker joins their copies of it.
struct kernel_list {
    static constexpr int devices = 64;

    /// The first entry makes the list, so the list outlives all entries.
    static kernel_list& instance() noexcept
    {
        static kernel_list list;
        return list;
    }

    collprobe::detail::mutex mutex; ///< of `newest`: libraries are opened and closed while other threads load
    kernel_entry* newest = nullptr;
    std::atomic<std::uint64_t> entered{0}; ///< the number of the newest entry so far
    std::atomic<std::uint64_t> loaded[devices] = {}; ///< the number up to which entries were loaded, by device
};

/// A kernel that the program contains. The kernel enters the list when the program starts or the library with the
/// kernel is opened. It leaves the list when that library is closed.
class kernel_entry {
public:
    explicit kernel_entry(const void* kernel) noexcept : kernel_(kernel)
    {
        kernel_list& list = kernel_list::instance();
        const collprobe::detail::lock_guard held(list.mutex);
        next_ = list.newest;
        list.newest = this;
        number_ = list.entered.load(std::memory_order_relaxed) + 1;
        list.entered.store(number_, std::memory_order_release);
    }
    kernel_entry(const kernel_entry&) = delete;
    kernel_entry& operator=(const kernel_entry&) = delete;
    ~kernel_entry()
    {
        kernel_list& list = kernel_list::instance();
        const collprobe::detail::lock_guard held(list.mutex);
        kernel_entry** link = &list.newest;
        while (*link != this) link = &(*link)->next_;
        *link = next_;
    }

    /// The address by which launches name the kernel.
    const void* kernel() const noexcept { return kernel_; }

    /// The oldest kernel whose number is above `number`; null if there is none. Sets `number` to the kernel's number.
    static const void* next_after(std::uint64_t& number) noexcept
    {
        kernel_list& list = kernel_list::instance();
        const collprobe::detail::lock_guard held(list.mutex);
        const kernel_entry* oldest = nullptr;
        for (const kernel_entry* each = list.newest; each != nullptr && each->number_ > number; each = each->next_) {
            oldest = each;
        }
        if (oldest == nullptr) return nullptr;
        number = oldest->number_;
        return oldest->kernel_;
    }

private:
    const void* kernel_;
    kernel_entry* next_ = nullptr; ///< an older one
    std::uint64_t number_ = 0;
};

/// The entry of a kernel. Any use of it, executed or not, puts the kernel on the list.
template <auto kernel>
inline kernel_entry entry_of{reinterpret_cast<const void*>(kernel)};

/// The function behind `device::load_kernels`.
inline void load_kernels() noexcept
{
    kernel_list& list = kernel_list::instance();
    const std::uint64_t entered = list.entered.load(std::memory_order_acquire);
    const int device = current_device();
    const bool is_known = device >= 0 && device < kernel_list::devices;
    std::uint64_t number = is_known ? list.loaded[device].load(std::memory_order_acquire) : 0;
    if (number >= entered) return;
    const relaxed_capture_mode relaxed;
    // Not under the lock, because CUDA may wait for the work of other threads, which may open a library meanwhile. If
    // a library is closed meanwhile, CUDA does not know its kernel any more and returns an error, which is dropped
    // here.
    while (const void* const kernel = kernel_entry::next_after(number)) {
        // CUDA must load the kernel to answer this question.
        cudaFuncAttributes ignored{};
        if (const cudaError_t code = cudaFuncGetAttributes(&ignored, kernel); code != cudaSuccess) {
            forget(code);
        }
    }
    if (is_known) list.loaded[device].store(number > entered ? number : entered, std::memory_order_release);
}

} // namespace collprobe::cuda::detail
