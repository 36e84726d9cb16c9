// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The spread over the ranks of one number per rank (a loss, a gradient norm).
///
/// `values[r]` belongs to rank r, in any unit. Non-finite values are left out; `finite` is the number n of the others.
/// `std` divides by n: it is the published loss dispersion (arXiv 2602.14462). The paper's sample code divides by
/// n - 1, because `torch.std` does. That form is `std_sample`, larger by sqrt(n / (n - 1)): 6.9 % at 8 ranks. Do not
/// compare one form with thresholds made for the other.
///
/// Undefined fields are NaN by bits: all but `finite` if no value is finite, `std_sample` for one value, `cv` for mean
/// 0. Ties for minimum and maximum go to the lowest rank. Equal values have a deviation of exactly 0. Two passes about
/// the mean avoid cancellation: relative error below 1e-14 of the largest |value|.
/// Errors: none. Cost: O(n), no allocation.
spread dispersion(view<const double> values) noexcept;

/// The spread with a weight per rank, for losses that are means over different numbers of tokens.
///
/// `weights[r]` is a number of repetitions (tokens, samples): frequency weights. With W their sum, `mean` = sum w x /
/// W, which is the loss over all tokens; `std` = sqrt(sum w (x - mean)^2 / W); `std_sample` divides by W - 1 (NaN for W
/// <= 1). Ranks of weight 0, and ranks whose value or weight is not finite, are left out, also from minimum and
/// maximum. Equal weights give the mean and `std` of the plain form, but not its `std_sample`: W - 1 is not n - 1.
///
/// Weights do not make ranks with few tokens less noisy: a mean over k tokens deviates like 1/sqrt(k), with any weight.
/// If token counts differ much, judge ranks by (x - mean) sqrt(k) instead.
/// Errors: `status::invalid_argument` if the sizes differ or a weight is negative. Cost: O(n), no allocation.
spread dispersion(view<const double> values, view<const double> weights,
    const call_site& where = call_site::current());

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/dispersion.ipp>
#endif
