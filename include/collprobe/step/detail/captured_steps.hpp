// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/detail/serial.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/step_block.hpp>
#include <collprobe/step/detail/step_resources.hpp>

/// Steps in graphs: the handle of a captured one, and what the probe keeps of all.
namespace collprobe::inline COLLPROBE_ABI {

template <communicator Comm, class... Parts>
class probed;

/// The handle of a step recorded in a graph, for `probed::replay`. Copy it freely; it owns nothing.
class captured_step {
public:
    captured_step() = default;

private:
    template <communicator Comm, class... Parts>
    friend class probed;
    explicit captured_step(std::uint64_t serial) noexcept : serial_(serial) {}

    std::uint64_t serial_ = 0; ///< number among all captured steps of the process; 0 for none
};

namespace detail {

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
template <class Device>
struct captured_work {
    captured_work(
        const step_report::shape& form, const probe_options& options, ref<part_memories> parts, call_site where)
        : block(form, static_cast<std::uint64_t>(options.calls), where),
          resources(form, options, std::move(parts), where), tickets(zeroed<Device, replay_tickets>(1, where)) {}

    step_block<Device> block;
    step_resources<Device> resources;
    typename Device::template buffer<replay_tickets> tickets; ///< one
    typename Device::event replayed; ///< the end of the last replay, recorded outside the capture
    std::uint64_t serial = 0; ///< number of this captured step among all of the process; 0 while the slot is free
    unsigned long long capture = 0; ///< number of the capture that it is recorded in
};

/// The steps in graphs: a graph has one step, and a launch without a ticket reports nothing.
template <class Device>
class captured_steps {
public:
    using stream_ref = typename Device::stream_ref;
    using work = captured_work<Device>;

    /// `parts()` makes the parts' memory of a step.
    captured_steps(
        const step_report::shape& form, const probe_options& options, const auto& parts, call_site where)
    {
        if constexpr (can_capture<stream_ref>) {
            works_.reserve(static_cast<std::size_t>(options.captured_steps));
            for (int i = 0; i < options.captured_steps; ++i) works_.emplace_back(form, options, parts(), where);
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
            open_->serial = next_serial<captured_step>();
            open_->capture = capture;
            open_->resources.lanes.forget();
            open_->resources.gram_done = {};
            return *open_;
        }
        who.fail(status::invalid_argument,
            "all captured steps are in use: release one, or ask for more by probe_options::captured_steps");
    }
    /// Ends it, behind its report, which a replay copies to the block on its ticket. Returns its serial number.
    std::uint64_t end(view<unsigned char> report, stream_ref stream)
    {
        const unsigned char* const block = open_->resources.exchange.block();
        Device::for_each(stream, report.count() / sizeof(publish_report::word),
            publish_report{open_->tickets.data(), block, static_cast<std::uint64_t>(report.data() - block)});
        return std::exchange(open_, nullptr)->serial;
    }
    void abandon() noexcept { std::exchange(open_, nullptr)->serial = 0; }

    /// \throws error `invalid_argument` if there is none, or its capture has not ended.
    work& find(std::uint64_t serial, const auto& who)
    {
        require_no_launch(who);
        for (work& each : works_)
            if (serial != 0 && serial == each.serial && &each != open_) return each;
        who.fail(status::invalid_argument, "no such captured step: it was released, or is not this communicator's");
    }
    /// Launches a captured step, which takes the ticket. If `launch` throws, nothing takes it later.
    void launch(work& of, const replay_ticket& ticket, stream_ref stream, const auto& launch)
    {
        const auto write = [&](const replay_ticket& next) {
            Device::fill(stream, view<replay_tickets>(of.tickets), {.next = next, .current = {}});
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
        for (const work& each : works_)
            if (!detail::finished_by(until, each.replayed)) return false;
        return true;
    }

private:
    std::vector<work> works_;
    work* open_ = nullptr;
    bool is_launching_ = false;
};

} // namespace detail
} // namespace collprobe
