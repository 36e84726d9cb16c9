// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/step_block.hpp>

/// The nodes of a graph are fixed, but each replay is a different step. The replay writes a ticket on the stream just
/// before the launch, and the graph reads the step's number from the ticket.
namespace collprobe::inline COLLPROBE_ABI::detail {

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
            step.lost_ago, step.is_crowded, step.serial};
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

/// A captured step: its work is in a graph, which keeps the addresses.
template <class Tools>
struct captured_work {
    using device = typename Tools::device;

    template <class... Arguments>
    captured_work(const step_report::shape& form, std::uint64_t room, call_site where, const Arguments&... of)
        : block(form, room, where), tools(form, room, where, of...),
          memory_of_tickets(zeroed<device>(sizeof(replay_tickets), where)) {}
    replay_tickets* tickets() noexcept { return reinterpret_cast<replay_tickets*>(memory_of_tickets.data()); }

    step_block<device> block;
    Tools tools;
    typename device::template buffer<unsigned char> memory_of_tickets;
    typename device::event replayed; ///< the end of the last replay, recorded outside the capture
    std::uint64_t serial = 0; ///< number of this captured step among all of the process; 0 while the slot is free
    unsigned long long capture = 0; ///< number of the capture that it is recorded in
};

/// The steps in graphs: a graph has one step, and a launch without a ticket reports nothing.
template <class Tools>
class captured_steps {
public:
    using device = typename Tools::device;
    using stream_ref = typename device::stream_ref;
    using work = captured_work<Tools>;

    template <class... Arguments>
    captured_steps(int count, const Arguments&... of)
    {
        if constexpr (can_capture<stream_ref>) {
            works_.reserve(static_cast<std::size_t>(count));
            for (int i = 0; i < count; ++i) works_.emplace_back(of...);
        }
    }

    /// The step that is being captured; null: none.
    work* open() const noexcept { return open_; }
    /// Begins a step in a capture. \throws error `invalid_argument` if all are in use.
    work& begin(unsigned long long capture, const auto& who)
    {
        for (work& each : works_) {
            if (each.serial != 0) continue;
            open_ = &each;
            open_->serial = next_serial();
            open_->capture = capture;
            open_->tools.forget_capture();
            return *open_;
        }
        who.fail(status::invalid_argument,
            "all captured steps are in use: release one, or ask for more by probe_options::captured_steps");
    }
    /// Ends it, behind its report, which a replay copies to the block on its ticket. Returns its serial number.
    std::uint64_t end(view<unsigned char> report, stream_ref stream)
    {
        const unsigned char* const block = open_->tools.exchange.block();
        device::for_each(stream, report.count() / sizeof(publish_report::word),
            publish_report{open_->tickets(), block, static_cast<std::uint64_t>(report.data() - block)});
        return std::exchange(open_, nullptr)->serial;
    }
    void abandon() noexcept { std::exchange(open_, nullptr)->serial = 0; }

    /// \throws error `invalid_argument` if there is none, or its capture has not ended.
    work& find(std::uint64_t serial, const auto& who)
    {
        require_no_launch(who);
        for (work& each : works_) {
            if (serial != 0 && serial == each.serial && &each != open_) return each;
        }
        who.fail(status::invalid_argument, "no such captured step: it was released, or is not this communicator's");
    }
    /// Launches a captured step, which takes the ticket. If `launch` throws, nothing takes it later.
    void launch(work& of, const replay_ticket& ticket, stream_ref stream, const auto& launch)
    {
        const auto write = [&](const replay_ticket& next) {
            device::for_each(stream, 1, write_tickets{of.tickets(), {.next = next, .current = {}}});
        };
        write(ticket);
        is_launching_ = true;
        try {
            launch();
        } catch (...) {
            is_launching_ = false;
            try {
                write({}); // otherwise a launch without a replay would take the ticket of this one
            } catch (...) { // the first error is the informative one
            }
            throw;
        }
        is_launching_ = false;
    }
    /// \throws error `invalid_argument` while a launch is made.
    void require_no_launch(const auto& who) const
    {
        who.require(!is_launching_, "the launch of a replay must not make calls of this communicator");
    }

    bool finished_by(deadline until) const noexcept
    {
        for (const work& each : works_) {
            if (!detail::finished_by(until, each.replayed)) return false;
        }
        return true;
    }

private:
    std::vector<work> works_;
    work* open_ = nullptr;
    bool is_launching_ = false;
};

} // namespace collprobe::detail
