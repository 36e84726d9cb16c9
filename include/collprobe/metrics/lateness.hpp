// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>

/// Which rank came late to a collective, from the time that each rank spent in it. No clocks are compared.
///
/// A collective that waits for all ranks ends on all of them at nearly the same moment. So the rank that spent the
/// least time in it entered it last. metrics/README.md has the derivation, the resolution, and what can bias it.
/// All times are durations in nanoseconds. A time that is not finite, negative, or 2^53 (104 days) or more counts as
/// absent. The result for whole nanoseconds is exact.
namespace collprobe::inline COLLPROBE_ABI {

/// A rank's lateness as evidence over a run takes it, with a margin of twice the floor: up to the floor it is none, so
/// that ranks which keep an order within the floor do not look as if they had a memory. Twice: then a rank that is late
/// by a constant of up to the floor is not at a side, whatever is added to it.
constexpr double lateness_beyond(double floor, double latest) noexcept
{
    return is_finite(latest) && latest < floor ? 0 : latest;
}

/// Completes what is known of a step by what counts: differences above `floor_ns`, and above the noise.
constexpr void set_floor(step_lateness& of, double floor_ns) noexcept
{
    const bool is_known = is_finite(of.noise);
    of.floor = !is_known ? detail::not_a_number() : of.noise > floor_ns ? of.noise : floor_ns;
    of.stands_out = is_known && of.behind > of.floor && of.behind > 3 * of.noise;
}

namespace detail {

constexpr bool is_duration(double time) noexcept { return is_finite(time) && time >= 0 && time < 0x1p53; }

} // namespace detail

/// The arrivals at one call, from the time of each rank in it.
///
/// `times_in_call[r]` runs on rank r from its entry to the end of the call; `times_before[r]` from the end of its
/// previous probed call to that entry (or the view is empty).
/// Equal times are ordered by a hash of `serial` and rank: give each call another serial, the same on all ranks.
/// Precondition: `waits_for_all`, with at least one element.
/// Errors: `status::invalid_argument` if the sizes differ. Cost: O(n), no allocation.
/// Source: `spread` and min t are TraceLens's "skew in start time" and "comm latency";
/// DeepSpeed's straggler effect is the sum of t_r - min t over the calls (deepspeedai/DeepSpeed#3579).
inline call_lateness lateness(view<const double> times_in_call, view<const double> times_before = {},
    std::uint64_t serial = 0, const call_site& where = call_site::current())
{
    const std::size_t ranks = times_in_call.size();
    if (times_before.size() != 0 && times_before.size() != ranks) {
        detail::refuse("lateness", std::to_string(ranks) + " times in the call, but "
            + std::to_string(times_before.size()) + " before it", where);
    }
    const std::uint64_t seed = detail::mix64(serial + 0x9e3779b97f4a7c15u);
    const auto later = [&, t = times_in_call](std::size_t a, std::size_t b) noexcept { // no two hashes are the same
        return t[a] < t[b] || (!(t[b] < t[a]) && detail::mix64(seed + a) < detail::mix64(seed + b));
    };
    call_lateness result;
    double longest = 0;
    std::size_t last = 0, next = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
        if (!detail::is_duration(times_in_call[r])) continue;
        if (result.present == 0 || later(r, last)) next = std::exchange(last, r);
        else if (result.present == 1 || later(r, next)) next = r;
        if (times_in_call[r] > longest) longest = times_in_call[r];
        ++result.present;
    }
    if (result.present < 2) return result;

    const double least = times_in_call[last];
    result.last = static_cast<int>(last);
    result.next = static_cast<int>(next);
    result.spread = longest - least;
    result.transport = least;
    result.gain = times_in_call[next] - least;
    if (ranks != times_before.size()) return result;
    if (!detail::is_duration(times_before[last]) || !detail::is_duration(times_before[next])) return result;
    const double longer = times_before[last] - times_before[next];
    result.gain_before = longer < 0 ? 0 : longer > result.gain ? result.gain : longer;
    return result;
}

/// Measures who comes late, step by step: by how much, in which share of the steps, and at what cost.
///
/// A step is judged by each rank's sum of times over its calls: README.md says which biases cancel in it, and what does
/// not show. The watch names no rank as lastingly late: an `exchangeability_watch` does, from `lateness_beyond`.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal answers on every rank.
/// Cost: 4.1 KB a rank, allocated by the constructor; a call costs O(n), a step O(n + window).
class lateness_watch {
public:
    static constexpr std::size_t window = 128; ///< steps of the medians and shares

    /// Differences that do not count are up to `floor_ns`, or up to the noise of the arrivals if that is larger.
    /// `floor_ns` should exceed the tick of the clock and the constant biases of a step, all calls together.
    /// Errors: `status::invalid_argument` for fewer than 1 rank, or a floor that is no duration.
    explicit lateness_watch(
        int ranks, double floor_ns = 10000, const call_site& where = call_site::current())
        : floor_(floor_ns)
    {
        if (ranks < 1) detail::refuse("lateness_watch", "cannot watch less than 1 rank", where);
        if (!detail::is_duration(floor_ns)) detail::refuse("lateness_watch", "floor_ns must be 0 to 2^53", where);
        now_ = std::vector<sample>(static_cast<std::size_t>(ranks));
        samples_ = std::vector<sample>(now_.size() * window);
        previous_ = latest_ = std::vector<double>(now_.size());
        last_ = std::vector<int>(window);
        noise_of_ranks_ = noise_of_changes_ = std::vector<double>(window);
        work_ = std::vector<double>(now_.size() > window ? now_.size() : window);
    }

    /// Adds a call of the current step, and returns what `lateness` says of it. Precondition: `waits_for_all`.
    /// Errors: `status::invalid_argument` if a view has not one entry per rank (`times_before` may be empty); then
    /// nothing changes.
    call_lateness add(view<const double> times_in_call, view<const double> times_before = {},
        const call_site& where = call_site::current())
    {
        if (times_in_call.size() != now_.size()) {
            detail::refuse("lateness_watch::add", std::to_string(times_in_call.size()) + " times in the call for "
                + std::to_string(now_.size()) + " ranks", where);
        }
        const call_lateness found = lateness(times_in_call, times_before, call_, where);
        ++call_;
        if (step_calls_++ == 0)
            for (sample& each : now_) each = {};
        const auto add = [](double& sum, double time) noexcept {
            sum = is_finite(sum) && detail::is_duration(time) ? sum + time : detail::not_a_number();
        };
        for (std::size_t r = 0; r < now_.size(); ++r) {
            add(now_[r].time, times_in_call[r]);
            add(now_[r].before, times_before.size() != 0 ? times_before[r] : detail::not_a_number());
        }
        if (found.last < 0) return found;
        sample& last = now_[static_cast<std::size_t>(found.last)];
        last.gain += found.gain;
        if (is_finite(found.gain_before)) last.gain_before += found.gain_before;
        return found;
    }

    /// Judges the calls since the last step. Fewer than two present ranks, or no call, leave the window as it is.
    step_lateness end_step() noexcept
    {
        step_lateness result;
        result.calls = std::exchange(step_calls_, 0);
        if (result.calls == 0) return result;
        for (std::size_t r = 0; r < now_.size(); ++r) {
            if (!detail::is_duration(now_[r].time)) now_[r].time = detail::not_a_number();
            work_[r] = now_[r].time;
        }
        const call_lateness together = lateness(view<const double>(work_.data(), now_.size()), {}, step_);
        result.present = together.present;
        if (together.present < 2) return result;
        std::size_t present = 0;
        for (const sample& each : now_)
            if (is_finite(each.time)) work_[present++] = each.time;
        const detail::middle_values middle = middle_of(present);
        std::size_t known = 0;
        for (const sample& each : now_)
            if (is_finite(each.time) && is_finite(each.before)) work_[known++] = each.before;
        const detail::middle_values middle_before = known < 2 ? detail::middle_values{} : middle_of(known);

        for (std::size_t r = 0; r < now_.size(); ++r) {
            sample& kept = kept_of(r);
            kept = is_finite(now_[r].time) ? now_[r] : sample{detail::not_a_number(), detail::not_a_number()};
            if (is_finite(kept.time)) kept.time = detail::median_without(kept.time, middle, present) - kept.time;
            if (known < 2 || !is_finite(kept.before)) kept.before = detail::not_a_number();
            else kept.before -= detail::median_without(kept.before, middle_before, known);
            latest_[r] = kept.time;
        }
        result.last = together.last;
        last_[step_ % window] = together.last;
        const sample& last = kept_of(static_cast<std::size_t>(together.last));
        result.behind = last.time;
        result.behind_before = last.before;
        ++step_;

        result.noise = noise();
        set_floor(result, floor_);
        remember_noise();
        return result;
    }

    /// The rank over the window. O(window). Precondition: 0 <= rank < ranks.
    rank_lateness of(int rank) const noexcept
    {
        const view<const sample> samples(samples_.data() + static_cast<std::size_t>(rank) * window, held(step_));
        std::size_t known = 0;
        const auto median = [&, this](double sample::*of) noexcept {
            known = 0;
            for (const sample& each : samples)
                if (is_finite(each.*of)) work_[known++] = each.*of;
            return known == 0 ? detail::not_a_number() : median_of(known);
        };
        rank_lateness result;
        result.behind = median(&sample::time);
        if (known == 0) return result;
        result.steps = static_cast<int>(known);
        const auto mean = [&](double sample::*of) noexcept {
            double sum = 0;
            for (const sample& each : samples) sum += each.*of; // 0 of an absent rank
            return sum / result.steps;
        };
        result.latest = latest(rank);
        const auto steps_as_last = std::count(last_.data(), last_.data() + samples.size(), rank);
        result.share_last = static_cast<double>(steps_as_last) / result.steps;
        result.gain = mean(&sample::gain);
        result.behind_before = median(&sample::before);
        if (known > 0) result.gain_before = mean(&sample::gain_before);
        return result;
    }

    /// Of the rank in the last step: its lateness. Preconditions: as above, and there was a step.
    double latest(int rank) const noexcept { return latest_[static_cast<std::size_t>(rank)]; }

    /// Forgets everything, as after a restart.
    void reset() noexcept { call_ = step_ = noise_step_ = 0, step_calls_ = 0; }

private:
    /// A rank in one step: sums over the calls; in the window `time` is its lateness, `before` less that of the others.
    struct sample {
        double time = 0; // NaN by bits: absent
        double before = 0, gain = 0, gain_before = 0;
    };

    /// Of so many steps, those that the window holds.
    static std::size_t held(std::uint64_t steps) noexcept { return steps < window ? steps : window; }
    sample& kept_of(std::size_t rank) noexcept { return samples_[rank * window + step_ % window]; }
    /// Of the first n numbers of `work_`.
    detail::middle_values middle_of(std::size_t n) const noexcept { return detail::middle_of(view(work_.data(), n)); }
    double median_of(std::size_t n) const noexcept { return detail::median_of(middle_of(n), n); }

    /// Robust deviation of an arrival, from past steps; NaN by bits if there are too few.
    COLLPROBE_COLD_INLINE double noise() const noexcept
    {
        if (noise_step_ < 16) return detail::not_a_number();
        const std::size_t steps = held(noise_step_);
        const auto median = [this, steps](const std::vector<double>& of_steps) noexcept {
            for (std::size_t i = 0; i < steps; ++i) work_[i] = of_steps[i];
            return median_of(steps);
        };
        // One rank that is always late widens the first, one that is late at times the second, both hardly at once.
        const double of_ranks = median(noise_of_ranks_);
        const double of_changes = median(noise_of_changes_);
        return of_ranks < of_changes ? of_ranks : of_changes;
    }
    COLLPROBE_COLD_INLINE void remember_noise() noexcept
    {
        std::size_t n = 0; // ranks that are present in this step and in the one before
        const auto spread = [&, this](bool of_changes) noexcept {
            double median = 0;
            for (const bool of_distances : {false, true}) {
                n = 0;
                for (std::size_t r = 0; r < now_.size(); ++r) {
                    if (!is_finite(now_[r].time) || !is_finite(previous_[r])) continue;
                    const double number = now_[r].time - (of_changes ? previous_[r] : 0) - median;
                    work_[n++] = of_distances ? detail::absolute(number) : number;
                }
                if (n < 2) return detail::not_a_number();
                median = median_of(n);
            }
            // The medians over steps are the deviation of Gaussian noise: to 9 % for 3 ranks, 3 % for more.
            const double count = static_cast<double>(n);
            const double of_one = n == 2 ? 1.4826 * 1.41421356237309504880 : 1.4826 * count / (count - 1.25);
            return of_one * (of_changes ? 0.70710678118654752440 : 1) * median;
        };
        const double of_changes = spread(true);
        if (n >= 2 && step_ > 1) {
            const std::size_t slot = noise_step_++ % window;
            noise_of_changes_[slot] = of_changes;
            noise_of_ranks_[slot] = n == 2 ? of_changes : spread(false);
        }
        for (std::size_t r = 0; r < now_.size(); ++r) previous_[r] = now_[r].time;
    }

    double floor_;
    std::uint64_t call_ = 0;
    std::uint64_t step_ = 0; // steps judged
    std::uint64_t noise_step_ = 0; // those that tell of the noise
    int step_calls_ = 0;
    std::vector<sample> now_; // the step that is open, by rank
    std::vector<sample> samples_; // `window` of each rank
    std::vector<int> last_; // of each step of the window: the rank that was last
    std::vector<double> previous_; // time in the calls of the step before, by rank
    std::vector<double> latest_; // the last step's of the window, by rank
    std::vector<double> noise_of_ranks_; // by step
    std::vector<double> noise_of_changes_; // by step: since the step before
    mutable std::vector<double> work_; // numbers whose median is asked for
};

} // namespace collprobe
