// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>

/// Finds ranks that are unlike the others, with a false-alarm rate that holds for few ranks.
///
/// The plain z-score over n ranks cannot exceed (n - 1) / sqrt(n), so "3 sigma" never fires on 8
/// ranks; the modified z-score with the textbook's cut-off 3.5 fires on 13.7 % of healthy steps there.
/// Here the cut-off is looked up for n and for the false-alarm rate asked for.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// x such that a standard normal exceeds it with probability p, 0 < p <= 0.5: relative error below 1e-13.
double normal_upper_quantile(double p) noexcept;

/// The same quantile of Student's t: up to 0.5 % too high for 31 or more degrees of freedom and p >= 1e-12
/// (Gaver and Kafadar, The American Statistician 38, 1984).
double student_upper_quantile(double p, double degrees) noexcept;

/// Centre and width of the values of the ranks. Neither one bad rank nor almost half of the ranks can move them far.
struct robust_location {
    double median = not_a_number(); ///< NaN by bits if no value is finite
    double mad = not_a_number(); ///< median absolute deviation from the median
    int finite = 0; ///< number of finite values
};

/// Modified z-score of each rank: 0.6745 |x - median| / MAD over the finite values (Iglewicz and
/// Hoaglin, How to Detect and Handle Outliers, 1993).
///
/// `scores` has one entry per value and is the only storage used. The median of an even number of values is the mean of
/// the middle two. A MAD below 2^-40 |median| counts as 2^-40 |median|, so that ties and rounding noise give no
/// infinite scores; if both are 0 it counts as 2^-40 of the largest deviation. Equal values score 0. A non-finite value
/// is left out of median and MAD and scores infinity by bits. With fewer than 3 finite values a score names no rank,
/// because two values have equal scores.
///
/// Errors: `status::invalid_argument` if the sizes differ. Cost: O(n), no allocation.
robust_location modified_z(view<const double> values, view<double> scores,
    const call_site& where = call_site::current());

/// The score that the largest modified z of n healthy ranks exceeds with probability p, if their
/// values are independent and Gaussian.
///
/// From a table made by simulation (standard errors below 1 %) for n = 3 .. 25, then 32 .. 1024, and p = 1e-2 .. 1e-7;
/// between entries, log(cut-off) is interpolated linearly in log n and log p. A larger p counts as 1e-2. A smaller p is
/// extrapolated along the last two columns. The tail is a power law, P(score > t) ~ t^-floor(n/2), since
/// floor(n/2) + 1 values must lie close together to make the MAD small. The columns show an exponent at or below that
/// (for many ranks the power law begins later), so the extrapolation gives fewer alarms, not more. p below 1e-15 counts
/// as 1e-15. More than 1024 ranks continue the last two rows. n < 3 gives infinity by bits: no rank can be named.
///
/// Values with heavier tails than Gaussian exceed the cut-off more often (see `outlier_detector`). So pass quantities
/// that are near Gaussian, such as `near_gaussian_norm` and `fisher_z`. Cost: O(1).
double outlier_cutoff(int n, double p) noexcept;

} // namespace detail

/// The transformation of losses for the detector: the cube root. Mean losses of small batches are skewed like a gamma
/// distribution, whose cube root is nearly Gaussian (Wilson and Hilferty, PNAS 17, 1931).
/// Any sign; a non-finite loss gives NaN by bits.
double near_gaussian_loss(double loss) noexcept;

/// The transformation of gradient norms: the cube root of the squared norm, for the same reason. (A logarithm goes too
/// far: it makes small norms the outliers and hides large ones.) A non-finite or negative norm gives NaN by bits.
double near_gaussian_norm(double norm) noexcept;

/// Fisher's z of a cosine, atanh(c): near Gaussian even if the cosines are close to 1. Limited to |c| = 1 - 2^-40,
/// beyond which a cosine is rounding noise. A non-finite cosine gives NaN by bits.
double fisher_z(double cosine) noexcept;

/// The rules by which an `outlier_detector` decides.
struct outlier_options {
    /// The most important option: probability that a step of healthy ranks raises any alarm, over all ranks and all
    /// tests. In (0, 1).
    double false_alarms_per_step = 1e-4;
    /// Residuals remembered per rank and test (32 to 4096), and the number of residuals from which on they count (32 to
    /// `window`).
    int window = 128;
    int history_needed = 32;
    /// After this number of rejected steps in a row a rank's new level counts as its normal level; at least 1.
    int absorb_after = 8;
};

/// A rank that a test names, with the evidence.
struct outlier {
    int rank = -1;
    double score = 0; ///< modified z over the ranks
    double cutoff = 0; ///< the cut-off that the score exceeds
    /// Student's t of the rank's residual among its own past residuals, followed by the cut-off for it; NaN by bits
    /// and 0 if the rank has too little history.
    double history_score = detail::not_a_number();
    double history_cutoff = 0;
    bool needed_history = false; ///< true if the score alone did not suffice, but both exceed their cut-offs
};

/// The result of one test in one step.
struct outlier_verdict {
    static constexpr int capacity = 10;

    bool detected = false; ///< something is wrong, even if `named` is empty
    /// More than a quarter of the ranks (but at least one), or more than ten, are out. Then the group has no common
    /// level and no rank is named. NCCL's RAS prints its outliers by the same rule.
    bool incoherent = false;
    int out = 0; ///< ranks beyond the cut-offs, named or not
    /// The strongest evidence if no rank is named, followed by the cut-off that it exceeds. With two ranks it is
    /// Student's t of their difference; with more ranks, the score of the rank that exceeds its cut-off most. 0 if
    /// nothing was detected, or if a rank is named.
    double score = 0;
    double cutoff = 0;
    int count = 0; ///< entries of `named`
    outlier named[capacity]; ///< in ascending order of ranks

    view<const outlier> suspects() const noexcept { return {named, static_cast<std::size_t>(count)}; }
};

/// Watches a fixed number of tests over the ranks, step by step: the loss, the norm of each bucket, the leave-one-out
/// cosine. Test j of a step takes one number per rank. With p = false_alarms_per_step / tests in a step it names rank
/// r if
///   (a) the modified z of r over the ranks exceeds the cut-off for probability p / 2, or
///   (b) it exceeds the cut-off for probability 1e-2, and the rank's residual (its value less the median of the *other*
///       ranks) is unlike its own last `window` residuals: |t| exceeds the Student cut-off of probability p / (2 n).
/// A healthy step alarms with probability at most false_alarms_per_step, for values that are independent and Gaussian
/// over ranks and steps. metrics/README.md has the reason, and the effect of heavy tails.
/// A residual beyond its cut-off does not enter the history, so a fault cannot hide itself. After `absorb_after` such
/// steps in a row the history starts again, and only rule (a) watches the rank for `history_needed` steps.
/// Non-finite values are left out; with fewer than 3 ranks left nothing is judged. For two ranks, the t of their
/// difference, with p, sets `detected` and names no rank.
/// Preconditions: no concurrent use. Equal numbers in the same order give equal verdicts on every rank.
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
    /// Forgets the history of one test. Precondition: 0 <= test < tests().
    void forget(int test) noexcept;
    /// Makes room for more tests, of which a step makes at most `in_a_step`: the cut-offs are those of so many. What
    /// is known of the others stays. Errors: `status::invalid_argument` unless 1 <= in_a_step <= tests and
    /// tests >= tests().
    void grow(int tests, int in_a_step, const call_site& where = call_site::current());

private:
    struct series {
        std::int32_t entries = 0;
        std::int32_t next = 0;
        std::int32_t rejected = 0; // in a row
    };

    [[noreturn]] void refuse(int test, std::size_t size, const call_site& where) const;
    void set_cutoffs(int in_a_step);

    std::size_t index(int test, std::size_t rank) const noexcept
    {
        return static_cast<std::size_t>(test) * static_cast<std::size_t>(ranks_) + rank;
    }

    /// Student's t of `residual` among the past residuals of the series. `magnitude` is that of the values that
    /// `residual` was computed from: a scatter below 2^-40 of it counts as rounding.
    double history_score(std::size_t which, double residual, double magnitude) const noexcept;

    void remember(std::size_t which, double residual, bool rejected) noexcept;

    void judge_pair(int test, view<const double> values, const detail::middle_values& middle,
        outlier_verdict& verdict) noexcept;

    void judge_all(int test, view<const double> values, const detail::middle_values& middle,
        std::size_t finite, outlier_verdict& verdict);

    int ranks_;
    int tests_;
    int in_a_step_;
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
