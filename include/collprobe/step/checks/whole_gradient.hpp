// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/dispersion.hpp>
#include <collprobe/step/checks/check_context.hpp>
#include <collprobe/step/checks/results.hpp>

/// The whole gradient of a step: the norms and directions of the ranks' gradients, over all calls that sum one.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A finding if a trainer's norm of the gradient, unless it is `not_given()`, is not `step_record::result_norm`.
/// Whether it is added.
COLLPROBE_COLD_INLINE bool judge_told_norm(double told, int rank, step_record& out)
{
    // Far above the rounding of a norm in single precision, or in bfloat16 of few digits.
    constexpr double tolerance = 1.0 / 64;
    const double known = out.result_norm;
    if (!is_finite(known) || to_bits(told) == to_bits(not_given())) return false;
    const double larger = absolute(told) > known ? absolute(told) : known;
    if (is_finite(told) && absolute(told - known) <= tolerance * larger) return false;
    out.add({.ranks = {rank}, .what = finding_kind::norm_differs, .statistic = told, .threshold = known});
    return true;
}

/// That of each rank.
COLLPROBE_COLD_INLINE void judge_told_norms(const gathered_step& step, step_record& out)
{
    const std::size_t before = out.findings.size();
    int wrong = 0;
    for (int r = 0; r < step.ranks(); ++r) wrong += judge_told_norm(step.header(r).gradient_norm, r, out) ? 1 : 0;
    if (2 * wrong <= step.ranks()) return;
    out.findings.resize(before + 1); // the trainer's doing, not a rank's
    out.findings[before].ranks.clear();
}

class gradient_measure {
public:
    explicit gradient_measure(int ranks)
        : ranks_(ranks), norms_squared_(at_rank(ranks)), dots_(at_rank(ranks)), differs_(at_rank(ranks))
    {
    }

    void forget() { noise_ = smoothed_noise_scale(); }
    void begin_step()
    {
        for (double& value : norms_squared_) value = 0;
        for (double& value : dots_) value = 0;
        differs_.assign(differs_.size(), false);
        sum_norm_squared_ = result_squares_ = 0;
        all_have_dots_ = all_are_sums_ = all_agree_ = true;
        elements_ = calls_ = 0;
    }
    /// Takes in a call that sums gradients. `common`: `results_check::find`.
    void add(const check_context& step, std::size_t b, const common_result& common)
    {
        const probed_call& call = step.calls[b];
        all_agree_ = all_agree_ && step.out.calls[b].results_agree;
        for (int r = 0; r < ranks_; ++r) {
            const call_entry& entry = step.entry(r, b);
            norms_squared_[at_rank(r)] += entry.input.sum_of_squares;
            if (call.is_replicated() && call.has_result
                && (common.holder < 0 || entry.result.digest != step.result(common.holder, b).digest)) {
                differs_[at_rank(r)] = true;
                continue;
            }
            dots_[at_rank(r)] += entry.result.dot * common.sum_factor;
            // Decide from the messages, not from this rank's call: another rank may have called in place.
            all_have_dots_ = all_have_dots_ && call.call == collective::all_reduce && call.has_result
                && is_finite(entry.result.dot);
        }
        ++calls_;
        elements_ += call.count;
        result_squares_ += common.squares;
        all_are_sums_ = all_are_sums_ && !is_no_sum(step, b, common.sum_factor, common.sum_norm_squared());
        sum_norm_squared_ += common.sum_norm_squared();
    }
    /// Elements of all calls that were taken in.
    std::uint64_t elements() const noexcept { return elements_; }

    /// Behind all calls: completes the record. Shapes: as `align_over_steps`.
    void describe(const check_context& step, view<const double> gram)
    {
        if (calls_ == 0) return;
        // The dot with a result that is not the sum says nothing about the rank's gradient.
        for (int r = 0; r < ranks_; ++r)
            if (differs_[at_rank(r)] || !all_are_sums_) dots_[at_rank(r)] = not_a_number();
        step_record& out = step.out;
        if (!step.is_of_totals) { // else the calls tell more
            out.result_norm = square_root(result_squares_);
            judge_told_norms(step.messages, out);
        }
        out.gradient_norms.resize(at_rank(ranks_));
        for (int r = 0; r < ranks_; ++r) out.gradient_norms[at_rank(r)] = square_root(norms_squared_[at_rank(r)]);
        out.gradient_norm = dispersion(out.gradient_norms);
        const view<const double> dots = all_have_dots_ ? view<const double>(dots_) : view<const double>();
        align_from_sums(norms_squared_, dots, sum_norm_squared_, out.cosine);
        align_over_steps(ranks_, gram, total(norms_squared_), all_agree_ ? sum_norm_squared_ : not_a_number(),
            out.cosine);
    }

    /// Completes `out`, which already holds the directions computed from norms. With a Gram matrix (n x n, upper
    /// triangle), the exact values replace them. In both cases the cosine predicted by the noise scale over many steps
    /// is added. Without a matrix, `squares` = sum |g_r|^2 and `sum_norm_squared` = |sum g_r|^2 are used instead; the
    /// latter is NaN if results differ between ranks: then the step adds nothing to the noise scale, in either mode.
    COLLPROBE_COLD_INLINE void align_over_steps(
        int ranks, view<const double> gram, double squares, double sum_norm_squared, direction& out)
    {
        if (!gram.empty()) {
            align_from_gram(gram, ranks, out);
            squares = 0;
            double products = 0;
            for (std::size_t i = 0; i < at_rank(ranks); ++i) {
                squares += gram[i * at_rank(ranks) + i];
                for (std::size_t j = i + 1; j < at_rank(ranks); ++j) products += gram[i * at_rank(ranks) + j];
            }
            sum_norm_squared = squares + 2 * products;
        }
        // In units of the step's own squares: a step with large gradients must not outweigh all others. A sum that is
        // longer than n terms can make it is none of them.
        if (is_finite(sum_norm_squared) && squares > 0 && sum_norm_squared <= ranks * squares * (1 + 0x1p-8))
            noise_.update(estimate_noise(ranks, 1, sum_norm_squared / squares));
        out.predicted_cosine = noise_.predicted_cosine();
    }

private:
    /// Whether the dots show that the result, equal on all ranks, is not the sum. For a correct sum S the dots g_r . S
    /// add up to |S|^2. Damage is not seen if S . (S - sum g_r) is within |S|^2 / 64. Rounding is allowed for in
    /// addition: with E = sum |g_r|^2, n + 1 roundings of partial sums bounded by E + |S|^2, as if all were in one
    /// element, and underflow.
    bool is_no_sum(const check_context& step, std::size_t b, double factor, double sum_norm_squared) const
    {
        const probed_call& call = step.calls[b];
        if (call.call != collective::all_reduce || !is_finite(sum_norm_squared)) return false;
        double dots = 0;
        double squares = 0;
        for (int r = 0; r < ranks_; ++r) {
            const call_entry& entry = step.entry(r, b);
            if (!is_finite(entry.result.dot) || entry.result.digest != step.result(0, b).digest) return false;
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

    int ranks_;
    std::vector<double> norms_squared_;
    std::vector<double> dots_;
    std::vector<bool> differs_; // by rank: its result differs from that of most ranks
    double sum_norm_squared_ = 0;
    double result_squares_ = 0;
    bool all_have_dots_ = true;
    bool all_are_sums_ = true;
    bool all_agree_ = true;
    std::uint64_t elements_ = 0;
    std::uint64_t calls_ = 0;
    smoothed_noise_scale noise_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
