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
#include <collprobe/metrics/detail/outlier_table.hpp>

/// Which rank is unlike the others, with a false-alarm rate that holds for few ranks.
///
/// The plain z-score over n ranks cannot exceed (n - 1) / sqrt(n), so "3 sigma" never fires on 8
/// ranks; the modified z-score with the textbook's cut-off 3.5 fires on 13.7 % of healthy steps there.
/// Here the cut-off is looked up for n and for the false-alarm rate asked for.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// x such that a standard normal exceeds it with probability p, 0 < p <= 0.5: relative error below 1e-13.
inline double normal_upper_quantile(double p) noexcept
{
    if (p >= 0.5) return 0;
    // Abramowitz and Stegun 26.2.23, then Newton's steps with the second-order term.
    const double t = square_root(-2 * natural_log(p));
    double x = t
        - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
    for (int i = 0; i < 3; ++i) {
        const double tail = 0.5 * error_function_complement(x * 0.70710678118654752440);
        const double density = 0.39894228040143267794 * exponential(-0.5 * x * x);
        const double step = (tail - p) / density;
        x += step / (1 - 0.5 * x * step);
    }
    return x;
}

/// The same for Student's t: up to 0.5 % too high for 31 or more degrees of freedom and p >= 1e-12
/// (Gaver and Kafadar, The American Statistician 38, 1984).
inline double student_upper_quantile(double p, double degrees) noexcept
{
    const double x = normal_upper_quantile(p);
    const double shifted = degrees - 2.0 / 3 + 0.1 / degrees;
    const double exponent = x * x * (degrees - 5.0 / 6) / (shifted * shifted);
    return square_root(degrees * (exponential(exponent) - 1));
}

} // namespace detail

/// Centre and width of the values of the ranks that neither one bad rank nor almost half of them can
/// move far.
struct robust_location {
    double median = detail::not_a_number(); ///< NaN by bits where no value is finite
    double mad = detail::not_a_number(); ///< median absolute deviation from the median
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
inline robust_location modified_z(view<const double> values, view<double> scores,
    const call_site& where = call_site::current())
{
    if (values.size() != scores.size()) {
        throw error(status::invalid_argument,
            std::to_string(values.size()) + " values but room for " + std::to_string(scores.size()) + " scores",
            error_origin{"modified_z", -1, 0, {}, where});
    }
    robust_location result;
    // Halves, so that no difference of two finite values overflows.
    std::size_t finite = 0;
    for (const double x : values)
        if (is_finite(x)) scores[finite++] = 0.5 * x;
    result.finite = static_cast<int>(finite);
    double median = 0;
    double scale = 0;
    if (finite > 0) {
        const view<double> work = scores.part(0, finite);
        median = detail::median_of(detail::middle_of(work), finite);
        double largest = 0;
        for (double& x : work) {
            x = detail::absolute(x - median);
            if (x > largest) largest = x;
        }
        const double mad = detail::median_of(detail::middle_of(work), finite);
        result.median = 2 * median;
        result.mad = 2 * mad;
        scale = mad;
        if (scale < 0x1p-40 * detail::absolute(median)) scale = 0x1p-40 * detail::absolute(median);
        if (!(scale > 0)) scale = 0x1p-40 * largest;
    }
    for (std::size_t r = 0; r < values.size(); ++r) {
        if (!is_finite(values[r])) {
            scores[r] = detail::infinity();
            continue;
        }
        const double distance = detail::absolute(0.5 * values[r] - median);
        scores[r] = distance > 0 ? 0.6745 * (distance / scale) : 0.0;
    }
    return result;
}

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
inline double outlier_cutoff(int n, double p) noexcept
{
    if (n < 3) return detail::infinity();
    constexpr std::size_t rows = sizeof(detail::outlier_table) / sizeof(detail::outlier_table[0]);
    constexpr std::size_t columns = sizeof(detail::outlier_table_p) / sizeof(detail::outlier_table_p[0]);
    if (!(p < detail::outlier_table_p[0])) p = detail::outlier_table_p[0];
    if (p < 1e-15) p = 1e-15;

    std::size_t row = 0;
    while (row + 2 < rows && detail::outlier_table[row + 1].ranks <= n) ++row;
    std::size_t column = 0;
    while (column + 2 < columns && detail::outlier_table_p[column + 1] >= p) ++column;

    const auto at = [](const detail::outlier_table_row& entry, std::size_t c, double x) noexcept {
        const double left = detail::natural_log(entry.cutoff[c]);
        return left + x * (detail::natural_log(entry.cutoff[c + 1]) - left);
    };
    const double log_p = detail::natural_log(detail::outlier_table_p[column]);
    const double x = (detail::natural_log(p) - log_p)
        / (detail::natural_log(detail::outlier_table_p[column + 1]) - log_p);
    const detail::outlier_table_row& lower = detail::outlier_table[row];
    const detail::outlier_table_row& upper = detail::outlier_table[row + 1];
    const double log_n = detail::natural_log(static_cast<double>(lower.ranks));
    const double y = (detail::natural_log(static_cast<double>(n)) - log_n)
        / (detail::natural_log(static_cast<double>(upper.ranks)) - log_n);
    const double first = at(lower, column, x);
    return detail::exponential(first + y * (at(upper, column, x) - first));
}

/// What to pass to the detector for losses: the cube root. Mean losses of small batches are skewed like
/// a gamma distribution, whose cube root is nearly Gaussian (Wilson and Hilferty, PNAS 17, 1931).
/// Any sign; a non-finite loss gives NaN by bits.
inline double near_gaussian_loss(double loss) noexcept
{
    return is_finite(loss) ? detail::cube_root(loss) : detail::not_a_number();
}

/// What to pass for gradient norms: the cube root of the squared norm, for the same reason. (Their
/// logarithm would overdo it: it makes small norms the outliers and hides large ones.) A non-finite or
/// negative norm gives NaN by bits.
inline double near_gaussian_norm(double norm) noexcept
{
    if (!is_finite(norm) || norm < 0) return detail::not_a_number();
    const double root = detail::cube_root(norm);
    return root * root;
}

/// Fisher's z of a cosine, atanh(c): near Gaussian where the cosine itself is squeezed against 1.
/// Cut at |c| = 1 - 2^-40, beyond which a cosine is rounding noise; a non-finite one gives NaN by bits.
inline double fisher_z(double cosine) noexcept
{
    if (!is_finite(cosine)) return detail::not_a_number();
    constexpr double limit = 1 - 0x1p-40;
    if (cosine > limit) cosine = limit;
    if (cosine < -limit) cosine = -limit;
    return 0.5 * detail::natural_log((1 + cosine) / (1 - cosine));
}

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

/// Watches a fixed number of tests over the ranks, step by step: the loss, the norm of each
/// bucket, the leave-one-out cosine.
///
/// Test j of a step takes one number per rank. It names rank r if
///   (a) the modified z of r over the ranks exceeds the cut-off for probability p / 2, or
///   (b) it exceeds the cut-off for probability 1e-2, and the rank's residual, its value less the
///       median of the *other* ranks, is unlike its own last `window` residuals: |t| exceeds the
///       Student cut-off of probability p / (2 n),
/// with p = false_alarms_per_step / tests. So a healthy step alarms with probability at most
/// false_alarms_per_step by the union bound over tests, rules and ranks; rule (b) keeps its half even
/// without its first condition, whose help is not counted since the two depend on each other. Rule (a)
/// alone could not see much with few ranks (at n = 4 it asks for a score of several hundred); rule
/// (b) adds the sensitivity back once there is history.
///
/// The bound is for values that are independent and Gaussian over ranks and steps, up to a level that
/// all ranks share in a step and one that each rank keeps. Measured alarms per step with three
/// tests at the default of 1e-4:
///
///     ranks                          3        4        8        16       64
///     Gaussian                       5.5e-5   5.5e-5   6.2e-5   6.0e-5   5.3e-5
///     lognormal (sigma 0.1), no log  7e-5     3e-5     1.4e-4   4.7e-4   2.1e-3
///     Student's t, 10 degrees        1.0e-4   1.8e-4   1.1e-3   5.4e-3   3.0e-2
///     Laplace                        1.8e-4   8.0e-4   7.6e-3   3.2e-2   0.27
///
/// So with many ranks the tails must be near Gaussian indeed: give means over many samples, not single
/// ones, and take an alarm that repeats for one rank more seriously than one that does not.
///
/// The median of the others, not of all, makes the residual of healthy ranks near Gaussian for any n:
/// with the median of all, one of three ranks would have a residual of exactly 0.
///
/// Residuals of ranks that exceed the cut-offs do not enter their history, so a fault cannot hide
/// itself; after `absorb_after` such steps in a row the history starts over from the new level, and
/// for `history_needed` steps only rule (a) watches the rank. Non-finite values belong to the exact
/// check: their ranks are left out of the step, the cut-offs are those for the number left, and with
/// fewer than 3 left nothing is judged. Two ranks: t of their difference, with p, sets `detected` and
/// names nobody. One rank: nothing.
///
/// Deterministic: the verdict depends on the values and those of earlier steps alone, so every rank
/// that judges the same numbers with the same program and mathematics library reaches the same one.
/// Memory: ranks * tests * (window + 1.5) doubles, allocated by the constructor; `judge` allocates
/// nothing. Not safe for concurrent use.
class outlier_detector {
public:
    /// Errors: `status::invalid_argument` for fewer than 1 rank or test, or options out of range.
    outlier_detector(int ranks, int tests, const outlier_options& options = {},
        const call_site& where = call_site::current())
        : ranks_(ranks), tests_(tests), options_(options)
    {
        const auto refuse = [&where](const std::string& what) {
            throw error(status::invalid_argument, what, error_origin{"outlier_detector", -1, 0, {}, where});
        };
        if (ranks < 1) refuse("cannot watch " + std::to_string(ranks) + " ranks");
        if (tests < 1) refuse("cannot watch " + std::to_string(tests) + " tests");
        if (!is_finite(options.false_alarms_per_step) || !(options.false_alarms_per_step > 0)
            || !(options.false_alarms_per_step < 1)) {
            refuse("false_alarms_per_step must lie between 0 and 1");
        }
        if (options.window < 32 || options.window > 4096) refuse("window must be 32 to 4096");
        if (options.history_needed < 32 || options.history_needed > options.window)
            refuse("history_needed must be 32 to window");
        if (options.absorb_after < 1) refuse("absorb_after must be at least 1");

        const std::size_t n = static_cast<std::size_t>(ranks);
        series_ = detail::fixed_array<series>(n * static_cast<std::size_t>(tests));
        residuals_ = detail::fixed_array<double>(series_.size() * static_cast<std::size_t>(options.window));
        scores_ = detail::fixed_array<double>(n);
        work_ = detail::fixed_array<double>(n);

        const double p = options.false_alarms_per_step / tests;
        strict_ = detail::fixed_array<double>(n + 1);
        loose_ = detail::fixed_array<double>(n + 1);
        for (int count = 0; count <= ranks; ++count) {
            strict_[static_cast<std::size_t>(count)] = outlier_cutoff(count, p / 2);
            loose_[static_cast<std::size_t>(count)] = outlier_cutoff(count, 1e-2);
        }
        const double one_sided = ranks == 2 ? p / 2 : p / (4.0 * ranks);
        // The history of a pair lacks what was rejected, so it is a little narrower than the residuals
        // are: 2 x density(x) of the variance is missing. (With more ranks the bound has room for it.)
        const double x = detail::normal_upper_quantile(one_sided);
        const double widen = ranks == 2 ? 1 + x * 0.39894228040143267794 * detail::exponential(-0.5 * x * x) : 1;
        history_cutoff_ = detail::fixed_array<double>(static_cast<std::size_t>(options.window) + 1);
        for (int entries = options.history_needed; entries <= options.window; ++entries) {
            history_cutoff_[static_cast<std::size_t>(entries)]
                = widen * detail::student_upper_quantile(one_sided, entries - 1);
        }
    }

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
    outlier_verdict judge(int test, view<const double> values, const call_site& where = call_site::current())
    {
        if (test < 0 || test >= tests_ || values.size() != static_cast<std::size_t>(ranks_))
            refuse(test, values.size(), where);
        outlier_verdict verdict;
        if (ranks_ == 1) return verdict;
        std::size_t finite = 0;
        for (const double x : values)
            if (is_finite(x)) work_[finite++] = 0.5 * x;
        if (finite < 3 && !(ranks_ == 2 && finite == 2)) return verdict;
        const detail::middle_values middle = detail::middle_of(view<double>(work_.data(), finite));
        if (ranks_ == 2) judge_pair(test, values, middle, verdict);
        else judge_all(test, values, middle, finite, verdict);
        return verdict;
    }

    /// Forgets all history, as after a restart from a checkpoint or a change of data.
    void reset() noexcept
    {
        for (series& one : series_) one = series{};
    }

private:
    struct series {
        std::int32_t entries = 0;
        std::int32_t next = 0;
        std::int32_t rejected = 0; // in a row
    };

    [[noreturn]] void refuse(int test, std::size_t size, const call_site& where) const
    {
        const std::string what = test < 0 || test >= tests_
            ? "there is no test " + std::to_string(test) + " among " + std::to_string(tests_)
            : std::to_string(size) + " values for " + std::to_string(ranks_) + " ranks";
        throw error(status::invalid_argument, what, error_origin{"outlier_detector::judge", -1, 0, {}, where});
    }

    std::size_t index(int test, std::size_t rank) const noexcept
    {
        return static_cast<std::size_t>(test) * static_cast<std::size_t>(ranks_) + rank;
    }

    /// Student's t of `residual` among the past ones of the series. `magnitude` is that of the values
    /// it was taken from: a scatter below 2^-40 of it is rounding, not scatter.
    double history_score(std::size_t which, double residual, double magnitude) const noexcept
    {
        const int entries = series_[which].entries;
        const double* past = residuals_.data() + which * static_cast<std::size_t>(options_.window);
        double sum = 0;
        for (int i = 0; i < entries; ++i) sum += past[i] - past[0];
        const double mean = past[0] + sum / entries;
        double squares = 0;
        for (int i = 0; i < entries; ++i) squares += (past[i] - mean) * (past[i] - mean);
        double scale = detail::square_root(squares / (entries - 1) * (1 + 1.0 / entries));
        if (scale < 0x1p-40 * magnitude) scale = 0x1p-40 * magnitude;
        const double distance = residual - mean;
        if (!(detail::absolute(distance) > 0)) return 0;
        if (!(scale > 0x1p-60 * detail::absolute(distance))) return distance > 0 ? 0x1p60 : -0x1p60;
        return distance / scale;
    }

    void remember(std::size_t which, double residual, bool rejected) noexcept
    {
        series& one = series_[which];
        if (rejected) {
            ++one.rejected;
            if (one.rejected < options_.absorb_after) return;
            one.entries = 0;
            one.next = 0;
        }
        one.rejected = 0;
        residuals_[which * static_cast<std::size_t>(options_.window) + static_cast<std::size_t>(one.next)] = residual;
        one.next = one.next + 1 == options_.window ? 0 : one.next + 1;
        if (one.entries < options_.window) ++one.entries;
    }

    void judge_pair(int test, view<const double> values, const detail::middle_values& middle,
        outlier_verdict& verdict) noexcept
    {
        // One series is enough: the other rank's residuals are its negatives.
        const std::size_t which = index(test, 0);
        const double value = 0.5 * values[0];
        const double other = detail::median_without(value, middle, 2);
        const double residual = value - other;
        const int entries = series_[which].entries;
        if (entries >= options_.history_needed) {
            const double score = history_score(which, residual, detail::absolute(value) + detail::absolute(other));
            verdict.detected = detail::absolute(score) > history_cutoff(entries);
            if (verdict.detected) {
                verdict.score = score;
                verdict.cutoff = history_cutoff(entries);
            }
        }
        remember(which, residual, verdict.detected);
    }

    void judge_all(int test, view<const double> values, const detail::middle_values& middle,
        std::size_t finite, outlier_verdict& verdict)
    {
        modified_z(values, view<double>(scores_.data(), scores_.size()));
        const int quarter = static_cast<int>(finite / 4);
        int limit = quarter < 1 ? 1 : quarter;
        if (limit > outlier_verdict::capacity) limit = outlier_verdict::capacity;
        double largest = 0; // excess over a cut-off

        for (std::size_t r = 0; r < values.size(); ++r) {
            if (!is_finite(values[r])) continue;
            const std::size_t which = index(test, r);
            const double value = 0.5 * values[r];
            const double other = detail::median_without(value, middle, finite);
            bool out = false;
            if (scores_[r] > loose_[finite]) {
                outlier found;
                found.rank = static_cast<int>(r);
                found.score = scores_[r];
                found.cutoff = strict_[finite];
                out = scores_[r] > strict_[finite];
                const int entries = series_[which].entries;
                if (entries >= options_.history_needed) {
                    found.history_score = history_score(
                        which, value - other, detail::absolute(value) + detail::absolute(other));
                    found.history_cutoff = history_cutoff(entries);
                    if (!out && detail::absolute(found.history_score) > found.history_cutoff) {
                        out = true;
                        found.needed_history = true;
                        found.cutoff = loose_[finite];
                    }
                }
                if (out) {
                    if (verdict.count < limit) verdict.named[verdict.count++] = found;
                    ++verdict.out;
                    const double score = found.needed_history ? found.history_score : found.score;
                    const double cutoff = found.needed_history ? found.history_cutoff : found.cutoff;
                    if (detail::absolute(score) / cutoff > largest) {
                        largest = detail::absolute(score) / cutoff;
                        verdict.score = score;
                        verdict.cutoff = cutoff;
                    }
                }
            }
            remember(which, value - other, out);
        }
        verdict.detected = verdict.out > 0;
        if (verdict.out > limit) {
            verdict.incoherent = true;
            verdict.count = 0;
        } else {
            verdict.score = 0;
            verdict.cutoff = 0;
        }
    }

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
