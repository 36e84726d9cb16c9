// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/detail/step_series.hpp>
#include <collprobe/report/summary.hpp>

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

    COLLPROBE_COLD_INLINE void add(double value)
    {
        if (!is_finite(value) || seen_++ % stride_ != 0) return;
        if (values_.size() == most) {
            for (std::size_t i = 0; i < most / 2; ++i) values_[i] = values_[2 * i];
            values_.resize(most / 2);
            stride_ *= 2;
        }
        values_.push_back(value);
    }

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

    COLLPROBE_COLD_INLINE void add(const finding& raised)
    {
        const std::size_t bin = bins_.find(raised.step);
        for (const int rank : raised.ranks) {
            rank_row* const row = row_of(rank);
            if (row == nullptr) continue;
            ++row->alarms;
            if (bin < bins_.size()) set(*row, bin, rank_state::named);
        }
    }

    const step_bins& bins() const noexcept { return bins_; }
    std::size_t size() const noexcept { return rows_.size(); }
    /// The rows to show, by rank.
    std::vector<const rank_row*> shown() const;

    /// The worst state of bins `first` to `end`.
    COLLPROBE_COLD_INLINE static rank_state worst(const rank_row& row, std::size_t first, std::size_t end) noexcept
    {
        rank_state found = rank_state::unknown;
        for (std::size_t i = first; i < end; ++i) found = std::max(found, row.at(i));
        return found;
    }

private:
    COLLPROBE_COLD_INLINE rank_row* row_of(int rank)
    {
        const auto at = std::lower_bound(
            rows_.begin(), rows_.end(), rank, [](const rank_row& row, int wanted) { return row.rank < wanted; });
        if (at != rows_.end() && at->rank == rank) return &*at;
        if (rank < 0 || rows_.size() == most_rows) return nullptr;
        rank_row row;
        row.rank = rank;
        return &*rows_.insert(at, std::move(row));
    }

    COLLPROBE_COLD_INLINE void set(rank_row& row, std::size_t bin, rank_state state)
    {
        if (row.states.size() <= bin) row.states.resize(bin + 1);
        row.states[bin] = std::max(row.states[bin], state);
    }

    /// Scores one number per rank; `usual` is the running deviation of the ranks.
    void judge(const std::vector<double>& values, double& usual);

    step_bins bins_{most_bins};
    std::vector<rank_row> rows_; ///< by rank
    double usual_loss_ = -1;
    double usual_norm_ = -1;
};

COLLPROBE_COLD_INLINE void rank_steps::judge(const std::vector<double>& values, double& usual)
{
    std::vector<double> finite;
    for (const double value : values) {
        if (is_finite(value)) finite.push_back(value);
    }
    const bool can_compare = finite.size() >= 3;
    const double middle = can_compare ? median(finite) : 0;
    for (double& value : finite) value = collprobe::detail::absolute(value / 2 - middle / 2) * 2;
    if (can_compare) {
        // The deviation of one step's few ranks is now and then near zero by chance: the running one is not.
        const double deviation = 1.4826 * median(finite) + 1e-9 * collprobe::detail::absolute(middle);
        if (is_finite(deviation)) usual = usual < 0 ? deviation : usual + (deviation - usual) / 16;
        const double scale = is_finite(deviation) ? std::max(deviation, usual) : 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            rank_row* const row = row_of(static_cast<int>(i));
            if (row == nullptr || is_nan(values[i])) continue;
            rank_state state = rank_state::apart_16; // infinite
            if (is_finite(values[i])) {
                const double distance = collprobe::detail::absolute(values[i] / 2 - middle / 2) * 2;
                if (!(distance > 16 * scale)) state = rank_state::apart_8;
                if (!(distance > 8 * scale)) state = rank_state::apart_4;
                if (!(distance > 4 * scale)) state = rank_state::usual;
            }
            set(*row, bins_.last(), state);
        }
    }
}

COLLPROBE_COLD_INLINE void rank_steps::add(const step_record& record)
{
    if (bins_.add(record.step)) {
        for (rank_row& row : rows_) {
            const std::size_t pairs = (row.states.size() + 1) / 2;
            for (std::size_t i = 0; i < pairs; ++i)
                row.states[i] = std::max(row.at(2 * i), row.at(2 * i + 1));
            row.states.resize(pairs);
        }
    }
    judge(record.losses, usual_loss_);
    judge(record.gradient_norms, usual_norm_);
    const auto keep = [this](const std::vector<double>& values, thinned_values rank_row::*where) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (rank_row* const row = row_of(static_cast<int>(i)); row != nullptr)
                (row->*where).add(values[i]);
        }
    };
    keep(record.losses, &rank_row::loss);
    keep(record.gradient_norms, &rank_row::norm);
    keep(record.cosine.leave_one_out, &rank_row::cosine);
    for (std::size_t i = 0; i < record.lateness_by_rank.size(); ++i) {
        rank_row* const row = row_of(static_cast<int>(i));
        if (row != nullptr) row->late_ms.add(record.lateness_by_rank[i].latest / 1e6);
    }
    for (const finding& named : record.findings) {
        for (const int rank : named.ranks) {
            rank_row* const row = row_of(rank);
            if (row == nullptr) continue;
            set(*row, bins_.last(), rank_state::named);
            if (row->last_named != bins_.records()) ++row->named_steps;
            row->last_named = bins_.records();
        }
    }
}

COLLPROBE_COLD_INLINE std::vector<const rank_row*> rank_steps::shown() const
{
    struct scored_row {
        const rank_row* row;
        std::uint64_t named;
        std::uint64_t apart;
    };
    std::vector<scored_row> all;
    for (const rank_row& row : rows_) {
        scored_row next{&row, row.named_steps + row.alarms, 0};
        for (const rank_state state : row.states)
            next.apart += std::uint64_t{1} << (4 * static_cast<unsigned>(state));
        all.push_back(next);
    }
    if (all.size() > most_shown) {
        std::sort(all.begin(), all.end(), [](const scored_row& a, const scored_row& b) {
            if (a.named != b.named) return a.named > b.named;
            return a.apart != b.apart ? a.apart > b.apart : a.row->rank < b.row->rank;
        });
        all.resize(worst_shown);
        std::sort(all.begin(), all.end(),
            [](const scored_row& a, const scored_row& b) { return a.row->rank < b.row->rank; });
    }
    std::vector<const rank_row*> rows;
    for (const scored_row& each : all) rows.push_back(each.row);
    return rows;
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
