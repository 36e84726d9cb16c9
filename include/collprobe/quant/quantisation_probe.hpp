// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/quant/detail/aggregate_check.hpp>
#include <collprobe/quant/detail/aggregate_error.hpp>
#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/message_check.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The limits of the verdicts. Equal on all ranks.
struct quantisation_limits {
    /// The noise ratios from which on quantisation is visible and harmful.
    double visible = 0.01;
    double harmful = 0.1;
    /// The same for gathers, which have no gradient noise: the energy of the errors over that of the
    /// elements.
    double visible_error = 1e-4;
    double harmful_error = 1e-2;
    /// Blocks are degenerate if more elements became zero than this, and than `degenerate` times what is
    /// expected of Gaussian elements.
    double zeroed = 0.25;
    double degenerate = 1.5;
    /// Errors are biased only if their mean is above this part of the root mean square of the elements.
    double mean_error = 1e-3;
    /// Errors are stuck, and so biased, if their cosine with those of the step before is above this, over so many
    /// steps in a row. (Their energy must be above the square of `mean_error`.) Stochastic rounding by the same random
    /// bits in each step has just below 0.5: half of its errors' energy is that of the bits, half that of the elements.
    double drift = 0.35;
    int drift_steps = 3;
    /// The rate at which a step without bias has a biased call, if the errors of elements are independent.
    double false_alarms_per_step = 1e-6;
};

/// What `quantisation_probe` looks at, beside what the codes cost. Equal on all ranks.
struct quantisation_checks {
    /// The error of sums and averages, by sketches of inputs and results. Without it the probe costs less.
    bool aggregate = true;
    /// Whether the messages of codes arrived as they were sent: names sender and receiver. Reads the codes twice more
    /// on each way, in a launch for each message, and sends 8 bytes to each rank for a call.
    bool messages = false;
    sketch_options sketch = {}; ///< a small buffer has fewer bins: 16 elements or more in each (but at least 64 bins)
};

namespace detail {

/// What a rank has to say about a call.
struct quantisation_entry {
    quantised_errors errors;
    quantised_outcome outcome;
    std::uint64_t seen = 0;
    aggregate_error aggregate;
    damaged_messages messages;
};
static_assert(sizeof(quantisation_entry) % 8 == 0);

/// What a call of the next step is judged with.
struct last_roundings {
    std::uint64_t number = 0; ///< of the series that it is of
    double energy = not_a_number(); ///< of all roundings to codes in the mean
    std::uint64_t step = 0;
    int drifting_steps = 0; ///< in a row, whose errors were like those of the step before
};

/// Writes what the host knows about a call. A body for `for_each`, for one index.
struct write_quantised_outcome {
    quantisation_entry* to;
    quantised_outcome outcome;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        to->outcome = outcome;
        to->seen = 1;
    }
};

} // namespace detail

/// A part of a step that says what quantisation did to each call: `probed comm(quantised{world, how},
/// options, quantisation_probe())`. Its numbers are in `call_record::quantisation`, its findings are
/// `quantisation` and `codes_differ`. README.md of this folder has the numbers, their formulas
/// and the verdicts.
/// Preconditions: the communicator under `probed` is `quantised`, or an adaptor around it; the mode is
/// `gather`. Cost of a call: arithmetic in the reads of the quantised call and, for a sum, of the step; two launches.
/// Cost of a step: 688 bytes a call and rank in its message, and for each sum an all-reduce of 16 bytes a bin
/// (twice that for a reduce-scatter). `quantisation_checks` has those of the checks that are off unless asked for.
class quantisation_probe : public detail::wants_sketches {
public:
    using entry = detail::quantisation_entry;

    quantisation_probe() = default;
    /// \throws error `invalid_argument` for a limit out of range.
    explicit quantisation_probe(const quantisation_limits& limits, const quantisation_checks& checks = {},
        call_site where = call_site::current())
        : limits_(limits), checks_(checks)
    {
        const auto require = [&](bool condition, const char* message) {
            detail::require(condition, "quantisation_probe", message, where);
        };
        require(limits.visible >= 0 && limits.harmful >= limits.visible,
            "harmful is below visible, or visible below 0");
        require(limits.visible_error >= 0 && limits.harmful_error >= limits.visible_error,
            "harmful_error is below visible_error, or visible_error below 0");
        require(detail::is_rate(limits.false_alarms_per_step), "false_alarms_per_step is not between 0 and 1");
        require(limits.drift_steps > 0, "drift_steps is not above 0");
        detail::require_sketch_options(checks.sketch, "quantisation_probe", where);
    }

    template <class Device>
    struct memory {
        memory(const quantisation_probe& of, int ranks)
            : sums(of.checks_.sketch.bins, of.checks_.sketch.seed, ranks), messages(ranks)
        {
        }
        void clear() noexcept
        {
            sums.clear();
            messages.clear();
        }
        void forget(std::uint64_t first) noexcept
        {
            sums.forget(first);
            messages.forget(first);
        }
        detail::aggregate_check<Device> sums;
        detail::message_check<Device> messages;
    };

    template <element T, class Call>
    detail::sketch_target before(Call& call, view<const T> input, entry* to) const
    {
        if (call.quantised() == nullptr) return {};
        call.quantised()->errors_to = &to->errors;
        if (call.mode() != report_mode::gather || !call.is_quantised()) return {};
        if (checks_.messages && has_codes(call.what()))
            call.quantised()->digests_to = call.memory().messages.before(call.index());
        if (!measures(call)) return {};
        return call.memory().sums.before(call, input.count());
    }
    template <element T, class Call>
    detail::sketch_target after(Call& call, view<const T> result, entry* to) const
    {
        quantised_calls* const calls = call.quantised();
        if (calls == nullptr) return {};
        calls->errors_to = nullptr; // a call that was forwarded has left it
        calls->digests_to = nullptr;
        if (!has_codes(call.what())) return {};
        Call::device::for_each(call.stream(), 1, detail::write_quantised_outcome{to, calls->last});
        return call.memory().sums.after(call, result.count());
    }
    template <class Step>
    void end_step(Step& step) const
    {
        const auto entry_of = [&](std::uint64_t call) { return step.entry(call); };
        step.memory().sums.end(step, entry_of);
        step.memory().messages.end(step, entry_of);
    }

    void judge(const part_entries<entry>& entries, step_record& record);

private:
    static bool has_codes(collective what) noexcept
    {
        return what == collective::all_reduce || what == collective::reduce_scatter || what == collective::all_gather;
    }
    template <class Call>
    bool measures(const Call& call) const noexcept
    {
        return checks_.aggregate && call.mode() == report_mode::gather && call.is_quantised()
            && (call.what() == collective::all_reduce || call.what() == collective::reduce_scatter);
    }
    quantisation_limits limits_;
    quantisation_checks checks_;
    std::vector<detail::last_roundings> last_; ///< by the slot of the call's series
};

namespace detail {

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
    quantisation_errors input; // of all ranks
    quantisation_errors node;
    quantisation_errors owned;
    double between_ranks = 0; // energy of the ranks' differences, from each rank to the mean
    double worst = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const quantised_errors& of = entries(c, rank).errors;
        const quantisation_errors& in = of.input;
        merge(input, in);
        merge(node, of.node.errors);
        merge(owned, of.owned.errors);
        // Each node has the terms of its own ranks, so the spreads of the nodes are averaged.
        const bool two_level = out.outcome.levels == 2;
        const double locals = two_level ? static_cast<double>(out.outcome.ranks_per_node) : n;
        between_ranks += spread_of_terms(two_level ? of.node : of.owned, locals) * locals / n;
        if (of.nonfinite_results > out.nonfinite_results) out.nonfinite_results = of.nonfinite_results;
        const double ratio = in.squares > 0 ? in.error_squares / in.squares : 0;
        if (ratio > worst) {
            worst = ratio;
            out.worst_rank = rank;
            out.worst_block = in.worst_block;
        }
        // What is fed back does not add up.
        if (!out.outcome.inputs_fed_back)
            note_bias(in.error_sum, in.error_squares, in.squares, in.count, rank, out);
    }
    out.saturated = input.saturated;
    out.nonfinite = input.nonfinite;
    out.sqnr_db = decibels(input.squares, input.error_squares);
    if (input.blocks != input.zero_blocks) {
        const auto blocks = static_cast<double>(input.blocks - input.zero_blocks);
        out.crest = input.crest_sum / blocks;
        out.zeroed_expected = expected_zeros(out.outcome.within, input.scale_sum / blocks);
    }
    if (const std::uint64_t elements = input.count - input.zeros - input.nonfinite; elements != 0)
        out.zeroed = static_cast<double>(input.zeroed) / static_cast<double>(elements);
    find_damaged_messages(entries, c, out);
    if (call.call == collective::all_gather) return;
    // Of the mean. The roundings of the result are not tested alone: they may be few and alike, and small.
    const double to_mean = out.outcome.average ? 1 : 1 / n;
    const double inputs_add_up = out.outcome.inputs_fed_back ? 0 : 1;
    const double sums_add_up = out.outcome.sums_fed_back ? 0 : 1;
    note_bias(inputs_add_up * input.error_sum / n + sums_add_up * (node.error_sum / n + owned.error_sum * to_mean),
        inputs_add_up * input.error_squares / (n * n)
            + sums_add_up * (node.error_squares / (n * n) + owned.error_squares * to_mean * to_mean),
        input.squares / n, input.count / static_cast<std::uint64_t>(ranks), -1, out);
    const double known = (input.error_squares + node.error_squares) / (n * n) + owned.error_squares * to_mean * to_mean;
    double fed_back = 0;
    if (out.outcome.feedback == feedback_state::continued)
        fed_back = last.step + 1 == step ? last.energy : not_a_number();
    const double elements = static_cast<double>(input.count) / n;
    measure_aggregate(entries, c, call, known, fed_back, power_of_two(-48) * input.squares,
        elements * to_mean * to_mean, limits, out);
    last.energy = known;
    last.step = step;
    // All in units of a rank's own gradient: the noise of the mean is that of a gradient over n.
    const double of_input = input.error_squares / n;
    const double noise = between_ranks - of_input; // of one rank's gradient, without its error
    const double of_owned = owned.error_squares * to_mean * to_mean * n;
    // Equal gradients have no noise, and an estimate of it that is nearly 0, of either sign.
    const double deviation = between_ranks * square_root(2 / (elements * (n - 1)));
    if (!(noise > 8 * deviation)) return;
    out.noise_ratio = (of_input + node.error_squares / n + of_owned) / noise;
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

/// The verdict, and its evidence as a finding.
COLLPROBE_COLD_INLINE quantisation_verdict judge_numbers(const call_quantisation& of, bool agree, int ranks,
    const quantisation_limits& limits, double largest_bias, finding& why)
{
    using verdict = quantisation_verdict;
    const auto found = [&](verdict said, int rank, std::uint64_t index, double statistic, double threshold = 0) {
        if (rank >= 0) why.ranks = {rank};
        why.index = index;
        why.statistic = statistic;
        why.threshold = threshold;
        return said;
    };
    if (of.damaged_pairs != 0) {
        why.what = finding_kind::codes_differ;
        why.other_rank = of.damaged_sender;
        return found(verdict::corrupt, of.damaged_receiver, no_index, static_cast<double>(of.damaged_pairs));
    }
    if (!agree) return found(verdict::corrupt, of.worst_rank, of.worst_block, 0);
    if (of.coherence > largest_coherence(of, ranks)) {
        why.what = finding_kind::codes_differ;
        return found(verdict::corrupt, -1, no_index, of.coherence, largest_coherence(of, ranks));
    }
    if (of.nonfinite != 0 && of.nonfinite_results == 0) {
        return found(
            verdict::non_finite_hidden, of.worst_rank, of.worst_block, static_cast<double>(of.nonfinite));
    }
    if (of.nonfinite == 0 && of.nonfinite_results != 0) // sums that their type cannot hold
        return found(verdict::harmful, -1, no_index, static_cast<double>(of.nonfinite_results));
    if (of.saturated != 0)
        return found(verdict::biased, of.worst_rank, of.worst_block, static_cast<double>(of.saturated));
    if (of.bias > largest_bias && absolute(of.mean_error) > limits.mean_error) {
        why.exact = false;
        why.false_alarms_per_step = limits.false_alarms_per_step;
        return found(verdict::biased, of.bias_rank, of.worst_block, of.bias, largest_bias);
    }
    if (of.drifting_steps >= limits.drift_steps)
        return found(verdict::biased, -1, no_index, of.drift, limits.drift);
    const bool has_noise = !is_nan(of.noise_ratio);
    // Without noise: of the result, if it is known and worse. With feedback that has the errors of two steps.
    const bool of_result = of.outcome.feedback == feedback_state::none && of.aggregate_sqnr_db < of.sqnr_db;
    const double sqnr_db = of_result ? of.aggregate_sqnr_db : of.sqnr_db;
    const double cost = has_noise ? of.noise_ratio : exponential(-sqnr_db / 10 * natural_log(10));
    const double harmful = has_noise ? limits.harmful : limits.harmful_error;
    if (cost > harmful) return found(verdict::harmful, of.worst_rank, of.worst_block, cost, harmful);
    // Elements that became zero are not lost if they are fed back.
    const double most_zeroed = limits.degenerate * of.zeroed_expected;
    if (!of.outcome.inputs_fed_back && of.zeroed > limits.zeroed && of.zeroed > most_zeroed)
        return found(verdict::degenerate_blocks, of.worst_rank, of.worst_block, of.zeroed, most_zeroed);
    const bool visible = cost > (has_noise ? limits.visible : limits.visible_error);
    return visible ? verdict::visible : verdict::negligible;
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
        finding why{.call = c, .what = finding_kind::quantisation, .site = call.site};
        // The parts of a reduce-scatter are decoded by their owners, who count no results.
        if (call.call == collective::reduce_scatter) out.nonfinite_results = out.nonfinite;
        out.verdict = detail::judge_numbers(
            out, call.results_agree, entries.ranks(), limits_, largest_bias, why);
        if (out.verdict < quantisation_verdict::visible) record.findings.push_back(std::move(why));
    }
}

} // namespace collprobe::inline COLLPROBE_ABI
