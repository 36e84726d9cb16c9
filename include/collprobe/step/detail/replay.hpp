// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/observation.hpp>

/// How a graph, whose nodes are fixed, tells a different step at each replay: it reads a ticket that
/// the replay writes, on the stream, just before the launch.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Never given twice in a process: so it tells a step from those of every other communicator, wherever they are moved.
inline std::uint64_t next_capture_serial() noexcept
{
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct replay_ticket {
    std::uint64_t step;
    unsigned char* host_block; ///< where this replay's report goes: memory that the device can write
};

/// A ticket is good for one launch. Without one the step has no report.
struct replay_tickets {
    replay_ticket next;
    replay_ticket current;
};

struct write_tickets {
    replay_tickets* to;
    replay_tickets value;
    COLLPROBE_HD void operator()(std::uint64_t) const noexcept { *to = value; }
};

/// `write_header` with numbers that the device reads; in a graph it takes the ticket.
struct write_observed_header {
    unsigned char* message;
    device_observation seen;
    std::uint64_t unprobed_calls;
    std::uint64_t step; ///< not read in a graph
    replay_tickets* tickets; ///< null outside a graph
    message_layout layout;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        write_header write{message, {}, layout};
        if (index == 0) {
            std::uint64_t number = step;
            if (tickets != nullptr) {
                tickets->current = tickets->next;
                tickets->next = {0, nullptr};
                number = tickets->current.step;
            }
            write.value = {number, seen.loss.read(0), seen.weight.read(1),
                seen.sample_digest != nullptr ? *seen.sample_digest : 0, unprobed_calls};
        }
        write(index);
    }
};

/// Copies a run of a report, word by word, to the block on the ticket.
struct publish_report {
    typedef std::uint64_t __attribute__((may_alias)) word;
    const replay_tickets* tickets;
    const unsigned char* block;
    std::uint64_t first; ///< byte of the block at which the run starts

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        unsigned char* const to = tickets->current.host_block;
        if (to == nullptr) return;
        reinterpret_cast<word*>(to + first)[index] = reinterpret_cast<const word*>(block + first)[index];
    }
};

} // namespace collprobe::detail
