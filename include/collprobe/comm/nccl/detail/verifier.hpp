// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/cuda/device.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// The message between ranks before a verified call.
struct verified_call {
    std::uint64_t sequence;
    std::uint64_t count;
    std::int32_t root;
    std::uint8_t call;
    std::uint8_t type;
    std::uint8_t operation;
    std::uint8_t bad;
    std::uint64_t whole;
};
static_assert(sizeof(verified_call) == 32);

/// The memory and the stream of `options::verify_calls`.
struct verifier {
    explicit verifier(int ranks)
        : send(sizeof(verified_call)),
          received(static_cast<std::uint64_t>(ranks) * sizeof(verified_call)),
          host_send(1),
          host_received(static_cast<std::uint64_t>(ranks))
    {
        // A number that no call has.
        for (verified_call& none : host_received) none.sequence = ~std::uint64_t{0};
        cuda::device::copy(stream,
            view<const unsigned char>(reinterpret_cast<const unsigned char*>(host_received.data()), received.size()),
            view<unsigned char>(received));
    }
    /// Returns false also if work has failed.
    bool finished_by(collprobe::detail::deadline until) const noexcept
    {
        try {
            stream.synchronize(until.remaining_ms());
            return true;
        } catch (...) {
            return false;
        }
    }

    std::uint64_t sequence = 0;
    cuda::stream stream;
    cuda::buffer<unsigned char> send;
    cuda::buffer<unsigned char> received;
    cuda::pinned_buffer<verified_call> host_send;
    cuda::pinned_buffer<verified_call> host_received;
};

} // namespace collprobe::nccl::detail
