// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/words.hpp>
#include <collprobe/metrics/dispersion.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/step/checks/arrivals.hpp>
#include <collprobe/step/checks/check_context.hpp>
#include <collprobe/step/checks/evidence.hpp>
#include <collprobe/step/checks/expectations.hpp>
#include <collprobe/step/checks/inputs.hpp>
#include <collprobe/step/checks/missing_calls.hpp>
#include <collprobe/step/checks/other_calls.hpp>
#include <collprobe/step/checks/outliers.hpp>
#include <collprobe/step/checks/results.hpp>
#include <collprobe/step/checks/whole_gradient.hpp>
#include <collprobe/step/detail/call_series.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Turns the messages of a step into the record that all ranks agree on: runs the checks, each of which has its own
/// memory of earlier steps. Every rank runs the same arithmetic on the same bytes in the same order of steps.
/// Allocates only when a step has more calls than any step before it. A judge for `summary` has tables only where there
/// are totals of the ranks: at 100,000 ranks they would take 500 MB.
/// A template, so that `collprobe::compiled` can hold its one instance, with all checks.
template <class Unused = void>
class basic_step_judge {
public:
    /// `times`: the messages have times. Precondition: `check_judging` accepts the options.
    explicit basic_step_judge(int ranks, const probe_options& options = {}, report_mode mode = report_mode::gather,
        bool times = false)
        : ranks_(ranks), tables_(mode == report_mode::gather || ranks <= most_total_ranks ? ranks : 1),
          other_calls_(tables_), expectations_(tables_), results_(tables_), copies_(tables_), zeros_(tables_),
          nonfinite_(tables_), arrivals_(times ? tables_ : 1, lateness_floor_of(options)), gradient_(tables_),
          outliers_(tables_, options.false_alarms_per_step, times, lateness_floor_of(options)),
          weights_(at_rank(tables_)), of_call_(at_rank(tables_))
    {
        if (!(options.false_alarms_per_run > 0) || tables_ != ranks_) return;
        evidence_.emplace(ranks, exchangeability_options{.false_alarms_per_run = options.false_alarms_per_run,
            .tolerance = options.tolerance, .groups = options.groups});
    }

    /// \throws error `mismatch` unless all ranks report the same step; the culprits are those unlike most.
    /// Precondition, here and below: the judge has tables.
    COLLPROBE_COLD_INLINE void require_same_step(const gathered_step& step, function_ref<error_origin()> origin)
    {
        bool differ = false;
        for (int r = 1; r < ranks_; ++r) differ = differ || step.header(r).step != step.header(0).step;
        if (!differ) return;
        digest_index holders(ranks_);
        for (int r = 0; r < ranks_; ++r) holders.add(step.header(r).step, r);
        const digest_index::group* const most = holders.majority();
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

    /// Shapes: `gram` is the n x n Gram matrix of the whole gradient (upper triangle), or empty.
    /// `expected`: of the values that the messages have.
    void judge(const gathered_step& messages, view<const probed_call> calls, view<const expected_value> expected,
        view<const double> gram, step_record& out, bool are_totals = false)
    {
        if (!are_totals)
            out.begin(messages.header(0).step, ranks_, report_mode::gather, calls.size(), expected.size());
        out.forgot = forget_after_loss(messages.last_lost());
        out.places_agree = messages.has_places();
        begin_step(calls, out);
        const check_context step{messages, calls, series_, out, are_totals};
        zeros_.begin_step();
        gradient_.begin_step();

        judge_losses(step);
        if (!out.places_agree) other_calls_.judge(step);
        for (std::size_t v = 0; v < expected.size(); ++v) expectations_.judge(step, expected, v);
        for (std::size_t b = 0; b < calls.size(); ++b) judge_call(step, b);
        if (gradient_.elements() != 0) zeros_.judge(step);
        if (messages.layout().times) arrivals_.measure(step);
        gradient_.describe(step, gram);
        nonfinite_.judge_spread(nonfinite_.having(out), out);
        judge_numbers(calls, out);
    }
    /// Judges again what options decide, but for the floor of lateness, of a record that has no finding of it.
    /// `calls`: their facts, with inputs where they are gradients; of totals the whole gradient.
    COLLPROBE_COLD_INLINE void judge_again(view<const probed_call> calls, step_record& out)
    {
        if (out.forgot) forget();
        if (!out.repeats) forget_calls();
        begin_step(calls, out);
        judge_numbers(calls, out);
        out.settle_findings();
    }
    /// Adds to a record that has begun what the ranks' totals say, but for inputs with NaN: of these calls say more.
    COLLPROBE_COLD_INLINE void judge_totals(
        const gathered_step& totals, const probed_call& whole, view<const double> gram, step_record& out)
    {
        judge(totals, {&whole, whole.has_input ? 1u : 0u}, {}, gram, out, true);
        if (!out.calls.empty()) out.calls[0].clear();
        std::erase_if(out.findings, [](const finding& f) { return f.call >= 0 && f.what == finding_kind::non_finite; });
        for (finding& each : out.findings) each.call = -1;
    }

    /// The checks that also judge steps in their combined form.
    expectations_check& expectations() noexcept { return expectations_; }
    gradient_measure& gradient() noexcept { return gradient_; }
    nonfinite_check& nonfinite() noexcept { return nonfinite_; }

    /// Completes the record of a judged step, behind all parts: puts calls that it misses before the other findings.
    /// Shapes: as `missing_calls_check::judge`, but if `unseen` is `no_index` nobody knows which calls it should have.
    COLLPROBE_COLD_INLINE void finish(
        view<const probed_call> calls, bool has_places, bool with_integers, std::uint64_t unseen, step_record& out)
    {
        if (unseen != 0) { // results are missing in it
            out.result_norm = not_a_number();
            std::erase_if(out.findings, [](const finding& f) { return f.what == finding_kind::norm_differs; });
        }
        const auto before = static_cast<std::ptrdiff_t>(out.findings.size());
        if (unseen != no_index) missing_calls_.judge(calls, has_places, with_integers, unseen, out);
        std::rotate(out.findings.begin(), out.findings.begin() + before, out.findings.end());
        out.settle_findings();
    }

    /// Between two steps there were calls that this object knows nothing of: the time from one to the other is unknown.
    void forget_end() noexcept { arrivals_.forget_end(); }

    /// The next step's calls are compared with none of earlier steps.
    void forget_calls()
    {
        known_calls_.clear();
        series_ = {};
    }

    /// Forgets all steps, as after a restart, so that it does not matter what a rank has seen before.
    COLLPROBE_COLD_INLINE void forget()
    {
        begun_before_ = known_calls_.begun();
        known_calls_.reset();
        missing_calls_.clear();
        series_ = {};
        number_.clear();
        copies_.forget();
        zeros_.forget();
        nonfinite_.forget();
        expectations_.forget();
        outliers_.forget();
        arrivals_.forget();
        gradient_.forget();
        if (evidence_) evidence_->forget();
    }

    /// Forgets all steps, and returns true, if `last_lost`, the same on all ranks, is a step that is not known as lost.
    bool forget_after_loss(std::uint32_t last_lost)
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
    COLLPROBE_COLD_INLINE std::vector<std::uint64_t> evidence_state() const
    {
        std::vector<std::uint64_t> words;
        if (!evidence_) return words;
        known_calls_.save(words, begun_before_);
        words.insert(words.begin(), words.size());
        const std::vector<std::uint64_t> watched = evidence_->state();
        words.push_back(watched.size());
        words.insert(words.end(), watched.begin(), watched.end());
        words.insert(
            words.end(), {outliers_.losses_are_positive() ? 1u : 0u, zeros_.longest()[0], zeros_.longest()[1]});
        outliers_.save(words);
        words.push_back(checksum_of({words.data(), words.size()}));
        return words;
    }
    /// Goes on from the evidence of such a judge. Precondition: `has_evidence()`.
    /// \throws error `invalid_argument` for a state that is none, or that of another judge; then nothing changes.
    COLLPROBE_COLD_INLINE void restore_evidence(view<const std::uint64_t> state, const call_site& where)
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
        evidence_check evidence = evidence_->restored(state.part(first, behind - first), where);
        call_series known;
        const view<const std::uint64_t> calls = state.part(1, first - 2);
        check(known.restore(calls) && known.slots() <= evidence.slots());
        check(outliers_.restore(state.part(behind + 3, end - behind - 3), evidence.slots(), state[behind] != 0));

        missing_calls_.clear();
        known_calls_.restore(calls);
        begun_before_ = known_calls_.begun() - known.begun();
        number_ = known_calls_.numbers();
        number_.resize(evidence.slots());
        *evidence_ = std::move(evidence);
        copies_.forget();
        copies_.make_room(number_.size());
        zeros_.restore(state[behind + 1], state[behind + 2]);
        expectations_.forget();
        nonfinite_.forget();
    }

private:
    COLLPROBE_COLD_INLINE void begin_step(view<const probed_call> calls, step_record& out)
    {
        out.false_alarms_per_step = outliers_.false_alarms_per_step();
        find_series(calls, out.places_agree);
        outliers_.begin_step(out.step);
        if (evidence_) evidence_->begin_step(out.step);
    }
    /// Judges numbers over the ranks, by what the record has.
    COLLPROBE_COLD_INLINE void judge_numbers(view<const probed_call> calls, step_record& out)
    {
        marks_.left_out.assign(at_rank(ranks_), false);
        for (const int rank : out.left_out) marks_.left_out[at_rank(rank)] = true;
        marks_.without_direction = marks_.left_out;
        copies_of_calls_.clear();
        for (const finding& each : out.findings) {
            if (each.what != finding_kind::duplicate) continue;
            copies_of_calls_.push_back(&each);
            for (const int rank : each.ranks) marks_.without_direction[at_rank(rank)] = true;
        }
        auto copies = copies_of_calls_.begin();
        std::uint64_t elements = 0;
        for (std::size_t b = 0; b < calls.size(); ++b) {
            if (!calls[b].is_gradient()) continue; // shards and parameters may differ between ranks
            elements += calls[b].count;
            if (out.mode == report_mode::gather) add_numbers(calls[b], static_cast<int>(b), out, copies);
        }
        outliers_.judge(marks_, elements, out);
        if (evidence_) evidence_->judge(marks_, out);
    }
    /// Finds the series of the calls; the checks forget what they have of series that had the slots before.
    COLLPROBE_COLD_INLINE void find_series(view<const probed_call> calls, bool has_places)
    {
        series_ = known_calls_.find(calls, has_places);
        if (known_calls_.slots() > number_.size()) number_.resize(known_calls_.slots());
        copies_.make_room(number_.size());
        zeros_.make_room(number_.size());
        outliers_.make_room(number_.size());
        if (evidence_) evidence_->make_room(number_.size());
        for (const auto& [number, slot] : series_) {
            if (number_[slot] == number) continue;
            number_[slot] = number;
            copies_.forget(slot);
            zeros_.forget(slot);
            outliers_.forget(slot);
            if (evidence_) evidence_->replace(slot, number - begun_before_);
        }
    }

    COLLPROBE_COLD_INLINE void judge_losses(const check_context& step)
    {
        step_record& out = step.out;
        out.losses.resize(at_rank(ranks_));
        bool has_data = false;
        for (int r = 0; r < ranks_; ++r) has_data = has_data || step.messages.header(r).weight > 0;
        for (int r = 0; r < ranks_; ++r) {
            const step_header& told = step.messages.header(r);
            out.losses[at_rank(r)] = told.loss;
            weights_[at_rank(r)] = told.weight < 0 ? not_a_number() : told.weight; // as only the device knew it
            if (has_data && told.weight == 0) out.leave_out(r); // a rank without data is like no other
            if (!told.loss_is_bad()) continue;
            out.leave_out(r);
            out.add({.ranks = {r}, .what = finding_kind::non_finite, .statistic = 1});
        }
        out.loss = dispersion(out.losses);
        out.loss_weighted = out.loss; // for the extremes, and their number
        const spread weighted = dispersion(out.losses, weights_);
        if (weighted.finite == 0) out.loss_weighted = {};
        out.loss_weighted.mean = weighted.mean;
        out.loss_weighted.std = weighted.std;
        out.loss_weighted.std_sample = weighted.std_sample;
        out.loss_weighted.cv = weighted.cv;
    }

    void judge_call(const check_context& step, std::size_t b)
    {
        const probed_call& call = step.calls[b];
        const common_result common = results_.find(step, b);
        if (!step.is_of_totals) results_.describe(step, b, common);
        nonfinite_.judge_call(step, b);
        if (!step.is_of_totals) results_.judge_overflow(step, b, common);
        if (call.is_gradient()) copies_.judge_copies(step, b);
        if (call.is_gradient() || (call.call == collective::all_gather && call.has_input))
            copies_.judge_repeats(step, b);
        if (!step.is_of_totals) {
            if (!step.out.calls[b].results_agree) results_.judge_replicas(step, b);
            results_.judge_lengths(step, b, common);
        }
        if (!call.is_gradient()) return;
        for (int r = 0; r < ranks_; ++r) zeros_.add(step.input(r, b), r);
        gradient_.add(step, b, common);
    }
    /// `copies`: the first of this call or a later one.
    void add_numbers(const probed_call& call, int b, const step_record& out, auto& copies)
    {
        const std::size_t slot = series_[at_rank(b)].slot;
        const auto take = [&, this](const auto& number_of) {
            for (int r = 0; r < ranks_; ++r) {
                const statistics& input = out.calls[at_rank(b)].inputs[at_rank(r)];
                // Zeros are no evidence of anything else: `zeros_check` tells of them.
                const bool is_out = input.nonfinite() != 0 || is_zero(input) || has_no_input(call, input);
                of_call_[at_rank(r)] = is_out ? not_a_number() : logarithm_of(number_of(input));
            }
            for (auto copy = copies; copy != copies_of_calls_.end() && (*copy)->call == b; ++copy)
                for (const int rank : (*copy)->ranks)
                    if (rank != (*copy)->other_rank) of_call_[at_rank(rank)] = not_a_number();
        };
        while (copies != copies_of_calls_.end() && (*copies)->call < b) ++copies;
        take([](const statistics& input) { return input.l2(); });
        if (evidence_) evidence_->add_norms(of_call_, slot, b);
        outliers_.add(false, of_call_, slot, b);
        take([](const statistics& input) { return input.absolute_maximum; });
        outliers_.add(true, of_call_, slot, b);
    }

    int ranks_;
    int tables_; // their size
    std::uint32_t last_lost_ = 0; // `step_header::last_lost` of all ranks
    std::vector<const finding*> copies_of_calls_; ///< of a step, in the order of its calls
    call_series known_calls_;
    view<const series_place> series_; // of the calls of the step
    std::vector<std::uint64_t> number_; // by slot: the series that the checks' memory is of
    std::uint64_t begun_before_ = 0; // series of earlier runs: `call_series::begun`
    rank_marks marks_;
    missing_calls_check missing_calls_;
    other_calls_check other_calls_;
    expectations_check expectations_;
    results_check results_;
    copies_check copies_;
    zeros_check zeros_;
    nonfinite_check nonfinite_;
    arrivals_measure arrivals_;
    gradient_measure gradient_;
    outliers_check outliers_;
    std::optional<evidence_check> evidence_;
    std::vector<double> weights_;
    std::vector<double> of_call_;
};

using step_judge = basic_step_judge<>;

} // namespace collprobe::inline COLLPROBE_ABI::detail
