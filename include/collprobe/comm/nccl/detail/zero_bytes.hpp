// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/device/cuda/device.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// Bytes that are zero, for barriers. A barrier must not allocate, because it may be captured. Freeing waits for the
/// device, for ever if a collective hangs on it. So the bytes go back to a list of the process. No work ever writes
/// anything but zeros to them.
class zero_bytes {
public:
    static constexpr std::size_t bytes = 64; // of a cell, so that ranks of one process share no cache line

    zero_bytes() = default;
    /// Precondition: `device` is current.
    /// Cost: an allocation and a fill for the first of each 64.
    explicit zero_bytes(int device, call_site where) : device_(device)
    {
        pool& all = pool_of_process();
        while (!take(all)) {
            // Not under the lock: the allocation may wait for the device, and so for a collective that cannot end
            // before another thread has got its bytes.
            cuda::buffer<unsigned char> slab(cells_of_a_slab * bytes, where);
            const cuda::stream stream(where);
            cuda::check(cudaMemsetAsync(slab.data(), 0, slab.size(), stream.get()), "cudaMemsetAsync",
                device, stream.get(), where);
            stream.synchronize(where);
            all.add(std::move(slab), device);
        }
    }
    zero_bytes(zero_bytes&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), device_(other.device_)
    {
    }
    zero_bytes& operator=(zero_bytes&& other) noexcept
    {
        std::swap(data_, other.data_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~zero_bytes()
    {
        if (data_ == nullptr) return;
        pool& all = pool_of_process();
        const std::lock_guard lock(all.guard);
        all.free[static_cast<std::size_t>(device_)].push_back(data_); // never allocates: see `add`
    }
    unsigned char* data() const noexcept { return data_; }

private:
    static constexpr std::size_t cells_of_a_slab = 64;

    struct pool {
        void add(cuda::buffer<unsigned char> slab, int device)
        {
            const std::lock_guard lock(guard);
            const auto place = static_cast<std::size_t>(device);
            if (free.size() <= place) free.resize(place + 1);
            if (made.size() <= place) made.resize(place + 1);
            // All steps that may fail come first. The list has room for every cell, so returning a cell never fails.
            free[place].reserve(made[place] + cells_of_a_slab);
            unsigned char* const first = slab.data();
            slabs.push_back(std::move(slab));
            made[place] += cells_of_a_slab;
            for (std::size_t cell = 0; cell < cells_of_a_slab; ++cell) free[place].push_back(first + cell * bytes);
        }

        std::mutex guard;
        std::vector<std::vector<unsigned char*>> free; // by device
        std::vector<std::size_t> made; // cells, by device
        std::vector<cuda::buffer<unsigned char>> slabs;
    };

    bool take(pool& from)
    {
        const std::lock_guard lock(from.guard);
        const auto place = static_cast<std::size_t>(device_);
        if (from.free.size() <= place || from.free[place].empty()) return false;
        data_ = from.free[place].back();
        from.free[place].pop_back();
        return true;
    }
    static pool& pool_of_process()
    {
        static pool* const all = new pool; // never destroyed: CUDA may be gone by then
        return *all;
    }

    unsigned char* data_ = nullptr;
    int device_ = 0;
};

} // namespace collprobe::nccl::detail
