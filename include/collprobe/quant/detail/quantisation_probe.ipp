// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/detail/math.hpp>
#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/quant/quantisation_probe.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Sums over ranks of what each says about a call.
struct quantisation_totals {
    double squares = 0;
    double input_errors = 0; ///< energy
    double node_errors = 0;
    double owned_errors = 0;
    double input_sum = 0; ///< of errors
    double node_sum = 0;
    double owned_sum = 0;
    double between_ranks = 0; ///< energy of the ranks' differences, from each rank to the mean
    double scale_sum = 0;
    double crest_sum = 0;
    std::uint64_t blocks = 0; ///< that are not zero
    std::uint64_t count = 0;
    std::uint64_t elements = 0; ///< that are neither zero nor non-finite
    std::uint64_t zeroed = 0;
    std::uint64_t outliers = 0;
};

COLLPROBE_COLD_INLINE double decibels(double signal, double noise) noexcept
{
    if (!(signal > 0)) return not_a_number();
    return noise > 0 ? 10 / natural_log(10) * natural_log(signal / noise) : infinity();
}

/// The spread of `terms` decoded terms: the sum over elements of the squared distances from their mean, over
/// terms - 1.
COLLPROBE_COLD_INLINE double spread_of_terms(const combined_errors& of, double terms) noexcept
{
    return terms > 1 ? (of.term_squares - of.sum_squares / terms) / (terms - 1) : 0;
}

/// Keeps the largest bias: the sum of errors in units of its standard deviation, if they are independent.
COLLPROBE_COLD_INLINE void note_bias(double sum, double error_squares, double squares, std::uint64_t count,
    int rank, call_quantisation& out) noexcept
{
    const double bias = error_squares > 0 ? absolute(sum) / square_root(error_squares) : 0;
    if (!is_nan(out.bias) && bias <= out.bias) return;
    out.bias = bias;
    out.bias_rank = rank;
    out.mean_error = squares > 0 ? sum / square_root(squares * static_cast<double>(count)) : 0;
}

/// The share of Gaussian elements that become zero: those within half a scale, the scale being `scale` standard
/// deviations. Nearly as many do by stochastic rounding.
COLLPROBE_COLD_INLINE double expected_zeros(code_format format, double scale) noexcept
{
    if (format == code_format::e4m3) scale *= 0x1p-9; // the smallest number of the format
    return 1 - error_function_complement(scale / 2 / square_root(2));
}

/// The energy that rounding to the element type adds to `count` numbers of energy `squares`: that of a uniform error in
/// the last place, with significands spread evenly on a logarithmic scale, and that of subnormal numbers.
COLLPROBE_COLD_INLINE double rounding_energy(element_type type, double squares, double count) noexcept
{
    double energy = 0;
    with_floating_type(type, [&](auto one) {
        using traits = element_traits<decltype(one)>;
        energy = squares * 2 / 3 * natural_log(2) / 12 * power_of_two(2 - 2 * traits::digits)
            + count / 12 * power_of_two(2 * traits::min_subnormal_exponent);
    });
    return energy;
}

/// What the sketches tell of the result. `known`: the energy of all roundings to codes in the mean; `fed_back`: that of
/// the step before, whose errors are in it, too; `adding`: that of the roundings of n terms to float, at most;
/// `elements`: of the result, in units of its own square over that of the mean.
COLLPROBE_COLD_INLINE void measure_aggregate(const part_entries<quantisation_entry>& entries, int c,
    const call_record& call, double known, double fed_back, double adding, double elements,
    const quantisation_limits& limits, call_quantisation& out)
{
    aggregate_error of;
    for (int rank = 0; rank < entries.ranks(); ++rank) {
        const aggregate_error& each = entries(c, rank).aggregate;
        // Sums that their type cannot hold are NaN, which decoding counts; owners of parts do not decode.
        if (each.spoiled != 0 && out.nonfinite_results == 0 && call.call == collective::all_reduce) {
            out.bins = static_cast<std::uint32_t>(each.spoiled);
            out.coherence = infinity();
        }
        if (each.measured == 0) return;
        if (rank == 0 || each.error_squares > of.error_squares) of = each; // they differ only if one is damaged
    }
    out.bins = static_cast<std::uint32_t>(of.measured);
    out.aggregate_sqnr_db = decibels(of.mean_squares, of.error_squares);
    const double lengths = square_root(of.mean_squares) * square_root(of.result_squares);
    if (lengths > 0) {
        out.aggregate_cosine = (of.mean_squares + of.result_squares - of.error_squares) / (2 * lengths);
    }
    const double rounding = rounding_energy(call.type, of.result_squares, elements);
    if (known > 0 && !is_nan(fed_back)) out.coherence = of.error_squares / (known + fed_back + adding + rounding);
    out.drift = of.drift;
    const bool counts = of.error_squares > limits.mean_error * limits.mean_error * of.mean_squares
        && of.error_squares > 4 * rounding; // which no other rounding to codes would cure
    if (!counts || is_nan(of.drift) || !(of.drift > limits.drift)) out.drifting_steps = 0;
    else ++out.drifting_steps;
}

/// Finds the messages that came otherwise than they were sent.
COLLPROBE_COLD_INLINE void find_damaged_messages(
    const part_entries<quantisation_entry>& entries, int c, call_quantisation& out)
{
    for (int rank = 0; rank < entries.ranks(); ++rank) {
        const damaged_messages& each = entries(c, rank).messages;
        out.messages_checked = out.messages_checked || each.checked != 0;
        if (each.senders != 0 && out.damaged_pairs == 0) {
            out.damaged_receiver = rank;
            out.damaged_sender = static_cast<int>(each.first);
        }
        out.damaged_pairs += each.senders;
    }
}

/// `out.drifting_steps` is that of the step before; `last` becomes this step's.
COLLPROBE_COLD_INLINE void measure_quantisation(const part_entries<quantisation_entry>& entries, int c,
    const call_record& call, std::uint64_t step, const quantisation_limits& limits, last_roundings& last,
    call_quantisation& out)
{
    const int ranks = entries.ranks();
    const auto n = static_cast<double>(ranks);
    quantisation_totals all;
    double worst = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const quantised_errors& of = entries(c, rank).errors;
        const quantisation_errors& in = of.input;
        all.squares += in.squares;
        all.input_errors += in.error_squares;
        all.node_errors += of.node.errors.error_squares;
        all.owned_errors += of.owned.errors.error_squares;
        // Each node has the terms of its own ranks, so the spreads of the nodes are averaged.
        const double locals = out.outcome.levels == 2 ? static_cast<double>(out.outcome.ranks_per_node) : n;
        all.between_ranks
            += spread_of_terms(out.outcome.levels == 2 ? of.node : of.owned, locals) * locals / n;
        all.scale_sum += in.scale_sum;
        all.crest_sum += in.crest_sum;
        all.blocks += in.blocks - in.zero_blocks;
        all.count += in.count;
        all.elements += in.count - in.zeros - in.nonfinite;
        all.zeroed += in.zeroed;
        all.outliers += in.outliers;
        out.saturated += in.saturated;
        out.nonfinite += in.nonfinite;
        if (of.nonfinite_results > out.nonfinite_results) out.nonfinite_results = of.nonfinite_results;
        const double ratio = in.squares > 0 ? in.error_squares / in.squares : 0;
        if (ratio > worst) {
            worst = ratio;
            out.worst_rank = rank;
            out.worst_sqnr_db = decibels(1, ratio);
            out.worst_block_db = decibels(1, in.worst_ratio);
            out.worst_block = in.worst_block;
        }
        all.input_sum += in.error_sum;
        all.node_sum += of.node.errors.error_sum;
        all.owned_sum += of.owned.errors.error_sum;
        // What is fed back does not add up.
        if (!out.outcome.inputs_fed_back)
            note_bias(in.error_sum, in.error_squares, in.squares, in.count, rank, out);
    }
    out.sqnr_db = decibels(all.squares, all.input_errors);
    if (all.blocks != 0) {
        out.crest = all.crest_sum / static_cast<double>(all.blocks);
        const code_format format = out.outcome.within;
        out.zeroed_expected = expected_zeros(format, all.scale_sum / static_cast<double>(all.blocks));
    }
    if (all.elements != 0) {
        out.zeroed = static_cast<double>(all.zeroed) / static_cast<double>(all.elements);
        out.outliers = static_cast<double>(all.outliers) / static_cast<double>(all.elements);
    }
    find_damaged_messages(entries, c, out);
    if (call.call == collective::all_gather) return;
    // Of the mean. The roundings of the result are not tested alone: they may be few and alike, and small.
    const double to_mean = out.outcome.average ? 1 : 1 / n;
    const double inputs_add_up = out.outcome.inputs_fed_back ? 0 : 1;
    const double sums_add_up = out.outcome.sums_fed_back ? 0 : 1;
    note_bias(inputs_add_up * all.input_sum / n + sums_add_up * (all.node_sum / n + all.owned_sum * to_mean),
        inputs_add_up * all.input_errors / (n * n)
            + sums_add_up * (all.node_errors / (n * n) + all.owned_errors * to_mean * to_mean),
        all.squares / n, all.count / static_cast<std::uint64_t>(ranks), -1, out);
    const double known = (all.input_errors + all.node_errors) / (n * n) + all.owned_errors * to_mean * to_mean;
    double fed_back = 0;
    if (out.outcome.feedback == feedback_state::continued)
        fed_back = last.step + 1 == step ? last.energy : not_a_number();
    const double elements = static_cast<double>(all.count) / n;
    measure_aggregate(entries, c, call, known, fed_back, power_of_two(-48) * all.squares,
        elements * to_mean * to_mean, limits, out);
    last.energy = known;
    last.step = step;
    // All in units of a rank's own gradient: the noise of the mean is that of a gradient over n.
    const double input = all.input_errors / n;
    const double noise = all.between_ranks - input; // of one rank's gradient, without its error
    const double owned = all.owned_errors * to_mean * to_mean * n;
    // Equal gradients have no noise, and an estimate of it that is nearly 0, of either sign.
    const double deviation = all.between_ranks * square_root(2 / (elements * (n - 1)));
    if (!(noise > 8 * deviation)) return;
    out.input_noise_ratio = input / noise;
    out.noise_ratio = (input + all.node_errors / n + owned) / noise;
}

/// The largest coherence that roundings can have: the square of a sum of k numbers is at most k times the sum of their
/// squares. In a mean these are the roundings of all ranks, of all nodes, of the owner, and that to the element type;
/// with feedback those of the step before, too. The energy is an estimate.
COLLPROBE_COLD_INLINE double largest_coherence(const call_quantisation& of, int ranks) noexcept
{
    const quantised_outcome& did = of.outcome;
    const double nodes = did.levels == 2 ? static_cast<double>(ranks) / did.ranks_per_node : 0;
    const double steps = did.feedback == feedback_state::none ? 1 : 2;
    return steps * (ranks + nodes + 2) * (1 + 8 * square_root(2.0 / of.bins));
}

/// The verdict, and its evidence as a suspect.
COLLPROBE_COLD_INLINE quantisation_verdict judge_numbers(const call_quantisation& of, bool agree, int ranks,
    const quantisation_limits& limits, double largest_bias, suspect& why) noexcept
{
    why.rank = of.worst_rank;
    why.index = of.worst_block;
    if (of.damaged_pairs != 0) {
        why.what = finding::codes_differ;
        why.rank = of.damaged_receiver;
        why.other_rank = of.damaged_sender;
        why.index = no_index;
        why.statistic = static_cast<double>(of.damaged_pairs);
        return quantisation_verdict::corrupt;
    }
    if (!agree) return quantisation_verdict::corrupt;
    if (of.coherence > largest_coherence(of, ranks)) {
        why.what = finding::codes_differ;
        why.rank = -1;
        why.index = no_index;
        why.statistic = of.coherence;
        why.threshold = largest_coherence(of, ranks);
        return quantisation_verdict::corrupt;
    }
    if (of.nonfinite != 0 && of.nonfinite_results == 0) {
        why.statistic = static_cast<double>(of.nonfinite);
        return quantisation_verdict::non_finite_hidden;
    }
    if (of.nonfinite == 0 && of.nonfinite_results != 0) { // sums that their type cannot hold
        why.rank = -1;
        why.index = no_index;
        why.statistic = static_cast<double>(of.nonfinite_results);
        return quantisation_verdict::harmful;
    }
    if (of.saturated != 0) {
        why.statistic = static_cast<double>(of.saturated);
        return quantisation_verdict::biased;
    }
    if (of.bias > largest_bias && absolute(of.mean_error) > limits.mean_error) {
        why.rank = of.bias_rank;
        why.statistic = of.bias;
        why.threshold = largest_bias;
        why.exact = false;
        why.false_alarms_per_step = limits.false_alarms_per_step;
        return quantisation_verdict::biased;
    }
    if (of.drifting_steps >= limits.drift_steps) {
        why.rank = -1;
        why.index = no_index;
        why.statistic = of.drift;
        why.threshold = limits.drift;
        return quantisation_verdict::biased;
    }
    const bool has_noise = !is_nan(of.noise_ratio);
    // Without noise: of the result, if it is known and worse. With feedback that has the errors of two steps.
    const bool of_result = of.outcome.feedback == feedback_state::none && of.aggregate_sqnr_db < of.sqnr_db;
    const double sqnr_db = of_result ? of.aggregate_sqnr_db : of.sqnr_db;
    const double cost = has_noise ? of.noise_ratio : exponential(-sqnr_db / 10 * natural_log(10));
    why.statistic = cost;
    why.threshold = has_noise ? limits.harmful : limits.harmful_error;
    if (cost > why.threshold) return quantisation_verdict::harmful;
    // Elements that became zero are not lost if they are fed back.
    if (!of.outcome.inputs_fed_back && of.zeroed > limits.zeroed
        && of.zeroed > limits.degenerate * of.zeroed_expected) {
        why.statistic = of.zeroed;
        why.threshold = limits.degenerate * of.zeroed_expected;
        return quantisation_verdict::degenerate_blocks;
    }
    const bool visible = cost > (has_noise ? limits.visible : limits.visible_error);
    return visible ? quantisation_verdict::visible : quantisation_verdict::negligible;
}

} // namespace detail

COLLPROBE_COLD_INLINE void quantisation_probe::judge(const part_entries<entry>& entries, step_record& record)
{
    // Of a call the roundings of each rank are tested, and those of the mean, each for a bias of either sign.
    const double tests = 2.0 * (entries.ranks() + 1) * (entries.calls() > 0 ? entries.calls() : 1);
    const double largest_bias = detail::normal_upper_quantile(limits_.false_alarms_per_step / tests);
    for (int c = 0; c < entries.calls(); ++c) {
        call_record& call = record.calls[static_cast<std::size_t>(c)];
        const entry& own = entries(c, 0);
        if (own.seen == 0) continue;
        call_quantisation& out = call.quantisation;
        out = {};
        out.seen = true;
        out.outcome = own.outcome;
        if (!own.outcome.quantised()) continue;
        const auto [number, slot] = entries.series(c);
        if (slot >= last_.size()) last_.resize(slot + 1);
        detail::last_roundings& last = last_[slot];
        if (last.number != number) last = {.number = number};
        out.drifting_steps = last.drifting_steps;
        detail::measure_quantisation(entries, c, call, record.step, limits_, last, out);
        last.drifting_steps = out.drifting_steps;
        // A rotation may make infinities of finite elements, which the codec counts: the statistics know better.
        std::uint64_t read = 0;
        std::uint64_t nonfinite = 0;
        for (const statistics& each : call.inputs) {
            read += each.count;
            if (each.nonfinite() > nonfinite) nonfinite = each.nonfinite();
        }
        if (read != 0) out.nonfinite = nonfinite;
        suspect why{.call = c, .what = finding::quantisation, .site = call.site};
        // The parts of a reduce-scatter are decoded by their owners, who count no results.
        if (call.call == collective::reduce_scatter) out.nonfinite_results = out.nonfinite;
        out.verdict = detail::judge_numbers(
            out, call.results_agree, entries.ranks(), limits_, largest_bias, why);
        if (out.verdict < quantisation_verdict::visible) record.suspects.push_back(why);
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
