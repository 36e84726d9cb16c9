// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/observation.hpp>

/// The nodes of a graph are fixed, but each replay is a different step. The replay writes a ticket on the stream just
/// before the launch, and the graph reads the step's number from the ticket.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A number that is used once per process, so it distinguishes a captured step from those of other communicators.
inline std::uint64_t next_capture_serial() noexcept
{
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct replay_ticket {
    std::uint64_t step;
    std::uint32_t serial; ///< as in `step_header`
    std::uint32_t lost_ago; ///< as in `step_header`
    unsigned char* host_block; ///< destination of this replay's report: memory that the device can write
};

/// A ticket is valid for one launch. A launch without a ticket makes no report.
struct replay_tickets {
    replay_ticket next;
    replay_ticket current;
};

struct write_tickets {
    replay_tickets* to;
    replay_tickets value;
    COLLPROBE_HD void operator()(std::uint64_t) const noexcept { *to = value; }
};

/// Completes a message: index 0 writes the header, and in a graph consumes the ticket; index b + 1 writes the place of
/// call b.
struct write_header {
    unsigned char* message;
    message_layout layout;
    const std::uint64_t* places; ///< by call, in host memory
    bool clears_results; ///< no results were read
    step_observation seen;
    replay_ticket known; ///< the step's numbers, outside a graph
    replay_tickets* tickets; ///< null outside a graph

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        if (index != 0) {
            layout.place(message, index - 1) = places[index - 1];
            if (clears_results) layout.entry(message, index - 1).result = {};
            return;
        }
        replay_ticket step = known;
        if (tickets != nullptr) {
            step = tickets->current = tickets->next;
            tickets->next = {};
        }
        const double weight = seen.weight.read();
        *reinterpret_cast<step_header*>(message) = {step.step,
            mean_loss(seen.loss.read(), weight, seen.loss_is_sum, seen.loss_scale), weight, seen.gradient_norm.read(),
            step.lost_ago, step.serial};
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
