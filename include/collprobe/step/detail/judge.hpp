// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/step/detail/call_roster.hpp>
#include <collprobe/step/detail/call_series.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether the times of a call, where they are measured, tell who came late to it.
inline bool tells_lateness(const probed_call& call) noexcept
{
    return call.has_input && call.has_result && call.count != 0 && waits_for_all(call.call);
}

/// The extremes of weighted losses, and their number, are those of the losses, whatever the weights.
COLLPROBE_COLD_INLINE void take_extremes(const spread& losses, spread& weighted) noexcept
{
    if (weighted.finite == 0) return;
    const spread own = weighted;
    weighted = losses;
    weighted.mean = own.mean;
    weighted.std = own.std;
    weighted.std_sample = own.std_sample;
    weighted.cv = own.cv;
}

/// Gives the suspects of a record the sites of their calls.
COLLPROBE_COLD_INLINE void place_suspects(view<const probed_call> calls, step_record& record)
{
    for (suspect& found : record.suspects) {
        const bool is_placed = found.site.line != 0 || found.site.name[0] != '\0';
        if (found.call >= 0 && !is_placed) found.site = calls[static_cast<std::size_t>(found.call)].site;
    }
}

/// What is known of the lengths of a call's inputs and results, over all ranks.
struct call_lengths {
    double norms = 0; ///< sum of the norms of the inputs
    double norms_error = 0; ///< of `norms`, at most
    double squares = 0; ///< of the inputs
    double result = not_a_number(); ///< squares of the one result that all have, or of all parts
};

/// A suspect if a trainer's norm of the gradient, NaN if none was told, is not `step_record::result_norm`.
COLLPROBE_COLD_INLINE void judge_told_norm(double told, int rank, step_record& out)
{
    // Far above the rounding of a norm in single precision, or in bfloat16 of few digits.
    constexpr double tolerance = 1.0 / 64;
    const double known = out.result_norm;
    if (!is_finite(told) || !is_finite(known)) return;
    if (absolute(told - known) <= tolerance * (absolute(told) > known ? absolute(told) : known)) return;
    out.suspects.push_back(
        {.rank = rank, .what = finding::norm_differs, .statistic = told, .threshold = known});
}

/// Sets `call_record::excess`, and appends a suspect if it is above 1. Precondition: all inputs are finite.
void judge_lengths(const call_lengths& of, const probed_call& call, int call_index, step_record& out);

/// Appends the suspect of a reduction of finite inputs whose result has so many elements that are not finite, the first
/// one at `first`. `rank`: whose part it is; -1: all have it.
void judge_overflow(std::uint64_t elements, std::uint64_t first, int rank, const probed_call& call, int call_index,
    step_record& out);

/// Turns the messages of a step into the record that all ranks agree on. Every rank runs the same arithmetic on the
/// same bytes in the same order of steps, so all ranks get the same record.
/// Allocates only when a step has more calls than any step before it. A judge for `summary` needs no tables and has
/// none: at 100,000 ranks they would take 200 MB.
class step_judge {
public:
    /// `times`: the messages have times. `evidence`: without it no evidence is gathered over the run.
    step_judge(int ranks, double false_alarms_per_step, report_mode mode = report_mode::gather, bool times = false,
        double lateness_floor_ns = 0, const std::optional<exchangeability_options>& evidence = {});

    /// \throws error `mismatch` unless all ranks report the same step; the culprits are those unlike most.
    /// Precondition, here and for `judge`: the judge was made for `gather`.
    void require_same_step(const gathered_step& step, function_ref<error_origin()> origin);

    /// Shapes: `gram` is the n x n Gram matrix of the whole gradient (upper triangle), or empty.
    /// `expected`: of the values that the messages have.
    void judge(const gathered_step& step, view<const probed_call> calls, view<const expected_value> expected,
        view<const double> gram, step_record& out);

    /// Completes a value's part of the record, of which `holds` is known. `place`: of the step's values.
    void remember_since(
        std::size_t value, function_ref<std::uint64_t(std::size_t)> place, std::uint64_t step, expectation_record& of);

    /// Whether all ranks made the calls of the step that was judged last at the same places. Precondition: `gather`.
    bool has_places() const noexcept { return has_places_; }

    /// Puts calls that the step misses before the other findings. Of a judged step. Shapes: as `call_roster::judge`.
    COLLPROBE_COLD_INLINE void judge_missing(
        view<const probed_call> calls, bool has_places, bool with_integers, std::uint64_t unseen,
        step_record& out)
    {
        const auto before = static_cast<std::ptrdiff_t>(out.suspects.size());
        roster_.judge(calls, has_places, with_integers, unseen, out);
        std::rotate(out.suspects.begin(), out.suspects.begin() + before, out.suspects.end());
    }

    /// Between two steps there were calls that this object knows nothing of: the time from one to the other is unknown.
    void forget_end() noexcept { has_left_ = false; }

    /// The next step's calls are compared with none of earlier steps.
    COLLPROBE_COLD_INLINE void forget_calls()
    {
        known_calls_.clear();
        series_ = {};
    }

    /// Forgets all steps, as after a restart.
    void forget();

    /// Forgets all steps, and returns true, if `last_lost`, the same on all ranks, is a step that is not known as lost.
    COLLPROBE_COLD_INLINE bool forget_after_loss(std::uint32_t last_lost)
    {
        if (last_lost <= last_lost_) return false;
        last_lost_ = last_lost;
        forget();
        return true;
    }

    /// Steps up to this one need not be forgotten any more: all ranks have restored what they remember.
    void know_losses_until(std::uint32_t serial) noexcept { last_lost_ = serial; }
    /// By call: the series of the step that was judged last. Precondition: `gather`.
    view<const series_place> series() const noexcept { return series_; }

    bool has_evidence() const noexcept { return evidence_.has_value(); }
    /// What the run has shown so far, as words; none if it is not gathered.
    std::vector<std::uint64_t> evidence_state() const;
    /// Goes on from the evidence of such a judge. Precondition: `has_evidence()`.
    /// \throws error `invalid_argument` for a state that is none, or that of another judge; then nothing changes.
    void restore_evidence(view<const std::uint64_t> state, const call_site& where);

    /// Completes `out`, which already holds the directions computed from norms. With a Gram matrix, the exact values
    /// replace them. In both cases the cosine predicted by the noise scale over many steps is added.
    /// Without a matrix, `squares` = sum |g_r|^2 and `sum_norm_squared` = |sum g_r|^2 are used instead; the latter is
    /// NaN if results differ between ranks: then the step adds nothing to the noise scale, in either mode.
    void align_over_steps(
        view<const double> gram, double squares, double sum_norm_squared, direction& out);

private:
    /// The numbers of a step that are judged, and their series; behind them for each slot the norm and the largest
    /// magnitude of a call.
    enum judged_number : std::size_t { number_of_loss, number_of_norm, number_of_cosine, number_of_call_norm,
        number_of_call_magnitude, number_of_lateness };
    static constexpr std::size_t series_of_lateness = 3; ///< of the others, their numbers'
    static constexpr std::size_t series_of_calls = 4;
    /// Equal bits prove a copy only if there are enough data: buffers with fewer non-zero elements than this may agree
    /// by chance.
    static constexpr std::uint64_t telling_elements = 16;
    /// Gradients with fewer elements have no test of direction: the cosine of a few numbers is far from Gaussian (that
    /// of one number is 1 or -1).
    static constexpr std::uint64_t elements_for_direction = 64;

    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }

    /// The factor that turns a result into the sum over the ranks.
    COLLPROBE_COLD_INLINE double sum_factor(const probed_call& call) const noexcept
    {
        return call.operation == reduction::average ? ranks_ : 1;
    }

    /// Finds the series of the calls, and forgets what the memory has of series that were there before.
    void find_series(view<const probed_call> calls, bool has_places);

    void judge_losses(const gathered_step& step, step_record& out);
    /// Where most ranks have NaN or infinity in a step and had it in the one before, the weights have it, and one
    /// suspect without a rank says so.
    void judge_spread_of_nonfinite(step_record& out);

    void measure_lateness(const gathered_step& step, view<const probed_call> calls, step_record& out);

    /// Leaves the norms of the inputs in `lengths_`.
    void describe_call(const gathered_step& step, std::size_t b, const probed_call& call, int holder,
        call_record& described);

    void describe_result(const gathered_step& step, std::size_t b, const probed_call& call, int holder,
        call_record& described) const;

    void judge_call(const gathered_step& step, std::size_t b, const probed_call& call, int holder, step_record& out);
    /// Precondition: `describe_call` has described it.
    void judge_lengths_of(
        const gathered_step& step, std::size_t b, const probed_call& call, int holder, step_record& out);

    /// Names the ranks that made another call, where most ranks made the same one.
    void judge_places(const gathered_step& step, view<const probed_call> calls, step_record& out);
    void judge_values(const gathered_step& step, view<const expected_value> expected, step_record& out);

    /// Finds ranks that hold the same bits as another rank.
    void judge_copies(const gathered_step& step, std::size_t b, step_record& out);
    /// Finds ranks whose gradient, or shard of an all-gather, is that of the previous step, while at least half of the
    /// ranks have changed theirs.
    void judge_repeats(const gathered_step& step, std::size_t b, step_record& out);
    /// Notes the ranks whose whole gradient is zero while others' is not; then names those whose gradient, or input of
    /// one call, has been so for long.
    void judge_zeros(const gathered_step& step, view<const probed_call> calls, step_record& out);
    static bool is_zero(const statistics& input) noexcept { return input.count != 0 && input.zero == input.count; }

    /// Whether the bits say something: enough elements are neither zero nor NaN nor infinite.
    static bool tells(const statistics& input) noexcept
    {
        return input.finite() - input.zero >= telling_elements;
    }

    /// Whether the rank's input has the bits of the last such call; remembers it for the next one.
    bool is_stale(const statistics& input, int rank, std::size_t slot)
    {
        const held now = tells(input) ? held{input.count, input.digest} : held{};
        const held before = std::exchange(previous_[slot * index(ranks_) + index(rank)], now);
        return now.count != 0 && before.count == now.count && before.digest == now.digest;
    }

    /// Names every rank of a group with the same bits, because the bits do not tell which rank copied from which.
    void judge_copy(std::uint64_t digest, int rank, int call_index, step_record& out);

    /// Names the ranks whose result differs from that of most ranks; names none if no result has a majority.
    void judge_replicas(const gathered_step& step, std::size_t b, const probed_call& call, step_record& out);
    bool all_have_same_result(const gathered_step& step, std::size_t b, const probed_call& call) const;

    /// Groups the ranks by the result of a call. Returns the group of the majority, or null if there is no majority.
    COLLPROBE_COLD_INLINE const digest_index::group* result_of_most(
        const gathered_step& step, std::size_t b, const probed_call& call)
    {
        holders_.clear();
        for (int r = 0; r < ranks_; ++r) {
            const result_record& result = step.entry(r, b).result;
            if (!has_no_result(call, result)) holders_.add(result.digest, r);
        }
        return holders_.majority();
    }

    /// The first rank that has a result; -1: none.
    int first_with_result(const gathered_step& step, std::size_t b, const probed_call& call) const
    {
        for (int r = 0; r < ranks_; ++r)
            if (!has_no_result(call, step.entry(r, b).result)) return r;
        return -1;
    }

    /// The lowest rank with the result that most ranks received; -1 if there is no majority.
    COLLPROBE_COLD_INLINE int holder_of_result(const gathered_step& step, std::size_t b, const probed_call& call)
    {
        const digest_index::group* const most = result_of_most(step, b, call);
        return most == nullptr ? -1 : most->first_rank;
    }

    static bool differs_from(
        int holder, const gathered_step& step, std::size_t b, const probed_call& call, int rank)
    {
        if (!call.is_replicated() || !call.has_result) return false;
        return holder < 0 || step.entry(rank, b).result.digest != step.entry(holder, b).result.digest;
    }

    /// The squares of the result that all have, or of all parts; NaN as below, and if an element is not finite.
    double squares_of_result(const gathered_step& step, std::size_t b, const probed_call& call, int holder) const;

    /// |sum over ranks of this call|^2, from the result; NaN if the result was not read, or differs between the ranks
    /// without a majority.
    COLLPROBE_COLD_INLINE double sum_norm_squared_of(
        const gathered_step& step, std::size_t b, const probed_call& call, int holder) const
    {
        return sum_factor(call) * sum_factor(call) * squares_of_result(step, b, call, holder);
    }

    /// Whether the dots show that the result, equal on all ranks, is not the sum. For a correct sum S the dots g_r . S
    /// add up to |S|^2. Damage is not seen if S . (S - sum g_r) is within |S|^2 / 64. Rounding is allowed for in
    /// addition: with E = sum |g_r|^2, n + 1 roundings of partial sums bounded by E + |S|^2, as if all were in one
    /// element, and underflow.
    bool is_no_sum(const gathered_step& step, std::size_t b, const probed_call& call, double sum_norm_squared) const;
    /// Names the ranks whose losses, norms and so on are unlike those of the others in this step. `has_directions`: the
    /// gradient is large enough to have one.
    void judge_numbers(bool has_directions, view<const double> gram, step_record& out);
    /// Leaves in `values_` what is judged of directions; false if that is nothing. With a Gram matrix it is each rank's
    /// mean cosine with the others, in which one bad rank has weight 1 / (n - 1), independent of its norm. Without a
    /// matrix only the leave-one-out cosines exist. A rank of huge norm spoils those of all others.
    bool take_cosines(view<const double> gram, bool norms_are_suspect, const step_record& out);
    void name_outliers(judged_number number, finding what, step_record& out);

    /// The scale of arrivals, on which their tails are no heavier than exponential, and the way back of any scale.
    COLLPROBE_COLD_INLINE double lateness_scale(double nanoseconds) const noexcept
    {
        if (!is_finite(nanoseconds)) return not_a_number();
        const double length = natural_log(1 + absolute(nanoseconds) / lateness_unit());
        return nanoseconds < 0 ? -length : length;
    }

    COLLPROBE_COLD_INLINE double unscaled_number(judged_number number, double value) const noexcept
    {
        if (number == number_of_loss && !losses_are_positive_) return value;
        if (number == number_of_cosine) return 1 - 2 / (exponential(2 * value) + 1);
        if (number != number_of_lateness) return exponential(value);
        const double length = lateness_unit() * (exponential(absolute(value)) - 1);
        return value < 0 ? -length : length;
    }

    double lateness_unit() const noexcept
    {
        return lateness_floor_ > 1000 ? lateness_floor_ : 1000;
    }
    /// Leaves the rank's numbers out of the comparison in this step.
    void leave_out(int rank) noexcept { is_left_out_[index(rank)] = has_no_direction_[index(rank)] = true; }

    /// The numbers whose evidence is gathered, in this order; behind them the norms of the calls, by slot.
    enum evident : std::size_t { of_loss, of_norm, of_cosine, of_nonfinite, of_lateness, of_first_call };
    struct evident_number {
        finding what;
        side_shares shares;
    };

    COLLPROBE_COLD_INLINE static evident_number evident_at(std::size_t index) noexcept
    {
        // The shares add up to 1: those of the calls, of which there may be any number, to 1/4.
        switch (index) {
        case of_loss: return {finding::loss, {0.125, 0.0625, 0.03125, 0.03125}};
        case of_norm: return {finding::gradient_norm, {0.125, 0.0625, 0.03125, 0.03125}};
        case of_cosine: return {finding::cosine, {0.03125, 0.0625, 0.03125, 0}};
        case of_nonfinite: return {finding::non_finite, {0.0625, 0, 0, 0}};
        case of_lateness: return {finding::late, {0.0625, 0, 0, 0}};
        default: return {finding::gradient_norm, {}};
        }
    }

    /// Of the series that is the `number`-th of the run, from 1 on.
    COLLPROBE_COLD_INLINE static evident_number evident_of_series(std::uint64_t number) noexcept
    {
        const double share = 0.25 * weight_of_start(number);
        return {finding::gradient_norm, {share, share, 0, 0}};
    }

    COLLPROBE_COLD_INLINE void watch_whole_steps()
    {
        while (evidence_->metrics() < of_first_call) {
            const evident_number next = evident_at(evidence_->metrics());
            evidence_->add(next.what, next.shares);
        }
    }

    /// Of what is known of the whole step; then names the ranks, and completes the record.
    void judge_evidence(view<const probed_call> calls, step_record& out);

    static double total(view<const double> values) noexcept
    {
        double sum = 0;
        for (const double value : values) sum += value;
        return sum;
    }

    struct held {
        std::uint64_t count = 0;
        std::uint64_t digest = 0;
    };
    /// Steps in a row in which a rank had zeros, and others not.
    struct zero_run {
        static constexpr std::uint32_t least_told = 16;

        std::uint64_t since = 0;
        std::uint32_t steps = 0; // without those in which its weight was 0
        bool is_under_way = false;
        bool is_told = false;

        /// One more step. Whether it is to be told now.
        bool follow(std::uint64_t step, bool is_zero, bool is_excused, std::uint64_t& longest) noexcept
        {
            if (!is_zero) {
                longest = steps > longest ? steps : longest;
                *this = {};
                return false;
            }
            if (!is_under_way) since = step;
            is_under_way = true;
            if (is_excused) return false;
            ++steps;
            return !is_told && steps >= least_told && steps >= 2 * longest;
        }
    };

    int ranks_;
    int table_ranks_; // number of ranks that the tables are for
    outlier_detector detector_;
    call_series known_calls_;
    call_roster roster_;
    view<const series_place> series_; // of the calls of the step
    std::vector<std::uint64_t> number_; // by slot: the series that the memory is of
    std::vector<held> previous_; // [slot][rank]
    std::vector<zero_run> zeros_; // [0: the whole gradient, 1 + slot][rank]
    std::uint64_t longest_zeros_[2] = {0, 0}; // steps of those that have ended: of the whole gradient, of calls
    std::size_t zeros_under_way_ = 0;
    std::uint64_t begun_before_ = 0; // series of earlier runs: `call_series::begun`
    std::uint32_t last_lost_ = 0; // `step_header::last_lost` of all ranks
    digest_index holders_;
    std::vector<double> values_;
    std::vector<double> lengths_; // of the inputs of the call that is judged, by rank
    std::vector<double> weights_;
    std::vector<double> norms_squared_;
    std::vector<double> dots_;
    std::vector<bool> differs_; // by rank: its result differs from that of most ranks
    std::vector<bool> is_left_out_; // by rank: it has NaN in this step, or the data of a lower rank
    std::vector<bool> is_left_out_of_call_;
    std::vector<bool> is_zero_; // by rank: its whole gradient
    std::vector<bool> sends_; // by rank: elements of any gradient
    std::vector<bool> has_no_direction_; // by rank: it is left out, or has a twin, of which alone its cosine tells
    bool losses_are_positive_ = true; // so far in the run
    bool nonfinite_has_spread_ = false; // most ranks had NaN or infinity in the last step
    std::uint64_t nonfinite_since_ = 0;
    double lateness_floor_; // ns
    lateness_watch lateness_;
    std::optional<exchangeability_watch> evidence_;
    struct broken_value {
        std::uint64_t place;
        std::size_t order; // among the values at this place
        std::uint64_t since;
    };
    bool has_places_ = false;
    std::vector<std::pair<std::uint64_t, std::size_t>> places_; // of most ranks, 0 without a majority; and the call
    std::vector<std::pair<std::uint64_t, std::size_t>> sorted_places_;
    std::vector<broken_value> broken_values_; // those that did not hold when they were told last
    std::vector<clock_stamp> left_; // by rank: when the last of its calls ended
    bool has_left_ = false; // there was a call before
    smoothed_noise_scale noise_;
    direction scratch_;
};

} // namespace collprobe::detail

#include <collprobe/step/detail/judge_rules.hpp>
