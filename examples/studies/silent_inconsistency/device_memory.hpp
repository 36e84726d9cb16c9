// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include <collprobe/core/view.hpp>

namespace trainer {

/// Elements that the host writes and the device computes on, `capacity` at most.
template <class Device, class T>
class uploaded {
public:
    explicit uploaded(std::size_t capacity) : staging_(capacity), memory_(capacity) {}

    /// The host must not write again before the stream has done it.
    void write(std::span<const T> values, typename Device::stream_ref on)
    {
        std::copy(values.begin(), values.end(), staging_.begin());
        Device::copy(on, collprobe::view<const T>(staging_.data(), values.size()),
            collprobe::view<T>(memory_.data(), values.size()));
    }
    const T* data() const { return memory_.data(); }

private:
    typename Device::template host_buffer<T> staging_;
    typename Device::template buffer<T> memory_;
};

/// What device memory holds once the stream is done. Blocks, allocates: not for every step.
template <class Device, class T>
std::vector<T> download(collprobe::view<const T> from, typename Device::stream_ref on)
{
    const typename Device::template host_buffer<T> staging(from.count());
    Device::copy(on, from, collprobe::view<T>(staging.data(), from.count()));
    on.synchronize();
    return std::vector<T>(staging.begin(), staging.end());
}

/// The other way. Blocks, too.
template <class Device, class T>
void upload(std::span<const T> values, collprobe::view<T> to, typename Device::stream_ref on)
{
    const typename Device::template host_buffer<T> staging(values.size());
    std::copy(values.begin(), values.end(), staging.begin());
    Device::copy(on, collprobe::view<const T>(staging.data(), values.size()), to);
    on.synchronize();
}

} // namespace trainer
