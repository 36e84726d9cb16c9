// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/audit/detail/weight_check.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/step/checks/results.hpp>
#include <collprobe/step/part.hpp>

/// The part `weight_probe`: its options, and what it tells of the weights.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// How rarely a weight is off by more than its bound to one side, if the errors of a sketch's bins are Gaussian: six
/// deviations.
inline constexpr double weight_miss = 1e-9;

struct distinct_results;

} // namespace detail

/// What `weight_probe` looks at, and what it expects. Equal on all ranks.
struct weight_probe_options {
    /// It looks at the first of so many steps, as with `probe_options::every`; with 0 at those that are asked for by
    /// `probed::request<weight_probe>`. A captured step has it only with 1.
    int every = 100;
    /// Of a sketch, a power of two from 64: four times as many halve what is random in the bounds. 0: 16 a rank, 256 to
    /// 4096. A small buffer has no more bins than elements (but at least 64).
    std::uint32_t bins = 0;
    std::uint64_t seed = sketch_options().seed; ///< with that of the audit, both use one read
    /// Forms that are no findings. Empty: of an average `mean` and `token_weighted`, of a sum these and `sum`.
    std::vector<averaging> expected = {};
    double scale = 1; ///< the first `weight_probe::scale`
    /// The share of a result's norm of no input, beyond what rounding explains, above which it is a finding
    /// (`unexplained`). For an average, nothing else belongs there; where a result has other parts on purpose,
    /// such as weight decay or momentum, 1 tells none.
    double unexplained = 0.05;
};

/// A part of a step that finds the weight with which each rank's input is in the result of a sum or an average, by
/// least squares over sketches, and names the form of these weights: mean, sum, divided twice, weighted by tokens, a
/// rank lost or doubled. Use: `probed comm(world, options, weight_probe())`; its findings are in
/// `call_record::weights`. Forms that are not expected are findings, `weights`; so is what no input explains,
/// `unexplained`. With `probed::observe` all that happens to gradients between two places is seen. The tokens of a rank
/// are `step_observation::weight`.
/// Preconditions: the mode is `gather`. At most 64 ranks: with more, calls are refused in the record. All-reduces and
/// reduce-scatters of floating-point sums and averages; calls with leaves are not looked at.
/// Cost of a call in a step that it looks at: arithmetic in the step's reads; with `audit`, a launch each. Cost of such
/// a step: an all-gather of 16 bytes a bin and call (twice for a reduce-scatter and what is observed), nine launches a
/// call (of an observed all-reduce 37), n^2 multiplications a bin. 136 bytes a call and rank in each step's message.
/// README.md has the model.
class weight_probe : public detail::wants_sketches {
public:
    using entry = detail::weight_entry;

    weight_probe() = default;
    /// \throws error `invalid_argument` for an option out of range.
    explicit weight_probe(weight_probe_options options, call_site where = call_site::current())
        : options_(std::move(options))
    {
        detail::require(options_.every >= 0, "weight_probe", "every is below 0", where);
        if (options_.bins != 0) detail::require_sketch_options({.bins = options_.bins}, "weight_probe", where);
        detail::require(is_finite(options_.unexplained) && options_.unexplained >= 0, "weight_probe",
            "unexplained is negative or not finite", where);
        scale(options_.scale, where);
    }

    /// Tells the factor between input and result, beside the average itself, of the calls from now on: such as 1 / 1024
    /// for a loss scale that is taken out behind the call. A captured step keeps that of its capture.
    /// \throws error `invalid_argument` for a factor that is 0 or not finite.
    void scale(double factor, call_site where = call_site::current())
    {
        detail::require(is_finite(factor) && (factor < 0 || factor > 0), "weight_probe",
            "the scale is 0 or not finite", where);
        options_.scale = factor;
    }

    int every() const noexcept { return options_.every; }

    template <class Device>
    struct memory : detail::weight_check<Device> {
        memory(const weight_probe& of, int ranks)
            : detail::weight_check<Device>(of.options_.bins, of.options_.seed, ranks)
        {
        }
    };

    template <element T, class Call>
    detail::sketch_target before(Call& call, view<const T> input, entry* to) const
    {
        if constexpr (floating_element<T>) {
            if (call.mode() != report_mode::gather || !call.is_sum()) return {};
            if (call.ranks().size() <= detail::most_weighted_ranks) {
                Call::device::sum_each(call.stream(), 1,
                    detail::sample_magnitudes<T>{input, to, call.operation() == reduction::average});
                return call.memory().template before<T>(call, options_.scale);
            }
            Call::device::for_each(call.stream(), 1, detail::refuse_weights{to, weights_refusal::many_ranks});
        }
        return {};
    }
    template <element T, class Call>
    detail::sketch_target after(Call& call, view<const T> result, entry*) const
    {
        return call.memory().after(call, result.count());
    }
    template <class Step>
    void end_step(Step& step) const
    {
        step.memory().end(step, [&](std::uint64_t call) { return step.entry(call); });
    }

    void judge(const part_entries<entry>& entries, step_record& record);

private:
    COLLPROBE_COLD_INLINE bool is_expected(averaging how, bool averages, bool has_equal_tokens) const noexcept
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

    /// Collects and names the weights in one of the results of a call, and appends what is to be told of them.
    void judge_result(const part_entries<entry>& entries, int c, const detail::distinct_results& results, int which,
        call_weights& out, step_record& record);

    weight_probe_options options_;
    std::vector<double> tokens_; ///< of the step that is judged, by rank
};

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

/// Collects what the ranks say of one of the results of a call, up to the name. Precondition: `out` is new.
COLLPROBE_COLD_INLINE void collect_weights(const part_entries<weight_entry>& entries, int call,
    const distinct_results& results, int which, double roundoff, call_weights& out)
{
    const weight_entry& first = entries(call, 0);
    out.seen = true;
    out.scale = first.scale;
    out.bins = first.bins;
    weights_refusal of_all = weights_refusal::none; // what the ranks say of the call does not belong together
    bool have_few = false;
    for (int r = 0; r < entries.ranks(); ++r) {
        const weight_entry& each = entries(call, r);
        const auto why = static_cast<weights_refusal>(each.state - 1);
        const bool is_other = to_bits(each.scale) != to_bits(first.scale);
        if (of_all == weights_refusal::none && why == weights_refusal::not_finite) of_all = why; // NaN differs in bits
        if (of_all == weights_refusal::none && is_other) of_all = weights_refusal::scales_differ;
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
        out.bounds.push_back(student_upper_quantile(weight_miss, each.degrees) * found.deviation + systematic
            + 2 * roundoff * absolute(found.weight));
    }
    if (of_all == weights_refusal::none && results.are_too_many) of_all = weights_refusal::results_differ;
    if (of_all != weights_refusal::none) out.why_not = of_all;
    if (out.why_not == weights_refusal::none) return;
    out.weights.clear();
    out.bounds.clear();
}

/// The weight that tells most of why a form was not expected, in units of the mean's.
COLLPROBE_COLD_INLINE finding finding_of_weights(const call_weights& of)
{
    const double unit = static_cast<double>(of.weights.size()) / of.scale;
    finding named{.what = finding_kind::weights};
    std::size_t which = 0;
    if (of.ranks.size() == 1) {
        named.ranks = of.ranks;
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

COLLPROBE_COLD_INLINE void weight_probe::judge_result(const part_entries<entry>& entries, int c,
    const detail::distinct_results& results, int which, call_weights& out, step_record& record)
{
    const double roundoff = detail::rounding_errors_of(record.calls[static_cast<std::size_t>(c)].type).relative;
    detail::collect_weights(entries, c, results, which, roundoff, out);
    const auto tell = [&](finding named) {
        named.call = c;
        if (results.count > 1) named.other_rank = results.holders[which];
        record.findings.push_back(std::move(named));
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
        if (!out.expected) tell(detail::finding_of_weights(out));
    }
    const bool is_solved
        = out.why_not == weights_refusal::none || out.why_not == weights_refusal::unexplained
        || out.why_not == weights_refusal::imprecise || out.why_not == weights_refusal::ambiguous;
    if (is_solved && out.residual > out.residual_limit + options_.unexplained)
        tell({.what = finding_kind::unexplained, .statistic = out.residual, .threshold = options_.unexplained});
}

COLLPROBE_COLD_INLINE void weight_probe::judge(const part_entries<entry>& entries, step_record& record)
{
    tokens_.clear();
    for (int r = 0; r < entries.ranks(); ++r) tokens_.push_back(entries.weight(r));
    const std::size_t first = record.findings.size();
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
    for (std::size_t s = first; s < record.findings.size(); ++s) {
        record.findings[s].false_alarms_per_step = tests * detail::weight_miss;
    }
}

} // namespace collprobe
