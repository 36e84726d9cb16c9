// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/standard_normal.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Why what the ranks say of a call does not belong together. Each rank solves for its own result: only of the same
/// result are their numbers the weights of one average.
COLLPROBE_COLD_INLINE weights_refusal refusal_of_all(const part_entries<weight_entry>& entries, int call) noexcept
{
    const weight_entry& first = entries(call, 0);
    weights_refusal found = weights_refusal::none;
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        const auto why = static_cast<weights_refusal>(each.state - 1);
        if (why == weights_refusal::not_finite) return why; // NaN may differ in bits
        if (to_bits(each.scale) != to_bits(first.scale)) return weights_refusal::scales_differ;
        if (each.result != first.result) found = weights_refusal::results_differ;
    }
    return found;
}

/// Collects what the ranks say of a call, up to the name.
COLLPROBE_COLD_INLINE void collect_weights(
    const part_entries<weight_entry>& entries, int call, double miss, double roundoff, call_weights& out)
{
    const weight_entry& first = entries(call, 0);
    out.how = averaging::unknown;
    out.why_not = weights_refusal::none;
    out.weights.clear();
    out.bounds.clear();
    out.ranks.clear();
    out.common = not_a_number();
    out.expected = true;
    out.scale = first.scale;
    out.bins = first.bins;
    out.residual = out.residual_limit = 0;
    bool have_few = false;
    for (int r = 0; r < entries.ranks(); ++r) have_few = have_few || has_few_magnitudes(entries(call, r));
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        const auto why = static_cast<weights_refusal>(each.state - 1);
        if (out.why_not == weights_refusal::none) out.why_not = why;
        if (each.residual > out.residual) {
            out.residual = each.residual;
            out.residual_limit = each.residual_limit;
        }
        if (why != weights_refusal::none) continue;
        out.weights.push_back(each.weight);
        // Products with a factor, before the sum and behind it, may be rounded alike for many elements.
        out.bounds.push_back(student_upper_quantile(miss, each.degrees) * each.deviation
            + (have_few ? each.systematic : 0) + 2 * roundoff * absolute(each.weight));
    }
    const weights_refusal common = refusal_of_all(entries, call);
    if (common != weights_refusal::none) out.why_not = common;
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
        for (std::size_t r = 1; r < of.weights.size(); ++r) {
            const double here = absolute(of.weights[r] * unit - 1);
            if (here > absolute(of.weights[which] * unit - 1)) which = r;
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

COLLPROBE_COLD_INLINE void weight_probe::judge(const part_entries<entry>& entries, step_record& record)
{
    tokens_.clear();
    bool has_equal_tokens = true;
    for (int r = 0; r < entries.ranks(); ++r) {
        tokens_.push_back(entries.weight(r));
        has_equal_tokens = has_equal_tokens && to_bits(tokens_.back()) == to_bits(tokens_[0]);
    }
    const std::size_t first = record.suspects.size();
    double tests = 0;
    for (int c = 0; c < entries.calls(); ++c) {
        call_record& call = record.calls[static_cast<std::size_t>(c)];
        call_weights& out = call.weights;
        out.seen = entries(c, 0).state != 0 && !call.is_on_some_ranks();
        if (!out.seen) continue;
        const double roundoff = detail::unit_roundoff_of(call.type);
        detail::collect_weights(entries, c, options_.miss, roundoff, out);
        if (out.why_not != weights_refusal::none) continue;
        name_weights(out, 2 * roundoff, tokens_);
        tests += 2.0 * entries.ranks();
        out.expected = out.how == averaging::unknown
            || is_expected(out.how, entries(c, 0).averages != 0, has_equal_tokens);
        if (out.expected) continue;
        record.suspects.push_back(detail::suspect_of_weights(out));
        record.suspects.back().call = c;
    }
    for (std::size_t s = first; s < record.suspects.size(); ++s) {
        record.suspects[s].false_alarms_per_step = tests * options_.miss;
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
