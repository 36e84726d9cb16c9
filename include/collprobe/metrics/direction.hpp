// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
/// There are two sources. The n x n Gram matrix gives every number. The sums of one pass over g_r and one over S cost
/// nothing more and give every number but the mean pairwise cosine.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The two moments behind the gradient noise scale. One rank's batch is the small batch, the batch of all ranks the
/// big one. Source: McCandlish et al., arXiv 1812.06162, appendix A.
struct noise_moments {
    double signal = not_a_number(); ///< estimate of |G|^2, the squared norm of the true gradient
    double noise = not_a_number(); ///< estimate of the summed variance of one rank's gradient
};

/// The noise moments of one step.
///
/// With `sum_of_norms_squared` q = sum |g_r|^2 and `sum_norm_squared` s = |S|^2, in squared gradient units:
/// signal = (s - q) / (n (n - 1)), noise = (q - s / n) / (n - 1). Both are unbiased, so either may be negative in a
/// noisy step: average over steps before dividing. NaN by bits for n < 2 or non-finite input. `noise` loses digits by
/// cancellation if the ranks agree, `signal` if they do not; each has an absolute error of about 2^-51 q.
COLLPROBE_COLD_INLINE noise_moments estimate_noise(int n, double sum_of_norms_squared, double sum_norm_squared) noexcept
{
    noise_moments result;
    if (n < 2 || !is_finite(sum_of_norms_squared) || !is_finite(sum_norm_squared)) return result;
    const double ranks = n;
    result.signal = (sum_norm_squared - sum_of_norms_squared) / (ranks * (ranks - 1));
    result.noise = (sum_of_norms_squared - sum_norm_squared / ranks) / (ranks - 1);
    return result;
}

} // namespace detail

/// Cosine of g_r with the sum of all other gradients, S - g_r, from |g_r|^2, g_r . S and |S|^2. Low for a rank that is
/// unlike the others.
///
/// In [-1, 1]. NaN by bits if an argument is not finite, or g_r or S - g_r is zero. |S - g_r|^2 = |S|^2 - 2 g_r . S +
/// |g_r|^2 cancels when one rank outweighs the others: the bits lost are log2 of the ratio of the largest term to the
/// result. From 40 bits lost (others 2^-20 of the norm of g_r) the cosine is untrustworthy and counts as undefined.
/// With exact arguments the absolute error is about 2^-50 times that ratio.
COLLPROBE_COLD_INLINE double leave_one_out(double norm_squared, double dot_with_sum, double sum_norm_squared) noexcept
{
    if (!is_finite(norm_squared) || !is_finite(dot_with_sum) || !is_finite(sum_norm_squared)
        || !(norm_squared > 0)) {
        return detail::not_a_number();
    }
    // Scaling by a power of two keeps the terms in range; the result has no unit.
    double largest = norm_squared;
    if (sum_norm_squared > largest) largest = sum_norm_squared;
    int exponent = detail::binary_exponent(largest);
    if (exponent > 1021) exponent = 1021;
    const double down = detail::power_of_two(exponent < -1021 ? 1021 : -exponent);
    const double own = norm_squared * down;
    const double total = sum_norm_squared * down;
    const double dot = dot_with_sum * down;
    const double rest = total - 2 * dot + own;
    // Squares and dots of elements of 8 and 16 bits have relative errors of 4e-6 at most.
    if (!(rest > 0x1p-20 * (total + own)) || !(own > 0)) return detail::not_a_number();
    const double cosine = (dot - own) / (detail::square_root(own) * detail::square_root(rest));
    if (cosine > 1) return 1;
    if (cosine < -1) return -1;
    return cosine;
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

/// Computes all of `direction` from the Gram matrix G[i * n + j] = g_i . g_j (squared gradient units). Reads only the
/// diagonal and the entries above it.
/// - `mean_pairwise`: the mean over pairs i < j of G_ij / sqrt(G_ii G_jj), each limited to [-1, 1]: the published
///   gradient-direction consistency (arXiv 2602.14462).
/// - `pooled`: sum G_ij / sum sqrt(G_ii G_jj) over the same pairs. Ranks of large norm dominate it, so it falls more
///   when one rank is both large and unlike the others.
/// - `leave_one_out[i]`: cosine of g_i with the sum of the others.
/// - `noise_scale`, `predicted_cosine`: as in `align_from_sums`, for this step alone.
/// A rank whose norm is zero or not finite has no direction. It and its pairs are left out, its `leave_one_out` is NaN
/// by bits; a zero gradient still counts in the noise. If two finite gradients have a non-finite product, the cosines
/// leave out the pair, and noise scale and leave-one-out cosines are NaN. With fewer than two ranks everything is NaN.
/// Each cosine has an absolute error of about n 2^-52 (given G): only sums of products of either sign cancel.
/// Reuses the capacity of `out.leave_one_out`: no allocation once it has held n.
/// Errors: `status::invalid_argument` if `gram` has not n * n entries.
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

    double largest = 0;
    int samples = 0;
    for (std::size_t i = 0; i < ranks; ++i) {
        out.leave_one_out[i] = not_a_number();
        const double own = gram[i * ranks + i];
        if (!is_finite(own)) continue;
        ++samples;
        if (own > largest) largest = own;
    }
    const double down = power_of_two(-std::clamp(binary_exponent(largest), -1000, 1000));

    const auto usable = [gram, ranks](std::size_t i) noexcept {
        const double own = gram[i * ranks + i];
        return is_finite(own) && own > 0;
    };
    const auto product = [gram, ranks](std::size_t i, std::size_t j) noexcept {
        return i < j ? gram[i * ranks + j] : gram[j * ranks + i];
    };

    double cosines = 0;
    double pairs = 0;
    double products = 0; // sum of G_ij over i < j
    double norm_products = 0;
    double differences = 0; // sum of |g_i - g_j|^2 over i < j: n times the error energy
    bool complete = true;
    for (std::size_t i = 0; i < ranks; ++i) {
        if (!is_finite(gram[i * ranks + i])) continue;
        const double own = gram[i * ranks + i] * down;
        for (std::size_t j = i + 1; j < ranks; ++j) {
            if (!is_finite(gram[j * ranks + j])) continue;
            const double other = gram[j * ranks + j] * down;
            if (!is_finite(gram[i * ranks + j])) {
                complete = false;
                continue;
            }
            const double dot = gram[i * ranks + j] * down;
            differences += own + other - 2 * dot;
            if (!usable(i) || !usable(j)) continue;
            const double norms = square_root(own) * square_root(other);
            products += dot;
            norm_products += norms;
            if (!(norms > 0)) continue;
            double cosine = dot / norms;
            if (cosine > 1) cosine = 1;
            if (cosine < -1) cosine = -1;
            cosines += cosine;
            pairs += 1;
        }
    }
    if (pairs > 0) {
        out.mean_pairwise = cosines / pairs;
        out.pooled = products / norm_products;
    }
    if (complete && samples >= 2) {
        // noise = differences / (n (n - 1)) and signal = 2 products / (n (n - 1)).
        set_noise(2 * products, differences, out);
    }

    double total = 0; // |S|^2
    for (std::size_t i = 0; i < ranks; ++i)
        if (usable(i)) total += gram[i * ranks + i] * down;
    total += 2 * products;
    for (std::size_t i = 0; i < ranks; ++i) {
        if (!usable(i)) continue;
        const double own = gram[i * ranks + i] * down;
        if (!(own > 0)) continue;
        double row = 0; // g_i . (S - g_i)
        bool known = true;
        int others = 0;
        for (std::size_t j = 0; j < ranks; ++j) {
            if (j == i || !usable(j)) continue;
            ++others;
            if (is_finite(product(i, j))) row += product(i, j) * down;
            else known = false;
        }
        if (!known || others == 0 || !complete) continue;
        double rest = total - 2 * row - own;
        if (rest < 0x1p-10 * (total + own)) {
            // Rank i outweighs the others: sum them without it instead of subtracting it.
            rest = 0;
            double magnitude = 0;
            for (std::size_t j = 0; j < ranks; ++j) {
                if (j == i || !usable(j)) continue;
                for (std::size_t k = j; k < ranks; ++k) {
                    if (k == i || !usable(k)) continue;
                    const double term = product(j, k) * down * (k == j ? 1 : 2);
                    rest += term;
                    magnitude += absolute(term);
                }
            }
            if (!(rest > 0x1p-40 * magnitude)) continue; // the others cancel: they have no direction
        }
        double cosine = row / (square_root(own) * square_root(rest));
        if (cosine > 1) cosine = 1;
        if (cosine < -1) cosine = -1;
        out.leave_one_out[i] = cosine;
    }
}

/// Computes `pooled`, `noise_scale` and `predicted_cosine` without a Gram matrix, from the squared norms |g_r|^2 of all
/// n ranks and |S|^2 (squared gradient units). Sets `mean_pairwise` to NaN and empties `leave_one_out`.
/// - `pooled` = (|S|^2 - q) / ((sum |g_r|)^2 - q) with q = sum |g_r|^2.
/// - `noise_scale` = noise / signal of `estimate_noise`, in units of one rank's batch; times the samples per rank it is
///   B_simple. A negative estimate of either moment counts as 0. Identical gradients give 0; gradients whose dots have
///   no positive sum give infinity (by bits); all-zero gradients give NaN.
/// - `predicted_cosine` = 1 / (1 + noise_scale): the cosine that healthy independent shards have, to compare with the
///   measured one. For a single step it is as noisy as `pooled`; see `smoothed_noise_scale`.
/// Any non-finite input makes all three NaN, since S contains that rank; so does n = 1. Both numerators are
/// differences. For exact arguments and equal norms the absolute error of `pooled` is about 2^-51 n / (n - 1); that of
/// `noise_scale` is about 2^-50 n, so a smaller disagreement reads as 0. If S was rounded to 16 bits before its digest
/// or norm was taken, expect 1e-3.
/// Cost: O(n), no allocation.
inline void align_from_sums(view<const double> norms_squared, double sum_norm_squared, direction& out) noexcept
{
    out.mean_pairwise = out.pooled = out.noise_scale = out.predicted_cosine = not_a_number();
    out.leave_one_out.clear();
    double largest = sum_norm_squared;
    if (!is_finite(sum_norm_squared) || norms_squared.size() < 2) return;
    for (const double own : norms_squared) {
        if (!is_finite(own)) return;
        if (own > largest) largest = own;
    }
    const double down = power_of_two(-std::clamp(binary_exponent(largest), -1000, 1000));
    double squares = 0;
    double norms = 0;
    double norm_products = 0; // over i < j, summed as such: (sum |g_r|)^2 - q would cancel
    for (const double own : norms_squared) {
        if (!(own > 0)) continue;
        const double norm = square_root(own * down);
        squares += own * down;
        norm_products += norm * norms;
        norms += norm;
    }
    const double excess = sum_norm_squared * down - squares;
    if (norm_products > 0) {
        double cosine = excess / (2 * norm_products);
        if (cosine > 1) cosine = 1;
        if (cosine < -1) cosine = -1;
        out.pooled = cosine;
    }
    const noise_moments moments
        = estimate_noise(static_cast<int>(norms_squared.size()), squares, sum_norm_squared * down);
    set_noise(moments.signal, moments.noise, out);
}

/// As above, and sets `leave_one_out` of every rank from the dots g_r . S.
///
/// Reuses the capacity of `out.leave_one_out`: no allocation once it has held n.
/// Errors: `status::invalid_argument` if the sizes differ.
inline void align_from_sums(view<const double> norms_squared, view<const double> dots_with_sum,
    double sum_norm_squared, direction& out, const call_site& where = call_site::current())
{
    if (norms_squared.size() != dots_with_sum.size()) {
        detail::refuse("align_from_sums",
            std::to_string(norms_squared.size()) + " norms but " + std::to_string(dots_with_sum.size())
                + " dots", where);
    }
    align_from_sums(norms_squared, sum_norm_squared, out);
    out.leave_one_out.resize(norms_squared.size());
    for (std::size_t r = 0; r < norms_squared.size(); ++r) {
        double cosine = not_a_number();
        if (norms_squared.size() > 1)
            cosine = collprobe::leave_one_out(norms_squared[r], dots_with_sum[r], sum_norm_squared);
        out.leave_one_out[r] = cosine;
    }
}

/// The gradient noise scale over many steps. Each moment is averaged by itself before their ratio is taken, since the
/// ratio of one step is biased and has no useful variance.
///
/// The averages are exponential, with bias correction: the first update counts in full. k-diffusion's gns.py averages
/// both moments with decay 0.9998; the default here forgets in about 100 steps.
class smoothed_noise_scale {
public:
    /// Precondition: 0 <= decay < 1; other values count as 0.
    explicit smoothed_noise_scale(double decay = 0.99) noexcept
    {
        if (decay >= 0 && decay < 1) decay_ = decay;
    }

    /// Adds the moments of one step; ignores a step whose moments are not finite.
    COLLPROBE_COLD_INLINE void update(const noise_moments& step) noexcept
    {
        if (!is_finite(step.signal) || !is_finite(step.noise)) return;
        signal_ = decay_ * signal_ + (1 - decay_) * step.signal;
        noise_ = decay_ * noise_ + (1 - decay_) * step.noise;
        weight_ = decay_ * weight_ + (1 - decay_);
    }

    /// The averaged moments; NaN by bits before the first update.
    COLLPROBE_COLD_INLINE noise_moments moments() const noexcept
    {
        detail::noise_moments result;
        if (!(weight_ > 0)) return result;
        result.signal = signal_ / weight_;
        result.noise = noise_ / weight_;
        return result;
    }

    /// Sets `noise_scale` and `predicted_cosine` of `out` from the averaged moments, with the conventions of
    /// `align_from_sums`. Leaves the other members unchanged.
    COLLPROBE_COLD_INLINE void write_to(direction& out) const noexcept
    {
        const detail::noise_moments mean = moments();
        detail::set_noise(mean.signal, mean.noise, out);
    }

    /// In units of one rank's batch.
    COLLPROBE_COLD_INLINE double noise_scale() const noexcept
    {
        direction result;
        write_to(result);
        return result.noise_scale;
    }

    /// 1 / (1 + noise_scale): the mean pairwise cosine of healthy ranks.
    COLLPROBE_COLD_INLINE double predicted_cosine() const noexcept
    {
        direction result;
        write_to(result);
        return result.predicted_cosine;
    }

    /// Forgets all steps.
    void reset() noexcept { signal_ = noise_ = weight_ = 0; }

private:
    double decay_ = 0;
    double signal_ = 0;
    double noise_ = 0;
    double weight_ = 0;
};

} // namespace detail

} // namespace collprobe
