// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/device/in_flight.hpp>
#include <collprobe/fault/detail/plan_fault.hpp>
#include <collprobe/fault/types.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory that a list of faults needs.
struct fault_needs {
    bool copy = false; ///< for a copy of the sent data, which is damaged
    bool guest = false; ///< for another rank's data
    std::uint64_t tail_bytes = 0; ///< for the contents of `receive` before the call
    std::uint64_t sent = 0; ///< number of calls whose send buffers are kept
    std::uint64_t received = 0;

    explicit fault_needs(const std::vector<fault>& faults) noexcept
    {
        for (const fault& each : faults) {
            const bool is_after = each.phase == fault_phase::after;
            if (each.phase == fault_phase::during) copy = true;
            if (each.kind == fault_kind::duplicate_shard && !is_after) guest = true;
            if (each.kind == fault_kind::untouched_tail) tail_bytes += tail_room(each);
            if (each.kind == fault_kind::stale) {
                // One more than the lag: a call keeps its own data before it reads the oldest.
                std::uint64_t& kept = is_after ? received : sent;
                if (kept < each.lag + 1) kept = each.lag + 1;
            }
        }
    }
    static std::uint64_t tail_room(const fault& of) noexcept
    {
        return 8 * (of.elements != 0 ? of.elements : usual_elements(of.kind));
    }
    bool any() const noexcept { return copy || guest || tail_bytes != 0 || sent != 0 || received != 0; }
    /// The number of buffers of `max_bytes` that are needed.
    std::uint64_t copies() const noexcept { return (copy ? 1u : 0u) + (guest ? 1u : 0u) + sent + received; }
};

/// The largest size of the log, which is allocated at once.
inline constexpr std::uint64_t most_injections = std::uint64_t{1} << 24;

/// The data of the last calls; call number `call` uses slot `call % slots`.
template <class Device>
struct kept_calls {
    struct entry {
        std::uint64_t call = fault::every_call; ///< none
        std::uint64_t bytes = 0;
    };

    kept_calls(std::uint64_t slots, std::uint64_t slot_bytes)
        : memory(slots * slot_bytes), entries(static_cast<std::size_t>(slots)), bytes_of_slot(slot_bytes)
    {
    }
    entry& of(std::uint64_t call) noexcept { return entries[static_cast<std::size_t>(call % entries.size())]; }
    unsigned char* data(std::uint64_t call) const noexcept
    {
        return memory.data() + call % entries.size() * bytes_of_slot;
    }

    typename Device::template buffer<unsigned char> memory;
    std::vector<entry> entries;
    std::uint64_t bytes_of_slot;
};

template <class Device>
struct fault_memory {
    fault_memory(const fault_needs& needs, std::uint64_t bytes)
        : copy(needs.copy ? bytes : 0), guest(needs.guest ? bytes : 0), tails(needs.tail_bytes),
          sent(needs.sent, bytes), received(needs.received, bytes)
    {
        Device::load_kernels();
    }

    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, use.done); }

    typename Device::template buffer<unsigned char> copy;
    typename Device::template buffer<unsigned char> guest;
    typename Device::template buffer<unsigned char> tails;
    kept_calls<Device> sent;
    kept_calls<Device> received;
    ordered_use<Device> use;
};

} // namespace collprobe::detail
