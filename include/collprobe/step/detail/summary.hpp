// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/direction.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/probe_options.hpp>

/// The `summary` form of a step: numbers that an all-reduce can combine, O(calls) for any n; and up to 16,384 ranks the
/// totals of each rank, as messages of one call: the `whole_gradient`.
/// Sums (one all-reduce of doubles) are taken of distances from a reference. The reference is the mean of the previous
/// step, which every rank holds; so a small deviation of large numbers keeps its digits. Extrema (one all-reduce with
/// max) carry a value's upper 44 bits and a rank in one integer.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Two words that a max over the ranks combines. Afterwards they tell whether the first and the last rank took part,
/// in the report with the same serial number. Before, no rank's own words do, unless it is the only one.
struct arrival_keys {
    std::uint64_t last_rank;
    std::uint64_t first_rank; ///< with the ranks in reverse order

    COLLPROBE_HD static arrival_keys of(std::uint32_t serial, int rank, int ranks) noexcept
    {
        return {key(serial, rank), key(serial, ranks - 1 - rank)};
    }
    bool complete(std::uint32_t serial, int ranks) const noexcept
    {
        return last_rank == key(serial, ranks - 1) && first_rank == key(serial, ranks - 1);
    }

private:
    COLLPROBE_HD static std::uint64_t key(std::uint32_t serial, int place) noexcept
    {
        return static_cast<std::uint64_t>(serial) << 31 | static_cast<std::uint64_t>(place);
    }
};

/// First and second moments of one number per rank, over the ranks where it is finite.
struct moment_sums {
    double count;
    double distance; ///< sum of (value - reference)
    double distance_squared;
};

struct step_sums {
    double weight;
    double weighted_distance;
    double weighted_distance_squared;
};

/// A row of the summary: the losses, the norms of whole gradients, and then those of each call's inputs. Values have
/// keys alone.
struct row_sums {
    moment_sums number;
    double squares;
    double nonfinite;
    /// Of all-reduce: n times the squared norm of the one result. NaN by bits if an element is not finite.
    double result_norm_squared;
};

/// Largest and smallest of one number per rank, in the integer form of `extremum_key`.
struct extremum_keys {
    std::uint64_t largest;
    std::uint64_t smallest; ///< the key of the negated number, so that max reduces both
};

struct step_keys {
    std::uint64_t step;
    std::uint64_t step_complement;
    extremum_keys told_norm; ///< `step_header::gradient_norm`
    /// A digest of the names of the step's calls and values; equal on all ranks, or some rank makes others.
    std::uint64_t names;
    std::uint64_t names_complement;
    std::uint64_t last_lost; ///< `step_header::last_lost`
    arrival_keys arrival;
};

struct row_keys {
    extremum_keys number;
    std::uint64_t digest; ///< of the call's result, or of the value: that of each rank
    std::uint64_t digest_complement;
    std::uint64_t nonfinite; ///< `nonfinite_key` of the ranks; of losses `count_key`
    extremum_keys time; ///< in the call, in ns
};

static_assert(sizeof(step_sums) == 3 * sizeof(double) && sizeof(row_sums) == 6 * sizeof(double));
static_assert(sizeof(step_keys) == 9 * sizeof(std::uint64_t) && sizeof(row_keys) == 7 * sizeof(std::uint64_t));

enum row : std::uint64_t { of_losses, of_gradients, of_first_call };

/// A step in its combined form: sums and keys hold the step's own, followed by the rows.
struct summary_parts {
    double* reference; ///< by row: what the sums were taken with
    step_sums* sums;
    step_keys* keys;

    COLLPROBE_HD row_sums& sums_of(std::uint64_t r) const noexcept { return reinterpret_cast<row_sums*>(sums + 1)[r]; }
    COLLPROBE_HD row_keys& keys_of(std::uint64_t r) const noexcept { return reinterpret_cast<row_keys*>(keys + 1)[r]; }
};

/// The lowest bits of a key are the complement of a rank, so that the lowest rank wins among equals.
inline constexpr std::uint64_t rank_mask = (std::uint64_t{1} << rank_bits) - 1;

/// An integer with the same order as finite doubles, made from 44 bits of the value (32 of the significand) and the
/// rank. 0 for a value that is not finite.
COLLPROBE_HD inline std::uint64_t extremum_key(double value, int rank) noexcept
{
    if (!is_finite(value)) return 0;
    const std::uint64_t bits = to_bits(value);
    const std::uint64_t ordered = (bits >> 63) != 0 ? ~bits : bits | (std::uint64_t{1} << 63);
    return (ordered & ~rank_mask) | (rank_mask - static_cast<std::uint64_t>(rank));
}

COLLPROBE_COLD_INLINE double extremum_value(std::uint64_t key) noexcept
{
    const std::uint64_t ordered = key & ~rank_mask;
    // Negative numbers were complemented, so their cut-off bits come back as ones: the value is nearer to zero.
    return bit_cast<double>(
        (ordered >> 63) != 0 ? ordered & ~(std::uint64_t{1} << 63) : ~ordered & ~rank_mask);
}

inline int extremum_rank(std::uint64_t key) noexcept { return static_cast<int>(rank_mask - (key & rank_mask)); }

COLLPROBE_HD inline extremum_keys extrema_of(double value, int rank) noexcept
{
    return {extremum_key(value, rank), extremum_key(-value, rank)};
}

/// A count of bad elements and the rank that has them: the largest count wins. 0 for none.
COLLPROBE_HD inline std::uint64_t count_key(std::uint64_t count, int rank) noexcept
{
    constexpr std::uint64_t limit = (std::uint64_t{1} << (64 - rank_bits)) - 1;
    if (count == 0) return 0;
    return (count < limit ? count : limit) << rank_bits | (rank_mask - static_cast<std::uint64_t>(rank));
}
inline std::uint64_t key_count(std::uint64_t key) noexcept { return key >> rank_bits; }

/// NaN and infinities of the rank's input (at most 2^43 - 1), or, if that has none, of its result; and the rank. Of
/// several ranks one with a bad input wins: where the inputs are not finite, results are not.
inline constexpr std::uint64_t nonfinite_input = std::uint64_t{1} << 43; ///< added to the count of an input
COLLPROBE_HD inline std::uint64_t nonfinite_key(std::uint64_t of_input, std::uint32_t of_result, int rank) noexcept
{
    if (of_input == 0) return count_key(of_result, rank);
    return count_key(nonfinite_input + (of_input < nonfinite_input ? of_input : nonfinite_input - 1), rank);
}

COLLPROBE_HD inline moment_sums moments_of(double value, double reference) noexcept
{
    if (!is_finite(value)) return {0, 0, 0};
    const double distance = value - reference;
    return {1, distance, distance * distance};
}

/// Writes one rank's contribution. Index 0 writes what is of the whole step, and the rank's totals; index b + 1 what is
/// of call b; behind the calls come the values.
/// Totals are the header of the message, and the entry of the `whole_gradient`. That has also NaN and infinities of all
/// inputs, and the times in all calls that tell who is late, together; they end with the last one.
struct pack_summary {
    const unsigned char* message; ///< this rank's header and entries
    const std::uint64_t* flags; ///< of the `step_block`; in host memory, slow to read from the device: few words
    std::uint64_t call_count;
    int rank;
    int ranks;
    const double* reference; ///< by row
    summary_parts to;
    message_layout layout = {};
    collective whole = collective::all_reduce; ///< of the `whole_gradient`
    unsigned char* totals = nullptr; ///< null: not asked for

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        if (index == 0) return pack_step();
        const std::uint64_t b = index - 1;
        if (b >= call_count) {
            const told_value& told = layout.values(message, call_count)[b - call_count];
            to.keys_of(of_first_call + b) = {extrema_of(told.value, rank), told.digest, ~told.digest, 0, {}};
            return;
        }
        const double mean = to.reference[of_first_call + b] = reference[of_first_call + b];
        row_sums& sums = to.sums_of(of_first_call + b) = {};
        row_keys& keys = to.keys_of(of_first_call + b) = {};
        if (!layout.statistics) return;
        const call_entry& entry = layout.entry(message, b);
        const double norm_squared = entry.input.sum_of_squares;
        const double norm = square_root(norm_squared);
        const std::uint64_t nonfinite = entry.input.nonfinite();
        sums = {moments_of(norm, mean), norm_squared, static_cast<double>(nonfinite),
            entry.result.nonfinite != 0 ? not_a_number() : entry.result.sum_of_squares};
        double in_call = not_a_number();
        if (layout.times) {
            const call_times& noted = layout.times_of(message, b);
            in_call = nanoseconds_between(noted.entered, noted.left);
        }
        keys = {extrema_of(norm, rank), entry.result.digest, ~entry.result.digest,
            nonfinite_key(nonfinite, entry.result.nonfinite, rank), extrema_of(in_call, rank)};
    }

private:
    COLLPROBE_HD void pack_step() const noexcept
    {
        call_entry total{};
        clock_stamp left = 0; // the last of the calls
        std::uint32_t in_calls = 0; // ticks
        bool is_first = true;
        std::uint64_t word = 0;
        std::uint64_t names = 0;
        const auto add_name = [&names](std::uint64_t place) {
            if (is_named(place)) names = mix64(names + place);
        };
        for (std::uint64_t b = 0; b < call_count; ++b) add_name(layout.place(message, b));
        for (std::uint64_t v = 0; v < layout.told; ++v) add_name(layout.values(message, call_count)[v].place);
        for (std::uint64_t b = 0; b < call_count; ++b, word >>= 4) {
            if (b % 16 == 0) word = flags[b / 16];
            if ((word & probed_call::adds_gradient) != 0) add(layout.entry(message, b), word, total);
            else if ((word & probed_call::has_input_only) != 0)
                add_nonfinite(layout.entry(message, b).input, total.input);
            if (!layout.times || (word & probed_call::is_timed) == 0) continue;
            const call_times& noted = layout.times_of(message, b);
            const bool overlaps = !is_first && static_cast<std::int32_t>(left - noted.entered) > 0;
            const auto in_call = static_cast<std::int32_t>(noted.left - (overlaps ? left : noted.entered));
            if (in_call < 0) continue; // no moment counts twice
            in_calls += static_cast<std::uint32_t>(in_call);
            left = noted.left;
            is_first = false;
        }
        const auto& header = *reinterpret_cast<const step_header*>(message);
        const double norm = total.input.l2();
        const moment_sums loss = moments_of(header.loss, reference[of_losses]);
        // A rank without a weight above 0 has no part in what is weighted.
        const double weight = is_finite(header.weight) && header.weight > 0 ? header.weight : 0;
        *to.sums = {loss.count * weight, weight * loss.distance, weight * loss.distance_squared};
        *to.keys = {header.step, ~header.step, extrema_of(header.gradient_norm, rank), names, ~names,
            header.last_lost(), arrival_keys::of(header.serial, rank, ranks)};
        to.reference[of_losses] = reference[of_losses];
        to.sums_of(of_losses) = {loss, 0, 0, 0};
        to.keys_of(of_losses)
            = {extrema_of(header.loss, rank), 0, 0, count_key(header.loss_is_bad() ? 1 : 0, rank), {}};
        to.reference[of_gradients] = reference[of_gradients];
        to.sums_of(of_gradients) = {moments_of(norm, reference[of_gradients]), total.input.sum_of_squares, 0, 0};
        to.keys_of(of_gradients) = {extrema_of(norm, rank), 0, 0, 0, {}};
        if (totals == nullptr) return;
        const message_layout written = totals_layout(layout);
        *reinterpret_cast<step_header*>(totals) = header;
        written.place(totals, 0) = 0;
        written.entry(totals, 0) = total;
        if (layout.times) written.times_of(totals, 0) = {left - in_calls, left};
    }
    COLLPROBE_HD void add(const call_entry& one, std::uint64_t of_call, call_entry& total) const noexcept
    {
        total.input.count += one.input.finite();
        total.input.zero += one.input.zero;
        total.input.digest = mix64(total.input.digest + one.input.digest);
        total.input.sum_of_squares += one.input.sum_of_squares;
        add_nonfinite(one.input, total.input);
        const double factor = (of_call & probed_call::averages) != 0 ? ranks : 1;
        const double squares = factor * factor * one.result.sum_of_squares;
        const bool is_part = (of_call & probed_call::scatters) != 0;
        if (!is_part) total.result.digest = mix64(total.result.digest + one.result.digest); // all must have it
        total.result.sum_of_squares += !is_part && whole == collective::reduce_scatter ? squares / ranks : squares;
        total.result.dot += one.result.dot * factor;
        add_count(one.result.nonfinite, total.result.nonfinite);
    }
    COLLPROBE_HD static void add_nonfinite(const statistics& one, statistics& to) noexcept
    {
        to.count += one.nonfinite();
        add_count(one.nan, to.nan);
        add_count(one.positive_infinity, to.positive_infinity);
        add_count(one.negative_infinity, to.negative_infinity);
    }
    COLLPROBE_HD static void add_count(std::uint32_t one, std::uint32_t& to) noexcept
    {
        to = to + one < to ? 0xffffffffu : to + one;
    }
};

/// Moves the reference of each row to the mean of the step just summed.
struct advance_reference {
    summary_parts from;
    double* reference; ///< by row

    COLLPROBE_HD void operator()(std::uint64_t row) const noexcept
    {
        const moment_sums& sums = from.sums_of(row).number;
        if (sums.count > 0) reference[row] += sums.distance / sums.count;
    }
};

/// `sums.count` is the number of ranks, or the sum of their weights. The deviations are NaN by bits if the reference is
/// so far off, as 0 is in the first step, that rounding would show in them.
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

/// `align_from_sums` from totals over ranks: sum |g_r|, sum |g_r|^2 and |sum g_r|^2. The difference
/// (sum |g_r|)^2 - sum |g_r|^2 loses log2(n / (n - 1)) bits, and more if one rank outweighs the others.
COLLPROBE_COLD_INLINE void align_from_totals(
    const row_sums& of, double reference, double sum_norm_squared, int ranks, direction& out) noexcept
{
    out.pooled = not_a_number();
    const double sum_of_norms = of.number.distance + of.number.count * reference;
    const double norm_products = sum_of_norms * sum_of_norms - of.squares;
    if (of.number.count > 1 && is_finite(sum_norm_squared) && norm_products > 0)
        out.pooled = cosine_of(sum_norm_squared - of.squares, norm_products);
    const noise_moments moments = estimate_noise(ranks, of.squares, sum_norm_squared);
    set_noise(moments.signal, moments.noise, out);
}

COLLPROBE_COLD_INLINE spread spread_of_row(const summary_parts& step, std::uint64_t row) noexcept
{
    const moment_sums& sums = step.sums_of(row).number;
    return summed_spread(sums, static_cast<int>(sums.count), step.reference[row], step.keys_of(row).number);
}

/// Makes the record of a step from its combined form and, if they are there, the ranks' totals. Without them it makes
/// exact checks only: to name a statistical outlier takes a table of all ranks. A template as `basic_step_judge` is.
template <class Judge>
void judge_summary(
    Judge& judge, const summary_parts& step, const gathered_step* by_rank, int ranks, view<const probed_call> calls,
    view<const expected_value> expected, view<const double> gram, step_record& out)
{
    out.begin(step.keys->step, ranks, report_mode::summary, calls.size(), expected.size());
    bool most_send_nan = false; // for the second step, which is told already
    if (by_rank != nullptr) {
        judge.judge_totals(*by_rank, whole_gradient(calls), gram, out);
        for (const finding& f : out.findings) most_send_nan |= f.what == finding_kind::non_finite && !f.is_named();
    } else {
        out.forgot = judge.forget_after_loss(static_cast<std::uint32_t>(step.keys->last_lost));
        out.false_alarms_per_step = 0;
        const step_sums& sums = *step.sums;
        const row_keys& losses = step.keys_of(of_losses);
        out.loss = spread_of_row(step, of_losses);
        out.loss_weighted = summed_spread({sums.weight, sums.weighted_distance, sums.weighted_distance_squared},
            sums.weight > 0 ? out.loss.finite : 0, step.reference[of_losses], losses.number);
        if (losses.nonfinite != 0)
            out.add({.ranks = {extremum_rank(losses.nonfinite)}, .what = finding_kind::non_finite, .statistic = 1});
    }

    const bool same_names = step.keys->names == ~step.keys->names_complement;
    if (!same_names) out.add({.what = finding_kind::other_call});
    for (std::size_t v = 0; v < expected.size(); ++v) {
        expectation_record& of = out.expectations[v];
        of.site = expected[v].site;
        const row_keys& told = step.keys_of(of_first_call + calls.size() + v);
        of.holds = told.digest == ~told.digest_complement;
        if (told.number.largest != 0)
            of.values = {-extremum_value(told.number.smallest), extremum_value(told.number.largest)};
        of.since = of.holds ? 0 : out.step; // ranks with other names would remember other values
        if (same_names)
            judge.expectations().remember_since(
                v, [&expected](std::size_t u) { return expected[u].place(); }, out.step, of);
        if (of.holds) continue;
        out.add({.what = finding_kind::value_differs, .statistic = 2, .site = of.site, .number = {.since = of.since}});
    }

    double sum_norm_squared = 0;
    double result_squares = 0;
    bool has_gradients = false;
    direction of_call;
    int timed_calls = 0;
    double ranks_with_nan = 0; // at least
    for (std::size_t b = 0; b < calls.size(); ++b) {
        const probed_call& call = calls[b];
        const row_sums& totals = step.sums_of(of_first_call + b);
        const row_keys& keys = step.keys_of(of_first_call + b);
        const double reference = step.reference[of_first_call + b];
        call_record& record = out.calls[b];
        describe_call(call, record);
        if (call.tells_lateness() && keys.time.largest != 0) {
            ++timed_calls;
            record.lateness.present = ranks;
            record.lateness.last = extremum_rank(keys.time.smallest);
            record.lateness.transport = -extremum_value(keys.time.smallest);
            record.lateness.spread = extremum_value(keys.time.largest) - record.lateness.transport;
        }
        if (call.has_input) record.gradient_norm = spread_of_row(step, of_first_call + b);
        record.nonfinite = static_cast<std::uint64_t>(totals.nonfinite);
        record.results_agree
            = !call.is_replicated() || !call.has_result || keys.digest == ~keys.digest_complement;
        record.has_result_digest = call.has_result && call.is_replicated() && record.results_agree;
        record.result_digest = record.has_result_digest ? keys.digest : 0;
        if (call.has_result && record.results_agree)
            record.result_norm = square_root(totals.result_norm_squared / (call.is_replicated() ? ranks : 1));
        const std::uint64_t nonfinite = key_count(keys.nonfinite);
        const bool inputs_are_finite = nonfinite < nonfinite_input;
        if (!inputs_are_finite) {
            const auto most = static_cast<double>(nonfinite - nonfinite_input); // of a rank
            if (totals.nonfinite > ranks_with_nan * most) ranks_with_nan = totals.nonfinite / most;
            if (!most_send_nan) out.add({.ranks = {extremum_rank(keys.nonfinite)},
                .call = static_cast<int>(b), .what = finding_kind::non_finite, .statistic = most});
        } else if (call.has_result && record.results_agree) {
            record.result_nonfinite = nonfinite;
        }
        if (record.result_nonfinite != 0 && call.has_input && !call.is_move())
            judge_overflow(nonfinite, no_index, call.is_replicated() ? -1 : extremum_rank(keys.nonfinite), call,
                static_cast<int>(b), out);
        if (!record.results_agree)
            out.add({.call = static_cast<int>(b), .what = finding_kind::result_differs, .statistic = 2});
        if (call.has_input && call.has_result && inputs_are_finite && record.results_agree
            && record.gradient_norm.finite == ranks && (call.is_move() || call.is_gradient())) {
            // The sum of norms is that of their distances from a reference, which may be far larger.
            const double level = absolute(ranks * reference);
            judge_lengths({.norms = totals.number.distance + ranks * reference,
                              .norms_error = 0x1p-53 * (ranks + 8) * (level + ranks * square_root(totals.squares)),
                              .squares = totals.squares,
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
        align_from_totals(totals, reference, result, ranks, of_call);
        record.pooled_cosine = of_call.pooled;
    }
    if (out.lateness.calls != 0) out.lateness.calls = timed_calls;
    if (by_rank == nullptr) judge.nonfinite().judge_spread(static_cast<std::uint64_t>(ranks_with_nan), out);
    if (!has_gradients) return;
    out.result_norm = square_root(result_squares);
    if (by_rank != nullptr) return judge_told_norms(*by_rank, out);
    out.gradient_norm = spread_of_row(step, of_gradients);
    const extremum_keys& told = step.keys->told_norm;
    if (told.largest != 0) {
        const std::size_t before = out.findings.size();
        const bool is_wrong = judge_told_norm(extremum_value(told.largest), extremum_rank(told.largest), out);
        if (judge_told_norm(-extremum_value(told.smallest), extremum_rank(told.smallest), out) && is_wrong) {
            out.findings.resize(before + 1); // all ranks' are wrong, as far as is known
            out.findings.back().ranks.clear();
        }
    }
    const row_sums& gradients = step.sums_of(of_gradients);
    align_from_totals(gradients, step.reference[of_gradients], sum_norm_squared, ranks, out.cosine);
    judge.gradient().align_over_steps(ranks, gram, gradients.squares, sum_norm_squared, out.cosine);
}

} // namespace collprobe::detail
