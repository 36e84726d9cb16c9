// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/detail/outlier_table.hpp>
#include <collprobe/metrics/outlier.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

COLLPROBE_COLD_INLINE double normal_upper_quantile(double p) noexcept
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

COLLPROBE_COLD_INLINE double student_upper_quantile(double p, double degrees) noexcept
{
    const double x = normal_upper_quantile(p);
    const double shifted = degrees - 2.0 / 3 + 0.1 / degrees;
    const double exponent = x * x * (degrees - 5.0 / 6) / (shifted * shifted);
    return square_root(degrees * (exponential(exponent) - 1));
}

COLLPROBE_COLD_INLINE robust_location modified_z(
    view<const double> values, view<double> scores, const call_site& where)
{
    if (values.size() != scores.size()) {
        detail::refuse("modified_z",
            std::to_string(values.size()) + " values but room for " + std::to_string(scores.size())
                + " scores", where);
    }
    robust_location result;
    // Values are halved, so that no difference of two finite values overflows.
    std::size_t finite = 0;
    for (const double x : values)
        if (is_finite(x)) scores[finite++] = 0.5 * x;
    result.finite = static_cast<int>(finite);
    double median = 0;
    double scale = 0;
    if (finite > 0) {
        const view<double> work = scores.part(0, finite);
        median = median_of(middle_of(work), finite);
        double largest = 0;
        for (double& x : work) {
            x = absolute(x - median);
            if (x > largest) largest = x;
        }
        const double mad = median_of(middle_of(work), finite);
        result.median = 2 * median;
        result.mad = 2 * mad;
        scale = mad;
        if (scale < 0x1p-40 * absolute(median)) scale = 0x1p-40 * absolute(median);
        if (!(scale > 0)) scale = 0x1p-40 * largest;
    }
    for (std::size_t r = 0; r < values.size(); ++r) {
        if (!is_finite(values[r])) {
            scores[r] = infinity();
            continue;
        }
        const double distance = absolute(0.5 * values[r] - median);
        scores[r] = distance > 0 ? 0.6745 * (distance / scale) : 0.0;
    }
    return result;
}

COLLPROBE_COLD_INLINE double outlier_cutoff(int n, double p) noexcept
{
    if (n < 3) return infinity();
    constexpr std::size_t rows = sizeof(outlier_table) / sizeof(outlier_table[0]);
    constexpr std::size_t columns = sizeof(outlier_table_p) / sizeof(outlier_table_p[0]);
    if (!(p < outlier_table_p[0])) p = outlier_table_p[0];
    if (p < 1e-15) p = 1e-15;

    std::size_t row = 0;
    while (row + 2 < rows && outlier_table[row + 1].ranks <= n) ++row;
    std::size_t column = 0;
    while (column + 2 < columns && outlier_table_p[column + 1] >= p) ++column;

    const auto at = [](const outlier_table_row& entry, std::size_t c, double x) noexcept {
        const double left = natural_log(entry.cutoff[c]);
        return left + x * (natural_log(entry.cutoff[c + 1]) - left);
    };
    const double log_p = natural_log(outlier_table_p[column]);
    const double x = (natural_log(p) - log_p)
        / (natural_log(outlier_table_p[column + 1]) - log_p);
    const outlier_table_row& lower = outlier_table[row];
    const outlier_table_row& upper = outlier_table[row + 1];
    const double log_n = natural_log(static_cast<double>(lower.ranks));
    const double y = (natural_log(static_cast<double>(n)) - log_n)
        / (natural_log(static_cast<double>(upper.ranks)) - log_n);
    const double first = at(lower, column, x);
    return exponential(first + y * (at(upper, column, x) - first));
}

} // namespace detail

COLLPROBE_COLD_INLINE double near_gaussian_loss(double loss) noexcept
{
    return is_finite(loss) ? detail::cube_root(loss) : detail::not_a_number();
}

COLLPROBE_COLD_INLINE double near_gaussian_norm(double norm) noexcept
{
    if (!is_finite(norm) || norm < 0) return detail::not_a_number();
    const double root = detail::cube_root(norm);
    return root * root;
}

COLLPROBE_COLD_INLINE double fisher_z(double cosine) noexcept
{
    if (!is_finite(cosine)) return detail::not_a_number();
    constexpr double limit = 1 - 0x1p-40;
    if (cosine > limit) cosine = limit;
    if (cosine < -limit) cosine = -limit;
    return 0.5 * detail::natural_log((1 + cosine) / (1 - cosine));
}

COLLPROBE_COLD_INLINE outlier_detector::outlier_detector(
    int ranks, int tests, const outlier_options& options, const call_site& where)
    : ranks_(ranks), tests_(tests), in_a_step_(tests), options_(options)
{
    const auto refuse = [&where](const std::string& what) { detail::refuse("outlier_detector", what, where); };
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
    set_cutoffs(tests);
}

COLLPROBE_COLD_INLINE void outlier_detector::set_cutoffs(int in_a_step)
{
    in_a_step_ = in_a_step;
    const int ranks = ranks_;
    const std::size_t n = static_cast<std::size_t>(ranks);
    const double p = options_.false_alarms_per_step / in_a_step;
    strict_ = detail::fixed_array<double>(n + 1);
    loose_ = detail::fixed_array<double>(n + 1);
    for (int count = 0; count <= ranks; ++count) {
        strict_[static_cast<std::size_t>(count)] = detail::outlier_cutoff(count, p / 2);
        loose_[static_cast<std::size_t>(count)] = detail::outlier_cutoff(count, 1e-2);
    }
    const double one_sided = ranks == 2 ? p / 2 : p / (4.0 * ranks);
    // The history of a pair lacks the rejected residuals, so its variance is a little too small: 2 x density(x) of it
    // is missing. (With more ranks the bound has room for this.)
    const double x = detail::normal_upper_quantile(one_sided);
    const double widen = ranks == 2 ? 1 + x * 0.39894228040143267794 * detail::exponential(-0.5 * x * x) : 1;
    history_cutoff_ = detail::fixed_array<double>(static_cast<std::size_t>(options_.window) + 1);
    for (int entries = options_.history_needed; entries <= options_.window; ++entries) {
        history_cutoff_[static_cast<std::size_t>(entries)]
            = widen * detail::student_upper_quantile(one_sided, entries - 1);
    }
}

COLLPROBE_COLD_INLINE outlier_verdict outlier_detector::judge(
    int test, view<const double> values, const call_site& where)
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

COLLPROBE_COLD_INLINE void outlier_detector::reset() noexcept
{
    for (series& one : series_) one = series{};
}

COLLPROBE_COLD_INLINE void outlier_detector::forget(int test) noexcept
{
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_); ++r) series_[index(test, r)] = series{};
}

COLLPROBE_COLD_INLINE void outlier_detector::grow(int tests, int in_a_step, const call_site& where)
{
    if (in_a_step < 1 || in_a_step > tests || tests < tests_)
        detail::refuse("outlier_detector::grow", std::to_string(in_a_step) + " of " + std::to_string(tests)
                + " tests in a step, of " + std::to_string(tests_) + " before", where);
    const std::size_t wanted = index(tests, 0);
    if (wanted > series_.size()) {
        // By half at least: a step that has a call more each time must not copy all each time.
        const std::size_t half_more = series_.size() + index(tests_ / 2, 0);
        const std::size_t room = wanted > half_more ? wanted : half_more;
        detail::fixed_array<series> more_series(room);
        detail::fixed_array<double> more_residuals(room * static_cast<std::size_t>(options_.window));
        for (std::size_t i = 0; i < series_.size(); ++i) more_series[i] = series_[i];
        for (std::size_t i = 0; i < residuals_.size(); ++i) more_residuals[i] = residuals_[i];
        series_ = std::move(more_series);
        residuals_ = std::move(more_residuals);
    }
    tests_ = tests;
    if (in_a_step != in_a_step_) set_cutoffs(in_a_step);
}

COLLPROBE_COLD_INLINE void outlier_detector::refuse(int test, std::size_t size, const call_site& where) const
{
    const std::string what = test < 0 || test >= tests_
        ? "there is no test " + std::to_string(test) + " among " + std::to_string(tests_)
        : std::to_string(size) + " values for " + std::to_string(ranks_) + " ranks";
    detail::refuse("outlier_detector::judge", what, where);
}

COLLPROBE_COLD_INLINE double outlier_detector::history_score(
    std::size_t which, double residual, double magnitude) const noexcept
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

COLLPROBE_COLD_INLINE void outlier_detector::remember(std::size_t which, double residual, bool rejected) noexcept
{
    series& one = series_[which];
    if (rejected) {
        ++one.rejected;
        if (one.rejected < options_.absorb_after) return;
        one.entries = 0;
        one.next = 0;
    }
    one.rejected = 0;
    residuals_[which * static_cast<std::size_t>(options_.window) + static_cast<std::size_t>(one.next)]
        = residual;
    one.next = one.next + 1 == options_.window ? 0 : one.next + 1;
    if (one.entries < options_.window) ++one.entries;
}

COLLPROBE_COLD_INLINE void outlier_detector::judge_pair(int test, view<const double> values,
    const detail::middle_values& middle, outlier_verdict& verdict) noexcept
{
    // One series is enough: the other rank's residuals are its negatives.
    const std::size_t which = index(test, 0);
    const double value = 0.5 * values[0];
    const double other = detail::median_without(value, middle, 2);
    const double residual = value - other;
    const int entries = series_[which].entries;
    if (entries >= options_.history_needed) {
        const double score
            = history_score(which, residual, detail::absolute(value) + detail::absolute(other));
        verdict.detected = detail::absolute(score) > history_cutoff(entries);
        if (verdict.detected) {
            verdict.score = score;
            verdict.cutoff = history_cutoff(entries);
        }
    }
    remember(which, residual, verdict.detected);
}

COLLPROBE_COLD_INLINE void outlier_detector::judge_all(int test, view<const double> values,
    const detail::middle_values& middle, std::size_t finite, outlier_verdict& verdict)
{
    detail::modified_z(values, view<double>(scores_.data(), scores_.size()));
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
                found.history_score
                    = history_score(which, value - other, detail::absolute(value) + detail::absolute(other));
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

} // namespace collprobe::inline COLLPROBE_ABI
