// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>

/// The numbers of a run by step, in memory that does not grow with the run.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The steps of a run in bins of equal numbers of records. When all bins are full, neighbours are merged in
/// pairs.
class step_bins {
public:
    struct bin {
        std::uint64_t first = 0; ///< step
        std::uint64_t last = 0;
        std::uint64_t steps = 0; ///< records
    };

    /// Precondition: `most` is even.
    explicit step_bins(std::size_t most) : most_(most) {}

    /// Adds a step to the last bin or to a new one. True: bins 2 i and 2 i + 1 have become bin i before that.
    bool add(std::uint64_t step);

    /// The last bin with this step; `size()` if there is none.
    COLLPROBE_COLD_INLINE std::size_t find(std::uint64_t step) const noexcept
    {
        for (std::size_t i = bins_.size(); i-- > 0;) {
            if (bins_[i].first <= step && step <= bins_[i].last) return i;
        }
        return bins_.size();
    }

    /// The place of a bin from 0 to 1: by its step or, if steps came in another order, by its number.
    COLLPROBE_COLD_INLINE double place(std::size_t i) const noexcept
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

    std::size_t size() const noexcept { return bins_.size(); }
    bool empty() const noexcept { return bins_.empty(); }
    const bin& operator[](std::size_t i) const noexcept { return bins_[i]; }
    std::size_t last() const noexcept { return bins_.size() - 1; }
    /// The number of records in a full bin.
    std::uint64_t width() const noexcept { return width_; }
    std::uint64_t records() const noexcept { return records_; }
    bool is_ascending() const noexcept { return is_ascending_; }

private:
    std::size_t most_;
    std::uint64_t width_ = 1;
    std::uint64_t records_ = 0;
    bool is_ascending_ = true;
    std::vector<bin> bins_;
};

/// A number that a step has.
enum class track : std::uint8_t {
    loss,
    loss_of_ranks, ///< from the least to the largest of the ranks
    norm,
    norm_of_ranks,
    norm_cv,
    cosine_pairwise,
    cosine_pooled,
    cosine_predicted,
    noise_scale,
    behind_ms, ///< of the last rank
    evidence, ///< the strongest odds of a rank over the run, as a power of ten; 0 up to odds of 1
    wrong_calls, ///< calls whose results differ, or are wrong
    nonfinite_calls, ///< calls that got NaN or infinity
    nonfinite_elements,
};
inline constexpr std::size_t track_count = 14;

/// How much a step deserves attention.
enum class step_mark : std::uint8_t { none, named, alarm, alarm_to_act };

/// One number over the steps of a bin. A spike of one step stays in `low` or `high`.
struct track_point {
    double low = 0;
    double high = 0;
    double sum = 0;
    std::uint64_t count = 0; ///< of finite numbers; the members above count only these

    double mean() const noexcept { return sum / static_cast<double>(count); }
};

class step_series {
public:
    static constexpr std::size_t most = 2000;

    void add(const step_record& record);

    COLLPROBE_COLD_INLINE void mark(std::uint64_t step, step_mark level)
    {
        const std::size_t bin = bins_.find(step);
        if (bin < marks_.size()) marks_[bin] = std::max(marks_[bin], level);
    }

    const step_bins& bins() const noexcept { return bins_; }
    const track_point& at(track which, std::size_t bin) const noexcept
    {
        return tracks_[static_cast<std::size_t>(which)][bin];
    }
    step_mark mark_at(std::size_t bin) const noexcept { return marks_[bin]; }
    /// Bins `first` to `end` as one.
    track_point merged(track which, std::size_t first, std::size_t end) const noexcept;
    /// Steps in which the number was finite.
    std::uint64_t count(track which) const noexcept { return counts_[static_cast<std::size_t>(which)]; }
    /// A pairwise cosine needs all gradients; where no step has one, the pooled one stands for it.
    track cosine() const noexcept
    {
        return count(track::cosine_pairwise) != 0 ? track::cosine_pairwise : track::cosine_pooled;
    }

private:
    void put(track which, double value) { put(which, value, value); }
    void put(track which, double low, double high);

    step_bins bins_{most};
    std::array<std::vector<track_point>, track_count> tracks_;
    std::array<std::uint64_t, track_count> counts_{};
    std::vector<step_mark> marks_;
};

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
    if (!record.findings.empty()) mark(record.step, step_mark::named);
}

COLLPROBE_COLD_INLINE track_point step_series::merged(
    track which, std::size_t first, std::size_t end) const noexcept
{
    track_point all;
    for (std::size_t i = first; i < end; ++i) merge_into(all, at(which, i));
    return all;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
