// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// With which weight did each rank enter an average? Least squares, and the name of the weights' form. README.md has
/// the model of the errors, and what can be named.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// More ranks have no weights: sketches of all ranks would take much memory, and the equations one thread's time.
inline constexpr int most_weighted_ranks = 64;

/// The place of (row, column), column <= row, in a lower triangle that is stored row by row.
COLLPROBE_HD constexpr std::uint64_t packed_place(std::uint64_t row, std::uint64_t column) noexcept
{
    return row * (row + 1) / 2 + column;
}

/// What `solve_weights` says beside the weights.
struct weights_solution {
    weights_refusal why_not = weights_refusal::none;
    /// The least part of an input's square that is no combination of the inputs before it: 1 if all are orthogonal.
    double least_pivot = 1;
};

/// A pivot below this counts as 0: the normal equations have lost half of a double's digits.
inline constexpr double least_weight_pivot = 0x1p-33;

/// The weights w that minimise |y - sum of w_r x_r|, by a Cholesky factorisation of the normal equations.
/// `products`: the inner products of x_1 .. x_n and y, the lower triangle of n + 1 rows as `packed_place` has it; but
/// for the last number, that of y with itself, it is overwritten. `weights`: n numbers; NaN by bits if there is no
/// solution, and of a vector x that is zero, which is left out. `variances`: n numbers, those of the weights if the
/// elements of y have independent errors of variance 1. `scales`: n numbers, 0 of a zero vector, for
/// `weight_influence`, which reads what the triangle has become.
/// Errors: the products of vectors that are all zero, non-finite or collinear are refused. Cost: (n + 1)^3 / 3
/// multiplications; no allocation.
COLLPROBE_HD inline weights_solution solve_weights(
    double* products, int ranks, double* weights, double* variances, double* scales) noexcept
{
    const auto n = static_cast<std::uint64_t>(ranks);
    weights_solution found;
    for (std::uint64_t r = 0; r < n; ++r) weights[r] = variances[r] = scales[r] = not_a_number();
    bool has_inputs = false;
    for (std::uint64_t r = 0; r <= n; ++r) {
        const double square = products[packed_place(r, r)];
        if (!is_finite(square)) return {weights_refusal::not_finite, 0};
        if (r == n && !(square > 0)) found.why_not = weights_refusal::zero_result;
        if (r == n) break;
        scales[r] = square > 0 ? 1 / square_root(square) : 0;
        has_inputs = has_inputs || square > 0;
    }
    if (!has_inputs) return {weights_refusal::few_elements, 0};
    for (std::uint64_t row = 0; row <= n; ++row) {
        double* const of_row = products + packed_place(row, 0);
        for (std::uint64_t column = 0; column < row; ++column) {
            const double* const other = products + packed_place(column, 0);
            double rest = of_row[column] * scales[column] * (row < n ? scales[row] : 1);
            for (std::uint64_t k = 0; k < column; ++k) rest -= of_row[k] * other[k];
            of_row[column] = rest / other[column];
        }
        if (row == n) break;
        double pivot = 1; // of a zero vector, too: its row is 0 elsewhere
        for (std::uint64_t k = 0; k < row; ++k) pivot -= of_row[k] * of_row[k];
        if (!is_finite(pivot)) found = {weights_refusal::not_finite, 0};
        else if (pivot < least_weight_pivot) found = {weights_refusal::collinear, 0};
        else if (pivot < found.least_pivot) found.least_pivot = pivot;
        if (!(found.least_pivot > 0)) return found;
        of_row[row] = square_root(pivot);
    }
    // The inverse of the triangle, row by row in its place: a row needs the rows above it and its own later numbers.
    for (std::uint64_t row = 0; row < n; ++row) {
        double* const of_row = products + packed_place(row, 0);
        const double inverse = 1 / of_row[row];
        for (std::uint64_t column = 0; column < row; ++column) {
            double sum = 0;
            for (std::uint64_t k = column; k < row; ++k) sum += of_row[k] * products[packed_place(k, column)];
            of_row[column] = -sum * inverse;
        }
        of_row[row] = inverse;
    }
    const double* const of_result = products + packed_place(n, 0);
    for (std::uint64_t r = 0; r < n; ++r) {
        double weight = 0, variance = 0;
        for (std::uint64_t k = r; k < n; ++k) {
            const double each = products[packed_place(k, r)];
            weight += each * of_result[k];
            variance += each * each;
        }
        if (!(scales[r] > 0)) continue;
        weights[r] = weight * scales[r];
        variances[r] = variance * scales[r] * scales[r];
    }
    return found;
}

/// Behind `solve_weights`: weight `of` is the inner product of y and the sum of `influence[r]` x_r. NaN by bits if
/// there was no solution.
COLLPROBE_HD inline void weight_influence(
    const double* products, int ranks, int of, const double* weights, const double* scales, double* influence) noexcept
{
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto own = static_cast<std::uint64_t>(of);
    for (std::uint64_t r = 0; r < n; ++r) {
        double sum = is_finite(weights[own]) ? 0 : not_a_number();
        for (std::uint64_t k = r < own ? own : r; k < n; ++k)
            sum += products[packed_place(k, r)] * products[packed_place(k, own)];
        influence[r] = sum * scales[r] * scales[own];
    }
}

/// The share of each rank in a mean; the shares add up to 1. Equal shares, unless there are tokens.
struct mean_shares {
    int ranks;
    view<const double> tokens = {};
    double total = 0; ///< of the tokens; without any, of ones

    double operator[](int rank) const noexcept
    {
        return (tokens.empty() ? 1.0 : tokens[static_cast<std::uint64_t>(rank)]) / total;
    }
};

/// Equal shares if the tokens are equal, or not known.
COLLPROBE_COLD_INLINE mean_shares shares_of_tokens(view<const double> tokens, int ranks) noexcept
{
    const mean_shares equal{ranks, {}, static_cast<double>(ranks)};
    if (tokens.count() != static_cast<std::uint64_t>(ranks)) return equal;
    double total = 0;
    bool differ = false;
    for (const double each : tokens) {
        if (!is_finite(each) || each < 0) return equal;
        total += each;
        differ = differ || each < tokens[0] || each > tokens[0];
    }
    if (!differ || !is_finite(total)) return equal;
    return {ranks, tokens, total};
}

/// Compares weights with the forms that they may have. Sets of ranks are bits.
class weight_forms {
public:
    weight_forms(call_weights& of, double rounded_factors)
        : of_(of), rounded_factors_(rounded_factors), ranks_(static_cast<int>(of.weights.size()))
    {
    }

    /// These ranks may have weight 0: they are neither lost nor doubled.
    void excuse(const mean_shares& shares) noexcept
    {
        for (int r = 0; r < ranks_; ++r) {
            if (!(shares[r] > 0) || !is_known(r)) excused_ |= rank_set{1} << r;
        }
    }
    /// Tries the forms that are `of_mean` but for a factor.
    void try_shares(const mean_shares& shares, averaging of_mean)
    {
        try_form(shares, of_mean, 1);
        if (ranks_ == 1) return;
        if (of_mean == averaging::mean) try_form(shares, averaging::sum, ranks_);
        try_form(shares, averaging::divided_twice, 1.0 / ranks_);
    }

    /// Of the ranks whose weights are known, if others are not: the mean over them, where it may be meant.
    void try_known(mean_shares shares, averaging of_mean)
    {
        int known = 0;
        double total = 0;
        for (int r = 0; r < ranks_; ++r) {
            known += is_known(r) ? 1 : 0;
            total += is_known(r) ? shares[r] : 0;
        }
        if (known == ranks_ || !(total > 0) || (forms_ != 0 && found_ == 0 && known != 1)) return;
        shares.total *= total;
        try_form(shares, of_mean, 1);
    }
    /// Takes the only form that fits.
    void decide()
    {
        if (forms_ > 1) {
            of_.why_not = weights_refusal::ambiguous;
            return;
        }
        of_.how = forms_ == 0 ? averaging::other : how_;
        for (int r = 0; r < ranks_; ++r) {
            if (holds(found_, r)) of_.ranks.push_back(r);
        }
        if (of_.how != averaging::token_weighted) set_common();
    }

private:
    using rank_set = std::uint64_t;

    static bool holds(rank_set set, int rank) noexcept { return (set >> rank & 1) != 0; }
    double weight(int rank) const noexcept { return of_.weights[static_cast<std::size_t>(rank)]; }
    bool is_known(int rank) const noexcept { return !is_nan(weight(rank)); }
    bool fits(int rank, double wanted) const noexcept
    {
        return !is_known(rank) || absolute(weight(rank) - wanted)
            <= of_.bounds[static_cast<std::size_t>(rank)] + rounded_factors_ * absolute(wanted);
    }
    void add(averaging how, rank_set named = 0) noexcept
    {
        if (forms_ != 0 && how == how_ && named == found_) return;
        ++forms_;
        how_ = how;
        found_ = named;
    }
    void try_form(const mean_shares& shares, averaging how, double factor) noexcept
    {
        if (fit_but(0, shares, factor, 1)) add(how);
        if (ranks_ == 1) return;
        rank_set lost = 0;
        double least = 0x1.fffffffffffffp1023, most = -least;
        for (int r = 0; r < ranks_; ++r) {
            if (holds(excused_, r)) continue;
            if (fits(r, 0)) lost |= rank_set{1} << r;
            least = std::min(least, ratio_of(r, shares));
            most = std::max(most, ratio_of(r, shares));
        }
        try_named(lost, shares, averaging::rank_lost, factor, 0);
        rank_set doubled = 0; // those in the upper half of the range
        for (int r = 0; r < ranks_; ++r) {
            if (!holds(excused_, r) && 2 * ratio_of(r, shares) > least + most) doubled |= rank_set{1} << r;
        }
        try_named(doubled, shares, averaging::rank_doubled, factor, 2);
    }
    double ratio_of(int rank, const mean_shares& shares) const noexcept
    {
        return weight(rank) / (shares[rank] * of_.scale);
    }
    /// Whether the ranks that are named have `times` their weight.
    void try_named(
        rank_set named, const mean_shares& shares, averaging how, double factor, double times) noexcept
    {
        const int count = __builtin_popcountll(named);
        if (count == 0 || 2 * count > ranks_ - __builtin_popcountll(excused_)) return;
        if (fit_but(named, shares, factor, times)) return add(how, named);
        // A mean may be that over the ranks that are there.
        double total = 1;
        for (int r = 0; r < ranks_; ++r) {
            if (holds(named, r)) total += (times - 1) * shares[r];
        }
        if (factor == 1 && total > 0 && fit_but(named, shares, 1 / total, times)) add(how, named);
    }
    /// Whether all weights fit, if those of the named ranks are taken `times`.
    bool fit_but(rank_set named, const mean_shares& shares, double factor, double times) const noexcept
    {
        for (int r = 0; r < ranks_; ++r) {
            if (!fits(r, of_.scale * shares[r] * factor * (holds(named, r) ? times : 1))) return false;
        }
        return true;
    }
    void set_common() noexcept
    {
        double sum = 0, terms = 0;
        for (int r = 0; r < ranks_; ++r) {
            if (holds(found_, r) || !is_known(r)) continue;
            const double bound = of_.bounds[static_cast<std::size_t>(r)] + 0x1p-50 * absolute(weight(r));
            sum += weight(r) / (bound * bound); // a weight that is known well counts more
            terms += 1 / (bound * bound);
        }
        const double mean = sum / terms;
        for (int r = 0; r < ranks_; ++r) {
            if (!holds(found_, r) && !fits(r, mean)) return;
        }
        of_.common = mean;
    }

    call_weights& of_;
    double rounded_factors_;
    int ranks_;
    rank_set excused_ = 0; ///< ranks without tokens
    int forms_ = 0; ///< that fit
    averaging how_ = averaging::unknown; ///< the last of them
    rank_set found_ = 0; ///< what it names
};

} // namespace detail

/// Names the form of weights: sets `how`, `why_not`, `ranks` and `common`. A form is named if each weight is within its
/// bound of what the form says, and no other form fits; README.md says which forms are tried, and when none is named.
/// Of one rank's weight there is only `mean`. Ranks are lost or doubled if they have tokens and are at most half of all
/// such ranks. A rank that sent zeros has an unknown weight, NaN by bits, that fits each form.
/// `rounded_factors`: factors of the form, such as 1 / n, may be rounded by so much of their size: two unit roundoffs
/// of the element type. It counts as a part of the bounds. `tokens`: a number for each rank; empty, or no valid
/// numbers, if they are not known.
/// Preconditions: `of.weights` and `of.bounds` have a number for each of at most 64 ranks; `of.scale` is not 0.
/// Cost: a few comparisons a rank and form.
COLLPROBE_COLD_INLINE void name_weights(call_weights& of, double rounded_factors, view<const double> tokens = {})
{
    const std::size_t ranks = of.weights.size();
    of.how = averaging::unknown;
    of.why_not = weights_refusal::none;
    of.common = detail::not_a_number();
    of.ranks.clear();
    double size = 0, bound = 0, known = 0;
    bool are_finite = true;
    for (const double each : of.weights) known += is_nan(each) ? 0 : 1;
    for (std::size_t r = 0; r < ranks; ++r) {
        if (is_nan(of.weights[r])) continue;
        are_finite = are_finite && is_finite(of.weights[r]) && is_finite(of.bounds[r]);
        size += detail::absolute(of.weights[r]) / known;
        bound = std::max(bound, of.bounds[r]);
    }
    if (ranks > detail::most_weighted_ranks) of.why_not = weights_refusal::many_ranks;
    else if (of.residual > of.residual_limit) of.why_not = weights_refusal::unexplained;
    else if (!are_finite || !(size > 0) || 8 * (bound + rounded_factors * size) > size)
        of.why_not = weights_refusal::imprecise;
    if (of.why_not != weights_refusal::none) return;
    detail::weight_forms forms(of, rounded_factors);
    const int n = static_cast<int>(ranks);
    const detail::mean_shares shares = detail::shares_of_tokens(tokens, n);
    const detail::mean_shares equal{n, {}, static_cast<double>(n)};
    forms.excuse(shares);
    forms.try_shares(equal, averaging::mean);
    if (!shares.tokens.empty()) forms.try_shares(shares, averaging::token_weighted);
    forms.try_known(equal, averaging::mean);
    if (!shares.tokens.empty()) forms.try_known(shares, averaging::token_weighted);
    forms.decide();
}

} // namespace collprobe
