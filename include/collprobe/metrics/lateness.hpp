// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/middle.hpp>

/// Which rank came late to a collective, from the time that each rank spent in it. No clocks are compared.
///
/// A collective that waits for all ranks ends on all of them at nearly the same moment. So the rank that spent the
/// least time in it entered it last. metrics/README.md has the derivation, the resolution, and what can bias it.
/// All times are durations in nanoseconds. A time that is not finite, negative, or 2^53 (104 days) or more counts as
/// absent. The result for whole nanoseconds is exact.
namespace collprobe::inline COLLPROBE_ABI {

/// The arrivals at one call, from the time of each rank in it.
///
/// `times_in_call[r]` runs on rank r from its entry to the end of the call; `times_before[r]` from the end of its
/// previous probed call to that entry (or the view is empty).
/// Equal times are ordered by a hash of `serial` and rank: give each call another serial, the same on all ranks.
/// Precondition: `waits_for_all`, with at least one element.
/// Errors: `status::invalid_argument` if the sizes differ. Cost: O(n), no allocation.
/// Source: `spread`, t_r - min t and min t are TraceLens's "skew in start time", "wait time" and "comm latency";
/// DeepSpeed's straggler effect is the sum of t_r - min t over the calls (deepspeedai/DeepSpeed#3579).
call_lateness lateness(view<const double> times_in_call, view<const double> times_before = {},
    std::uint64_t serial = 0, const call_site& where = call_site::current());

/// A rank's lateness as evidence over a run takes it, with a margin of twice the floor: up to the floor it is none, so
/// that ranks which keep an order within the floor do not look as if they had a memory. Twice: then a rank that is late
/// by a constant of up to the floor is not at a side, whatever is added to it.
constexpr double lateness_beyond(double floor, double latest) noexcept
{
    return is_finite(latest) && latest < floor ? 0 : latest;
}

/// What a `lateness_watch` counts as a difference, and over how many steps.
struct lateness_options {
    int window = 128; ///< steps of the medians and shares, 32 to 4096
    /// Differences that do not count: the larger of `floor_ns` and `noise_multiple` times the noise of the arrivals.
    /// `floor_ns` should exceed the tick of the clock and the constant biases of a step, all calls together.
    double floor_ns = 10000;
    double noise_multiple = 1;
};

/// Measures who comes late, step by step: by how much, in which share of the steps, and at what cost.
///
/// A step is judged by each rank's sum of times over its calls. A constant bias of the *ends* of calls cancels if a
/// rank's work starts when its call ends; any other bias beyond the floor reads as lateness. A rank that delays the
/// transport after it has entered does not show: all wait alike. The watch names no rank as lastingly late: an
/// `exchangeability_watch` does, from each rank's `lateness_beyond`.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal answers on every rank.
/// Cost: 40 * window + 56 bytes a rank, allocated by the constructor; a call costs O(n), a step O(n + window).
class lateness_watch {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    explicit lateness_watch(int ranks, const lateness_options& options = {},
        const call_site& where = call_site::current());

    /// Adds a call of the current step, and returns what `lateness` says of it. Precondition: `waits_for_all`.
    /// Errors: `status::invalid_argument` if a view has not one entry per rank (`times_before` may be empty); then
    /// nothing changes.
    call_lateness add(view<const double> times_in_call, view<const double> times_before = {},
        const call_site& where = call_site::current());

    /// Judges the calls since the last step. Fewer than two present ranks, or no call, leave the window as it is.
    step_lateness end_step() noexcept;

    /// The rank over the window. O(window). Precondition: 0 <= rank < ranks.
    rank_lateness of(int rank) const noexcept;

    /// Forgets everything, as after a restart.
    void reset() noexcept { call_ = step_ = noise_step_ = 0, step_calls_ = 0; }

private:
    /// A rank in one step: sums over the calls; in the window `time` is its lateness, `before` less that of the others.
    struct sample {
        double time; // NaN by bits: absent
        double before;
        double gain;
        double gain_before;
        double is_last; // 1 or 0; in the window only
    };

    /// Of so many steps, those that the window holds.
    std::size_t held(std::uint64_t steps) const noexcept { return steps < window_ ? steps : window_; }
    sample* samples_of(std::size_t rank) noexcept { return samples_.data() + rank * window_; }
    /// Of the first n numbers of `work_`.
    detail::middle_values middle_of(std::size_t n) const noexcept { return detail::middle_of(view(work_.data(), n)); }
    double median_of(std::size_t n) const noexcept { return detail::median_of(middle_of(n), n); }
    /// Robust deviation of an arrival, from past steps; NaN by bits if there are too few.
    double noise() const noexcept;
    void remember_noise() noexcept;

    lateness_options options_;
    std::size_t window_;
    std::uint64_t call_ = 0;
    std::uint64_t step_ = 0; // steps judged
    std::uint64_t noise_step_ = 0; // those that tell of the noise
    int step_calls_ = 0;
    std::vector<sample> now_; // the step that is open, by rank
    std::vector<sample> samples_; // `window_` of each rank
    std::vector<double> previous_; // time in the calls of the step before, by rank
    std::vector<double> noise_of_ranks_; // by step
    std::vector<double> noise_of_changes_; // by step: since the step before
    mutable std::vector<double> work_; // numbers whose median is asked for
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/lateness.ipp>
#endif
