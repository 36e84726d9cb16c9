// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <collprobe/detail/mutex.hpp>
#include <collprobe/device/cuda.hpp>
#include <collprobe/error.hpp>
#include <collprobe/view.hpp>

namespace collprobe::nccl::detail {

/// Bytes that are zero, for barriers. A barrier must not allocate (it may be captured), and freeing
/// waits for the device, for ever if a collective hangs on it: so they go back to a list of the
/// process. Nothing but zeros is ever written to them.
class zero_bytes {
public:
    static constexpr std::size_t bytes = 64; // a cell each, so that ranks of one process share no line

    zero_bytes() = default;
    /// Precondition: `device` is current. Cost: an allocation and a copy for the first of each 64.
    explicit zero_bytes(int device, call_site where) : device_(device)
    {
        pool& all = pool_of_process();
        const collprobe::detail::lock_guard lock(all.guard);
        while (all.free.size() <= static_cast<std::size_t>(device)) all.free.emplace_back();
        auto& cells = all.free[static_cast<std::size_t>(device)];
        if (cells.empty()) {
            constexpr std::size_t count = 64;
            cuda::pinned_buffer<unsigned char> zeros(count * bytes);
            for (unsigned char& zero : zeros) zero = 0;
            cuda::buffer<unsigned char> slab(count * bytes);
            const cuda::stream stream;
            cuda::device::copy(stream, view<const unsigned char>(zeros.data(), zeros.size()),
                view<unsigned char>(slab.data(), slab.size()), where);
            stream.synchronize(where);
            for (std::size_t cell = 0; cell < count; ++cell) cells.push_back(slab.data() + cell * bytes);
            all.slabs.push_back(std::move(slab));
        }
        data_ = cells.back();
        cells.pop_back();
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
        const collprobe::detail::lock_guard lock(all.guard);
        // There is room: the list has held this cell before.
        all.free[static_cast<std::size_t>(device_)].push_back(data_);
    }
    unsigned char* data() const noexcept { return data_; }

private:
    struct pool {
        collprobe::detail::mutex guard;
        std::vector<std::vector<unsigned char*>> free; // by device
        std::vector<cuda::buffer<unsigned char>> slabs;
    };
    static pool& pool_of_process()
    {
        static pool* const all = new pool; // never destroyed: CUDA may be gone by then
        return *all;
    }

    unsigned char* data_ = nullptr;
    int device_ = 0;
};

} // namespace collprobe::nccl::detail
