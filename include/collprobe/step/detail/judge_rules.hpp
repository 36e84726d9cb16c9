// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/dispersion.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/step/detail/judge.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Half a unit of the last place, relative to the number, the smallest number and the largest one.
struct rounding_errors {
    double relative;
    double underflow;
    double largest;

    /// The factor by which so many roundings may make a sum larger: (1 + u)^k <= exp(k u) <= 1 / (1 - k u).
    double growth(double roundings) const noexcept
    {
        return roundings * relative < 0.5 ? 1 / (1 - roundings * relative) : exponential(roundings * relative);
    }
};

COLLPROBE_COLD_INLINE rounding_errors rounding_errors_of(element_type type) noexcept
{
    int digits = element_traits<double>::digits; // sums of integers are taken in double here
    int least = -1022;
    double largest = 0x1.fffffffffffffp1023;
    with_floating_type(type, [&]<class T>(T) {
        digits = element_traits<T>::digits;
        if (element_traits<T>::min_subnormal_exponent > least) least = element_traits<T>::min_subnormal_exponent;
        using bits = typename element_traits<T>::bits_type;
        largest = widen(bit_cast<T>(static_cast<bits>(element_traits<T>::smallest_nonfinite - 1)));
    });
    return {power_of_two(-digits), power_of_two(least), largest};
}

/// How far two sums of the same squares may be apart. In double the relative error is at most the longest chain of
/// additions, times 2^-53; elements of 8 and 16 bits are first added up in float, at most 32 in a row (scan/norm.hpp).
constexpr double squares_tolerance(element_type type) noexcept { return bytes_of(type) < 4 ? 0x1p-17 : 0x1p-32; }

COLLPROBE_COLD_INLINE void judge_lengths(
    const call_lengths& of, const probed_call& call, int call_index, step_record& out)
{
    if (call.has_codes || call.has_leaves || call.has_unknown_scale) return;
    // What was sent is finite, and what came is not.
    const bool is_damaged = call.is_move() && out.calls[static_cast<std::size_t>(call_index)].result_nonfinite != 0;
    if (!is_damaged && !is_finite(of.result)) return;
    // Squares near the end of a double's range have lost digits; 0 is 0.
    if (!is_damaged && of.result > 0 && of.result < 0x1p-900) return;
    suspect found{.call = call_index, .what = finding::shard_differs, .by_length = true};
    double& excess = out.calls[static_cast<std::size_t>(call_index)].excess;
    if (call.is_move()) {
        const double larger = is_damaged || of.squares > of.result ? of.squares : of.result;
        if (!is_damaged && (!is_finite(of.squares) || (of.squares > 0 && of.squares < 0x1p-900))) return;
        found.statistic = is_damaged ? 1 : larger > 0 ? absolute(of.result - of.squares) / larger : 0;
        found.threshold = squares_tolerance(call.type);
    } else {
        // Each of n - 1 additions, a factor before and one behind them rounds, or falls below the normal range.
        const double roundings = out.ranks + 1;
        const double factor = call.operation == reduction::average ? out.ranks : 1;
        const rounding_errors by = rounding_errors_of(call.type);
        found.what = finding::sum_differs;
        found.statistic = factor * square_root(of.result);
        found.threshold = (of.norms + of.norms_error) * by.growth(roundings) * (1 + squares_tolerance(call.type))
            + roundings * factor * by.underflow * square_root(static_cast<double>(call.count));
        if (!is_finite(found.threshold)) return;
    }
    excess = found.threshold > 0 ? found.statistic / found.threshold : found.statistic > 0 ? 0x1p1000 : 0;
    if (excess > 1 && !call.is_observed) out.suspects.push_back(found);
}

/// The largest number of the type in units of the largest magnitude that a sum or average can have.
COLLPROBE_COLD_INLINE double headroom_of(const probed_call& call, const std::vector<statistics>& inputs) noexcept
{
    constexpr double down = 0x1p-64; // doubles do not overflow
    double sum = 0;
    for (const statistics& each : inputs) sum += each.absolute_maximum * down;
    if (call.operation == reduction::average) sum /= static_cast<double>(inputs.size());
    return sum > 0 ? rounding_errors_of(call.type).largest * down / sum : not_a_number();
}

COLLPROBE_COLD_INLINE void judge_overflow(std::uint64_t elements, std::uint64_t first, int rank,
    const probed_call& call, int call_index, step_record& out)
{
    const double headroom = out.calls[static_cast<std::size_t>(call_index)].headroom;
    const double terms = call.operation == reduction::average ? out.ranks : 1; // the sum may come before the factor
    double room = is_finite(headroom) ? headroom / terms / rounding_errors_of(call.type).growth(out.ranks + 1) : 0;
    if (call.operation == reduction::min || call.operation == reduction::max) room = 0x1p1000;
    if (call.is_observed) room = 0; // the caller may have scaled the result
    out.suspects.push_back({.rank = rank,
        .call = call_index,
        .what = finding::overflow,
        .statistic = static_cast<double>(elements),
        .threshold = room > 1 ? room : 0,
        .index = first});
}

COLLPROBE_COLD_INLINE step_judge::step_judge(
    int ranks, double false_alarms_per_step, report_mode mode, bool times, double lateness_floor_ns,
    const std::optional<exchangeability_options>& evidence)
    : ranks_(ranks),
      table_ranks_(mode == report_mode::gather ? ranks : 1),
      detector_(table_ranks_, static_cast<int>(number_of_lateness) + (times ? 1 : 0), false_alarms_per_step),
      holders_(table_ranks_),
      values_(index(table_ranks_)),
      lengths_(index(table_ranks_)),
      weights_(index(table_ranks_)),
      norms_squared_(index(table_ranks_)),
      dots_(index(table_ranks_)),
      differs_(index(table_ranks_)),
      is_left_out_(index(table_ranks_)),
      is_left_out_of_call_(index(table_ranks_)),
      is_zero_(index(table_ranks_)),
      sends_(index(table_ranks_)),
      has_no_direction_(index(table_ranks_)),
      lateness_floor_(lateness_floor_ns),
      lateness_(times ? table_ranks_ : 1, lateness_floor_ns),
      left_(index(table_ranks_))
{
    detector_.resize(series_of_calls);
    if (!evidence || mode != report_mode::gather) return;
    evidence_.emplace(ranks, *evidence);
    watch_whole_steps();
}

COLLPROBE_COLD_INLINE std::vector<std::uint64_t> step_judge::evidence_state() const
{
    std::vector<std::uint64_t> words;
    if (!evidence_) return words;
    known_calls_.save(words, begun_before_);
    words.insert(words.begin(), words.size());
    const std::vector<std::uint64_t> watched = evidence_->state();
    words.push_back(watched.size());
    words.insert(words.end(), watched.begin(), watched.end());
    words.insert(words.end(), {losses_are_positive_ ? 1u : 0u, longest_zeros_[0], longest_zeros_[1]});
    detector_.save(words);
    words.push_back(checksum_of({words.data(), words.size()}));
    return words;
}

COLLPROBE_COLD_INLINE void step_judge::restore_evidence(view<const std::uint64_t> state, const call_site& where)
{
    const auto check = [&where](bool condition) {
        if (!condition) refuse("restore_evidence", "the state is not that of a probe, or it is damaged", where);
    };
    check(state.size() > 4 && state[0] < state.size() - 4);
    const std::size_t end = state.size() - 1;
    check(checksum_of(state.part(0, end)) == state[end]);
    const std::size_t first = 2 + static_cast<std::size_t>(state[0]);
    check(state[first - 1] < end - first && end - first - state[first - 1] >= 3);
    const std::size_t behind = first + static_cast<std::size_t>(state[first - 1]);
    exchangeability_watch watched(ranks_, evidence_->options(), where);
    watched.restore(state.part(first, behind - first), where);
    check(watched.metrics() >= of_first_call);
    for (std::size_t i = 0; i < of_first_call; ++i) {
        const evident_number expected = evident_at(i);
        check(watched.metric_of(i) == expected.what && watched.shares_of(i) == expected.shares);
    }
    call_series known;
    const view<const std::uint64_t> calls = state.part(1, first - 2);
    check(known.restore(calls) && known.slots() <= watched.metrics() - of_first_call);
    outlier_detector detector = detector_;
    check(detector.restore(state.part(behind + 3, end - behind - 3)));
    check(detector.series() == series_of_calls + 2 * (watched.metrics() - of_first_call));

    roster_.clear();
    known_calls_.restore(calls);
    begun_before_ = known_calls_.begun() - known.begun();
    *evidence_ = std::move(watched);
    number_ = known_calls_.numbers();
    number_.resize(evidence_->metrics() - of_first_call);
    previous_.assign(number_.size() * index(table_ranks_), {});
    zeros_.clear();
    zeros_under_way_ = 0;
    longest_zeros_[0] = state[behind + 1];
    longest_zeros_[1] = state[behind + 2];
    broken_values_.clear();
    nonfinite_has_spread_ = false;
    detector_ = std::move(detector);
    losses_are_positive_ = state[behind] != 0;
}

COLLPROBE_COLD_INLINE void step_judge::find_series(view<const probed_call> calls, bool has_places)
{
    series_ = known_calls_.find(calls, has_places);
    if (known_calls_.slots() > number_.size()) {
        number_.resize(known_calls_.slots());
        previous_.resize(number_.size() * index(ranks_));
    }
    zeros_.resize((1 + number_.size()) * index(ranks_));
    detector_.resize(series_of_calls + 2 * number_.size());
    if (evidence_) {
        while (evidence_->metrics() < of_first_call + number_.size()) evidence_->add(finding::gradient_norm, {});
    }
    for (const auto& [number, slot] : series_) {
        if (number_[slot] == number) continue;
        number_[slot] = number;
        for (int r = 0; r < ranks_; ++r) {
            previous_[slot * index(ranks_) + index(r)] = {};
            zeros_[(1 + slot) * index(ranks_) + index(r)] = {};
        }
        detector_.forget(series_of_calls + 2 * slot);
        detector_.forget(series_of_calls + 2 * slot + 1);
        if (!evidence_) continue;
        const evident_number own = evident_of_series(number - begun_before_);
        evidence_->replace(of_first_call + slot, own.what, own.shares);
    }
}

inline void step_judge::judge(
    const gathered_step& step, view<const probed_call> calls, view<const expected_value> expected,
    view<const double> gram, step_record& out)
{
    out.begin(step.header(0).step, ranks_, report_mode::gather, calls.size(), expected.size());
    out.forgot = forget_after_loss(step.last_lost());
    out.false_alarms_per_step = detector_.false_alarms_per_step();
    has_places_ = step.has_places();
    find_series(calls, has_places_);
    if (evidence_) evidence_->begin_step(out.step);
    detector_.begin_step(out.step);
    is_left_out_.assign(is_left_out_.size(), false);
    has_no_direction_.assign(has_no_direction_.size(), false);
    is_zero_.assign(is_zero_.size(), true);
    sends_.assign(sends_.size(), false);

    judge_losses(step, out);
    if (!has_places_) judge_places(step, calls, out);
    judge_values(step, expected, out);
    for (double& value : norms_squared_) value = 0;
    for (double& value : dots_) value = 0;
    differs_.assign(differs_.size(), false);
    double sum_norm_squared = 0;
    double result_squares = 0;
    bool all_have_dots = true;
    bool all_are_sums = true;
    bool all_agree = true;
    std::uint64_t elements = 0;
    bool has_gradients = false;
    bool has_zeros = false;
    for (std::size_t b = 0; b < calls.size(); ++b) {
        const bool promises_equal = calls[b].is_replicated() && calls[b].has_result;
        out.calls[b].results_agree = !promises_equal || all_have_same_result(step, b, calls[b]);
        const int holder = out.calls[b].results_agree ? first_with_result(step, b, calls[b])
                                                      : holder_of_result(step, b, calls[b]);
        describe_call(step, b, calls[b], holder, out.calls[b]);
        judge_call(step, b, calls[b], holder, out);
        judge_lengths_of(step, b, calls[b], holder, out);
        if (!calls[b].is_gradient()) continue;
        has_gradients = true;
        all_agree = all_agree && out.calls[b].results_agree;
        for (int r = 0; r < ranks_; ++r) {
            const call_entry& entry = step.entry(r, b);
            const bool zero = is_zero(entry.input);
            has_zeros = has_zeros || zero;
            if (entry.input.count != 0) {
                sends_[index(r)] = true;
                is_zero_[index(r)] = is_zero_[index(r)] && zero;
            }
            norms_squared_[index(r)] += entry.input.sum_of_squares;
            if (differs_from(holder, step, b, calls[b], r)) {
                differs_[index(r)] = true;
                continue;
            }
            dots_[index(r)] += entry.result.dot * sum_factor(calls[b]);
            // Decide from the messages, not from this rank's call: another rank may have called in place.
            all_have_dots = all_have_dots && calls[b].call == collective::all_reduce && calls[b].has_result
                && is_finite(entry.result.dot);
        }
        elements += calls[b].count;
        const double squares = squares_of_result(step, b, calls[b], holder);
        const double of_call = sum_factor(calls[b]) * sum_factor(calls[b]) * squares;
        result_squares += squares;
        all_are_sums = all_are_sums && !is_no_sum(step, b, calls[b], of_call);
        sum_norm_squared += of_call;
    }
    // The dot with a result that is not the sum says nothing about the rank's gradient.
    for (int r = 0; r < ranks_; ++r) {
        if (differs_[index(r)] || !all_are_sums) dots_[index(r)] = not_a_number();
    }
    if (has_zeros || (elements != 0 && zeros_under_way_ != 0)) judge_zeros(step, calls, out);
    for (int r = 0; r < ranks_; ++r)
        if (elements != 0 && !sends_[index(r)]) leave_out(r);
    measure_lateness(step, calls, out);
    if (has_gradients) {
        out.result_norm = square_root(result_squares);
        const std::size_t before = out.suspects.size();
        for (int r = 0; r < ranks_; ++r) judge_told_norm(step.header(r).gradient_norm, r, out);
        if (2 * (out.suspects.size() - before) > index(ranks_)) { // the trainer's doing, not a rank's
            out.suspects.resize(before + 1);
            out.suspects[before].rank = -1;
        }
        out.gradient_norms.resize(index(ranks_));
        for (int r = 0; r < ranks_; ++r) out.gradient_norms[index(r)] = square_root(norms_squared_[index(r)]);
        out.gradient_norm = dispersion(out.gradient_norms);
        const view<const double> dots = all_have_dots ? view<const double>(dots_) : view<const double>();
        align_from_sums(norms_squared_, dots, sum_norm_squared, out.cosine);
        align_over_steps(
            gram, total(norms_squared_), all_agree ? sum_norm_squared : not_a_number(), out.cosine);
    }
    judge_spread_of_nonfinite(out);
    judge_numbers(elements >= elements_for_direction, gram, out);
    judge_evidence(calls, out);
}

COLLPROBE_COLD_INLINE void step_judge::judge_evidence(view<const probed_call> calls, step_record& out)
{
    if (!evidence_) return;
    const auto judge = [&, this](evident metric, const std::vector<double>& numbers, const std::vector<bool>& is_out) {
        if (numbers.empty()) return;
        for (int r = 0; r < ranks_; ++r) values_[index(r)] = is_out[index(r)] ? not_a_number() : numbers[index(r)];
        evidence_->judge(metric, values_);
    };
    judge(of_loss, out.losses, is_left_out_);
    judge(of_norm, out.gradient_norms, is_left_out_);
    if (!out.gradient_norms.empty()) judge(of_cosine, out.cosine.leave_one_out, has_no_direction_);
    double elements = 0;
    for (int r = 0; r < ranks_; ++r) values_[index(r)] = 0;
    for (std::size_t b = 0; b < calls.size(); ++b) {
        if (!calls[b].has_input) continue;
        elements += static_cast<double>(calls[b].count);
        for (int r = 0; r < ranks_; ++r)
            values_[index(r)] += static_cast<double>(out.calls[b].inputs[index(r)].nonfinite());
    }
    if (elements > 0) evidence_->judge(of_nonfinite, values_);
    if (!out.lateness_by_rank.empty() && is_finite(out.lateness.floor)) {
        const double floor = out.lateness.floor;
        for (int r = 0; r < ranks_; ++r)
            values_[index(r)] = lateness_beyond(floor, out.lateness_by_rank[index(r)].latest);
        evidence_->judge(of_lateness, values_, 2 * floor);
    }
    out.silent_evidence = evidence_->silent();
    out.evidence_by_rank.resize(index(ranks_));
    for (int r = 0; r < ranks_; ++r) out.evidence_by_rank[index(r)] = evidence_->of(r);
    const double odds_needed = 1 / evidence_->options().false_alarms_per_run;
    const double steps_needed = evidence_->options().steps_between_alarms;
    for (const exchangeability_watch::named_rank& named : evidence_->named()) {
        const bool by_odds = named.evidence.odds >= odds_needed;
        out.suspects.push_back({.rank = named.rank,
            .call = named.evidence.call,
            .what = finding::unlike,
            .statistic = by_odds ? named.evidence.odds : named.evidence.recurrence,
            .threshold = by_odds ? odds_needed : steps_needed,
            .exact = false,
            .false_alarms_per_step = by_odds ? evidence_->options().false_alarms_per_run : 1 / steps_needed,
            .evidence = named.evidence});
    }
}

COLLPROBE_COLD_INLINE void step_judge::align_over_steps(
    view<const double> gram, double squares, double sum_norm_squared, direction& out)
{
    if (!gram.empty()) {
        align_from_gram(gram, ranks_, out);
        squares = 0;
        double products = 0;
        for (std::size_t i = 0; i < index(ranks_); ++i) {
            squares += gram[i * index(ranks_) + i];
            for (std::size_t j = i + 1; j < index(ranks_); ++j) products += gram[i * index(ranks_) + j];
        }
        sum_norm_squared = squares + 2 * products;
    }
    // In units of the step's own squares: a step with large gradients must not outweigh all others. A sum that is
    // longer than n terms can make it is none of them.
    if (is_finite(sum_norm_squared) && squares > 0 && sum_norm_squared <= ranks_ * squares * (1 + 0x1p-8))
        noise_.update(estimate_noise(ranks_, 1, sum_norm_squared / squares));
    out.predicted_cosine = noise_.predicted_cosine();
}

COLLPROBE_COLD_INLINE void step_judge::require_same_step(
    const gathered_step& step, function_ref<error_origin()> origin)
{
    holders_.clear();
    for (int r = 0; r < ranks_; ++r) holders_.add(step.header(r).step, r);
    if (holders_.distinct() == 1) return;
    const digest_index::group* const most = holders_.majority();
    std::string message = "the ranks report different steps:";
    std::vector<int> culprits;
    for (int r = 0; r < ranks_; ++r) {
        if (most != nullptr && step.header(r).step == most->digest) continue;
        culprits.push_back(r);
        message += " rank " + std::to_string(r) + " step " + std::to_string(step.header(r).step) + ",";
    }
    message += most != nullptr ? " unlike the others" : " with no majority";
    throw error(status::mismatch, message, origin(), std::move(culprits));
}

COLLPROBE_COLD_INLINE void step_judge::forget()
{
    begun_before_ = known_calls_.begun();
    // As new, so that it does not matter what a rank has seen before.
    known_calls_.reset();
    roster_.clear();
    series_ = {};
    number_.clear();
    previous_.clear();
    zeros_.clear();
    zeros_under_way_ = 0;
    longest_zeros_[0] = longest_zeros_[1] = 0;
    losses_are_positive_ = true;
    nonfinite_has_spread_ = false;
    broken_values_.clear();
    if (evidence_) {
        evidence_->reset();
        watch_whole_steps();
    }
    forget_end();
    detector_.reset();
    lateness_.reset();
    noise_ = smoothed_noise_scale();
}

COLLPROBE_COLD_INLINE void step_judge::judge_losses(const gathered_step& step, step_record& out)
{
    out.losses.resize(index(ranks_));
    bool has_data = false;
    for (int r = 0; r < ranks_; ++r) has_data = has_data || step.header(r).weight > 0;
    for (int r = 0; r < ranks_; ++r) {
        out.losses[index(r)] = step.header(r).loss;
        const double weight = step.header(r).weight;
        weights_[index(r)] = weight < 0 ? not_a_number() : weight; // as only the device knew it
        if (has_data && weight == 0) leave_out(r); // a rank without data is like no other
        if (step.header(r).loss_is_bad()) {
            leave_out(r);
            out.suspects.push_back({.rank = r, .what = finding::non_finite, .statistic = 1});
        }
    }
    out.loss = dispersion(out.losses);
    out.loss_weighted = dispersion(out.losses, weights_);
    take_extremes(out.loss, out.loss_weighted);
}

COLLPROBE_COLD_INLINE void step_judge::judge_places(
    const gathered_step& step, view<const probed_call> calls, step_record& out)
{
    places_.clear();
    for (std::size_t b = 0; b < calls.size(); ++b) {
        holders_.clear();
        for (int r = 0; r < ranks_; ++r) holders_.add(step.place(r, b), r);
        const digest_index::group* const most = holders_.majority();
        places_.push_back({most != nullptr ? most->digest : 0, b});
    }
    sorted_places_ = places_;
    std::sort(sorted_places_.begin(), sorted_places_.end());
    // Whether most ranks make, at another place in the step, the call that the rank makes here.
    const auto is_of_another_call = [&, this](int r, std::uint64_t own) {
        auto at = std::lower_bound(sorted_places_.begin(), sorted_places_.end(), std::pair{own, std::size_t{0}});
        while (at != sorted_places_.end() && at->first == own && step.place(r, at->second) == own) ++at;
        return at != sorted_places_.end() && at->first == own;
    };
    is_left_out_of_call_.assign(is_left_out_of_call_.size(), false); // each rank once
    for (std::size_t b = 0; b < calls.size(); ++b) {
        bool differ = false;
        for (int r = 1; r < ranks_; ++r) differ = differ || step.place(r, b) != step.place(0, b);
        if (!differ) continue;
        const std::uint64_t most = places_[b].first;
        const std::uint64_t expected = most != 0 ? most : step.place(0, b);
        for (int r = 0; r < ranks_; ++r) {
            const std::uint64_t own = step.place(r, b);
            if (own == expected || is_left_out_of_call_[index(r)]) continue;
            // Other names are other calls. At another line the same call may be made, unless it is another call's line.
            if (!(is_named(own) && is_named(expected)) && !is_of_another_call(r, own)) continue;
            is_left_out_of_call_[index(r)] = true;
            suspect found{.rank = most != 0 ? r : -1, .call = static_cast<int>(b), .what = finding::other_call};
            found.other = {calls[b].call, calls[b].type, calls[b].count};
            found.site = calls[b].site;
            found.site.name = ""; // it may be this rank that has another one
            for (const probed_call& each : calls) {
                if (each.place == own) found.other.site = each.site;
                if (each.place == expected) found.site = each.site;
            }
            out.suspects.push_back(found);
            if (most == 0) break;
        }
    }
    for (int r = 0; r < ranks_; ++r)
        if (is_left_out_of_call_[index(r)]) leave_out(r);
}

COLLPROBE_COLD_INLINE void step_judge::judge_values(
    const gathered_step& step, view<const expected_value> expected, step_record& out)
{
    for (std::size_t v = 0; v < expected.size(); ++v) {
        expectation_record& of = out.expectations[v];
        of.site = expected[v].site;
        of.what = expected[v].what;
        of.groups.resize(index(ranks_));
        of.values.resize(index(ranks_));
        holders_.clear();
        bool same_names = true;
        std::uint64_t digests = 0;
        double samples = 0;
        for (int r = 0; r < ranks_; ++r) {
            const told_value& told = step.values(r)[v];
            holders_.add(told.digest, r);
            of.values[index(r)] = told.value;
            digests += told.digest;
            samples += told.value;
            same_names = same_names && told.place == step.values(0)[v].place;
        }
        for (int r = 0; r < ranks_; ++r) of.groups[index(r)] = holders_.find(step.values(r)[v].digest).first_rank;
        const int distinct = holders_.distinct();
        const sample_set& whole = expected[v].whole;
        const auto expected_samples = static_cast<double>(whole.count);
        switch (of.what) {
        case expectation::equal: of.holds = distinct == 1; break;
        case expectation::distinct: of.holds = distinct == ranks_; break;
        case expectation::partition:
            of.holds = digests == whole.digest && absolute(samples - expected_samples) < 0.5;
            break;
        }
        of.holds = of.holds && same_names;
        remember_since(v, [&step](std::size_t u) { return step.values(0)[u].place; }, out.step, of);
        if (!same_names) {
            suspect found{.what = finding::other_call, .site = of.site};
            for (const expected_value& each : expected)
                if (each.place() == step.values(0)[v].place) found.site = each.site;
            out.suspects.push_back(found);
            continue;
        }
        if (of.holds) continue;
        const bool is_equal = of.what == expectation::equal;
        const digest_index::group* const most = is_equal ? holders_.majority() : nullptr;
        suspect found{.what = is_equal ? finding::value_differs : finding::value_repeats, .site = of.site};
        found.number = {.value = samples, .expected = expected_samples, .since = of.since};
        found.statistic = distinct;
        if (of.what == expectation::partition || (is_equal && most == nullptr)) {
            out.suspects.push_back(found);
            continue;
        }
        for (int r = 0; r < ranks_; ++r) {
            const digest_index::group& own = holders_.find(step.values(r)[v].digest);
            if (is_equal ? &own == most : own.ranks == 1) continue;
            found.rank = r;
            found.other_rank = is_equal ? most->first_rank : own.other_than(r);
            found.number.value = of.values[index(r)];
            found.number.expected = of.values[index(found.other_rank)];
            out.suspects.push_back(found);
        }
    }
}

COLLPROBE_COLD_INLINE void step_judge::remember_since(
    std::size_t value, function_ref<std::uint64_t(std::size_t)> place, std::uint64_t step, expectation_record& of)
{
    const std::uint64_t own = place(value);
    bool is_known = !of.holds;
    for (const broken_value& each : broken_values_) is_known = is_known || each.place == own;
    if (!is_known) return;
    std::size_t order = 0; // of the values with this name, as in a loop over all weights
    for (std::size_t v = 0; v < value; ++v) order += place(v) == own ? 1 : 0;
    auto known = broken_values_.begin();
    while (known != broken_values_.end() && (known->place != own || known->order != order)) ++known;
    if (of.holds) {
        if (known != broken_values_.end()) broken_values_.erase(known);
        return;
    }
    constexpr std::size_t most = 1024;
    if (known == broken_values_.end()) {
        if (broken_values_.size() == most) broken_values_.clear();
        broken_values_.push_back({own, order, step});
        of.since = step;
        return;
    }
    of.since = known->since;
}

inline void step_judge::measure_lateness(
    const gathered_step& step, view<const probed_call> calls, step_record& out)
{
    if (!step.layout().times) return;
    const view<double> in_call = values_;
    const view<double> before = weights_;
    bool is_first = true; // the calls of a step may overlap, as in a group; steps do not
    for (std::size_t b = 0; b < calls.size(); ++b) {
        if (!calls[b].has_result || out.calls[b].is_on_some_ranks()) continue; // ranks without it wait for nobody
        for (int r = 0; r < ranks_; ++r) {
            const call_times& noted = step.times(r, b);
            clock_stamp& end = left_[index(r)];
            before[index(r)] = has_left_ ? nanoseconds_between(end, noted.entered) : not_a_number();
            in_call[index(r)] = nanoseconds_between(noted.entered, noted.left);
            if (!is_first && before[index(r)] < 0) { // no moment counts twice
                before[index(r)] = 0;
                in_call[index(r)] = nanoseconds_between(end, noted.left);
                if (in_call[index(r)] < 0) in_call[index(r)] = 0;
            }
            if (is_first || in_call[index(r)] > 0) end = noted.left;
        }
        has_left_ = true;
        is_first = false;
        if (tells_lateness(calls[b])) out.calls[b].lateness = lateness_.add(in_call, before);
    }
    out.lateness = lateness_.end_step();
    if (out.lateness.present < 2) return;
    out.lateness_by_rank.resize(index(ranks_));
    for (int r = 0; r < ranks_; ++r) out.lateness_by_rank[index(r)] = lateness_.of(r);
}

inline void step_judge::describe_call(
    const gathered_step& step, std::size_t b, const probed_call& call, int holder, call_record& described)
{
    described.call = call.call;
    described.type = call.type;
    described.count = call.count;
    described.result_count = call.result_count;
    described.site = call.site;
    described.is_observed = call.is_observed;
    describe_result(step, b, call, holder, described);
    if (!call.has_input) return;
    described.inputs.reserve(index(ranks_));
    for (int r = 0; r < ranks_; ++r) {
        const statistics& input = step.entry(r, b).input;
        described.inputs.push_back(input);
        described.nonfinite += input.nonfinite();
        const bool has_none = has_no_input(call, input);
        described.without_input += has_none ? 1 : 0;
        lengths_[index(r)] = has_none ? not_a_number() : input.l2();
    }
    described.gradient_norm = dispersion(lengths_);
    if (call.is_gradient() && !call.has_codes && described.nonfinite == 0)
        described.headroom = headroom_of(call, described.inputs);
    if (call.is_gradient() && call.has_result) {
        for (int r = 0; r < ranks_; ++r) {
            const statistics& input = described.inputs[index(r)];
            values_[index(r)] = input.sum_of_squares;
        }
        align_from_sums(values_, {}, sum_norm_squared_of(step, b, call, holder), scratch_);
        described.pooled_cosine = scratch_.pooled;
    }
}

inline void step_judge::describe_result(
    const gathered_step& step, std::size_t b, const probed_call& call, int holder, call_record& described) const
{
    described.has_result_digest = call.has_result && holder >= 0;
    for (int r = 0; call.is_observed && call.has_result && r < ranks_; ++r)
        described.without_result += has_no_result(call, step.entry(r, b).result) ? 1 : 0;
    if (step.layout().times && call.has_result) {
        described.intervals.reserve(index(ranks_));
        for (int r = 0; r < ranks_; ++r)
            described.intervals.push_back({step.times(r, b).entered, step.times(r, b).left});
    }
    if (!described.has_result_digest) return;
    described.result_norm = square_root(squares_of_result(step, b, call, holder));
    for (int r = 0; r < ranks_; ++r) {
        if (!call.is_replicated() || r == holder) described.result_nonfinite += step.entry(r, b).result.nonfinite;
    }
    if (call.is_replicated()) {
        described.result_digest = step.entry(holder, b).result.digest;
        return;
    }
    for (int r = 0; r < ranks_; ++r) {
        described.result_digest = mix64(described.result_digest + 0x9e3779b97f4a7c15u) ^ step.entry(r, b).result.digest;
    }
    described.result_digest = mix64(described.result_digest);
}

inline void step_judge::judge_call(
    const gathered_step& step, std::size_t b, const probed_call& call, int holder, step_record& out)
{
    const int call_index = static_cast<int>(b);
    for (int r = 0; r < ranks_; ++r) {
        const statistics& input = step.entry(r, b).input;
        is_left_out_of_call_[index(r)] = has_no_input(call, input);
        if (input.nonfinite() == 0) continue;
        leave_out(r);
        is_left_out_of_call_[index(r)] = true;
        out.suspects.push_back({.rank = r,
            .call = call_index,
            .what = finding::non_finite,
            .statistic = static_cast<double>(input.nonfinite()),
            .index = input.first_nonfinite});
    }
    const bool overflows = out.calls[b].result_nonfinite != 0 && out.calls[b].nonfinite == 0;
    for (int r = 0; overflows && call.has_input && !call.is_move() && r < ranks_; ++r) {
        const result_record& result = step.entry(r, b).result;
        if (result.nonfinite == 0 || (call.is_replicated() && r != holder)) continue;
        judge_overflow(
            result.nonfinite, result.first_nonfinite, call.is_replicated() ? -1 : r, call, call_index, out);
    }
    if (call.is_gradient()) judge_copies(step, b, out);
    if (call.is_gradient() || (call.call == collective::all_gather && call.has_input)) judge_repeats(step, b, out);
    if (!out.calls[b].results_agree) judge_replicas(step, b, call, out);
    if (!call.is_gradient()) return; // shards and parameters may differ between ranks
    const std::size_t slot = series_[b].slot;
    const auto take = [&, this](const auto& number_of) {
        for (int r = 0; r < ranks_; ++r) {
            // Zeros are no evidence of anything else: `judge_zeros` tells of them.
            const bool is_left_out = is_left_out_of_call_[index(r)] || is_zero(step.entry(r, b).input);
            values_[index(r)] = is_left_out ? not_a_number() : logarithm_of(number_of(r));
        }
    };
    take([&, this](int r) { return lengths_[index(r)]; });
    if (evidence_) evidence_->judge(of_first_call + slot, values_, 0, call_index);
    detector_.add(number_of_call_norm, series_of_calls + 2 * slot, values_, call_index);
    take([&](int r) { return step.entry(r, b).input.absolute_maximum; });
    detector_.add(number_of_call_magnitude, series_of_calls + 2 * slot + 1, values_, call_index);
}

COLLPROBE_COLD_INLINE void step_judge::judge_spread_of_nonfinite(step_record& out)
{
    is_left_out_of_call_.assign(is_left_out_of_call_.size(), false);
    for (const suspect& found : out.suspects)
        if (found.what == finding::non_finite) is_left_out_of_call_[index(found.rank)] = true;
    int having = 0;
    for (const bool has : is_left_out_of_call_) having += has ? 1 : 0;
    const bool had_spread = std::exchange(nonfinite_has_spread_, 2 * having > ranks_);
    if (!nonfinite_has_spread_) return;
    if (!had_spread) {
        nonfinite_since_ = out.step;
        return;
    }
    std::erase_if(out.suspects, [](const suspect& found) { return found.what == finding::non_finite; });
    out.suspects.insert(out.suspects.begin(), {.what = finding::non_finite,
        .statistic = static_cast<double>(having),
        .number = {.is_new_level = true, .since = nonfinite_since_}});
}

COLLPROBE_COLD_INLINE void step_judge::judge_numbers(bool has_directions, view<const double> gram, step_record& out)
{
    const auto judge = [&, this](judged_number number, finding what) {
        for (int r = 0; r < ranks_; ++r)
            if (is_left_out_[index(r)] && number != number_of_lateness) values_[index(r)] = not_a_number();
        detector_.add(number, number == number_of_lateness ? series_of_lateness : number, values_);
        name_outliers(number, what, out);
    };
    if (losses_are_positive_) {
        for (const double loss : out.losses)
            if (is_finite(loss) && loss < 0) losses_are_positive_ = false;
        if (!losses_are_positive_) detector_.forget(number_of_loss);
    }
    for (int r = 0; r < ranks_; ++r) {
        const double loss = out.losses[index(r)];
        values_[index(r)] = losses_are_positive_ ? logarithm_of(loss) : loss;
    }
    judge(number_of_loss, finding::loss);
    const std::size_t before = out.suspects.size();
    if (!out.gradient_norms.empty()) {
        for (int r = 0; r < ranks_; ++r) values_[index(r)] = logarithm_of(out.gradient_norms[index(r)]);
        judge(number_of_norm, finding::gradient_norm);
    }
    name_outliers(number_of_call_norm, finding::gradient_norm, out);
    const bool norms_are_suspect = out.suspects.size() > before;
    name_outliers(number_of_call_magnitude, finding::largest_magnitude, out);
    if (has_directions && take_cosines(gram, norms_are_suspect, out)) judge(number_of_cosine, finding::cosine);
    if (!out.lateness_by_rank.empty()) {
        for (int r = 0; r < ranks_; ++r) values_[index(r)] = lateness_scale(out.lateness_by_rank[index(r)].latest);
        judge(number_of_lateness, finding::late);
    }
}

COLLPROBE_COLD_INLINE void step_judge::name_outliers(judged_number number, finding what, step_record& out)
{
    for (const outlier& found : detector_.judge(number)) {
        const double expected = unscaled_number(number, found.expected);
        const double value = unscaled_number(number, found.expected + found.distance);
        const double usual = found.expected + (found.distance < 0 ? -found.seen : found.seen);
        // Nobody waits for less; and of a rank that is early, or is not known, nothing is told.
        if (what == finding::late && (found.rank < 0 || value - expected < lateness_floor_)) continue;
        out.suspects.push_back({.rank = found.rank,
            .call = found.call,
            .what = what,
            .statistic = absolute(found.distance),
            .threshold = found.limit,
            .exact = false,
            .false_alarms_per_step = found.false_alarms_per_step,
            .number = {value, expected, absolute(unscaled_number(number, usual) - expected), found.steps,
                found.is_new_level, found.since}});
    }
}

inline void step_judge::judge_copies(const gathered_step& step, std::size_t b, step_record& out)
{
    const int call_index = static_cast<int>(b);
    holders_.clear();
    int telling = 0;
    for (int r = 0; r < ranks_; ++r) {
        const statistics& input = step.entry(r, b).input;
        if (!tells(input)) continue;
        holders_.add(input.digest, r);
        ++telling;
    }
    if (holders_.distinct() == telling) return;
    for (int r = 0; r < ranks_; ++r) {
        const statistics& input = step.entry(r, b).input;
        if (tells(input)) judge_copy(input.digest, r, call_index, out);
    }
}

inline void step_judge::judge_repeats(
    const gathered_step& step, std::size_t b, step_record& out)
{
    const std::size_t before = out.suspects.size();
    for (int r = 0; r < ranks_; ++r) {
        if (!is_stale(step.entry(r, b).input, r, series_[b].slot)) continue;
        out.suspects.push_back(
            {.rank = r, .call = static_cast<int>(b), .what = finding::stale, .statistic = 1});
    }
    const std::size_t repeating = out.suspects.size() - before;
    out.calls[b].repeating_ranks = static_cast<int>(repeating);
    // What most ranks repeat is the program's doing: a frozen layer, or a benchmark with the same data in each step.
    if (2 * repeating > index(ranks_)) out.suspects.resize(before);
}

COLLPROBE_COLD_INLINE void step_judge::judge_zeros(
    const gathered_step& step, view<const probed_call> calls, step_record& out)
{
    int having = 0;
    int sending = 0;
    for (int r = 0; r < ranks_; ++r) {
        is_zero_[index(r)] = is_zero_[index(r)] && sends_[index(r)];
        having += is_zero_[index(r)] ? 1 : 0;
        sending += sends_[index(r)] ? 1 : 0;
    }
    const auto follow = [&, this](int r, std::size_t first, bool is_zero, bool is_excused, bool are_most, int call) {
        zero_run& run = zeros_[first + index(r)];
        zeros_under_way_ -= run.is_under_way ? 1 : 0;
        const bool is_due = run.follow(out.step, is_zero, is_excused, longest_zeros_[call < 0 ? 0 : 1]);
        zeros_under_way_ += run.is_under_way ? 1 : 0;
        // What most ranks do is the program's doing.
        if (!is_due || are_most) return;
        run.is_told = true;
        out.suspects.push_back({.rank = r,
            .call = call,
            .what = finding::zeros,
            .statistic = static_cast<double>(run.steps),
            .threshold = zero_run::least_told,
            .number = {.steps = run.steps, .since = run.since}});
    };
    if (having == sending) return; // as in a step without a backward pass
    for (int r = 0; r < ranks_; ++r) {
        const bool has_no_weight = step.header(r).weight == 0;
        follow(r, 0, is_zero_[index(r)], has_no_weight, 2 * having > sending, -1);
        if (!is_zero_[index(r)]) continue;
        leave_out(r);
        out.zero_ranks.push_back({r, has_no_weight, zeros_[index(r)].since});
    }
    for (std::size_t b = 0; b < calls.size(); ++b) {
        if (!calls[b].is_gradient() || calls[b].count == 0) continue;
        int zeros = 0;
        const int senders = ranks_ - out.calls[b].without_input;
        for (int r = 0; r < ranks_; ++r) zeros += is_zero(step.entry(r, b).input) ? 1 : 0;
        if (zeros == senders) continue; // a frozen layer
        for (int r = 0; r < ranks_; ++r) {
            if (is_zero_[index(r)]) continue; // said of the whole gradient
            follow(r, (1 + series_[b].slot) * index(ranks_), is_zero(step.entry(r, b).input),
                step.header(r).weight == 0, 2 * zeros > senders, static_cast<int>(b));
        }
    }
}

COLLPROBE_COLD_INLINE void step_judge::judge_copy(
    std::uint64_t digest, int rank, int call_index, step_record& out)
{
    const int other = holders_.find(digest).other_than(rank);
    if (other < 0) return;
    has_no_direction_[index(rank)] = true;
    if (other < rank) {
        leave_out(rank);
        is_left_out_of_call_[index(rank)] = true;
    }
    out.suspects.push_back(
        {.rank = rank, .other_rank = other, .call = call_index, .what = finding::duplicate, .statistic = 1});
}

COLLPROBE_COLD_INLINE void step_judge::judge_replicas(
    const gathered_step& step, std::size_t b, const probed_call& call, step_record& out)
{
    const digest_index::group* const most = result_of_most(step, b, call);
    const int call_index = static_cast<int>(b);
    if (most == nullptr) {
        out.suspects.push_back({.call = call_index,
            .what = finding::result_differs,
            .statistic = static_cast<double>(holders_.distinct())});
        return;
    }
    for (int r = 0; r < ranks_; ++r) {
        const result_record& result = step.entry(r, b).result;
        if (result.digest == most->digest || has_no_result(call, result)) continue;
        out.suspects.push_back({.rank = r, .call = call_index, .what = finding::result_differs, .statistic = 1});
    }
}

inline bool step_judge::all_have_same_result(
    const gathered_step& step, std::size_t b, const probed_call& call) const
{
    const int first = first_with_result(step, b, call);
    if (first < 0) return true;
    bool all = true;
    const std::uint64_t digest = step.entry(first, b).result.digest;
    for (int r = first + 1; r < ranks_; ++r) {
        const result_record& result = step.entry(r, b).result;
        all = all && (result.digest == digest || has_no_result(call, result));
    }
    return all;
}

inline double step_judge::squares_of_result(
    const gathered_step& step, std::size_t b, const probed_call& call, int holder) const
{
    if (!call.has_result || holder < 0) return not_a_number();
    double total = 0;
    for (int r = 0; r < ranks_; ++r) {
        const result_record& result = step.entry(call.is_replicated() ? holder : r, b).result;
        if (has_no_result(call, result) || result.nonfinite != 0) return not_a_number();
        total += result.sum_of_squares;
        if (call.is_replicated()) break;
    }
    return total;
}

inline void step_judge::judge_lengths_of(
    const gathered_step& step, std::size_t b, const probed_call& call, int holder, step_record& out)
{
    const call_record& described = out.calls[b];
    if (!call.has_input || described.nonfinite != 0 || !(call.is_move() || call.is_gradient())) return;
    call_lengths of;
    std::uint64_t sent = 0;
    for (const statistics& each : described.inputs) {
        sent += each.count;
        of.squares += each.sum_of_squares;
    }
    of.norms = total(lengths_);
    if (call.call == collective::broadcast && sent != call.count) return; // nobody read what the root sent
    of.result = squares_of_result(step, b, call, holder);
    judge_lengths(of, call, static_cast<int>(b), out);
}

inline bool step_judge::is_no_sum(
    const gathered_step& step, std::size_t b, const probed_call& call, double sum_norm_squared) const
{
    if (call.call != collective::all_reduce || !is_finite(sum_norm_squared)) return false;
    const double factor = sum_factor(call);
    double dots = 0;
    double squares = 0;
    for (int r = 0; r < ranks_; ++r) {
        const call_entry& entry = step.entry(r, b);
        if (!is_finite(entry.result.dot) || entry.result.digest != step.entry(0, b).result.digest)
            return false;
        dots += entry.result.dot * factor;
        squares += entry.input.sum_of_squares;
    }
    const double roundings = ranks_ + 1;
    const rounding_errors of = rounding_errors_of(call.type);
    const double error = square_root(roundings)
        * (of.relative * square_root(squares + sum_norm_squared)
            + of.underflow * factor * square_root(static_cast<double>(call.count)));
    return absolute(dots - sum_norm_squared) > sum_norm_squared / 64 + square_root(sum_norm_squared) * error;
}

COLLPROBE_COLD_INLINE bool step_judge::take_cosines(
    view<const double> gram, bool norms_are_suspect, const step_record& out)
{
    const std::size_t n = index(ranks_);
    if (out.cosine.leave_one_out.size() != n) return false;
    if (gram.empty() && norms_are_suspect) return false;
    for (std::size_t i = 0; i < n; ++i) {
        double cosine = has_no_direction_[i] ? not_a_number() : out.cosine.leave_one_out[i];
        if (!gram.empty() && is_finite(cosine)) {
            double sum = 0;
            int others = 0;
            for (std::size_t j = 0; j < n; ++j) {
                const double norms = square_root(gram[i * n + i]) * square_root(gram[j * n + j]);
                const double product = i < j ? gram[i * n + j] : gram[j * n + i];
                if (j == i || !is_finite(norms) || !is_finite(product) || !(norms > 0)) continue;
                sum += product / norms;
                ++others;
            }
            cosine = others > 0 ? sum / others : not_a_number();
        }
        values_[i] = fisher_z(cosine);
    }
    return true;
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
