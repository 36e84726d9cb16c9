// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include <collprobe/step/detail/report_exchange.hpp>
#include <collprobe/step/detail/step_block.hpp>

/// The steps that have ended, until their reports are judged.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A step whose report is on its way to the host.
template <class Device>
struct step_in_flight {
    step_in_flight(const step_report::shape& form, std::uint64_t room, call_site at) : own(form, room, at)
    {
        make_room(step_report::room_bytes(form, room));
    }
    /// Precondition: no enqueued work writes `host`.
    void make_room(std::uint64_t count)
    {
        if (host.size() >= count) return;
        host = typename Device::template host_buffer<unsigned char>(count);
        std::memset(host.data(), 0, count);
    }

    step_block<Device> own;
    /// Memory that was too small for the step, and work still uses; freed when the step has been judged.
    std::vector<typename Device::template buffer<unsigned char>> outgrown;
    typename Device::template host_buffer<unsigned char> host; ///< the report
    step_block<Device>* calls = nullptr; ///< `own`, or that of a captured step
    std::uint64_t step = 0; ///< the caller's number
    call_site where;
    /// Work in front of it writes `host`: the report, or what a launch had enqueued when it threw. Not recorded: none.
    typename Device::event done;
};

/// The steps under way. The k-th step, from 1, is finished once, in order: its report was judged, or it failed, and
/// that is told once.
template <class Device>
class report_ring {
public:
    using slot = step_in_flight<Device>;

    report_ring(int steps, const step_report::shape& form, std::uint64_t room, call_site where)
    {
        for (int i = 0; i < steps; ++i) slots_.emplace_back(form, room, where);
    }

    bool is_full() const noexcept { return under_way() == slots_.size(); }
    std::uint64_t under_way() const noexcept { return ended_ - finished_; }
    std::uint64_t ended() const noexcept { return ended_; }
    std::uint64_t calls() const noexcept { return calls_; } ///< of the finished steps

    /// For the next step. Precondition: the ring is not full.
    slot& next() noexcept { return slots_[static_cast<std::size_t>(ended_ % slots_.size())]; }
    replay_ticket next_ticket(std::uint64_t step, bool is_crowded, unsigned char* host_block) const noexcept
    {
        const std::uint64_t serial = ended_ + 1;
        const std::uint64_t ago = serial - last_lost_;
        const bool is_known = last_lost_ != 0 && ago <= 255;
        return {step, static_cast<std::uint32_t>(serial), static_cast<std::uint16_t>(is_known ? ago : 0), is_crowded,
            host_block};
    }
    void forget_losses() noexcept { last_lost_ = 0; }
    /// The report of the next step is enqueued.
    void push(std::uint64_t step, step_block<Device>& calls, call_site where) noexcept
    {
        slot& to = next();
        to.step = step;
        to.calls = &calls;
        to.where = where;
        ++calls.reports;
        ++ended_;
    }

    /// Precondition: a step is under way.
    slot& oldest() noexcept { return slots_[static_cast<std::size_t>(finished_ % slots_.size())]; }
    /// `judge(slot, serial)` for each step that has arrived, up to the first failed one, which may be so by `judge`.
    void finish(const auto& judge)
    {
        while (under_way() != 0 && !failure_) {
            slot& next = oldest();
            try {
                if (!next.done.query()) return;
                judge(next, static_cast<std::uint32_t>(finished_ + 1));
            } catch (...) {
                failure_ = std::current_exception(); // this step will never have a record
                last_lost_ = finished_ + 1;
            }
            calls_ += next.calls->call_count + next.calls->unprobed_calls + next.calls->unread_calls;
            --next.calls->reports;
            next.done = {};
            ++finished_;
        }
    }
    /// Throws the failure of the step that failed last, once.
    void throw_failure() { if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr)); }

private:
    std::vector<slot> slots_; ///< the k-th step has slot (k - 1) % size
    std::uint64_t ended_ = 0;
    std::uint64_t finished_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t last_lost_ = 0; ///< the number of a step; 0: none
    std::exception_ptr failure_; ///< no later step is finished before it is thrown
};

} // namespace collprobe::detail
