// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/record.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Completes the audit of an observed call, whichever of `audit` and `weight_probe` judges last. Its result may be
/// weighted, so one that is not the plain sum or mean is right if the weights explain it up to rounding, and else not
/// checked. Then the residual of the weights is in place of the audit's, in units of the limits.
inline void settle_observed(call_record& call) noexcept
{
    if (!call.is_observed || !call.audit.is_other_sum()) return;
    double worst = 0;
    const auto is_explained = [&worst](const call_weights& of) {
        if (!of.seen || of.weights.empty() || !(of.residual <= of.residual_limit)) return false;
        const double ratio = of.residual_limit > 0 ? of.residual / of.residual_limit : 0;
        worst = ratio > worst ? ratio : worst;
        return true;
    };
    bool all = is_explained(call.weights);
    for (const call_weights& each : call.weights.others) all = all && is_explained(each);
    if (!all) return;
    call.audit.sum_checked = true;
    call.audit.residual = worst * call.audit.residual_limit;
}

} // namespace collprobe::detail
