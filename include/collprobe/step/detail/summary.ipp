// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/step/detail/summary.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_COLD_INLINE double extremum_value(std::uint64_t key) noexcept
{
    const std::uint64_t ordered = key & ~rank_mask;
    // Negative numbers were complemented, so their cut-off bits come back as ones: the value is nearer to zero.
    return bit_cast<double>(
        (ordered >> 63) != 0 ? ordered & ~(std::uint64_t{1} << 63) : ~ordered & ~rank_mask);
}

COLLPROBE_COLD_INLINE spread summed_spread(
    const moment_sums& sums, int finite, double reference, const extremum_keys& extrema) noexcept
{
    spread result;
    result.finite = finite;
    if (finite == 0) return result;
    const double offset = sums.distance / sums.count;
    const double rest = sums.distance_squared - sums.distance * offset;
    const double m2 = finite > 1 && rest > 0 ? rest : 0;
    result.mean = reference + offset;
    // The rounding of both terms, if the reference is far off, as in a call's first step. It counts unless it is below
    // that of the numbers themselves.
    const double error = finite > 1 ? (finite + 3) * 0x1p-52 * sums.distance_squared : 0;
    const double of_numbers = 0x1p-50 * result.mean;
    if (m2 >= 1024 * error || error <= sums.count * of_numbers * of_numbers) {
        result.std = square_root(m2 / sums.count);
        if (sums.count > 1) result.std_sample = square_root(m2 / (sums.count - 1));
        if (absolute(result.mean) > 0) result.cv = result.std / absolute(result.mean);
    }
    result.maximum = extremum_value(extrema.largest);
    result.minimum = -extremum_value(extrema.smallest);
    result.range = result.maximum - result.minimum;
    result.maximum_rank = extremum_rank(extrema.largest);
    result.minimum_rank = extremum_rank(extrema.smallest);
    return result;
}

COLLPROBE_COLD_INLINE void align_from_totals(const moment_sums& norms, double reference, double squares,
    double sum_norm_squared, int ranks, direction& out) noexcept
{
    out.mean_pairwise = not_a_number();
    out.pooled = not_a_number();
    out.leave_one_out.clear();
    const double sum_of_norms = norms.distance + norms.count * reference;
    const double norm_products = sum_of_norms * sum_of_norms - squares;
    if (norms.count > 1 && is_finite(sum_norm_squared) && norm_products > 0) {
        const double cosine = (sum_norm_squared - squares) / norm_products;
        out.pooled = cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
    }
    const noise_moments moments = estimate_noise(ranks, squares, sum_norm_squared);
    set_noise(moments.signal, moments.noise, out);
}

COLLPROBE_COLD_INLINE void require_same_step(
    const step_keys& keys, std::uint64_t own_step, function_ref<error_origin()> origin)
{
    if (keys.step == ~keys.step_complement) return;
    throw error(status::mismatch,
        "the ranks report different steps, from " + std::to_string(~keys.step_complement) + " to "
            + std::to_string(keys.step) + ", this rank " + std::to_string(own_step),
        origin());
}

COLLPROBE_COLD_INLINE void judge_summary(step_judge& judge, const summary_parts& step, int ranks,
    view<const probed_call> calls, view<const value_keys> values, view<const expected_value> expected,
    view<const double> gram, step_record& out)
{
    out.begin(step.keys->step, ranks, report_mode::summary, calls.size(), expected.size());
    out.forgot = judge.forget_after_loss(static_cast<std::uint32_t>(step.keys->last_lost));
    out.false_alarms_per_step = 0;

    const step_sums& sums = *step.sums;
    const step_reference& reference = *step.reference;
    const int finite = static_cast<int>(sums.loss.count);
    out.loss = summed_spread(sums.loss, finite, reference.loss, step.keys->loss);
    out.loss_weighted = summed_spread({sums.weight, sums.weighted_distance, sums.weighted_distance_squared},
        sums.weight > 0 ? finite : 0, reference.loss, step.keys->loss);
    out.gradient_norm = summed_spread(sums.gradient_norm, static_cast<int>(sums.gradient_norm.count),
        reference.gradient_norm, step.keys->gradient_norm);
    if (step.keys->bad_loss != 0) {
        out.suspects.push_back(
            {.rank = extremum_rank(step.keys->bad_loss), .what = finding::non_finite, .statistic = 1});
    }

    const bool same_names = step.keys->names == ~step.keys->names_complement;
    if (!same_names) out.suspects.push_back({.what = finding::other_call});
    for (std::size_t v = 0; v < expected.size(); ++v) {
        expectation_record& of = out.expectations[v];
        of.site = expected[v].site;
        of.holds = values[v].digest == ~values[v].digest_complement;
        if (values[v].value.largest != 0)
            of.values = {-extremum_value(values[v].value.smallest), extremum_value(values[v].value.largest)};
        of.since = of.holds ? 0 : out.step; // ranks with other names would remember other values
        if (same_names)
            judge.remember_since(v, [&expected](std::size_t u) { return expected[u].place(); }, out.step, of);
        if (of.holds) continue;
        out.suspects.push_back({.what = finding::value_differs, .statistic = 2, .site = of.site});
        out.suspects.back().number.since = of.since;
    }

    double sum_norm_squared = 0;
    double result_squares = 0;
    bool has_gradients = false;
    for (std::size_t b = 0; b < calls.size(); ++b) {
        const probed_call& call = calls[b];
        const call_sums& totals = step.call(b);
        const call_keys& keys = step.call_extrema(b);
        call_record& record = out.calls[b];
        record.call = call.call;
        record.type = call.type;
        record.count = call.count;
        record.result_count = call.result_count;
        record.site = call.site;
        record.is_observed = call.is_observed;
        if (tells_lateness(call) && keys.time.largest != 0) {
            record.lateness.present = ranks;
            record.lateness.last = extremum_rank(keys.time.smallest);
            record.lateness.transport = -extremum_value(keys.time.smallest);
            record.lateness.spread = extremum_value(keys.time.largest) - record.lateness.transport;
        }
        const int finite_norms = static_cast<int>(totals.gradient_norm.count);
        record.gradient_norm = call.has_input
            ? summed_spread(totals.gradient_norm, finite_norms, step.call_reference(b), keys.gradient_norm)
            : spread();
        record.nonfinite = static_cast<std::uint64_t>(totals.nonfinite);
        record.results_agree
            = !call.is_replicated() || !call.has_result || keys.digest == ~keys.digest_complement;
        record.has_result_digest = call.has_result && call.is_replicated() && record.results_agree;
        record.result_digest = record.has_result_digest ? keys.digest : 0;
        if (call.has_result && record.results_agree) {
            record.result_norm = square_root(totals.result_norm_squared / (call.is_replicated() ? ranks : 1));
        }
        const std::uint64_t nonfinite = key_count(keys.nonfinite);
        const bool inputs_are_finite = nonfinite < nonfinite_input;
        if (!inputs_are_finite) {
            out.suspects.push_back({.rank = extremum_rank(keys.nonfinite),
                .call = static_cast<int>(b),
                .what = finding::non_finite,
                .statistic = static_cast<double>(nonfinite - nonfinite_input)});
        } else if (call.has_result && record.results_agree) {
            record.result_nonfinite = nonfinite;
        }
        if (record.result_nonfinite != 0 && call.has_input && !call.is_move()) {
            judge_overflow(nonfinite, no_index, call.is_replicated() ? -1 : extremum_rank(keys.nonfinite), call,
                static_cast<int>(b), out);
        }
        if (!record.results_agree) {
            out.suspects.push_back(
                {.call = static_cast<int>(b), .what = finding::result_differs, .statistic = 2});
        }
        if (call.has_input && call.has_result && inputs_are_finite && record.results_agree
            && finite_norms == ranks && (call.is_move() || call.is_gradient())) {
            // The sum of norms is that of their distances from a reference, which may be far larger.
            const double level = absolute(ranks * step.call_reference(b));
            judge_lengths({.norms = totals.gradient_norm.distance + ranks * step.call_reference(b),
                              .norms_error = 0x1p-53 * (ranks + 8)
                                  * (level + ranks * square_root(totals.gradient_norm_squared)),
                              .squares = totals.gradient_norm_squared,
                              .result = totals.result_norm_squared / (call.is_replicated() ? ranks : 1)},
                call, static_cast<int>(b), out);
        }
        if (!call.is_gradient()) continue;
        has_gradients = true;
        const double factor = call.operation == reduction::average ? ranks : 1;
        const double copies = call.call == collective::all_reduce ? ranks : 1;
        const double result
            = call.has_result && record.results_agree ? factor * factor * totals.result_norm_squared / copies
                                                      : not_a_number();
        sum_norm_squared += result;
        result_squares += result / (factor * factor);
        align_from_totals(totals.gradient_norm, step.call_reference(b), totals.gradient_norm_squared,
            result, ranks, out.cosine);
        record.pooled_cosine = out.cosine.pooled;
    }
    if (!has_gradients) {
        out.gradient_norm = {};
        return;
    }
    out.result_norm = square_root(result_squares);
    const extremum_keys& told = step.keys->told_norm;
    if (told.largest != 0) {
        const std::size_t before = out.suspects.size();
        judge_told_norm(extremum_value(told.largest), extremum_rank(told.largest), out);
        judge_told_norm(-extremum_value(told.smallest), extremum_rank(told.smallest), out);
        if (out.suspects.size() == before + 2) { // all ranks' are wrong, as far as is known
            out.suspects.pop_back();
            out.suspects.back().rank = -1;
        }
    }
    align_from_totals(sums.gradient_norm, reference.gradient_norm, sums.gradient_norm_squared,
        sum_norm_squared, ranks, out.cosine);
    judge.align_over_steps(gram, sums.gradient_norm_squared, sum_norm_squared, out.cosine);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
