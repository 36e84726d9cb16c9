// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/metrics/exchangeability.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// A bet on place k of n pays in proportion to k to the power of minus one of these.
inline constexpr double bet_exponents[] = {1.5, 0.75, 0.375, 0.1875};
inline constexpr double most_wealth = 0x1p800;
/// Steps over which the memory of ranks is averaged.
inline constexpr double memory_steps = 1024;
/// What bets on a named rank may be worth at most, by exponent. The flatter a bet, the longer it takes to lose.
inline constexpr double most_of_named[] = {0x1p40, 0x1p30, 0x1p20, 0x1p13};
/// A named rank is compared again when its bets are worth less than this, on the mean of the exponents.
inline constexpr double least_of_named = 16;
/// A finding without a rank is told again after so many steps at the earliest.
inline constexpr std::uint64_t steps_to_tell_again = 1000;
inline constexpr std::uint64_t evidence_state_format = 0x636f6c6c65760003; // "collev", 3

/// The weight of a bet that begins in step t = 1, 2, ...: together with 1/2 for the first one they add up to 1.
constexpr double weight_of_start(std::uint64_t t) noexcept
{
    int octave = 0;
    while (t >> (octave + 1) != 0) ++octave;
    return 0.5 * power_of_two(-octave) / ((octave + 1.0) * (octave + 2.0));
}

COLLPROBE_COLD_INLINE std::uint64_t checksum_of(view<const std::uint64_t> words) noexcept
{
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words) sum = mix64(sum + word);
    return sum;
}

} // namespace detail

COLLPROBE_COLD_INLINE exchangeability_watch::exchangeability_watch(
    int ranks, exchangeability_options options, const call_site& where)
    : ranks_(ranks), options_(std::move(options))
{
    const auto check = [&where](bool condition, const std::string& what) {
        if (!condition) detail::refuse("exchangeability_watch", what, where);
    };
    check(ranks >= 1, "cannot watch " + std::to_string(ranks) + " ranks");
    const double share = options_.false_alarms_per_run;
    check(is_finite(share) && share > 0 && share < 1, "false_alarms_per_run must lie between 0 and 1");
    const double steps = options_.steps_between_alarms;
    check(is_finite(steps) && steps >= 1, "steps_between_alarms must be at least 1");
    const std::size_t n = count();
    check(is_finite(options_.tolerance) && options_.tolerance >= 0, "tolerance must not be negative");
    check(options_.groups.empty() || options_.groups.size() == n,
        "groups has " + std::to_string(options_.groups.size()) + " entries for " + std::to_string(ranks) + " ranks");

    std::vector<int> names;
    for (std::size_t r = 0; r < n; ++r) {
        const int group = options_.groups.empty() ? 0 : options_.groups[r];
        const auto at = std::find(names.begin(), names.end(), group);
        group_of_.push_back(static_cast<std::size_t>(at - names.begin()));
        if (at == names.end()) names.push_back(group);
    }
    for (std::size_t g = 0; g < names.size(); ++g) {
        first_member_.push_back(members_.size());
        for (std::size_t r = 0; r < n; ++r)
            if (group_of_[r] == g) members_.push_back(r);
    }
    first_member_.push_back(n);
    sums_ = detail::fixed_array<double>(bets * (n + 1));
    for (std::size_t j = 0; j < bets; ++j) {
        double* const sums = sums_.data() + j * (n + 1);
        for (std::size_t k = 1; k <= n; ++k) {
            sums[k] = sums[k - 1]
                + detail::exponential(-detail::bet_exponents[j] * detail::natural_log(static_cast<double>(k)));
        }
    }
    best_.resize(n);
    best_strength_ = detail::fixed_array<double>(n);
    work_ = detail::fixed_array<double>(n);
    places_ = detail::fixed_array<double>(n);
    kept_ = detail::fixed_array<double>(n);
    order_.reserve(n);
}

COLLPROBE_COLD_INLINE exchangeability_watch::metric_state exchangeability_watch::new_metric(
    finding what, const side_shares& shares) const
{
    metric_state next;
    next.what = what;
    next.shares = shares;
    std::size_t watched = 0;
    for (int side = 0; side < sides; ++side) watched += share_of(shares, side) > 0 ? 1 : 0;
    next.processes.resize(watched * count());
    for (process& each : next.processes)
        for (double& wealth : each.wealth) wealth = 0.5;
    next.memory.resize(first_member_.size() - 1);
    next.place.assign(count(), detail::not_a_number());
    next.steadiness.resize(count());
    next.named_side.resize(count());
    next.told.resize(first_member_.size() - 1);
    return next;
}

COLLPROBE_COLD_INLINE std::size_t exchangeability_watch::add(finding metric, const side_shares& shares)
{
    metrics_.push_back(new_metric(metric, shares));
    return metrics_.size() - 1;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::replace(
    std::size_t metric, finding by, const side_shares& shares)
{
    metrics_[metric] = new_metric(by, shares);
}

COLLPROBE_COLD_INLINE void exchangeability_watch::begin_step(std::uint64_t step) noexcept
{
    step_ = step;
    silent_ = 0;
    named_.clear();
    for (rank_evidence& each : best_) each = {};
    for (double& each : best_strength_) each = -1;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::judge(
    std::size_t metric, view<const double> values, double margin, int call, const call_site& where)
{
    if (metric >= metrics_.size() || values.size() != count()) {
        detail::refuse("exchangeability_watch::judge",
            "number " + std::to_string(metric) + " of " + std::to_string(metrics_.size()) + ", with "
                + std::to_string(values.size()) + " values for " + std::to_string(ranks_) + " ranks", where);
    }
    metric_state& of = metrics_[metric];
    of.call = call;
    ++of.judged;
    start_ = detail::weight_of_start(of.judged);
    bool is_silent = false;
    for (std::size_t group = 0; group + 1 < first_member_.size(); ++group) {
        judge_group(of, values, group, margin);
        is_silent = is_silent || of.memory[group].is_silent != 0;
    }
    silent_ += is_silent ? 1 : 0;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::judge_group(
    metric_state& of, view<const double> values, std::size_t group, double margin)
{
    const std::size_t begin = first_member_[group];
    const std::size_t end = first_member_[group + 1];
    order_.clear();
    for (std::size_t i = begin; i < end; ++i) {
        const std::size_t r = members_[i];
        if (!is_finite(values[r]) || of.named_side[r] != 0) continue;
        places_[order_.size()] = values[r];
        order_.push_back(r);
    }
    const std::size_t active = order_.size();
    if (active < 3) return;
    // Halved, because the difference of two huge numbers must stay finite.
    const double median = 0.5 * detail::median_of(detail::middle_of(view<double>(places_.data(), active)), active);
    for (std::size_t i = begin; i < end; ++i) {
        const std::size_t r = members_[i];
        work_[r] = is_finite(values[r]) ? 0.5 * values[r] - median : detail::not_a_number();
    }
    persistence& memory = of.memory[group];
    double limit = tolerated(memory, active);
    if (0.5 * margin > limit) limit = 0.5 * margin;
    const bool is_silent = keep_places(memory, of, group, active);
    for (std::size_t i = begin; i < end; ++i) places_[members_[i]] = detail::not_a_number();
    sort_down();
    for (std::size_t first = 0; first < active;) {
        const std::size_t ties = ties_from(first);
        for (std::size_t i = first; i < first + ties; ++i)
            places_[order_[i]] = static_cast<double>(first) + 0.5 * static_cast<double>(ties - 1);
        first += ties;
    }
    remember_places(of, memory);
    for (std::size_t i = begin; i < end; ++i) of.place[members_[i]] = places_[members_[i]];
    if (is_silent) return;
    strongest_ = 0;
    bet_on_order(of, group, 0, 2, limit);
    if (of.shares.farthest > 0 || of.shares.nearest > 0) {
        for (std::size_t i = 0; i < active; ++i) places_[i] = work_[order_[i]];
        const detail::middle_values middle = detail::middle_of(view<double>(places_.data(), active));
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t r = members_[i];
            const double others = of.named_side[r] == 0 ? detail::median_without(work_[r], middle, active)
                                                        : detail::median_of(middle, active);
            if (is_finite(work_[r])) work_[r] = detail::absolute(0.5 * work_[r] - 0.5 * others);
        }
        sort_down();
        bet_on_order(of, group, 2, 4, 0.5 * limit);
    }
    if (strongest_ >= 1) name_ranks(of, group);
}

COLLPROBE_COLD_INLINE double exchangeability_watch::tolerated(persistence& memory, std::size_t active) noexcept
{
    if (!(options_.tolerance > 0)) return 0;
    for (std::size_t i = 0; i < active; ++i) places_[i] = detail::absolute(work_[order_[i]]);
    const double distance = detail::median_of(detail::middle_of(view<double>(places_.data(), active)), active);
    if (memory.widths < 64) ++memory.widths;
    // One wild step must not make the tolerance wide.
    const double most = memory.widths > 8 ? 4 * memory.width : distance;
    memory.width += ((distance < most ? distance : most) - memory.width) / memory.widths;
    return options_.tolerance * 1.4826 * memory.width;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::sort_down()
{
    std::sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
        return work_[b] < work_[a] || (work_[b] == work_[a] && a < b);
    });
}

COLLPROBE_COLD_INLINE std::size_t exchangeability_watch::ties_from(std::size_t first) const noexcept
{
    std::size_t next = first + 1;
    while (next < order_.size() && work_[order_[next]] == work_[order_[first]]) ++next;
    return next - first;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::bet_on_order(
    metric_state& of, std::size_t group, int first_side, int end_side, double margin)
{
    const std::size_t active = order_.size();
    // The compared ranks whose number is larger; with `or_equal` also those whose number is the same.
    const auto above = [this](double value, bool or_equal) {
        const auto at = std::lower_bound(order_.begin(), order_.end(), value, [&, this](std::size_t r, double limit) {
            return work_[r] > limit || (or_equal && work_[r] == limit);
        });
        return static_cast<std::size_t>(at - order_.begin());
    };
    for (int side = first_side; side < end_side; ++side) {
        if (share_of(of.shares, side) <= 0) continue;
        const bool from_below = side == 1 || side == 3;
        for (std::size_t first = 0; first < active;) {
            const std::size_t ties = ties_from(first);
            for (std::size_t i = first; i < first + ties; ++i) {
                const std::size_t r = order_[i];
                if (!(margin > 0)) bet(of, side, r, from_below ? active - first - ties : first, ties, active);
                else if (from_below) bet(of, side, r, active - above(work_[r] + margin, false) - 1, 1, active);
                else bet(of, side, r, above(work_[r] - margin, true) - 1, 1, active);
            }
            first += ties;
        }
        // A named rank, beside the others.
        for (std::size_t i = first_member_[group]; i < first_member_[group + 1]; ++i) {
            const std::size_t r = members_[i];
            if (of.named_side[r] == 0 || !is_finite(work_[r])) continue;
            if (from_below) {
                const std::size_t end = above(work_[r] + margin, false);
                const std::size_t ties = margin > 0 ? 1 : above(work_[r], true) - end + 1;
                bet(of, side, r, active + 1 - end - ties, ties, active + 1);
            } else {
                const std::size_t first = above(work_[r] - margin, margin > 0);
                bet(of, side, r, first, margin > 0 ? 1 : above(work_[r], true) - first + 1, active + 1);
            }
        }
    }
}

COLLPROBE_COLD_INLINE bool exchangeability_watch::keep_places(
    persistence& memory, metric_state& of, std::size_t group, std::size_t active) noexcept
{
    if (memory.steps < 2) return false;
    const double deviation = 1 / detail::square_root(memory.steps * static_cast<double>(active - 2));
    // Lasting differences as large as the tolerance make such a correlation.
    const double excess = memory.correlation - options_.tolerance * options_.tolerance;
    if (memory.is_silent == 0 && excess > 2 * deviation) {
        memory.is_silent = 1;
        // What bets have won so far, they may have won by memory.
        for (std::size_t i = first_member_[group]; i < first_member_[group + 1]; ++i) {
            if (of.named_side[members_[i]] != 0) continue;
            for (int side = 0; side < sides; ++side) {
                if (process* const at = process_of(of, side, members_[i])) at->forget_gains();
            }
        }
    } else if (memory.is_silent == 1 && excess < deviation) {
        memory.is_silent = 0;
    }
    return memory.is_silent != 0;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::remember_places(
    metric_state& of, persistence& memory) noexcept
{
    // Ranks that are unlike the others keep their places for that reason. So the steadiest quarter is left out.
    const std::size_t active = order_.size();
    std::size_t left_out = active < 8 ? 1 : active / 4;
    for (std::size_t i = 0; i < active; ++i) kept_[i] = of.steadiness[order_[i]];
    detail::select(view<double>(kept_.data(), active), active - left_out);
    const double limit = kept_[active - left_out];
    double n = 0;
    double sum_now = 0;
    double sum_before = 0;
    double product = 0;
    double square_now = 0;
    double square_before = 0;
    for (const std::size_t r : order_) {
        const bool is_steady = of.steadiness[r] >= limit && left_out > 0;
        left_out -= is_steady ? 1u : 0u;
        if (is_steady || !is_finite(of.place[r])) continue;
        const double now = places_[r];
        const double before = of.place[r];
        ++n;
        sum_now += now;
        sum_before += before;
        product += now * before;
        square_now += now * now;
        square_before += before * before;
    }
    if (n < 2) return;
    product -= sum_now * sum_before / n;
    square_now -= sum_now * sum_now / n;
    square_before -= sum_before * sum_before / n;
    if (!(square_now > 0) || !(square_before > 0)) return;
    if (memory.steps < detail::memory_steps) ++memory.steps;
    const double correlation = product / detail::square_root(square_now * square_before);
    memory.correlation += (correlation - memory.correlation) / memory.steps;
    const double middle = 0.5 * static_cast<double>(active - 1);
    for (const std::size_t r : order_) {
        if (!is_finite(of.place[r])) continue;
        const double kept = (places_[r] - middle) * (of.place[r] - middle);
        of.steadiness[r] += (kept - of.steadiness[r]) / memory.steps;
    }
}

COLLPROBE_COLD_INLINE void exchangeability_watch::bet(metric_state& of, int side, std::size_t rank,
    std::size_t first, std::size_t ties, std::size_t active) noexcept
{
    const bool is_named = of.named_side[rank] != 0;
    process& at = *process_of(of, side, rank);
    if (payouts_for_ != active) {
        payouts_for_ = active;
        for (std::size_t j = 0; j < bets; ++j)
            payouts_[j] = static_cast<double>(active) / sums_[j * (count() + 1) + active];
    }
    const double share = ties == 1 ? 1 : 1 / static_cast<double>(ties);
    const std::size_t eighth = eighth_of(rank);
    double all_wealth = 0;
    double all_recent = 0;
    for (std::size_t j = 0; j < bets; ++j) {
        const double* const sums = sums_.data() + j * (count() + 1);
        const double payout = share * payouts_[j] * (sums[first + ties] - sums[first]);
        const double wealth = (at.wealth[j] + start_) * payout;
        at.wealth[j] = wealth < detail::most_wealth ? wealth : detail::most_wealth;
        if (!(at.recent[j] > 1)) {
            at.recent[j] = 1;
            at.since[j] = step_;
            at.extreme[j] = 0;
        }
        const double recent = at.recent[j] * payout;
        at.recent[j] = recent < detail::most_wealth ? recent : detail::most_wealth;
        at.extreme[j] += first < eighth && ties <= 2 * eighth ? 1 : 0; // the two middle ranks are equally near
        all_wealth += at.wealth[j];
        all_recent += at.recent[j];
    }
    const double share_of_error = share_of(of.shares, side) / (bets * static_cast<double>(ranks_));
    const double of_run = all_wealth * options_.false_alarms_per_run;
    const double of_late = all_recent / options_.steps_between_alarms;
    const double found = share_of_error * (of_run > of_late ? of_run : of_late);
    if (!is_named) {
        if (found > strongest_) strongest_ = found;
        if (best_[rank].unlike || found <= best_strength_[rank]) return;
    }
    rank_evidence now = evidence_of(of, side, rank);
    if (is_named) {
        if (of.named_side[rank] != static_cast<std::uint64_t>(side) + 1) return;
        for (std::size_t j = 0; j < bets; ++j)
            if (at.recent[j] > detail::most_of_named[j]) at.recent[j] = detail::most_of_named[j];
        now.unlike = all_recent >= bets * detail::least_of_named;
        if (!now.unlike) {
            start_again(of, rank);
            of.named_side[rank] = 0;
            of.told[group_of_[rank]] = 0; // there may be a majority again
            return;
        }
    }
    rank_evidence& best = best_[rank];
    if (best.unlike && (!now.unlike || found <= best_strength_[rank])) return;
    best = now;
    best_strength_[rank] = found;
}

COLLPROBE_COLD_INLINE rank_evidence exchangeability_watch::evidence_of(
    metric_state& of, int side, std::size_t rank) const noexcept
{
    const process& at = *process_of(of, side, rank);
    double wealth = 0;
    double recent = 0;
    std::size_t strongest = 0;
    for (std::size_t j = 0; j < bets; ++j) {
        wealth += at.wealth[j];
        recent += at.recent[j];
        if (at.recent[j] > at.recent[strongest]) strongest = j;
    }
    const double share = share_of(of.shares, side) / (bets * static_cast<double>(ranks_));
    rank_evidence result;
    result.metric = of.what;
    result.call = of.call;
    result.side = static_cast<rank_side>(side);
    result.odds = wealth * share;
    result.recurrence = recent * share;
    result.since = at.since[strongest];
    result.extreme = static_cast<std::uint32_t>(at.extreme[strongest]);
    result.among = static_cast<std::uint32_t>(eighth_of(rank));
    return result;
}

COLLPROBE_COLD_INLINE double exchangeability_watch::strength(const rank_evidence& of) const noexcept
{
    const double of_run = of.odds * options_.false_alarms_per_run;
    const double of_late = of.recurrence / options_.steps_between_alarms;
    return of_run > of_late ? of_run : of_late;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::name_ranks(metric_state& of, std::size_t group)
{
    // The strongest evidence first: it may explain that of the others.
    for (;;) {
        double strongest = 0;
        std::size_t rank = 0;
        int at = 0;
        for (int side = 0; side < sides; ++side) {
            if (share_of(of.shares, side) <= 0) continue;
            for (const std::size_t r : order_) {
                if (of.named_side[r] != 0) continue;
                const double found = strength(evidence_of(of, side, r));
                if (found <= strongest) continue;
                strongest = found;
                rank = r;
                at = side;
            }
        }
        if (strongest < 1) return;
        name_one(of, at, group, rank);
    }
}

COLLPROBE_COLD_INLINE void exchangeability_watch::name_one(
    metric_state& of, int side, std::size_t group, std::size_t rank)
{
    const std::size_t begin = first_member_[group];
    const std::size_t end = first_member_[group + 1];
    std::size_t named = 1;
    for (std::size_t i = begin; i < end; ++i) named += of.named_side[members_[i]] != 0 ? 1 : 0;
    rank_evidence evidence = evidence_of(of, side, rank);
    if (2 * named >= end - begin) { // no majority is left that the rank could be unlike
        start_again(of, rank);
        std::uint64_t& told = of.told[group];
        if (told != 0 && of.judged - told < detail::steps_to_tell_again) return;
        told = of.judged;
        named_.push_back({-1, evidence});
        return;
    }
    evidence.unlike = true;
    of.named_side[rank] = static_cast<std::uint64_t>(side) + 1;
    best_[rank] = evidence;
    best_strength_[rank] = strength(evidence);
    named_.push_back({static_cast<int>(rank), evidence});
    // A rank that was the largest has made the others the smallest, and so on.
    for (std::size_t i = begin; i < end; ++i) {
        if (members_[i] == rank || of.named_side[members_[i]] != 0) continue;
        if (process* const at = process_of(of, side ^ 1, members_[i])) at->forget_gains();
    }
}

COLLPROBE_COLD_INLINE void exchangeability_watch::start_again(metric_state& of, std::size_t rank) noexcept
{
    for (int side = 0; side < sides; ++side) {
        if (process* const at = process_of(of, side, rank)) *at = {};
    }
}

template <class Visit>
void exchangeability_watch::visit(metric_state& of, const Visit& number)
{
    number(of.judged);
    for (persistence& each : of.memory) {
        number(each.correlation), number(each.steps), number(each.is_silent);
        number(each.width), number(each.widths);
    }
    for (double& each : of.place) number(each);
    for (double& each : of.steadiness) number(each);
    for (process& each : of.processes) {
        for (std::size_t j = 0; j < bets; ++j) {
            number(each.wealth[j]), number(each.recent[j]), number(each.since[j]), number(each.extreme[j]);
        }
    }
    for (std::uint64_t& each : of.named_side) number(each);
    for (std::uint64_t& each : of.told) number(each);
}

COLLPROBE_COLD_INLINE std::vector<std::uint64_t> exchangeability_watch::state() const
{
    std::vector<std::uint64_t> words{detail::evidence_state_format, count(), metrics_.size()};
    for (const std::size_t group : group_of_) words.push_back(group);
    for (const metric_state& each : metrics_) {
        words.push_back(static_cast<std::uint64_t>(each.what));
        for (const double share :
            {each.shares.largest, each.shares.smallest, each.shares.farthest, each.shares.nearest})
            words.push_back(to_bits(share));
        visit(const_cast<metric_state&>(each), [&words](const auto& number) {
            words.push_back(detail::bit_cast<std::uint64_t>(number));
        });
    }
    words.push_back(detail::checksum_of({words.data(), words.size()}));
    return words;
}

COLLPROBE_COLD_INLINE void exchangeability_watch::restore(view<const std::uint64_t> state, const call_site& where)
{
    const auto check = [&where](bool condition, const char* what) {
        if (!condition) detail::refuse("exchangeability_watch::restore", what, where);
    };
    const std::size_t n = count();
    check(state.size() > 3 + n && state[0] == detail::evidence_state_format, "the words are no such state");
    check(detail::checksum_of(state.part(0, state.size() - 1)) == state[state.size() - 1], "the state is damaged");
    check(state[1] == n, "the state is of another number of ranks");
    for (std::size_t r = 0; r < n; ++r) check(state[3 + r] == group_of_[r], "the state is of other groups");

    exchangeability_watch restored(ranks_, options_, where);
    std::size_t at = 3 + n;
    for (std::uint64_t m = 0; m < state[2]; ++m) {
        check(at + 5 <= state.size(), "the state has an end too early");
        restored.add(static_cast<finding>(state[at]),
            {detail::bit_cast<double>(state[at + 1]), detail::bit_cast<double>(state[at + 2]),
                detail::bit_cast<double>(state[at + 3]), detail::bit_cast<double>(state[at + 4])});
        at += 5;
        visit(restored.metrics_.back(), [&](auto& number) {
            check(at < state.size(), "the state has an end too early");
            number = detail::bit_cast<std::remove_reference_t<decltype(number)>>(state[at++]);
        });
    }
    check(at + 1 == state.size(), "the state is longer than its numbers");
    metrics_ = std::move(restored.metrics_);
    named_.clear();
}

} // namespace collprobe::inline COLLPROBE_ABI
