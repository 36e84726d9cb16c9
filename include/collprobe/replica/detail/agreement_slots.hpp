// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/difference_exchange.hpp>
#include <collprobe/replica/detail/difference_search.hpp>

/// The memory of checks under way, and their messages.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Turns digests into pairs {key, ~key}. The maxima of a pair over the ranks are the largest key and the complement of
/// the smallest, so they tell whether all keys are equal. The last pair holds the check's number.
struct write_keys {
    const std::uint64_t* digests;
    const std::uint8_t* types; ///< of the buffers
    std::uint64_t buffers;
    std::uint64_t room; ///< number of buffers that the message has pairs for
    std::uint64_t number;
    std::uint64_t* message;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        std::uint64_t key = number;
        if (index < buffers) key = digests[index] ^ mix64(types[index]);
        else if (index < room) key = mix64(held_buffer::no_type);
        message[2 * index] = key;
        message[2 * index + 1] = ~key;
    }
};

/// One check.
template <class Device>
struct agreement_slot {
    explicit agreement_slot(std::uint64_t room) : types(room), digests(room), message(2 * room + 2), host(2 * room + 2)
    {
    }

    /// Whether the ranks agree on a buffer, or (last index) on the check's number. Valid once `done` is reached.
    bool agrees(std::uint64_t index) const noexcept { return host[2 * index] == ~host[2 * index + 1]; }

    typename Device::template host_buffer<std::uint8_t> types;
    typename Device::template buffer<std::uint64_t> digests;
    typename Device::template buffer<std::uint64_t> message;
    typename Device::template host_buffer<std::uint64_t> host;
    std::uint64_t number = 0;
    typename Device::event done;
};

/// All memory that enqueued work uses.
template <class Device>
struct agreement_memory {
    agreement_memory(int ranks, std::uint64_t room, int in_flight, std::uint64_t scratch_bytes)
        : search(ranks, scratch_bytes)
    {
        slots.reserve(static_cast<std::size_t>(in_flight) + 1);
        for (int i = 0; i <= in_flight; ++i) slots.emplace_back(room);
    }
    bool finished_by(deadline until) const noexcept
    {
        for (const agreement_slot<Device>& slot : slots) {
            if (!detail::finished_by(until, slot.done)) return false;
        }
        return detail::finished_by(until, search.done);
    }

    std::vector<agreement_slot<Device>> slots; ///< a ring, followed by the slot of checks that block the host
    typename Device::workspace workspace;
    typename Device::event reduced; ///< the last use of the workspace
    difference_memory<Device> search;
};

} // namespace collprobe::detail
