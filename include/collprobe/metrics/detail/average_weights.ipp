// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <collprobe/metrics/average_weights.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Compares weights with the forms that they may have.
class weight_forms {
public:
    weight_forms(call_weights& of, double rounded_factors)
        : of_(of), rounded_factors_(rounded_factors), ranks_(of.weights.size())
    {
    }

    /// Tries the forms in which rank r has the share `shares[r]` of a mean; the shares add up to 1.
    void try_shares(const std::vector<double>& shares, averaging of_mean)
    {
        const auto n = static_cast<double>(ranks_);
        try_form(shares, of_mean, 1);
        if (ranks_ == 1) return;
        if (of_mean == averaging::mean) try_form(shares, averaging::sum, n);
        try_form(shares, averaging::divided_twice, 1 / n);
    }

    /// Takes the only form that fits.
    void decide()
    {
        of_.ranks.clear();
        if (forms_ == 0) of_.how = averaging::other;
        else if (forms_ > 1) of_.why_not = weights_refusal::ambiguous;
        else {
            of_.how = how_;
            of_.ranks = found_;
        }
        if (of_.why_not == weights_refusal::none && of_.how != averaging::token_weighted) set_common();
    }

private:
    bool fits(std::size_t rank, double weight) const noexcept
    {
        return absolute(of_.weights[rank] - weight) <= of_.bounds[rank] + rounded_factors_ * absolute(weight);
    }
    void add(averaging how)
    {
        if (forms_ != 0 && how == how_ && named_ == found_) return;
        ++forms_;
        how_ = how;
        found_ = named_;
    }
    void try_form(const std::vector<double>& shares, averaging how, double factor)
    {
        named_.clear();
        if (fit_but(shares, factor, 1)) add(how);
        if (ranks_ == 1) return;
        // Lost ranks.
        double share = 0;
        for (std::size_t r = 0; r < ranks_; ++r) {
            if (!fits(r, 0)) continue;
            named_.push_back(static_cast<int>(r));
            share += shares[r];
        }
        try_named(shares, averaging::rank_lost, factor, 0, 1 - share);
        // Doubled ranks: those whose weights are in the upper half of the range.
        named_.clear();
        share = 0;
        double least = 0, most = 0;
        for (std::size_t r = 0; r < ranks_; ++r) {
            const double ratio = shares[r] > 0 ? of_.weights[r] / (shares[r] * of_.scale) : 0;
            least = r == 0 || ratio < least ? ratio : least;
            most = r == 0 || ratio > most ? ratio : most;
        }
        for (std::size_t r = 0; r < ranks_; ++r) {
            if (!(shares[r] > 0) || 2 * of_.weights[r] / (shares[r] * of_.scale) <= least + most) continue;
            named_.push_back(static_cast<int>(r));
            share += shares[r];
        }
        try_named(shares, averaging::rank_doubled, factor, 2, 1 + share);
    }
    /// Whether the ranks that are named have `times` their weight. `total`: the sum of all shares, so multiplied.
    void try_named(const std::vector<double>& shares, averaging how, double factor, double times, double total)
    {
        if (named_.empty() || 2 * named_.size() > ranks_) return;
        if (fit_but(shares, factor, times)) return add(how);
        // A mean may be that over the ranks that are there.
        if (factor == 1 && total > 0 && fit_but(shares, 1 / total, times)) add(how);
    }
    /// Whether all weights fit, if those of the named ranks are taken `times`.
    bool fit_but(const std::vector<double>& shares, double factor, double times) const noexcept
    {
        std::size_t next = 0;
        for (std::size_t r = 0; r < ranks_; ++r) {
            const bool is_named = next < named_.size() && named_[next] == static_cast<int>(r);
            if (is_named) ++next;
            if (!fits(r, of_.scale * shares[r] * factor * (is_named ? times : 1))) return false;
        }
        return true;
    }
    void set_common() noexcept
    {
        const auto is_named = [this](std::size_t rank) {
            for (const int each : of_.ranks) {
                if (each == static_cast<int>(rank)) return true;
            }
            return false;
        };
        double sum = 0;
        double terms = 0;
        for (std::size_t r = 0; r < ranks_; ++r) {
            if (is_named(r)) continue;
            sum += of_.weights[r];
            terms += 1;
        }
        const double mean = sum / terms;
        for (std::size_t r = 0; r < ranks_; ++r) {
            if (!is_named(r) && !fits(r, mean)) return;
        }
        of_.common = mean;
    }

    call_weights& of_;
    double rounded_factors_;
    std::size_t ranks_;
    std::vector<int> named_; ///< by the form that is tried
    int forms_ = 0; ///< that fit
    averaging how_ = averaging::unknown; ///< the last of them
    std::vector<int> found_; ///< what it names
};

/// The ranks' shares of the tokens; empty if they are equal, or not known.
COLLPROBE_COLD_INLINE std::vector<double> shares_of_tokens(view<const double> tokens, std::size_t ranks)
{
    std::vector<double> shares;
    if (tokens.count() != ranks) return shares;
    double total = 0;
    bool differ = false;
    for (const double each : tokens) {
        if (!is_finite(each) || each < 0) return shares;
        total += each;
        differ = differ || each < tokens[0] || each > tokens[0];
    }
    if (!differ || !is_finite(total)) return shares;
    for (const double each : tokens) shares.push_back(each / total);
    return shares;
}

} // namespace detail

COLLPROBE_COLD_INLINE void name_weights(call_weights& of, double rounded_factors, view<const double> tokens)
{
    const std::size_t ranks = of.weights.size();
    of.how = averaging::unknown;
    of.why_not = weights_refusal::none;
    of.common = detail::not_a_number();
    of.ranks.clear();
    double size = 0;
    double bound = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
        if (!is_finite(of.weights[r]) || !is_finite(of.bounds[r])) {
            of.why_not = weights_refusal::imprecise;
            return;
        }
        size += detail::absolute(of.weights[r]) / static_cast<double>(ranks);
        bound = of.bounds[r] > bound ? of.bounds[r] : bound;
    }
    if (!(size > 0) || 8 * (bound + rounded_factors * size) > size) {
        of.why_not = weights_refusal::imprecise;
        return;
    }
    detail::weight_forms forms(of, rounded_factors);
    forms.try_shares(std::vector<double>(ranks, 1 / static_cast<double>(ranks)), averaging::mean);
    const std::vector<double> shares = detail::shares_of_tokens(tokens, ranks);
    if (!shares.empty()) forms.try_shares(shares, averaging::token_weighted);
    forms.decide();
}

} // namespace collprobe::inline COLLPROBE_ABI
