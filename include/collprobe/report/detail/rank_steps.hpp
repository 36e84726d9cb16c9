// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/detail/step_series.hpp>

/// The ranks of a run over its steps, in memory that does not grow with the steps.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// A rank in a bin of steps: the worst of its steps. A score is the distance of the rank's loss or gradient
/// norm from the median rank's, in robust deviations of the ranks.
enum class rank_state : std::uint8_t {
    unknown, ///< no number
    usual, ///< score below 4
    apart_4,
    apart_8,
    apart_16,
    named, ///< by a check
};

/// At most `most` of the numbers of a run, at equal distances.
class thinned_values {
public:
    static constexpr std::size_t most = 128;

    void add(double value);
    const std::vector<double>& values() const noexcept { return values_; }

private:
    std::vector<double> values_;
    std::uint64_t stride_ = 1;
    std::uint64_t seen_ = 0;
};

struct rank_row {
    int rank = 0;
    std::vector<rank_state> states; ///< by bin; those behind its end are unknown
    thinned_values loss;
    thinned_values norm;
    thinned_values cosine;
    thinned_values late_ms;
    std::uint64_t named_steps = 0;
    std::uint64_t alarms = 0;
    std::uint64_t last_named = ~std::uint64_t{0}; ///< the record in which it was counted last

    rank_state at(std::size_t bin) const noexcept
    {
        return bin < states.size() ? states[bin] : rank_state::unknown;
    }
};

class rank_steps {
public:
    static constexpr std::size_t most_bins = 200;
    static constexpr std::size_t most_rows = 4096; ///< of ranks; the numbers of others are not kept
    static constexpr std::size_t most_shown = 256; ///< with more rows, only the worst `worst_shown`
    static constexpr std::size_t worst_shown = 64;

    void add(const step_record& record);
    void add(const alarm_record& raised);

    const step_bins& bins() const noexcept { return bins_; }
    std::size_t size() const noexcept { return rows_.size(); }
    /// The rows to show, by rank.
    std::vector<const rank_row*> shown() const;
    /// The worst state of bins `first` to `end`.
    static rank_state worst(const rank_row& row, std::size_t first, std::size_t end) noexcept;

private:
    rank_row* row_of(int rank);
    void set(rank_row& row, std::size_t bin, rank_state state);
    /// Scores one number per rank; `usual` is the running deviation of the ranks.
    void judge(const std::vector<double>& values, double& usual);

    step_bins bins_{most_bins};
    std::vector<rank_row> rows_; ///< by rank
    double usual_loss_ = -1;
    double usual_norm_ = -1;
};

} // namespace collprobe::inline COLLPROBE_ABI::report::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/rank_steps.ipp>
#endif
