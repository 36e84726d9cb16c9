// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <collprobe/core/element.hpp>
#include <collprobe/report/detail/step_series.hpp>

namespace collprobe::inline COLLPROBE_ABI::report::detail {

COLLPROBE_COLD_INLINE bool step_bins::add(std::uint64_t step)
{
    ++records_;
    is_ascending_ = is_ascending_ && (bins_.empty() || bins_.back().last < step);
    if (!bins_.empty() && bins_.back().steps < width_) {
        bin& open = bins_.back();
        open.first = std::min(open.first, step);
        open.last = std::max(open.last, step);
        ++open.steps;
        return false;
    }
    const bool merges = bins_.size() == most_;
    if (merges) {
        for (std::size_t i = 0; i < most_ / 2; ++i) {
            const bin& a = bins_[2 * i];
            const bin& b = bins_[2 * i + 1];
            bins_[i] = {std::min(a.first, b.first), std::max(a.last, b.last), a.steps + b.steps};
        }
        bins_.resize(most_ / 2);
        width_ *= 2;
    }
    bins_.push_back({step, step, 1});
    return merges;
}

COLLPROBE_COLD_INLINE std::size_t step_bins::find(std::uint64_t step) const noexcept
{
    for (std::size_t i = bins_.size(); i-- > 0;) {
        if (bins_[i].first <= step && step <= bins_[i].last) return i;
    }
    return bins_.size();
}

COLLPROBE_COLD_INLINE double step_bins::place(std::size_t i) const noexcept
{
    if (bins_.size() < 2) return 0.5;
    if (!is_ascending_) return static_cast<double>(i) / static_cast<double>(bins_.size() - 1);
    const auto middle = [this](std::size_t at) {
        return static_cast<double>(bins_[at].first - bins_[0].first)
            + static_cast<double>(bins_[at].last - bins_[at].first) / 2;
    };
    const double first = middle(0);
    return (middle(i) - first) / (middle(bins_.size() - 1) - first);
}

COLLPROBE_COLD_INLINE void merge_into(track_point& point, const track_point& other) noexcept
{
    if (other.count == 0) return;
    if (point.count == 0) {
        point = other;
        return;
    }
    point.low = std::min(point.low, other.low);
    point.high = std::max(point.high, other.high);
    point.sum += other.sum;
    point.count += other.count;
}

COLLPROBE_COLD_INLINE void step_series::put(track which, double low, double high)
{
    if (!is_finite(low) || !is_finite(high)) return;
    constexpr double most_summed = 1e290; // the sum stays finite
    const double middle = low / 2 + high / 2;
    const track_point point{low, high, std::clamp(middle, -most_summed, most_summed), 1};
    merge_into(tracks_[static_cast<std::size_t>(which)].back(), point);
    ++counts_[static_cast<std::size_t>(which)];
}

COLLPROBE_COLD_INLINE void step_series::add(const step_record& record)
{
    if (bins_.add(record.step)) {
        const std::size_t pairs = most / 2;
        for (std::vector<track_point>& points : tracks_) {
            for (std::size_t i = 0; i < pairs; ++i) {
                track_point both = points[2 * i];
                merge_into(both, points[2 * i + 1]);
                points[i] = both;
            }
        }
        for (std::size_t i = 0; i < pairs; ++i) marks_[i] = std::max(marks_[2 * i], marks_[2 * i + 1]);
        for (std::vector<track_point>& points : tracks_) points.resize(pairs);
        marks_.resize(pairs);
    }
    for (std::vector<track_point>& points : tracks_) points.resize(bins_.size());
    marks_.resize(bins_.size());

    put(track::loss, record.loss.mean);
    put(track::loss_of_ranks, record.loss.minimum, record.loss.maximum);
    put(track::norm, record.gradient_norm.mean);
    put(track::norm_of_ranks, record.gradient_norm.minimum, record.gradient_norm.maximum);
    put(track::norm_cv, record.gradient_norm.cv);
    put(track::cosine_pairwise, record.cosine.mean_pairwise);
    put(track::cosine_pooled, record.cosine.pooled);
    put(track::cosine_predicted, record.cosine.predicted_cosine);
    put(track::noise_scale, record.cosine.noise_scale);
    put(track::behind_ms, record.lateness.behind / 1e6);
    if (!record.evidence_by_rank.empty()) {
        double odds = 1;
        for (const rank_evidence& each : record.evidence_by_rank) odds = std::max(odds, each.odds);
        put(track::evidence, collprobe::detail::natural_log(odds) / 2.302585092994046);
    }
    double wrong = 0;
    double with_nonfinite = 0;
    double elements = 0;
    for (const call_record& call : record.calls) {
        const call_audit& audit = call.audit;
        const bool is_wrong = !call.results_agree || (audit.checked && !audit.majority)
            || (audit.checked && audit.sum_checked && !audit.conserved);
        wrong += is_wrong ? 1 : 0;
        with_nonfinite += call.nonfinite != 0 ? 1 : 0;
        elements += static_cast<double>(call.nonfinite);
    }
    if (!record.calls.empty()) {
        put(track::wrong_calls, wrong);
        put(track::nonfinite_calls, with_nonfinite);
        put(track::nonfinite_elements, elements);
    }
    if (!record.suspects.empty()) mark(record.step, step_mark::named);
}

COLLPROBE_COLD_INLINE void step_series::mark(std::uint64_t step, step_mark level)
{
    const std::size_t bin = bins_.find(step);
    if (bin < marks_.size()) marks_[bin] = std::max(marks_[bin], level);
}

COLLPROBE_COLD_INLINE track_point step_series::merged(
    track which, std::size_t first, std::size_t end) const noexcept
{
    track_point all;
    for (std::size_t i = first; i < end; ++i) merge_into(all, at(which, i));
    return all;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
