// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/device/cuda/device.hpp>

#include "upload.hpp"

namespace collprobe::testing {

/// Elements in device memory, `offset` bytes behind a multiple of 256.
template <class T>
class device_copy {
public:
    explicit device_copy(const std::vector<T>& from, std::size_t offset = 0)
        : memory_(from.size() * sizeof(T) + 256), offset_(offset), count_(from.size())
    {
        upload(memory_.data() + offset, from.data(), from.size());
    }
    T* data() const { return reinterpret_cast<T*>(memory_.data() + offset_); }
    std::uint64_t count() const { return count_; }
    view<const T> elements() const { return {data(), count_}; }
    std::vector<T> read() const
    {
        std::vector<T> back(count_);
        if (count_ != 0)
            REQUIRE(cudaMemcpy(back.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
        return back;
    }

private:
    cuda::buffer<unsigned char> memory_;
    std::size_t offset_;
    std::uint64_t count_;
};

} // namespace collprobe::testing
