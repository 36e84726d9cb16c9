// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/math.hpp>

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
/// previous probed call to that entry (or the view is empty). Sets `after_first[r]` to max t - t_r, the time from the
/// first arrival to that of rank r; NaN by bits for an absent rank (or the view is empty).
/// Equal times are ordered by a hash of `serial` and rank: give each call another serial, the same on all ranks.
/// Precondition: `waits_for_all`, with at least one element.
/// Errors: `status::invalid_argument` if the sizes differ. Cost: O(n), no allocation.
/// Source: `spread`, t_r - min t and min t are TraceLens's "skew in start time", "wait time" and "comm latency";
/// DeepSpeed's straggler effect is the sum of t_r - min t over the calls (deepspeedai/DeepSpeed#3579).
call_lateness lateness(view<const double> times_in_call, view<const double> times_before = {},
    view<double> after_first = {}, std::uint64_t serial = 0, const call_site& where = call_site::current());

/// The rules by which a `lateness_watch` decides.
struct lateness_options {
    /// Upper bound on the expected number of false accusations per step, over all ranks. In (0, 1).
    double false_alarms_per_step = 1e-4;
    /// Steps in the window of medians and shares, 32 to 4096. An accused rank counts as late for so many steps.
    int window = 128;
    /// Differences that do not count: the larger of `floor_ns` and `noise_multiple` times the noise of the arrivals.
    /// `floor_ns` should exceed the tick of the clock and the constant biases of a step, all calls together.
    double floor_ns = 10000;
    double noise_multiple = 1;
};

/// Watches who comes late, step by step, and accuses ranks that come late more often than chance has it.
///
/// In each step every rank r is asked: does it come after all other ranks by more than the floor? And is it, less the
/// floor, still among the last quarter? If the arrivals are exchangeable over ranks given the past, the answers are
/// yes with probability at most k / n (k = 1, n / 4), whatever their distribution. Bets against that at fair odds, one
/// begun in each step, accuse a rank once they are worth n / false_alarms_per_step. Then the expected number of false
/// accusations in any T steps is at most T * false_alarms_per_step, however often one looks: metrics/README.md has the
/// proof. It holds as well if the ranks have constant biases that differ by no more than the floor.
/// A larger bias of the *ends* of calls cancels if a rank's work starts when its call ends. Any other larger bias reads
/// as lateness: see `calibrate`. A rank that delays the transport after it has entered is not named: all wait alike.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal answers on every rank.
/// Cost: 40 * window + 120 bytes a rank, allocated by the constructor; a call costs O(n), a step O(n + window).
class lateness_watch {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or options out of range.
    explicit lateness_watch(int ranks, const lateness_options& options = {},
        const call_site& where = call_site::current());

    int ranks() const noexcept { return ranks_; }
    const lateness_options& options() const noexcept { return options_; }

    /// Adds a call of the current step, and returns what `lateness` says of it. Precondition: `waits_for_all`.
    ///
    /// Errors: `status::invalid_argument` if a view has not one entry per rank (`times_before` may be empty); then
    /// nothing changes.
    call_lateness add(view<const double> times_in_call, view<const double> times_before = {},
        const call_site& where = call_site::current());

    /// Judges the calls since the last step. Fewer than two present ranks, or no call, leave the window as it is.
    step_lateness end_step() noexcept;

    /// The ranks that are late from the last judged step on, ascending. Valid until the next `end_step`.
    view<const int> accused() const noexcept
    {
        return {accused_.data(), static_cast<std::uint64_t>(accusations_)};
    }

    /// The rank over the window. O(window). Precondition: 0 <= rank < ranks().
    rank_lateness of(int rank) const noexcept;

    /// Takes each rank's present median `behind` as its normal one from now on, and forgets window and evidence. For
    /// ranks that are known to be even (back-to-back calls without work between them, say): this is the only way to
    /// tell a constant bias beyond the floor from a rank that was always late. Leaves the numbers of calls uncorrected.
    void calibrate() noexcept;

    /// Forgets everything, as after a restart.
    void reset() noexcept;

private:
    static constexpr int history_needed = 16;
    static constexpr int bets = 6; // three stakes on each of two questions

    struct sample {
        double behind;
        double offset; // arrival after the median of all ranks, which is the same for each
        double before;
        double gain;
        double gain_before;
    };

    void clear_step() noexcept;
    void clear_window() noexcept;
    /// Robust deviation of an arrival, from past steps; NaN by bits if there are too few.
    double noise() const noexcept;
    void remember_noise() noexcept;
    /// Bets on the step's arrivals. A yes is a T_r that is less than `second`, or `quarter`, by more than `margin`.
    void bet(double second, double quarter, int present, double margin) noexcept;

    int ranks_;
    lateness_options options_;
    std::uint64_t call_ = 0;
    std::uint64_t step_ = 0;
    int step_calls_ = 0;
    int filled_ = 0; // steps in the window
    int next_ = 0;
    int noise_filled_ = 0; // steps in the noise
    int noise_next_ = 0;
    int accusations_ = 0; // of the last step
    detail::fixed_array<double> in_calls_; // of the current step, by rank
    detail::fixed_array<double> before_;
    detail::fixed_array<double> gain_;
    detail::fixed_array<double> gain_before_;
    detail::fixed_array<double> normal_; // lateness that calibrate() has found
    detail::fixed_array<double> wealth_; // `bets` of each rank
    detail::fixed_array<int> late_for_; // steps that the rank still counts as late
    detail::fixed_array<int> accused_;
    detail::fixed_array<sample> window_; // `window` of each rank
    detail::fixed_array<int> last_; // by step of the window
    detail::fixed_array<double> previous_; // T_r of the step before
    detail::fixed_array<double> noise_; // by step: over the ranks
    detail::fixed_array<double> noise_of_changes_; // by step: of the changes since the step before
    detail::fixed_array<double> work_;
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/lateness.ipp>
#endif
