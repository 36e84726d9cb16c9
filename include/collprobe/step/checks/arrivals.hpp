// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/detail/math.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/step/checks/check_context.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Who came late to the calls of a step. It finds nobody by itself: outliers and evidence judge.
class arrivals_measure {
public:
    /// The floor of lateness, in ns, where the ranks of any machine outnumber its processors: its scheduler leaves one
    /// of them behind for many steps. All ranks judge by the machines of all.
    static constexpr double never_late = 0x1p52;

    arrivals_measure(int ranks, double floor_ns)
        : watch_(ranks, floor_ns), in_call_(at_rank(ranks)), before_(at_rank(ranks)), left_(at_rank(ranks))
    {
    }

    /// Between two steps there were calls that this object knows nothing of: the time from one to the other is unknown.
    void forget_end() noexcept { has_left_ = false; }
    void forget()
    {
        forget_end();
        watch_.reset();
        by_rank_.clear();
        turn_ = 0;
    }

    /// Precondition: the messages have times.
    void measure(const check_context& step)
    {
        bool is_first = true; // the calls of a step may overlap, as in a group; steps do not
        for (std::size_t b = 0; b < step.calls.size(); ++b) {
            // Ranks without it wait for nobody.
            if (!step.calls[b].has_result || step.out.calls[b].is_on_some_ranks()) continue;
            for (int r = 0; r < step.ranks(); ++r) measure_rank(step.messages.times(r, b), at_rank(r), is_first);
            has_left_ = true;
            is_first = false;
            if (step.calls[b].tells_lateness()) step.out.calls[b].lateness = watch_.add(in_call_, before_);
        }
        step.out.lateness = watch_.end_step();
        for (int r = 0; r < step.ranks(); ++r) {
            if (step.messages.header(r).is_crowded == 0) continue;
            step.out.lateness.floor = never_late;
            step.out.lateness.stands_out = false;
        }
        if (step.out.lateness.present < 2) return;
        const int turns = 1 + (step.ranks() - 1) / 256; // the medians are what costs: large jobs renew them by turns
        by_rank_.resize(at_rank(step.ranks()));
        for (int r = turn_++ % turns; r < step.ranks(); r += turns) by_rank_[at_rank(r)] = watch_.of(r);
        for (int r = 0; r < step.ranks(); ++r) by_rank_[at_rank(r)].latest = watch_.latest(r);
        step.out.lateness_by_rank = by_rank_;
    }

private:
    void measure_rank(const call_times& noted, std::size_t rank, bool is_first)
    {
        clock_stamp& end = left_[rank];
        before_[rank] = has_left_ ? nanoseconds_between(end, noted.entered) : not_a_number();
        in_call_[rank] = nanoseconds_between(noted.entered, noted.left);
        if (!is_first && before_[rank] < 0) { // no moment counts twice
            before_[rank] = 0;
            in_call_[rank] = nanoseconds_between(end, noted.left);
            if (in_call_[rank] < 0) in_call_[rank] = 0;
        }
        if (is_first || in_call_[rank] > 0) end = noted.left;
    }

    lateness_watch watch_;
    std::vector<rank_lateness> by_rank_;
    int turn_ = 0; // of the steps
    std::vector<double> in_call_; // ns by rank
    std::vector<double> before_;
    std::vector<clock_stamp> left_; // by rank: when the last of its calls ended
    bool has_left_ = false; // there was a call before
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
