// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/standard_normal.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The different results that the ranks hold of a call.
struct distinct_results {
    int count = 0;
    int holders[most_weighed_results] = {}; ///< the lowest rank with each, ascending
    bool are_too_many = false; ///< or of a call that was made, where the ranks know their own result alone

    distinct_results(const part_entries<weight_entry>& entries, int call, bool is_observed) noexcept
    {
        for (int r = 0; r < entries.ranks(); ++r) {
            if (of(entries, call, r) < count) continue;
            are_too_many = count == (is_observed ? most_weighed_results : 1);
            if (are_too_many) break;
            holders[count++] = r;
        }
        if (are_too_many) count = 1;
    }
    /// Which of them the rank holds; `count` for none.
    int of(const part_entries<weight_entry>& entries, int call, int rank) const noexcept
    {
        for (int k = 0; k < count; ++k) {
            if (entries(call, holders[k]).result == entries(call, rank).result) return k;
        }
        return count;
    }
};

/// Why what the ranks say of a call does not belong together.
COLLPROBE_COLD_INLINE weights_refusal refusal_of_all(
    const part_entries<weight_entry>& entries, int call, const distinct_results& results) noexcept
{
    const weight_entry& first = entries(call, 0);
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        const auto why = static_cast<weights_refusal>(each.state - 1);
        if (why == weights_refusal::not_finite) return why; // NaN may differ in bits
        if (to_bits(each.scale) != to_bits(first.scale)) return weights_refusal::scales_differ;
    }
    return results.are_too_many ? weights_refusal::results_differ : weights_refusal::none;
}

/// Collects what the ranks say of one of the results of a call, up to the name.
COLLPROBE_COLD_INLINE void collect_weights(const part_entries<weight_entry>& entries, int call,
    const distinct_results& results, int which, double miss, double roundoff, call_weights& out)
{
    const weight_entry& first = entries(call, 0);
    out.seen = true;
    out.how = averaging::unknown;
    out.why_not = weights_refusal::none;
    out.weights.clear();
    out.bounds.clear();
    out.ranks.clear();
    out.holders.clear();
    out.common = not_a_number();
    out.expected = true;
    out.scale = first.scale;
    out.bins = first.bins;
    out.residual = out.residual_limit = 0;
    const weights_refusal of_all = refusal_of_all(entries, call, results);
    bool have_few = false;
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        have_few = have_few || (is_finite(each.weight) && has_few_magnitudes(each)); // not of a rank with zeros
    }
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        const int own = results.of(entries, call, r);
        const bool is_own = own == which || results.are_too_many;
        weight_entry::other_weight found{each.weight, each.deviation};
        double systematic = have_few ? each.systematic : 0;
        auto why = static_cast<weights_refusal>(each.state - 1);
        if (is_own) {
            if (results.count > 1) out.holders.push_back(r);
            if (each.residual > out.residual) {
                out.residual = each.residual;
                out.residual_limit = each.residual_limit;
            }
        } else {
            found = each.others[which < own ? which : which - 1];
            systematic = 0;
            why = found.deviation < 0 ? static_cast<weights_refusal>(-found.deviation) : weights_refusal::none;
        }
        if (out.why_not == weights_refusal::none) out.why_not = why;
        if (why != weights_refusal::none) continue;
        out.weights.push_back(found.weight);
        // Products with a factor, before the sum and behind it, may be rounded alike for many elements.
        out.bounds.push_back(student_upper_quantile(miss, each.degrees) * found.deviation + systematic
            + 2 * roundoff * absolute(found.weight));
    }
    if (of_all != weights_refusal::none) out.why_not = of_all;
    if (out.why_not == weights_refusal::none) return;
    out.weights.clear();
    out.bounds.clear();
}

COLLPROBE_COLD_INLINE double unit_roundoff_of(element_type type) noexcept
{
    double roundoff = 0;
    with_floating_type(type, [&]<class T>(T) { roundoff = power_of_two(-element_traits<T>::digits); });
    return roundoff;
}

/// The weight that tells most of why a form was not expected, in units of the mean's.
COLLPROBE_COLD_INLINE suspect suspect_of_weights(const call_weights& of)
{
    const double unit = static_cast<double>(of.weights.size()) / of.scale;
    suspect named{.what = finding::weights, .exact = false};
    std::size_t which = 0;
    if (of.ranks.size() == 1) {
        named.rank = of.ranks[0];
        which = static_cast<std::size_t>(of.ranks[0]);
    } else {
        double farthest = -1;
        for (std::size_t r = 0; r < of.weights.size(); ++r) {
            const double here = is_finite(of.weights[r]) ? absolute(of.weights[r] * unit - 1) : -1;
            if (!(here > farthest)) continue;
            farthest = here;
            which = r;
        }
    }
    named.statistic = of.weights[which] * unit;
    named.threshold = absolute(of.bounds[which] * unit);
    return named;
}

} // namespace detail

COLLPROBE_COLD_INLINE bool weight_probe::is_expected(
    averaging how, bool averages, bool has_equal_tokens) const noexcept
{
    if (options_.expected.empty()) {
        return how == averaging::mean || how == averaging::token_weighted || (how == averaging::sum && !averages);
    }
    for (const averaging each : options_.expected) {
        if (each == how) return true;
        if (has_equal_tokens && each == averaging::token_weighted && how == averaging::mean) return true;
    }
    return false;
}

COLLPROBE_COLD_INLINE void weight_probe::judge_result(const part_entries<entry>& entries, int c,
    const detail::distinct_results& results, int which, call_weights& out, step_record& record)
{
    const double roundoff = detail::unit_roundoff_of(record.calls[static_cast<std::size_t>(c)].type);
    detail::collect_weights(entries, c, results, which, options_.miss, roundoff, out);
    const auto tell = [&](suspect named) {
        named.call = c;
        if (results.count > 1) named.other_rank = results.holders[which];
        record.suspects.push_back(named);
    };
    if (out.why_not == weights_refusal::none) {
        name_weights(out, 2 * roundoff, tokens_);
        bool has_equal_tokens = true;
        double known = 0;
        for (std::size_t r = 0; r < tokens_.size(); ++r) {
            has_equal_tokens = has_equal_tokens && to_bits(tokens_[r]) == to_bits(tokens_[0]);
            known += is_finite(out.weights[r]) ? 1 : 0;
        }
        // A mean over the ranks that sent anything is none by tokens that all ranks have.
        const double over_all = out.scale / static_cast<double>(tokens_.size());
        const bool is_of_known = known < static_cast<double>(tokens_.size())
            && detail::absolute(out.common - over_all) > detail::absolute(out.common - out.scale / known);
        out.expected = out.how == averaging::unknown
            || is_expected(out.how, entries(c, 0).averages != 0, has_equal_tokens && !is_of_known);
        if (!out.expected) tell(detail::suspect_of_weights(out));
    }
    const bool is_solved
        = out.why_not == weights_refusal::none || out.why_not == weights_refusal::unexplained
        || out.why_not == weights_refusal::imprecise || out.why_not == weights_refusal::ambiguous;
    if (is_solved && out.residual > out.residual_limit + options_.unexplained)
        tell({.what = finding::unexplained,
            .statistic = out.residual,
            .threshold = options_.unexplained,
            .exact = false});
}

COLLPROBE_COLD_INLINE void weight_probe::judge(const part_entries<entry>& entries, step_record& record)
{
    tokens_.clear();
    for (int r = 0; r < entries.ranks(); ++r) tokens_.push_back(entries.weight(r));
    const std::size_t first = record.suspects.size();
    double tests = 0;
    for (int c = 0; c < entries.calls(); ++c) {
        call_record& call = record.calls[static_cast<std::size_t>(c)];
        if (entries(c, 0).state == 0 || call.is_on_some_ranks()) continue;
        const detail::distinct_results results(entries, c, call.is_observed);
        call.weights.others.resize(static_cast<std::size_t>(results.count) - 1);
        for (int k = 0; k < results.count; ++k) {
            judge_result(entries, c, results, k,
                k == 0 ? call.weights : call.weights.others[static_cast<std::size_t>(k) - 1], record);
            tests += 2.0 * entries.ranks();
        }
        detail::settle_observed(call);
    }
    for (std::size_t s = first; s < record.suspects.size(); ++s) {
        record.suspects[s].false_alarms_per_step = tests * options_.miss;
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
