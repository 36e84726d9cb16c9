// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
        double weight = 0;
        double variance = 0;
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
        for (std::uint64_t k = r < own ? own : r; k < n; ++k) {
            sum += products[packed_place(k, r)] * products[packed_place(k, own)];
        }
        influence[r] = sum * scales[r] * scales[own];
    }
}

} // namespace detail

/// Names the form of weights: sets `how`, `why_not`, `ranks` and `common`. A form is named if each weight is within its
/// bound of what the form says, and no other form fits. If a bound is above an eighth of the mean weight, or the
/// residual above its limit, nothing is named. Of one rank's weight there is only `mean`. Ranks are lost or doubled if
/// they have tokens and are at most half of all such ranks; the other weights may be those of n ranks, or of the ranks
/// that are left. A rank that sent zeros has an unknown weight, NaN by bits, that fits each form. If no form of all
/// ranks fits, or one rank alone sent anything, the average may also be that of the ranks that sent anything.
/// `rounded_factors`: factors of the form, such as 1 / n, may be rounded by so much of their size: two unit roundoffs
/// of the element type. It counts as a part of the bounds. `tokens`: a number for each rank; empty, or no valid
/// numbers, if they are not known.
/// Preconditions: `of.weights` and `of.bounds` have a number for each of at most 64 ranks; `of.scale` is not 0.
/// Cost: a few comparisons a rank and form.
void name_weights(call_weights& of, double rounded_factors, view<const double> tokens = {});

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/average_weights.ipp>
#endif
