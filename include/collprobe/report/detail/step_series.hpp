// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

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
    std::size_t find(std::uint64_t step) const noexcept;
    /// The place of a bin from 0 to 1: by its step or, if steps came in another order, by its number.
    double place(std::size_t i) const noexcept;

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
    void mark(std::uint64_t step, step_mark level);

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

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/step_series.ipp>
#endif
