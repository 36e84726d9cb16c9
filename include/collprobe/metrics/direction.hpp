// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// The directions of the ranks' gradients g_1 .. g_n, from their dot products. S is the sum of the gradients.
///
/// The n x n Gram matrix gives every number. The sums of one pass over g_r and one over S cost nothing more and give
/// every number but the mean pairwise cosine. README.md has the formulas and their errors.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The two moments behind the gradient noise scale. One rank's batch is the small batch, the batch of all ranks the
/// big one. Source: McCandlish et al., arXiv 1812.06162, appendix A.
struct noise_moments {
    double signal = not_a_number(); ///< estimate of |G|^2, the squared norm of the true gradient
    double noise = not_a_number(); ///< estimate of the summed variance of one rank's gradient
};

/// The noise moments of one step, from q = sum |g_r|^2 and s = |S|^2. Both are unbiased, so either may be negative in a
/// noisy step: average over steps before dividing. NaN by bits for n < 2 or non-finite input.
COLLPROBE_COLD_INLINE noise_moments estimate_noise(int n, double sum_of_norms_squared, double sum_norm_squared) noexcept
{
    noise_moments result;
    if (n < 2 || !is_finite(sum_of_norms_squared) || !is_finite(sum_norm_squared)) return result;
    const double ranks = n;
    result.signal = (sum_norm_squared - sum_of_norms_squared) / (ranks * (ranks - 1));
    result.noise = (sum_of_norms_squared - sum_norm_squared / ranks) / (ranks - 1);
    return result;
}

/// The power of two that brings a number near 1, and keeps numbers beside it in range.
inline double scale_to_one(double largest) noexcept
{
    const int exponent = binary_exponent(largest);
    return power_of_two(exponent > 1000 ? -1000 : exponent < -1000 ? 1000 : -exponent);
}

/// The cosine of two vectors, limited to [-1, 1]. `norms`: the product of their lengths.
inline double cosine_of(double dot, double norms) noexcept
{
    const double cosine = dot / norms;
    return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
}

} // namespace detail

/// Cosine of g_r with the sum of all other gradients, S - g_r, from |g_r|^2, g_r . S and |S|^2: low for a rank that is
/// unlike the others. NaN by bits if an argument is not finite, g_r or S - g_r is zero, or g_r so much larger than the
/// others that nothing is known of these.
COLLPROBE_COLD_INLINE double leave_one_out(double norm_squared, double dot_with_sum, double sum_norm_squared) noexcept
{
    if (!is_finite(norm_squared) || !is_finite(dot_with_sum) || !is_finite(sum_norm_squared)
        || !(norm_squared > 0)) {
        return detail::not_a_number();
    }
    const double down = detail::scale_to_one(sum_norm_squared > norm_squared ? sum_norm_squared : norm_squared);
    const double own = norm_squared * down;
    const double total = sum_norm_squared * down;
    const double dot = dot_with_sum * down;
    const double rest = total - 2 * dot + own;
    // Squares and dots of elements of 8 and 16 bits have relative errors of 4e-6 at most.
    if (!(rest > 0x1p-20 * (total + own)) || !(own > 0)) return detail::not_a_number();
    return detail::cosine_of(dot - own, detail::square_root(own) * detail::square_root(rest));
}

namespace detail {

/// Sets noise scale and predicted cosine from the moments; negative estimates count as 0. `signal` and `noise` may have
/// an unknown common factor.
COLLPROBE_COLD_INLINE void set_noise(double signal, double noise, direction& out) noexcept
{
    out.noise_scale = not_a_number();
    out.predicted_cosine = not_a_number();
    if (!is_finite(signal) || !is_finite(noise)) return;
    if (noise < 0) noise = 0;
    if (signal > 0x1p-900 * noise) { // their ratio is in range
        out.noise_scale = noise / signal;
        out.predicted_cosine = signal / (signal + noise);
    } else if (noise > 0) {
        out.noise_scale = infinity();
        out.predicted_cosine = 0;
    }
}

/// Computes all of `direction` from the Gram matrix G[i * n + j] = g_i . g_j (squared gradient units). It reads the
/// diagonal and the entries above it. `noise_scale` and `predicted_cosine` are those of this step alone.
/// A rank whose norm is zero or not finite has no direction: its pairs are left out, its cosines are NaN by bits. In
/// the noise a zero gradient counts. If two finite gradients have a non-finite product, the cosines leave out the
/// pair, and noise scale and leave-one-out cosines are NaN. With fewer than two ranks everything is NaN.
/// Reuses the capacity of the lists. Errors: `status::invalid_argument` if `gram` has not n * n entries.
/// Cost: O(n^2), and n^2 more for each rank that outweighs all others by 2^10.
COLLPROBE_COLD_INLINE void align_from_gram(view<const double> gram, int n, direction& out,
    const call_site& where = call_site::current())
{
    if (n < 1 || gram.size() != static_cast<std::size_t>(n) * static_cast<std::size_t>(n)) {
        detail::refuse("align_from_gram",
            "a Gram matrix of " + std::to_string(n) + " ranks cannot have " + std::to_string(gram.size())
                + " entries", where);
    }
    const std::size_t ranks = static_cast<std::size_t>(n);
    out.mean_pairwise = out.pooled = out.noise_scale = out.predicted_cosine = not_a_number();
    out.leave_one_out.resize(ranks);
    out.pairwise.assign(ranks, not_a_number());

    double largest = 0;
    int samples = 0;
    for (std::size_t i = 0; i < ranks; ++i) {
        out.leave_one_out[i] = not_a_number();
        const double own = gram[i * ranks + i];
        if (!is_finite(own)) continue;
        ++samples;
        if (own > largest) largest = own;
    }
    const double down = scale_to_one(largest);
    const auto product = [=](std::size_t i, std::size_t j) noexcept {
        return (i < j ? gram[i * ranks + j] : gram[j * ranks + i]) * down;
    };
    const auto has_direction = [=](std::size_t i) noexcept {
        return is_finite(gram[i * ranks + i]) && gram[i * ranks + i] > 0;
    };

    double cosines = 0, pairs = 0;
    double products = 0; // sum of G_ij over i < j
    double norm_products = 0;
    double differences = 0; // sum of |g_i - g_j|^2 over i < j: n times the error energy
    double total = 0; // |S|^2
    bool complete = true;
    for (std::size_t i = 0; i < ranks; ++i) {
        if (!is_finite(gram[i * ranks + i])) continue;
        if (has_direction(i)) total += product(i, i);
        double own_cosines = 0, others = 0;
        for (std::size_t j = 0; j < ranks; ++j) {
            if (j == i || !is_finite(gram[j * ranks + j])) continue;
            const double dot = product(i, j);
            complete = complete && is_finite(dot);
            if (!is_finite(dot)) continue;
            const double once = i < j ? 1 : 0; // a pair is met twice
            differences += once * (product(i, i) + product(j, j) - 2 * dot);
            if (!has_direction(i) || !has_direction(j)) continue;
            const double norms = square_root(product(i, i)) * square_root(product(j, j));
            products += once * dot;
            norm_products += once * norms;
            if (!(norms > 0)) continue;
            const double cosine = cosine_of(dot, norms);
            own_cosines += cosine;
            others += 1;
            cosines += once * cosine;
            pairs += once;
        }
        if (others > 0) out.pairwise[i] = own_cosines / others;
    }
    if (pairs > 0) {
        out.mean_pairwise = cosines / pairs;
        out.pooled = products / norm_products;
    }
    if (!complete) return;
    // noise = differences / (n (n - 1)) and signal = 2 products / (n (n - 1)).
    if (samples >= 2) set_noise(2 * products, differences, out);

    total += 2 * products;
    for (std::size_t i = 0; i < ranks; ++i) {
        const double own = product(i, i);
        if (!has_direction(i) || !(own > 0)) continue;
        double row = 0; // g_i . (S - g_i)
        int others = 0;
        for (std::size_t j = 0; j < ranks; ++j) {
            if (j == i || !has_direction(j)) continue;
            row += product(i, j);
            ++others;
        }
        if (others == 0) continue;
        double rest = total - 2 * row - own;
        if (rest < 0x1p-10 * (total + own)) {
            // Rank i outweighs the others: sum them without it instead of subtracting it.
            rest = 0;
            double magnitude = 0;
            for (std::size_t j = 0; j < ranks; ++j) {
                for (std::size_t k = j; k < ranks; ++k) {
                    if (j == i || k == i || !has_direction(j) || !has_direction(k)) continue;
                    const double term = product(j, k) * (k == j ? 1 : 2);
                    rest += term;
                    magnitude += absolute(term);
                }
            }
            if (!(rest > 0x1p-40 * magnitude)) continue; // the others cancel: they have no direction
        }
        out.leave_one_out[i] = cosine_of(row, square_root(own) * square_root(rest));
    }
}

/// Computes `direction` without a Gram matrix, from the squared norms |g_r|^2 of all n ranks, the dots g_r . S and
/// |S|^2 (squared gradient units). Sets `mean_pairwise` to NaN. The dots may be empty; then so is `leave_one_out`.
/// Identical gradients give the noise scale 0; gradients whose dots have no positive sum infinity (by bits); all-zero
/// gradients, any non-finite input and n = 1 NaN.
/// Reuses the capacity of `out.leave_one_out`. Errors: `status::invalid_argument` if the sizes differ. Cost: O(n).
inline void align_from_sums(view<const double> norms_squared, view<const double> dots_with_sum,
    double sum_norm_squared, direction& out, const call_site& where = call_site::current())
{
    if (!dots_with_sum.empty() && norms_squared.size() != dots_with_sum.size()) {
        detail::refuse("align_from_sums",
            std::to_string(norms_squared.size()) + " norms but " + std::to_string(dots_with_sum.size())
                + " dots", where);
    }
    out.mean_pairwise = out.pooled = out.noise_scale = out.predicted_cosine = not_a_number();
    out.leave_one_out.resize(dots_with_sum.size());
    for (std::size_t r = 0; r < dots_with_sum.size(); ++r) {
        out.leave_one_out[r] = norms_squared.size() < 2
            ? not_a_number() : collprobe::leave_one_out(norms_squared[r], dots_with_sum[r], sum_norm_squared);
    }
    double largest = sum_norm_squared;
    if (!is_finite(sum_norm_squared) || norms_squared.size() < 2) return;
    for (const double own : norms_squared) {
        if (!is_finite(own)) return;
        if (own > largest) largest = own;
    }
    const double down = scale_to_one(largest);
    double squares = 0, norms = 0;
    double norm_products = 0; // over i < j, summed as such: (sum |g_r|)^2 - q would cancel
    for (const double own : norms_squared) {
        if (!(own > 0)) continue;
        const double norm = square_root(own * down);
        squares += own * down;
        norm_products += norm * norms;
        norms += norm;
    }
    const double excess = sum_norm_squared * down - squares;
    if (norm_products > 0) out.pooled = cosine_of(excess, 2 * norm_products);
    const noise_moments moments
        = estimate_noise(static_cast<int>(norms_squared.size()), squares, sum_norm_squared * down);
    set_noise(moments.signal, moments.noise, out);
}

/// The gradient noise scale over about 100 steps: an exponential average, with bias correction, of each moment, before
/// their ratio is taken, since that of one step is biased and has no useful variance.
class smoothed_noise_scale {
public:
    /// Adds the moments of one step; ignores a step whose moments are not finite.
    COLLPROBE_COLD_INLINE void update(const noise_moments& step) noexcept
    {
        if (!is_finite(step.signal) || !is_finite(step.noise)) return;
        signal_ = decay * signal_ + (1 - decay) * step.signal;
        noise_ = decay * noise_ + (1 - decay) * step.noise;
        weight_ = decay * weight_ + (1 - decay);
    }

    /// 1 / (1 + noise scale): the mean pairwise cosine of healthy ranks. NaN by bits before the first update.
    COLLPROBE_COLD_INLINE double predicted_cosine() const noexcept
    {
        direction result;
        if (weight_ > 0) set_noise(signal_ / weight_, noise_ / weight_, result);
        return result.predicted_cosine;
    }

private:
    static constexpr double decay = 0.99;
    double signal_ = 0, noise_ = 0, weight_ = 0;
};

} // namespace detail

} // namespace collprobe
