// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>

/// Which rank is unlike the others, with a false-alarm rate that holds for few ranks.
///
/// The plain z-score over n ranks cannot exceed (n - 1) / sqrt(n), so "3 sigma" never fires on 8
/// ranks; the modified z-score with the textbook's cut-off 3.5 fires on 13.7 % of healthy steps there.
/// Here the cut-off is looked up for n and for the false-alarm rate asked for.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// x such that a standard normal exceeds it with probability p, 0 < p <= 0.5: relative error below 1e-13.
double normal_upper_quantile(double p) noexcept;

/// The same for Student's t: up to 0.5 % too high for 31 or more degrees of freedom and p >= 1e-12
/// (Gaver and Kafadar, The American Statistician 38, 1984).
double student_upper_quantile(double p, double degrees) noexcept;

/// Centre and width of the values of the ranks that neither one bad rank nor almost half of them can
/// move far.
struct robust_location {
    double median = not_a_number(); ///< NaN by bits where no value is finite
    double mad = not_a_number(); ///< median absolute deviation from the median
    int finite = 0; ///< values that count
};

/// Modified z-score of each rank: 0.6745 |x - median| / MAD over the finite values (Iglewicz and
/// Hoaglin, How to Detect and Handle Outliers, 1993).
///
/// `scores` has one entry per value and is the only storage used. The median of an even number of
/// values is the mean of the middle two. A MAD below 2^-40 |median| counts as that much, so that ties
/// and rounding noise make no infinite scores (where both are 0, it counts as 2^-40 of the largest
/// deviation); equal values score 0. A non-finite value is left out of median and MAD and scores
/// infinity by bits. With fewer than 3 finite values a score names nobody: two score alike.
///
/// Errors: `status::invalid_argument` if the sizes differ. O(n), no allocation.
robust_location modified_z(view<const double> values, view<double> scores,
    const call_site& where = call_site::current());

/// The score that the largest modified z of n healthy ranks exceeds with probability p, if their
/// values are independent and Gaussian.
///
/// From a table made by simulation (standard errors below 1 %) for n = 3 .. 25, then 32 .. 1024, and
/// p = 1e-2 .. 1e-7; between, log(cut-off) is interpolated linearly in log n and log p. A larger p
/// counts as 1e-2. A smaller one is extrapolated along the last two columns: the tail is a power law,
/// P(score > t) ~ t^-floor(n/2), since floor(n/2) + 1 values must come together to make the MAD small;
/// the columns show an exponent at or (for many ranks, where the power law begins later) below that,
/// so the extrapolation errs to the side of fewer alarms. p below 1e-15 counts as 1e-15. More than
/// 1024 ranks continue the last two rows. n < 3 gives infinity by bits: no rank can be named.
///
/// Values with heavier tails than Gaussian exceed the cut-off more often (see `outlier_detector`): pass
/// quantities that are near Gaussian, `near_gaussian_norm` and `fisher_z` for instance. O(1).
double outlier_cutoff(int n, double p) noexcept;

} // namespace detail

/// What to pass to the detector for losses: the cube root. Mean losses of small batches are skewed like
/// a gamma distribution, whose cube root is nearly Gaussian (Wilson and Hilferty, PNAS 17, 1931).
/// Any sign; a non-finite loss gives NaN by bits.
double near_gaussian_loss(double loss) noexcept;

/// What to pass for gradient norms: the cube root of the squared norm, for the same reason. (Their
/// logarithm would overdo it: it makes small norms the outliers and hides large ones.) A non-finite or
/// negative norm gives NaN by bits.
double near_gaussian_norm(double norm) noexcept;

/// Fisher's z of a cosine, atanh(c): near Gaussian where the cosine itself is squeezed against 1.
/// Cut at |c| = 1 - 2^-40, beyond which a cosine is rounding noise; a non-finite one gives NaN by bits.
double fisher_z(double cosine) noexcept;

/// How an `outlier_detector` decides.
struct outlier_options {
    /// The one number that matters: probability that a step of healthy ranks raises any alarm, over
    /// all ranks and all tests. In (0, 1).
    double false_alarms_per_step = 1e-4;
    /// Residuals remembered per rank and test, and how many there must be before they count: 32 to
    /// 4096, and 32 to `window`.
    int window = 128;
    int history_needed = 32;
    /// After so many rejected steps in a row a rank's new level is taken for its normal one; at least 1.
    int absorb_after = 8;
};

/// A rank that a test names, with the evidence.
struct outlier {
    int rank = -1;
    double score = 0; ///< modified z over the ranks
    double cutoff = 0; ///< the cut-off that it exceeds
    /// Student's t of the rank's residual among its own past ones and the cut-off for it; NaN by bits
    /// and 0 where the rank has too little history.
    double history_score = detail::not_a_number();
    double history_cutoff = 0;
    bool needed_history = false; ///< named because both exceed, not by the score alone
};

/// What one test of one step found.
struct outlier_verdict {
    static constexpr int capacity = 10;

    bool detected = false; ///< something is wrong; `named` may be empty all the same
    /// More than a quarter of the ranks (but at least one), or more than ten, are out: the group has
    /// no common level and nobody is named. The rule by which NCCL's RAS prints its outliers.
    bool incoherent = false;
    int out = 0; ///< ranks beyond the cut-offs, named or not
    /// The strongest evidence where nobody is named, and the cut-off that it exceeds: of two ranks Student's t of
    /// their difference, else as that of the ranks that are out. 0 if nothing was detected, or somebody is named.
    double score = 0;
    double cutoff = 0;
    int count = 0; ///< entries of `named`
    outlier named[capacity]; ///< by ascending rank

    view<const outlier> suspects() const noexcept { return {named, static_cast<std::size_t>(count)}; }
};

/// Watches a fixed number of tests over the ranks, step by step: the loss, the norm of each bucket, the leave-one-out
/// cosine. Test j of a step takes one number per rank. It names rank r if
///   (a) the modified z of r over the ranks exceeds the cut-off for probability p / 2, or
///   (b) it exceeds the cut-off for probability 1e-2, and the rank's residual, its value less the median of the *other*
///       ranks, is unlike its own last `window` residuals: |t| exceeds the Student cut-off of probability p / (2 n),
/// with p = false_alarms_per_step / tests. A healthy step alarms with probability at most false_alarms_per_step, for values
/// that are independent and Gaussian over ranks and steps; why, and what heavy tails do: metrics/README.md.
///
/// A residual that exceeds its cut-off does not enter the history, so a fault cannot hide itself. After `absorb_after` such
/// steps in a row the history starts again, and only rule (a) watches the rank for `history_needed` steps.
/// Non-finite values are left out; with fewer than 3 ranks left nothing is judged. Two ranks: the t of their difference,
/// with p, sets `detected` and names nobody.
/// Deterministic: equal numbers in the same order give equal verdicts on every rank. Not safe for concurrent use.
/// Cost: ranks * tests * (window + 1.5) doubles, allocated by the constructor; `judge` allocates nothing.
class outlier_detector {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank or test, or options out of range.
    outlier_detector(int ranks, int tests, const outlier_options& options = {},
        const call_site& where = call_site::current());

    int ranks() const noexcept { return ranks_; }
    int tests() const noexcept { return tests_; }
    const outlier_options& options() const noexcept { return options_; }
    /// Cut-off of rule (a) for `finite` ranks of this detector; infinity by bits below 3.
    double score_cutoff(int finite) const noexcept { return strict_[static_cast<std::size_t>(finite)]; }
    /// Cut-off on |t| of rule (b) with `entries` residuals. Precondition: history_needed <= entries <= window.
    double history_cutoff(int entries) const noexcept { return history_cutoff_[static_cast<std::size_t>(entries)]; }

    /// Judges one test of one step. Call once per test and step, on every rank alike.
    ///
    /// `values[r]` belongs to rank r; non-finite ones are left out. Errors: `status::invalid_argument`
    /// if `test` is not one of this detector's or `values` has not one entry per rank; then nothing
    /// changes. O(n) plus `window` for each rank that exceeds the loose cut-off of rule (b).
    outlier_verdict judge(int test, view<const double> values, const call_site& where = call_site::current());

    /// Forgets all history, as after a restart from a checkpoint or a change of data.
    void reset() noexcept;

private:
    struct series {
        std::int32_t entries = 0;
        std::int32_t next = 0;
        std::int32_t rejected = 0; // in a row
    };

    [[noreturn]] void refuse(int test, std::size_t size, const call_site& where) const;

    std::size_t index(int test, std::size_t rank) const noexcept
    {
        return static_cast<std::size_t>(test) * static_cast<std::size_t>(ranks_) + rank;
    }

    /// Student's t of `residual` among the past ones of the series. `magnitude` is that of the values
    /// it was taken from: a scatter below 2^-40 of it is rounding, not scatter.
    double history_score(std::size_t which, double residual, double magnitude) const noexcept;

    void remember(std::size_t which, double residual, bool rejected) noexcept;

    void judge_pair(int test, view<const double> values, const detail::middle_values& middle,
        outlier_verdict& verdict) noexcept;

    void judge_all(int test, view<const double> values, const detail::middle_values& middle,
        std::size_t finite, outlier_verdict& verdict);

    int ranks_;
    int tests_;
    outlier_options options_;
    detail::fixed_array<double> residuals_; // of halved values; a window for each test and rank
    detail::fixed_array<series> series_;
    detail::fixed_array<double> scores_;
    detail::fixed_array<double> work_;
    detail::fixed_array<double> strict_; // by number of finite ranks
    detail::fixed_array<double> loose_;
    detail::fixed_array<double> history_cutoff_; // by number of entries
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/outlier.ipp>
#endif
