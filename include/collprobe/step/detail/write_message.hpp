// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/step_observation.hpp>

/// What the device writes in a rank's message when its step ends; in a graph with the numbers of the replay's ticket.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The nodes of a graph are fixed, but each replay is a different step. The replay writes a ticket on the stream just
/// before the launch, and the graph reads the step's number from the ticket.
struct replay_ticket {
    std::uint64_t step;
    std::uint32_t serial; ///< as in `step_header`
    std::uint16_t lost_ago; ///< this, and the next one, too
    std::uint16_t is_crowded;
    unsigned char* host_block; ///< destination of this replay's report: memory that the device can write
};

/// A ticket is valid for one launch. A launch without a ticket makes no report.
struct replay_tickets {
    replay_ticket next;
    replay_ticket current;
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
            mean_loss(seen.loss.read(), weight), weight, seen.gradient_norm.read(), step.lost_ago, step.is_crowded,
            step.serial};
    }

private:
    COLLPROBE_HD double mean_loss(double loss, double weight) const noexcept
    {
        if (to_bits(loss) == to_bits(not_given())) return loss;
        if (seen.loss_is_sum && weight == 0 && loss == 0) return not_given();
        return loss / (seen.loss_is_sum ? weight * seen.loss_scale : seen.loss_scale);
    }
};

/// Puts the values that a rank told behind the calls of its message.
struct write_values {
    /// A value that the host knows, or `read` in memory of the device.
    struct source {
        told_value value;
        bool is_read;
    };
    told_value* to;
    const source* from; ///< in host memory
    const statistics* read;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        told_value value = from[index].value;
        if (from[index].is_read) {
            const statistics& of = read[index];
            value.digest = mix64(value.digest + of.digest);
            value.value = of.nonfinite() == 0 ? of.l2() : not_a_number();
        }
        to[index] = value;
    }
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
