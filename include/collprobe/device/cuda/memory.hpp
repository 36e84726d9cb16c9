// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <collprobe/device/cuda/detail/allocation.hpp>
#include <collprobe/device/cuda/detail/kernel_loading.hpp>
#include <collprobe/device/cuda/error.hpp>
#include <collprobe/device/cuda/stream.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda {

namespace detail {

/// The bytes of `count` elements. If the product would wrap around, a number larger than the memory of any device.
constexpr std::size_t bytes_of(std::uint64_t count, std::size_t element_bytes) noexcept
{
    return count > SIZE_MAX / element_bytes ? SIZE_MAX : static_cast<std::size_t>(count) * element_bytes;
}

/// Owned memory for `size()` trivially copyable elements, not initialised. Synchronise before it is freed: freeing
/// memory that queued work still uses is an error, as on any device.
/// \throws error `device_failure` if there is not enough memory.
/// Cost: `cudaMalloc` and `cudaFree`, which may wait for the device: set-up only.
template <class T, bool is_pinned>
class owned_memory {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    owned_memory() noexcept = default;
    explicit owned_memory(std::uint64_t count, call_site where = call_site::current())
    {
        if (count == 0) return;
        check(cudaGetDevice(&device_), "cudaGetDevice", -1, where);
        const relaxed_capture_mode relaxed;
        const std::size_t bytes = bytes_of(count, sizeof(T));
        void* memory = nullptr;
        if constexpr (is_pinned) {
            check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc", device_,
                where);
        } else {
            check(cudaMalloc(&memory, bytes), "cudaMalloc", device_, where);
        }
        data_ = static_cast<T*>(memory);
        count_ = count;
        order_hooks::allocated(data_, count_ * sizeof(T));
    }
    owned_memory(owned_memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          count_(std::exchange(other.count_, 0)),
          device_(std::exchange(other.device_, -1))
    {
    }
    owned_memory& operator=(owned_memory&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~owned_memory()
    {
        if (data_ == nullptr) return;
        const device_guard current(device_, std::nothrow);
        const relaxed_capture_mode relaxed;
        order_hooks::released(data_, count_ * sizeof(T), true);
        const cudaError_t code = is_pinned ? cudaFreeHost(data_) : cudaFree(data_);
        if (code != cudaSuccess) forget(code);
    }

    T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
    /// The device that was current at construction; -1 without memory.
    int device() const noexcept { return device_; }
    // Of memory that the host can read.
    T* begin() const noexcept requires is_pinned { return data_; }
    T* end() const noexcept requires is_pinned { return data_ + count_; }
    T& operator[](std::uint64_t index) const noexcept requires is_pinned { return data_[index]; }

private:
    T* data_ = nullptr;
    std::uint64_t count_ = 0;
    int device_ = -1;
};

} // namespace detail

/// Memory of the device that was current at construction. The host must not read it, so it has no iterators.
template <class T>
using buffer = detail::owned_memory<T, false>;

/// Page-locked host memory that all devices read and write under the same address. The host may read what a device
/// wrote once an event has passed behind the write.
template <class T>
using pinned_buffer = detail::owned_memory<T, true>;

/// Device memory that `device::reduce` needs between its blocks: the partial results, and a ticket by which the last
/// block knows that it is the last. One stream at a time uses a workspace.
/// Size: 1 MiB and 256 bytes of the device that is current at construction.
/// Cost: set-up only. The constructor waits until the ticket is zero and loads the library's kernels on the device
/// (`device::load_kernels`).
struct workspace {
    /// The largest number of blocks that leave a partial result each.
    static constexpr unsigned slots = 4096;
    /// The largest size of a partial result, in bytes.
    static constexpr std::size_t max_partial_bytes = 256;

    workspace(call_site where = call_site::current()) : memory_(bytes, where)
    {
        detail::load_kernels();
        // On a stream of its own. cudaMemset would run in the default stream, which is not ordered before the first
        // stream that uses the workspace. A capture also forbids it.
        const stream zeroing(where);
        check(cudaMemsetAsync(ticket(), 0, ticket_bytes, zeroing.get()), "cudaMemsetAsync",
            memory_.device(), zeroing.get(), where);
        zeroing.synchronize(where);
    }

    /// Room for `max_partial_bytes` of each of `slots`, aligned to 256 bytes.
    void* partials() const noexcept { return memory_.data(); }
    /// Zero whenever no reduction runs: the last block of a reduction resets it.
    std::uint32_t* ticket() const noexcept
    {
        return static_cast<std::uint32_t*>(static_cast<void*>(memory_.data() + slots * max_partial_bytes));
    }
    int device() const noexcept { return memory_.device(); }

private:
    static constexpr std::size_t ticket_bytes = 256;
    static constexpr std::size_t bytes = slots * max_partial_bytes + ticket_bytes;
    buffer<std::byte> memory_;
};

} // namespace collprobe::cuda
