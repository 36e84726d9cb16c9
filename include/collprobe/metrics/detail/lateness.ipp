// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/metrics/lateness.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

constexpr bool is_duration(double time) noexcept { return is_finite(time) && time >= 0 && time < 0x1p53; }

/// Orders ranks of equal times: the lesser comes first. No two ranks have the same.
constexpr std::uint64_t tie_order(std::uint64_t serial, std::size_t rank) noexcept
{
    return mix64(mix64(serial + 0x9e3779b97f4a7c15u) + rank);
}

/// Whether rank a came later than rank b, by the times that they waited.
constexpr bool came_later(double time_a, std::size_t a, double time_b, std::size_t b, std::uint64_t serial) noexcept
{
    return time_a < time_b || (!(time_b < time_a) && tie_order(serial, a) < tie_order(serial, b));
}

/// The stakes of the bets, as shares of what a bet is worth.
inline constexpr double lateness_stakes[] = {0.0625, 0.25, 0.875};

} // namespace detail

COLLPROBE_COLD_INLINE call_lateness lateness(view<const double> times_in_call, view<const double> times_before,
    view<double> after_first, std::uint64_t serial, const call_site& where)
{
    const std::size_t ranks = times_in_call.size();
    if ((times_before.size() != 0 && times_before.size() != ranks)
        || (after_first.size() != 0 && after_first.size() != ranks)) {
        detail::refuse("lateness",
            std::to_string(ranks) + " times in the call, but " + std::to_string(times_before.size())
                + " before it and room for " + std::to_string(after_first.size()) + " results", where);
    }
    call_lateness result;
    double longest = 0;
    std::size_t last = 0;
    std::size_t next = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
        const double time = times_in_call[r];
        if (!detail::is_duration(time)) continue;
        if (result.present == 0 || detail::came_later(time, r, times_in_call[last], last, serial)) {
            next = last;
            last = r;
        } else if (result.present == 1 || detail::came_later(time, r, times_in_call[next], next, serial)) {
            next = r;
        }
        if (time > longest) longest = time;
        ++result.present;
    }
    for (std::size_t r = 0; r < after_first.size(); ++r) {
        const bool known = result.present >= 2 && detail::is_duration(times_in_call[r]);
        after_first[r] = known ? longest - times_in_call[r] : detail::not_a_number();
    }
    if (result.present < 2) return result;

    const double least = times_in_call[last];
    result.last = static_cast<int>(last);
    result.next = static_cast<int>(next);
    result.spread = longest - least;
    result.transport = least;
    result.gain = times_in_call[next] - least;
    result.waited = 0;
    for (std::size_t r = 0; r < ranks; ++r)
        if (detail::is_duration(times_in_call[r])) result.waited += times_in_call[r] - least;
    if (times_before.size() != 0 && detail::is_duration(times_before[last])
        && detail::is_duration(times_before[next])) {
        const double longer = times_before[last] - times_before[next];
        result.gain_before = longer < 0 ? 0 : longer > result.gain ? result.gain : longer;
    }
    return result;
}

COLLPROBE_COLD_INLINE lateness_watch::lateness_watch(
    int ranks, const lateness_options& options, const call_site& where)
    : ranks_(ranks), options_(options)
{
    const auto refuse = [&where](const std::string& what) { detail::refuse("lateness_watch", what, where); };
    if (ranks < 1) refuse("cannot watch " + std::to_string(ranks) + " ranks");
    if (!is_finite(options.false_alarms_per_step) || !(options.false_alarms_per_step > 0)
        || !(options.false_alarms_per_step < 1)) {
        refuse("false_alarms_per_step must lie between 0 and 1");
    }
    if (options.window < 32 || options.window > 4096) refuse("window must be 32 to 4096");
    if (!detail::is_duration(options.floor_ns)) refuse("floor_ns must be 0 to 2^53");
    if (!is_finite(options.noise_multiple) || options.noise_multiple < 0) refuse("noise_multiple must not be negative");

    const std::size_t n = static_cast<std::size_t>(ranks);
    const std::size_t window = static_cast<std::size_t>(options.window);
    in_calls_ = detail::fixed_array<double>(n);
    before_ = detail::fixed_array<double>(n);
    gain_ = detail::fixed_array<double>(n);
    gain_before_ = detail::fixed_array<double>(n);
    normal_ = detail::fixed_array<double>(n);
    wealth_ = detail::fixed_array<double>(n * bets);
    late_for_ = detail::fixed_array<int>(n);
    accused_ = detail::fixed_array<int>(n);
    window_ = detail::fixed_array<sample>(n * window);
    last_ = detail::fixed_array<int>(window);
    previous_ = detail::fixed_array<double>(n);
    noise_ = detail::fixed_array<double>(window);
    noise_of_changes_ = detail::fixed_array<double>(window);
    work_ = detail::fixed_array<double>(n > window ? n : window);
    clear_window();
}

COLLPROBE_COLD_INLINE call_lateness lateness_watch::add(
    view<const double> times_in_call, view<const double> times_before, const call_site& where)
{
    const std::size_t n = static_cast<std::size_t>(ranks_);
    if (times_in_call.size() != n || (times_before.size() != 0 && times_before.size() != n)) {
        detail::refuse("lateness_watch::add",
            std::to_string(times_in_call.size()) + " times in the call and " + std::to_string(times_before.size())
                + " before it for " + std::to_string(ranks_) + " ranks", where);
    }
    const call_lateness found = lateness(times_in_call, times_before, {}, call_++, where);
    ++step_calls_;
    for (std::size_t r = 0; r < n; ++r) {
        const bool known = is_finite(in_calls_[r]) && detail::is_duration(times_in_call[r]);
        in_calls_[r] = known ? in_calls_[r] + times_in_call[r] : detail::not_a_number();
        const bool known_before
            = times_before.size() != 0 && is_finite(before_[r]) && detail::is_duration(times_before[r]);
        before_[r] = known_before ? before_[r] + times_before[r] : detail::not_a_number();
    }
    if (found.last >= 0) {
        const std::size_t last = static_cast<std::size_t>(found.last);
        gain_[last] += found.gain;
        if (is_finite(found.gain_before)) gain_before_[last] += found.gain_before;
    }
    return found;
}

COLLPROBE_COLD_INLINE step_lateness lateness_watch::end_step() noexcept
{
    const std::size_t n = static_cast<std::size_t>(ranks_);
    step_lateness result;
    result.calls = step_calls_;
    std::size_t last = 0;
    if (step_calls_ > 0) {
        for (std::size_t r = 0; r < n; ++r) {
            if (!is_finite(in_calls_[r])) continue;
            in_calls_[r] += normal_[r];
            if (result.present == 0 || detail::came_later(in_calls_[r], r, in_calls_[last], last, step_)) last = r;
            ++result.present;
        }
    }
    accusations_ = 0;
    if (result.present < 2) {
        clear_step();
        return result;
    }
    ++step_;
    const double deviation = noise();

    std::size_t known_before = 0;
    for (std::size_t r = 0; r < n; ++r)
        if (is_finite(in_calls_[r]) && is_finite(before_[r])) work_[known_before++] = before_[r];
    detail::middle_values middle_before;
    if (known_before >= 2) middle_before = detail::middle_of(view<double>(work_.data(), known_before));

    const std::size_t present = static_cast<std::size_t>(result.present);
    std::size_t entries = 0;
    for (std::size_t r = 0; r < n; ++r)
        if (is_finite(in_calls_[r])) work_[entries++] = in_calls_[r];
    const view<double> sorted(work_.data(), present);
    const detail::middle_values middle = detail::middle_of(sorted);

    for (std::size_t r = 0; r < n; ++r) {
        sample& one = window_[r * static_cast<std::size_t>(options_.window) + static_cast<std::size_t>(next_)];
        const double unknown = detail::not_a_number();
        one = {unknown, unknown, unknown, gain_[r], gain_before_[r]};
        if (!is_finite(in_calls_[r])) continue;
        one.behind = detail::median_without(in_calls_[r], middle, present) - in_calls_[r];
        one.offset = detail::median_of(middle, present) - in_calls_[r];
        if (known_before >= 2 && is_finite(before_[r]))
            one.before = before_[r] - detail::median_without(before_[r], middle_before, known_before);
        if (r == last) {
            result.behind = one.behind;
            result.behind_before = one.before;
        }
    }
    result.last = last_[static_cast<std::size_t>(next_)] = static_cast<int>(last);
    next_ = next_ + 1 == options_.window ? 0 : next_ + 1;
    if (filled_ < options_.window) ++filled_;

    for (std::size_t r = 0; r < n; ++r)
        if (late_for_[r] > 0) --late_for_[r];
    if (is_finite(deviation)) {
        const double multiple = options_.noise_multiple * deviation;
        result.noise = deviation;
        result.floor = multiple > options_.floor_ns ? multiple : options_.floor_ns;
        result.stands_out = result.behind > result.floor && result.behind > 3 * deviation;
        const std::size_t quarter = present / 4 > 1 ? present / 4 : 1;
        detail::select(sorted, 1);
        const double second = sorted[1];
        detail::select(sorted, quarter);
        bet(second, sorted[quarter], result.present, result.floor);
    }
    remember_noise();
    clear_step();
    return result;
}

COLLPROBE_COLD_INLINE void lateness_watch::bet(
    double second, double quarter, int present, double margin) noexcept
{
    const int quarter_size = present / 4 > 1 ? present / 4 : 1;
    const double needed = ranks_ / options_.false_alarms_per_step;
    for (std::size_t r = 0; r < in_calls_.size(); ++r) {
        if (!is_finite(in_calls_[r])) continue;
        const double time = in_calls_[r] + margin;
        double* const wealth = wealth_.data() + r * bets;
        double sum = 0;
        for (int b = 0; b < bets; ++b) {
            const double stake = detail::lateness_stakes[b % 3];
            const bool yes = time < (b < 3 ? second : quarter);
            const double odds = static_cast<double>(present) / (b < 3 ? 1 : quarter_size);
            wealth[b] = (wealth[b] + 1) * (yes ? 1 + (odds - 1) * stake : 1 - stake);
            sum += wealth[b];
        }
        if (!(sum >= bets * needed)) continue;
        for (int b = 0; b < bets; ++b) wealth[b] = 0;
        if (late_for_[r] == 0) accused_[static_cast<std::size_t>(accusations_++)] = static_cast<int>(r);
        late_for_[r] = options_.window;
    }
}

COLLPROBE_COLD_INLINE double lateness_watch::noise() const noexcept
{
    if (noise_filled_ < history_needed) return detail::not_a_number();
    // One rank that is always late widens the first, one that is late at times the second, both hardly at once.
    const std::size_t count = static_cast<std::size_t>(noise_filled_);
    const view<double> work(work_.data(), count);
    const auto median = [&work, count](const detail::fixed_array<double>& of_steps) noexcept {
        for (std::size_t i = 0; i < count; ++i) work[i] = of_steps[i];
        return detail::median_of(detail::middle_of(work), count);
    };
    const double over_ranks = median(noise_);
    const double of_changes = median(noise_of_changes_);
    return over_ranks < of_changes ? over_ranks : of_changes;
}

COLLPROBE_COLD_INLINE void lateness_watch::remember_noise() noexcept
{
    // Of ranks that are present in this step and in the one before.
    std::size_t n = 0;
    const auto spread = [this, &n](double of_one) noexcept {
        const view<double> work(work_.data(), n);
        const double median = detail::median_of(detail::middle_of(work), n);
        for (double& x : work) x = detail::absolute(x - median);
        return of_one * detail::median_of(detail::middle_of(work), n);
    };
    for (std::size_t r = 0; r < in_calls_.size(); ++r)
        if (is_finite(in_calls_[r]) && is_finite(previous_[r])) work_[n++] = in_calls_[r] - previous_[r];
    if (n >= 2) {
        // The medians over steps are the deviation of Gaussian noise: to 9 % for 3 ranks, 3 % for more.
        const double count = static_cast<double>(n);
        const double of_one = n == 2 ? 1.4826 * 1.41421356237309504880 : 1.4826 * count / (count - 1.25);
        const std::size_t at = static_cast<std::size_t>(noise_next_);
        noise_of_changes_[at] = spread(of_one * 0.70710678118654752440);
        n = 0;
        for (std::size_t r = 0; r < in_calls_.size(); ++r)
            if (is_finite(in_calls_[r]) && is_finite(previous_[r])) work_[n++] = in_calls_[r];
        noise_[at] = n == 2 ? noise_of_changes_[at] : spread(of_one);
        noise_next_ = noise_next_ + 1 == options_.window ? 0 : noise_next_ + 1;
        if (noise_filled_ < options_.window) ++noise_filled_;
    }
    for (std::size_t r = 0; r < in_calls_.size(); ++r) previous_[r] = in_calls_[r];
}

COLLPROBE_COLD_INLINE rank_lateness lateness_watch::of(int rank) const noexcept
{
    const std::size_t r = static_cast<std::size_t>(rank);
    const sample* const samples = window_.data() + r * static_cast<std::size_t>(options_.window);
    rank_lateness result;
    result.late = late_for_[r] > 0;
    double wealth = 0;
    for (std::size_t b = 0; b < bets; ++b) wealth += wealth_[r * bets + b];
    result.evidence = wealth / bets * options_.false_alarms_per_step / ranks_;

    if (filled_ > 0) result.latest = samples[(next_ > 0 ? next_ : options_.window) - 1].behind;
    std::size_t steps = 0;
    int times_last = 0;
    double gain = 0;
    double gain_before = 0;
    for (int i = 0; i < filled_; ++i) {
        if (!is_finite(samples[i].behind)) continue;
        work_[steps++] = samples[i].behind;
        times_last += last_[static_cast<std::size_t>(i)] == rank ? 1 : 0;
        gain += samples[i].gain;
        gain_before += samples[i].gain_before;
    }
    if (steps == 0) return result;
    const double count = static_cast<double>(steps);
    result.steps = static_cast<int>(steps);
    result.behind = detail::median_of(detail::middle_of(view<double>(work_.data(), steps)), steps);
    result.share_last = times_last / count;
    result.gain = gain / count;
    steps = 0;
    for (int i = 0; i < filled_; ++i)
        if (is_finite(samples[i].before)) work_[steps++] = samples[i].before;
    if (steps == 0) return result;
    result.behind_before = detail::median_of(detail::middle_of(view<double>(work_.data(), steps)), steps);
    result.gain_before = gain_before / count;
    return result;
}

COLLPROBE_COLD_INLINE void lateness_watch::calibrate() noexcept
{
    const std::size_t window = static_cast<std::size_t>(options_.window);
    for (std::size_t r = 0; r < normal_.size(); ++r) {
        std::size_t steps = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(filled_); ++i)
            if (is_finite(window_[r * window + i].offset)) work_[steps++] = window_[r * window + i].offset;
        if (steps > 0) normal_[r] += detail::median_of(detail::middle_of(view<double>(work_.data(), steps)), steps);
    }
    clear_window();
}

COLLPROBE_COLD_INLINE void lateness_watch::reset() noexcept
{
    for (double& one : normal_) one = 0;
    call_ = step_ = 0;
    clear_step();
    clear_window();
}

COLLPROBE_COLD_INLINE void lateness_watch::clear_step() noexcept
{
    step_calls_ = 0;
    for (std::size_t r = 0; r < in_calls_.size(); ++r) in_calls_[r] = before_[r] = gain_[r] = gain_before_[r] = 0;
}

COLLPROBE_COLD_INLINE void lateness_watch::clear_window() noexcept
{
    filled_ = next_ = noise_filled_ = noise_next_ = accusations_ = 0;
    for (double& one : previous_) one = detail::not_a_number();
    for (double& one : wealth_) one = 0;
    for (int& one : late_for_) one = 0;
}

} // namespace collprobe::inline COLLPROBE_ABI
