// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a verdict of the detector says in a record.
void append_suspects(
    const outlier_verdict& verdict, int ranks, finding what, int call_index, std::vector<suspect>& out);

/// Turns the messages of a step into the record that all ranks agree on. Every rank runs the same
/// arithmetic on the same bytes in the same order of steps, so no rank's opinion is special.
/// Allocates only when a step has more calls than any before it. One for `summary` judges no tables, so it has
/// none: at 100,000 ranks they would take 200 MB.
class step_judge {
public:
    step_judge(int ranks, double false_alarms_per_step, report_mode mode = report_mode::gather);

    /// `gram` is the n x n Gram matrix of the whole gradient, upper triangle, or empty.
    /// Precondition: made for `gather`.
    void judge(const gathered_step& step, view<const probed_call> calls, view<const double> gram,
        step_record& out, call_site where);

    /// Completes `out`, which holds what norms alone tell: the exact values where there is a Gram
    /// matrix, and the cosine that the noise scale over many steps predicts.
    /// `squares` = sum |g_r|^2 and `sum_norm_squared` = |sum g_r|^2 stand in for a missing matrix.
    void align_over_steps(
        view<const double> gram, double squares, double sum_norm_squared, direction& out);

private:
    static constexpr std::size_t loss_test = 0;
    static constexpr std::size_t cosine_test = 1;
    static constexpr std::size_t first_call_test = 2;
    /// Equal bits mean equal data only where there is data: buffers with fewer non-zero elements than
    /// this may agree by chance.
    static constexpr std::uint64_t telling_elements = 16;
    /// The cosine of a few numbers is not near Gaussian: that of one number is 1 or -1.
    static constexpr std::uint64_t elements_for_direction = 64;

    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
    static double unscaled(double value, int scale) noexcept
    {
        return value * power_of_two(scale) * power_of_two(scale);
    }
    /// By what a result must be multiplied to be the sum over ranks.
    double sum_factor(const probed_call& call) const noexcept;

    void require_same_step(const gathered_step& step, call_site where);

    void grow(std::size_t call_count);
    outlier_detector detector_for(std::size_t call_count) const;

    void judge_losses(const gathered_step& step, step_record& out);

    void describe_call(const gathered_step& step, std::size_t b, const probed_call& call, int holder,
        call_record& call_index);

    void judge_call(const gathered_step& step, std::size_t b, const probed_call& call, step_record& out);

    /// Ranks that hold each other's bits, or their own of the step before.
    void judge_copies(const gathered_step& step, std::size_t b, step_record& out);

    /// Every rank of a group that holds the same is named: equal bits do not tell who took them from whom.
    void judge_copy(std::uint64_t digest, int rank, int call_index, step_record& out) const;

    /// Ranks whose result differs from what most ranks received; no rank where there is no majority.
    void judge_replicas(const gathered_step& step, std::size_t b, step_record& out);
    /// Looks up which ranks received which result of a call. Returns what most received; null if there is no such.
    const digest_index::group* result_of_most(const gathered_step& step, std::size_t b);

    /// The lowest rank with the result that most ranks received; -1 where there is no majority.
    int holder_of_result(const gathered_step& step, std::size_t b, const probed_call& call);
    static bool differs_from(
        int holder, const gathered_step& step, std::size_t b, const probed_call& call, int rank);

    /// |sum over ranks of this call|^2, from the result; NaN where it was not read, or the ranks differ in it
    /// without a majority.
    double sum_norm_squared_of(const gathered_step& step, std::size_t b, const probed_call& call, int holder) const;

    /// Whether the dots show that the result which all ranks received is not the sum, damaged on its way: the
    /// sum over ranks of g_r . S is |S|^2. Damage that leaves S . (S - sum g_r) within a 64th of |S|^2 is not seen. Beside
    /// that, rounding is allowed for: with E = sum |g_r|^2, n + 1 roundings of partial sums that E + |S|^2 bounds,
    /// as if all were in one element, and what underflow does to halves.
    bool is_no_sum(const gathered_step& step, std::size_t b, const probed_call& call, double sum_norm_squared) const;
    static double unit_roundoff(element_type type) noexcept;

    /// Which rank points elsewhere. With a Gram matrix the test takes each rank's mean cosine with the
    /// others, in which one bad rank is 1 of n - 1 whatever its norm. The leave-one-out cosine is all
    /// there is without: a rank of huge norm spoils that of every other, so it is not asked then.
    void judge_cosines(view<const double> gram, bool norms_are_suspect, step_record& out);

    void judge_statistically(
        std::size_t test, view<const double> values, finding what, int call_index, step_record& out);

    static double total(view<const double> values) noexcept;

    struct held {
        std::uint64_t count = 0;
        std::uint64_t digest = 0;
    };

    int ranks_;
    int table_ranks_; // that the tables are for
    double false_alarms_per_step_;
    std::size_t known_calls_ = 0;
    outlier_detector detector_;
    fixed_array<held> previous_;
    digest_index holders_;
    fixed_array<double> values_;
    fixed_array<double> weights_;
    fixed_array<double> norms_squared_;
    fixed_array<double> dots_;
    fixed_array<bool> differs_; // who received another result than most
    smoothed_noise_scale noise_;
    direction scratch_;
};

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/step/detail/judge.ipp>
#endif
