// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>
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
noise_moments estimate_noise(int n, double sum_of_norms_squared, double sum_norm_squared) noexcept;

} // namespace detail

/// Cosine of g_r with the sum of all other gradients, S - g_r, from |g_r|^2, g_r . S and |S|^2. Low for a rank that is
/// unlike the others.
///
/// In [-1, 1]. NaN by bits if an argument is not finite, or g_r or S - g_r is zero. |S - g_r|^2 = |S|^2 - 2 g_r . S +
/// |g_r|^2 cancels when one rank outweighs the others: the bits lost are log2 of the ratio of the largest term to the
/// result. From 40 bits lost (others 2^-20 of the norm of g_r) the cosine is untrustworthy and counts as undefined.
/// With exact arguments the absolute error is about 2^-50 times that ratio.
double leave_one_out(double norm_squared, double dot_with_sum, double sum_norm_squared) noexcept;

namespace detail {

/// Sets noise scale and predicted cosine from the moments; negative estimates count as 0. `signal` and `noise` may have
/// an unknown common factor.
void set_noise(double signal, double noise, direction& out) noexcept;

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
void align_from_gram(view<const double> gram, int n, direction& out,
    const call_site& where = call_site::current());

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
void align_from_sums(view<const double> norms_squared, double sum_norm_squared, direction& out) noexcept;

/// As above, and sets `leave_one_out` of every rank from the dots g_r . S.
///
/// Reuses the capacity of `out.leave_one_out`: no allocation once it has held n.
/// Errors: `status::invalid_argument` if the sizes differ.
void align_from_sums(view<const double> norms_squared, view<const double> dots_with_sum,
    double sum_norm_squared, direction& out, const call_site& where = call_site::current());

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
    void update(const noise_moments& step) noexcept;

    /// The averaged moments; NaN by bits before the first update.
    noise_moments moments() const noexcept;

    /// Sets `noise_scale` and `predicted_cosine` of `out` from the averaged moments, with the conventions of
    /// `align_from_sums`. Leaves the other members unchanged.
    void write_to(direction& out) const noexcept;

    /// In units of one rank's batch.
    double noise_scale() const noexcept;
    /// 1 / (1 + noise_scale): the mean pairwise cosine of healthy ranks.
    double predicted_cosine() const noexcept;

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

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/direction.ipp>
#endif
