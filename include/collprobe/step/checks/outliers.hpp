// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/step/checks/arrivals.hpp>
#include <collprobe/step/checks/check_context.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The ranks whose losses, norms and so on are unlike those of the others in one step.
class outliers_check {
public:
    /// `times`: arrivals are judged.
    outliers_check(int ranks, double false_alarms_per_step, bool times, double lateness_floor_ns)
        : detector_(ranks, static_cast<int>(number_of_lateness) + (times ? 1 : 0), false_alarms_per_step),
          values_(at_rank(ranks)),
          lateness_floor_(lateness_floor_ns)
    {
        make_room(0);
    }

    double false_alarms_per_step() const noexcept { return detector_.false_alarms_per_step(); }
    void make_room(std::size_t slots) { detector_.resize(series_of_calls + 2 * slots); }
    /// Forgets the series that had this slot.
    void forget(std::size_t slot)
    {
        detector_.forget(series_of_calls + 2 * slot);
        detector_.forget(series_of_calls + 2 * slot + 1);
    }
    void forget()
    {
        detector_.reset();
        losses_are_positive_ = true;
    }
    void save(std::vector<std::uint64_t>& words) const { detector_.save(words); }
    /// False if the words are no such state of this many slots; then nothing changes.
    bool restore(view<const std::uint64_t> words, std::size_t slots, bool losses_are_positive)
    {
        outlier_detector known = detector_;
        if (!known.restore(words) || known.series() != series_of_calls + 2 * slots) return false;
        detector_ = std::move(known);
        losses_are_positive_ = losses_are_positive;
        return true;
    }
    bool losses_are_positive() const noexcept { return losses_are_positive_; } ///< so far in the run

    void begin_step(std::uint64_t step) { detector_.begin_step(step); }
    /// `values`: logarithms by rank, of a call's largest magnitudes or norms; NaN by bits where a rank is left out.
    void add(bool are_magnitudes, view<const double> values, std::size_t slot, int call)
    {
        detector_.add(are_magnitudes ? number_of_call_magnitude : number_of_call_norm,
            series_of_calls + 2 * slot + (are_magnitudes ? 1 : 0), values, call);
    }
    /// Behind all calls. `elements`: of the whole gradient.
    COLLPROBE_COLD_INLINE void judge(const rank_marks& marks, std::uint64_t elements, step_record& out)
    {
        if (losses_are_positive_) {
            for (const double loss : out.losses)
                if (is_finite(loss) && loss < 0) losses_are_positive_ = false;
            if (!losses_are_positive_) detector_.forget(number_of_loss);
        }
        judge_number(marks, out, number_of_loss, finding_kind::loss, out.losses,
            [this](double loss) { return losses_are_positive_ ? logarithm_of(loss) : loss; });
        const std::size_t before = out.findings.size();
        if (!out.gradient_norms.empty()) {
            judge_number(marks, out, number_of_norm, finding_kind::gradient_norm, out.gradient_norms,
                [](double norm) { return logarithm_of(norm); });
        }
        name_outliers(number_of_call_norm, finding_kind::gradient_norm, out);
        const bool norms_are_suspect = out.findings.size() > before;
        name_outliers(number_of_call_magnitude, finding_kind::largest_magnitude, out);
        // A rank of huge norm spoils the leave-one-out cosines of all others.
        const std::vector<double>& cosines = out.cosine.leave_one_out;
        const std::vector<double>& pairwise = out.cosine.pairwise;
        if (elements >= elements_for_direction && cosines.size() == values_.size()
            && !(pairwise.empty() && norms_are_suspect)) {
            std::size_t rank = 0;
            judge_number(marks, out, number_of_cosine, finding_kind::cosine, cosines, [&](double cosine) {
                const std::size_t i = rank++;
                if (marks.without_direction[i]) return not_a_number();
                return fisher_z(pairwise.empty() || !is_finite(cosine) ? cosine : pairwise[i]);
            });
        }
        if (!out.lateness_by_rank.empty() && !(out.lateness.floor >= arrivals_measure::never_late)) {
            judge_number(marks, out, number_of_lateness, finding_kind::late, out.lateness_by_rank,
                [this](const rank_lateness& of) { return lateness_scale(of.latest); });
        }
    }

private:
    /// The numbers that are judged, and their series; behind them for each slot the norm and the largest magnitude of
    /// a call.
    enum judged_number : std::size_t {
        number_of_loss,
        number_of_norm,
        number_of_cosine,
        number_of_call_norm,
        number_of_call_magnitude,
        number_of_lateness,
    };
    static constexpr std::size_t series_of_lateness = 3; ///< of the others, their numbers'
    static constexpr std::size_t series_of_calls = 4;
    /// Gradients with fewer elements have no test of direction: the cosine of a few numbers is far from Gaussian (that
    /// of one number is 1 or -1).
    static constexpr std::uint64_t elements_for_direction = 64;

    template <class Numbers, class Scale>
    void judge_number(const rank_marks& marks, step_record& out, judged_number number, finding_kind what,
        const Numbers& numbers, const Scale& scaled)
    {
        const bool is_lateness = number == number_of_lateness;
        // A squared error of one number is now and then a thousand times smaller than any before: nothing is wrong.
        const beyond_all beyond = number == number_of_loss && losses_are_positive_ ? beyond_all::above
            : number == number_of_loss || is_lateness ? beyond_all::none : beyond_all::both;
        for (std::size_t r = 0; r < values_.size(); ++r) {
            const double value = scaled(numbers[r]);
            values_[r] = marks.left_out[r] && !is_lateness ? not_a_number() : value;
        }
        detector_.add(number, is_lateness ? series_of_lateness : number, values_, -1, beyond);
        name_outliers(number, what, out);
    }
    COLLPROBE_COLD_INLINE void name_outliers(judged_number number, finding_kind what, step_record& out)
    {
        for (const outlier& found : detector_.judge(number)) {
            const double expected = unscaled_number(number, found.expected);
            const double value = unscaled_number(number, found.expected + found.distance);
            const double usual = found.expected + (found.distance < 0 ? -found.seen : found.seen);
            // Nobody waits for less; and of a rank that is early, or is not known, nothing is told.
            if (what == finding_kind::late && (found.rank < 0 || value - expected < lateness_floor_)) continue;
            out.add({.ranks = ranks_of(found.rank),
                .call = found.call,
                .what = what,
                .statistic = absolute(found.distance),
                .threshold = found.limit,
                .false_alarms_per_step = found.false_alarms_per_step,
                .number = {value, expected, absolute(unscaled_number(number, usual) - expected), found.steps,
                    found.is_new_level, found.since}});
        }
    }

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
    double lateness_unit() const noexcept { return lateness_floor_ > 1000 ? lateness_floor_ : 1000; }

    outlier_detector detector_;
    std::vector<double> values_;
    double lateness_floor_; // ns
    bool losses_are_positive_ = true;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
