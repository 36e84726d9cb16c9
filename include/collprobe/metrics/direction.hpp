// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// How the gradients g_1 .. g_n of the ranks point, from their dot products. S is their sum.
///
/// Two sources: the n x n Gram matrix, which gives everything, and the sums that one pass over g_r
/// and one over S give for free, which give all but the mean pairwise cosine.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The two moments behind the gradient noise scale (McCandlish et al., arXiv 1812.06162, appendix A,
/// with one rank's batch as the small batch and all n as the big one).
struct noise_moments {
    double signal = not_a_number(); ///< estimate of |G|^2, the squared norm of the true gradient
    double noise = not_a_number(); ///< estimate of the summed variance of one rank's gradient
};

/// The noise moments of one step.
///
/// `sum_of_norms_squared` = sum |g_r|^2 = q and `sum_norm_squared` = |S|^2 = s, in squared gradient
/// units: signal = (s - q) / (n (n - 1)), noise = (q - s / n) / (n - 1). Both are unbiased; so either
/// may come out negative in a noisy step (average over steps before dividing). NaN by bits for n < 2
/// or non-finite input. `noise` cancels when the ranks agree and `signal` when they do not: each has
/// an absolute error of about 2^-51 q.
noise_moments estimate_noise(int n, double sum_of_norms_squared, double sum_norm_squared) noexcept;

} // namespace detail

/// Cosine of g_r with the sum of all other gradients, S - g_r: low for the rank that is unlike the
/// others.
///
/// Takes |g_r|^2, g_r . S and |S|^2. In [-1, 1]; NaN by bits where an argument is not finite, g_r is
/// zero, or the rest is: |S - g_r|^2 = |S|^2 - 2 g_r . S + |g_r|^2 cancels when one rank outweighs the
/// others. It loses log2 of the ratio of the largest term to the result in bits; at 40 bits lost
/// (others 2^-20 of the norm of g_r) nothing trustworthy is left and the cosine counts as undefined.
/// With exact arguments the absolute error is about 2^-50 times that ratio.
double leave_one_out(double norm_squared, double dot_with_sum, double sum_norm_squared) noexcept;

namespace detail {

/// Noise scale and predicted cosine from moments whose negative estimates are cut at 0. `signal` and
/// `noise` need only be right up to a common factor.
void set_noise(double signal, double noise, direction& out) noexcept;

/// All of `direction` from the Gram matrix G[i * n + j] = g_i . g_j (squared gradient units; only the
/// diagonal and what is above it are read).
///
/// - `mean_pairwise`: the mean over pairs i < j of G_ij / sqrt(G_ii G_jj), each cut to [-1, 1]: the
///   published gradient-direction consistency (arXiv 2602.14462).
/// - `pooled`: sum G_ij / sum sqrt(G_ii G_jj) over the same pairs: dominated by the ranks of large
///   norm, so it falls more when one rank is both large and unlike the others.
/// - `leave_one_out[i]`: cosine of g_i with the sum of the others.
/// - `noise_scale`, `predicted_cosine`: as in `align_from_sums`, of this step alone.
///
/// Ranks with a zero or non-finite norm have no direction: they and their pairs are left out, and
/// their `leave_one_out` is NaN by bits. A non-finite product of two finite gradients leaves out its
/// pair in the cosines, and makes the noise scale and the leave-one-out cosines NaN. A
/// zero gradient counts as a sample of the noise, a non-finite one does not. With fewer than two ranks
/// left (n = 1) everything is NaN. Nothing cancels but sums of products of either sign: absolute error
/// of each cosine about n 2^-52 (given G).
///
/// Reuses the capacity of `out.leave_one_out`: no allocation once it has held n. Errors:
/// `status::invalid_argument` if `gram` has not n * n entries. O(n^2), and n^2 more for each rank that
/// outweighs all others by 2^10.
void align_from_gram(view<const double> gram, int n, direction& out,
    const call_site& where = call_site::current());

/// What needs no Gram matrix: `pooled`, `noise_scale` and `predicted_cosine` from the squared norms
/// |g_r|^2 of all n ranks and |S|^2 (squared gradient units). Sets `mean_pairwise` to NaN and empties
/// `leave_one_out`.
///
/// pooled = (|S|^2 - q) / ((sum |g_r|)^2 - q) with q = sum |g_r|^2. noise_scale = noise / signal of
/// `estimate_noise`, in units of one rank's batch (times samples per rank it is B_simple); a negative
/// estimate of either moment is taken as 0: identical gradients give 0, gradients whose dots do not
/// add up to anything positive give infinity (by bits), all-zero gradients NaN. predicted_cosine = 1 / (1 +
/// noise_scale): what cosine healthy independent shards have, so that it can be compared with the
/// measured one; of a single step it is as noisy as `pooled`, see `smoothed_noise_scale`.
///
/// Any non-finite input makes all three NaN, since S holds that rank; n = 1 does too. Both numerators
/// are differences: the absolute error of `pooled` is about 2^-51 n / (n - 1) for equal norms, that of
/// `noise_scale` about 2^-50 n (so agreement closer than that reads as 0), if the arguments are exact.
/// With digests or norms of S taken after a rounding in 16 bits expect 1e-3 instead. O(n), no allocation.
void align_from_sums(view<const double> norms_squared, double sum_norm_squared, direction& out) noexcept;

/// The same, and `leave_one_out` of every rank from the dots g_r . S.
///
/// Reuses the capacity of `out.leave_one_out`: no allocation once it has held n. Errors:
/// `status::invalid_argument` if the sizes differ.
void align_from_sums(view<const double> norms_squared, view<const double> dots_with_sum,
    double sum_norm_squared, direction& out, const call_site& where = call_site::current());

/// The gradient noise scale over many steps: the moments are averaged, each by itself, before their
/// ratio is taken, since the ratio of one step is biased and has no variance to speak of.
///
/// Exponential averages with bias correction: the first update counts in full. k-diffusion's gns.py
/// averages both with decay 0.9998; the default here forgets in about 100 steps.
class smoothed_noise_scale {
public:
    /// Precondition: 0 <= decay < 1; other values are taken as 0.
    explicit smoothed_noise_scale(double decay = 0.99) noexcept
    {
        if (decay >= 0 && decay < 1) decay_ = decay;
    }

    /// Takes one step's moments; steps whose moments are not finite are passed over.
    void update(const noise_moments& step) noexcept;

    /// The averaged moments; NaN by bits before the first update.
    noise_moments moments() const noexcept;

    /// Sets `noise_scale` and `predicted_cosine` of `out` to the averaged ones, with the conventions of
    /// `align_from_sums`; leaves the rest alone.
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
