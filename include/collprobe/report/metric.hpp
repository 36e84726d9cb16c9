// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/record.hpp>
#include <collprobe/detail/names.hpp>

/// The numbers of a step that every report shows. Table, JSON and summary all take them from here, so they agree.
namespace collprobe::inline COLLPROBE_ABI::report {

/// One number of a step, in the order of a report.
enum class metric {
    loss_mean,
    loss_of_tokens, ///< undefined where it is the mean of the ranks
    loss_std,
    loss_std_sample,
    loss_range,
    norm_mean,
    norm_std,
    norm_cv,
    cosine_mean_pairwise,
    cosine_pooled,
    cosine_predicted,
    noise_scale,
};

/// The label of a row in a table.
constexpr const char* name(metric which) noexcept
{
    return collprobe::detail::name_of<metric::noise_scale>(which,
        {"loss, mean of ranks", "loss, mean of tokens", "loss, std", "loss, sample std", "loss, range",
            "gradient norm, mean of ranks", "gradient norm, std", "gradient norm, std / mean",
            "cosine, mean over pairs", "cosine, pooled", "cosine, predicted by noise scale",
            "noise scale, in batches of a rank"});
}

namespace detail {

inline constexpr int metric_count = 12;

/// The mean loss with each rank weighted by its tokens (`step_observation::weight`). NaN by bits if the ranks' mean is
/// the same to five digits.
constexpr double loss_of_tokens(const step_record& record) noexcept
{
    const double weighted = record.loss_weighted.mean;
    const double mean = record.loss.mean;
    const double limit = 1e-5 * collprobe::detail::absolute(mean);
    const bool differs = is_finite(weighted) && is_finite(mean)
        && (weighted - mean > limit || mean - weighted > limit);
    return differs ? weighted : collprobe::detail::not_a_number();
}

/// The number of one step; NaN by bits if it is undefined.
constexpr double value_of(metric which, const step_record& record) noexcept
{
    switch (which) {
    case metric::loss_mean: return record.loss.mean;
    case metric::loss_of_tokens: return loss_of_tokens(record);
    case metric::loss_std: return record.loss.std;
    case metric::loss_std_sample: return record.loss.std_sample;
    case metric::loss_range: return record.loss.range;
    case metric::norm_mean: return record.gradient_norm.mean;
    case metric::norm_std: return record.gradient_norm.std;
    case metric::norm_cv: return record.gradient_norm.cv;
    case metric::cosine_mean_pairwise: return record.cosine.mean_pairwise;
    case metric::cosine_pooled: return record.cosine.pooled;
    case metric::cosine_predicted: return record.cosine.predicted_cosine;
    case metric::noise_scale: return record.cosine.noise_scale;
    }
    return collprobe::detail::not_a_number();
}

} // namespace detail
} // namespace collprobe::report
