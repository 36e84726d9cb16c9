// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/report/detail/evidence_text.hpp>

/// Records as text for people.
namespace collprobe::inline COLLPROBE_ABI::report {

/// Rows of cells, printed in columns: the first column is aligned left, the others right. The first row is the heading.
class text_table {
public:
    /// Starts a row with its first cell.
    text_table& row(std::string first)
    {
        rows_.emplace_back();
        return cell(std::move(first));
    }
    /// Adds a cell to the row. Rows may differ in length.
    text_table& cell(std::string text)
    {
        rows_.back().push_back(std::move(text));
        return *this;
    }

    /// The lines, each ended by a newline, with a rule below the heading. Widths are in bytes.
    COLLPROBE_COLD_INLINE std::string text() const
    {
        constexpr std::size_t gap = 2;
        std::vector<std::size_t> widths;
        for (const std::vector<std::string>& row : rows_) {
            if (widths.size() < row.size()) widths.resize(row.size());
            for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
        }
        std::size_t total = 0;
        for (const std::size_t width : widths) total += width + (total > 0 ? gap : 0);
        std::string out;
        for (const std::vector<std::string>& row : rows_) {
            for (std::size_t c = 0; c < row.size(); ++c) {
                const std::size_t padding = widths[c] - row[c].size();
                if (c > 0) out.append(gap + padding, ' ');
                out += row[c];
                if (c == 0 && row.size() > 1) out.append(padding, ' ');
            }
            out += '\n';
            if (&row == rows_.data()) out.append(total, '-').append(1, '\n');
        }
        return out;
    }

private:
    std::vector<std::vector<std::string>> rows_;
};

/// A finding in one line: "bucket 1 'wte': rank 3 sent NaN or infinity (non_finite): in 5 elements, the first at index
/// 7". "Some rank" stands for a rank that the check could not name.
COLLPROBE_COLD_INLINE std::string describe(const finding& of)
{
    std::string text = detail::describe_place(of.call, of.site) + ": " + detail::subject(of.what, of.ranks) + ' '
        + facts_of(of.what).sentence.of(of.is_named()) + " (" + name(of.what) + ")";
    if (const std::string evidence = detail::evidence_text(of); !evidence.empty()) text += ": " + evidence;
    return text;
}

/// An alarm as one line of text, without a newline at its end: "step 17, bucket 1: rank 3 held other bits of a result
/// than the other ranks (result_differs); damage: on the result's way to the ranks, or in their memory; what to do:
/// resync from rank 0". A statistical alarm has its number and rate too.
COLLPROBE_COLD_INLINE std::string describe_alarm(const finding& raised)
{
    std::string text = "step " + std::to_string(raised.step) + ", " + describe(raised);
    if (raised.false_alarms_per_step > 0 && !detail::is_by_odds(raised)) // the odds say it of a run
        text += "; false alarms: " + detail::false_alarms_of(raised);
    if (const std::string where = detail::place_in_words(raised.where); !where.empty()) text += "; " + where;
    return text + "; what to do: " + detail::advise(raised);
}

/// A line each about the calls that were not looked at, with the reason; empty if all were.
COLLPROBE_COLD_INLINE std::string coverage(const step_record& record)
{
    std::string text;
    const auto say = [&](std::uint64_t missed, const char* why) {
        if (missed == 0) return;
        text += "not looked at: " + std::to_string(missed) + " of "
            + std::to_string(record.calls.size() + record.unprobed_calls + record.unread_calls)
            + " calls, because " + why + '\n';
    };
    say(record.unprobed_calls, "there was no room: raise probe_options::calls of a captured step, or largest_step");
    say(record.unread_calls, "they carry integers, which are not read, or this step takes no statistics");
    return text;
}

/// What quantisation did to a call, in one line: formats, errors, bytes, verdict and advice.
COLLPROBE_COLD_INLINE std::string describe(int call, const call_site& site, const call_quantisation& of)
{
    std::string text = describe_call(call, site) + ": ";
    const quantised_outcome& did = of.outcome;
    if (!did.quantised()) {
        const char* const why = did.why_not == unquantised_reason::small ? "small size" : name(did.why_not);
        return text + "not quantised, because of its " + why;
    }
    text += name(did.within);
    if (did.levels == 2) text += std::string(" in the node, ") + name(did.across) + " between nodes";
    text += ", blocks of " + std::to_string(did.block) + ", " + short_number(of.sqnr_db) + " dB";
    if (!is_nan(of.aggregate_sqnr_db)) text += " (" + short_number(of.aggregate_sqnr_db) + " dB in the result)";
    if (!is_nan(of.noise_ratio)) text += ", noise ratio " + short_number(of.noise_ratio);
    text += ", "
        + short_number(100 * static_cast<double>(did.bytes_sent) / static_cast<double>(did.bytes_plain))
        + " % of the bytes: " + name(of.verdict);
    const std::string advice = quantisation_advice(of);
    if (!advice.empty()) text += "; " + advice;
    if (of.damaged_pairs > 1)
        text += "; damaged messages between " + std::to_string(of.damaged_pairs) + " pairs of ranks";
    if (did.feedback == feedback_state::dropped) text += "; the errors kept for this call were dropped";
    return text;
}

namespace detail {

constexpr const char* why_in_words(weights_refusal why) noexcept
{
    return name_list<weights_refusal::ambiguous>{"", "more than 64 ranks", "too few elements that are not zero",
        "NaN or infinity", "the result is zero", "the inputs are alike, or combinations of each other",
        "the bounds are too wide: more bins, or inputs that are less alike", "the ranks hold different results",
        "the ranks were told different scales", "a part of the result comes from no rank's input",
        "several forms fit"}[why];
}

constexpr const char* form_in_words(averaging how, bool is_one) noexcept
{
    return name_list<averaging::other>{"no known form", "mean", "sum", "divided twice", "weighted by tokens",
        is_one ? "rank lost" : "ranks lost", is_one ? "rank counted twice" : "ranks counted twice",
        "no known form"}[how];
}

/// Whether a finding of copies is told with an earlier one: of the same ranks, in calls of the same kind.
COLLPROBE_COLD_INLINE bool is_alike(const finding& a, const finding& b, const step_record& record)
{
    const auto kind = [&record](const finding& of) { return record.calls[static_cast<std::size_t>(of.call)].call; };
    return a.what == finding_kind::duplicate && b.what == a.what && a.call >= 0 && b.call >= 0 && kind(a) == kind(b)
        && a.ranks == b.ranks;
}

/// What parts measured, a row each: the mean over the ranks, the least and the largest with their ranks.
COLLPROBE_COLD_INLINE std::string number_lines(const step_record& record)
{
    constexpr std::size_t most = 32;
    if (record.numbers.empty()) return "";
    text_table table;
    table.row("measured by a part").cell("mean, or of all").cell("least").cell("rank").cell("largest").cell("rank");
    for (std::size_t i = 0; i < std::min(most, record.numbers.size()); ++i) {
        const auto& [site, index, all] = record.numbers[i];
        const auto call = static_cast<std::size_t>(index); // of the whole step: beyond all
        const auto of = call < record.calls.size() ? ", " + describe_call(index, record.calls[call].site) : "";
        table.row(quoted_name(site) + of);
        double known = 0, mean = 0; // known: ranks
        for (const double each : all) known += is_nan(each) ? 0 : 1;
        std::size_t least = 0, largest = 0;
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
            if (is_nan(all[rank])) continue;
            if (is_nan(all[least])) least = largest = rank;
            if (all[rank] < all[least]) least = rank;
            if (all[rank] > all[largest]) largest = rank;
            mean += all[rank] / known; // the sum may be beyond all numbers
        }
        if (known == 0) continue;
        table.cell(short_number(mean));
        if (static_cast<int>(all.size()) != record.ranks) continue; // of all ranks together
        for (const std::size_t rank : {least, largest}) table.cell(short_number(all[rank])).cell(std::to_string(rank));
    }
    std::string text = table.text();
    if (record.numbers.size() > most) text += "and " + counted(record.numbers.size() - most, "more number") + '\n';
    return text;
}

/// A line for each finding; those of the same copies in several calls have one.
COLLPROBE_COLD_INLINE std::string finding_lines(const step_record& record)
{
    std::string text;
    for (const finding& each : record.findings) {
        const auto same = [&](const finding& other) { return is_alike(each, other, record); };
        const finding* const first = std::find_if(record.findings.data(), &each, same);
        if (first != &each) continue;
        text += "finding: " + describe(each);
        const auto more = std::count_if(&each + 1, record.findings.data() + record.findings.size(), same);
        if (more > 0) {
            text += "; and in " + std::to_string(more) + " more "
                + name(record.calls[static_cast<std::size_t>(each.call)].call);
        }
        text += '\n';
    }
    return text;
}

} // namespace detail

/// The weights of a call in one line:
/// "bucket 3 'wte': rank 5 entered the average with weight 0 (others 1/8): rank lost".
COLLPROBE_COLD_INLINE std::string describe(int call, const call_site& site, const call_weights& of)
{
    std::string text = describe_call(call, site) + ": ";
    if (!of.others.empty()) {
        call_weights one = of;
        one.others.clear();
        text = describe(call, site, one);
        for (const call_weights& each : of.others)
            text += "; " + describe(call, site, each).substr(describe_call(call, site).size() + 2);
        return text;
    }
    if (!of.holders.empty())
        text += detail::list_ranks(of.holders, 3) + (of.holders.size() == 1 ? " holds: " : " hold: ");
    if (of.how == averaging::unknown) {
        text += std::string("the weights of the average are unknown: ") + detail::why_in_words(of.why_not);
        if (of.why_not == weights_refusal::unexplained) text += ", " + short_number(100 * of.residual) + " % of it";
        return text;
    }
    double bound = 0;
    double least = 0;
    double most = 0;
    std::vector<int> unknown; // ranks
    for (std::size_t r = 0; r < of.weights.size(); ++r) {
        if (!is_finite(of.weights[r])) {
            unknown.push_back(static_cast<int>(r));
            continue;
        }
        if (r == unknown.size()) least = most = of.weights[r]; // the first that is known
        bound = of.bounds[r] > bound ? of.bounds[r] : bound;
        least = of.weights[r] < least ? of.weights[r] : least;
        most = of.weights[r] > most ? of.weights[r] : most;
    }
    const bool has_common = !is_nan(of.common);
    if (!of.ranks.empty()) {
        const auto first = static_cast<std::size_t>(of.ranks[0]);
        text += detail::list_ranks(of.ranks, 3) + " entered the average with weight "
            + detail::weight_text(of.weights[first], of.bounds[first]) + " (others "
            + (has_common ? detail::weight_text(of.common, bound) : std::string("by tokens")) + ")";
    } else if (has_common) {
        text += "all ranks entered the average with weight " + detail::weight_text(of.common, bound);
    } else {
        text += "the ranks entered the average with weights of " + detail::weight_text(least, bound) + " to "
            + detail::weight_text(most, bound);
    }
    if (!unknown.empty())
        text += ", but for " + detail::list_ranks(unknown, 3) + ", which sent zeros";
    return text + ": " + detail::form_in_words(of.how, of.ranks.size() == 1);
}

/// One step by rank (loss, gradient norm, leave-one-out cosine; the pooled cosine where only that is known; of more
/// than 32 ranks the extremes, and those of findings with at most 32), then its `coverage`, lines about the weights of
/// averages, what parts measured (at most 32), a line about the last rank if it stands out, one per rank that is
/// late, and one per finding.
COLLPROBE_COLD_INLINE std::string step_table(const step_record& record)
{
    std::string text = "step " + std::to_string(record.step) + '\n';
    if (!record.losses.empty() || !record.gradient_norms.empty()) {
        text_table table;
        table.row("rank").cell("loss").cell("gradient norm").cell("cosine with the others");
        const auto cell = [](const std::vector<double>& values, std::size_t rank) {
            return rank < values.size() ? short_number(values[rank]) : std::string("-");
        };
        const auto is_shown = [&record](int rank) { // of many ranks the few that are named, and the extremes
            bool shown = record.ranks <= 32;
            for (const spread& of : {record.loss, record.gradient_norm})
                shown = shown || rank == of.minimum_rank || rank == of.maximum_rank;
            for (const finding& each : record.findings) shown = shown || (each.ranks.size() <= 32 && each.names(rank));
            return shown;
        };
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(record.ranks); ++rank) {
            if (!is_shown(static_cast<int>(rank))) continue;
            table.row(std::to_string(rank)).cell(cell(record.losses, rank));
            table.cell(cell(record.gradient_norms, rank)).cell(cell(record.cosine.leave_one_out, rank));
        }
        text += table.text();
    }
    if (const std::string losses = detail::loss_text(record); !losses.empty()) text += losses + '\n';
    if (record.cosine.leave_one_out.empty() && is_finite(record.cosine.pooled)) {
        text += "pooled cosine of all ranks: " + short_number(record.cosine.pooled) + '\n';
    }
    const order_sensitivity order = record.order();
    if (order.elements != 0) {
        text += "order of the sum: " + std::to_string(order.changed) + " of " + std::to_string(order.elements)
            + " sampled elements change with it, by up to " + std::to_string(order.max_ulp_spread)
            + " ulp; the result is off by " + short_number(order.rms_ulp_error) + " ulp (rms), "
            + short_number(order.max_ulp_error) + " at most\n";
    }
    if (order.nonfinite != 0) {
        text += "order of the sum: " + std::to_string(order.nonfinite)
            + " sampled elements left out, not finite\n";
    }
    for (const rank_with_zeros& each : record.zero_ranks) {
        text += "note: rank " + std::to_string(each.rank) + " sends zeros only, since step "
            + detail::with_commas(each.since)
            + (each.has_no_weight ? ", and tells that it has no data (weight 0)\n" : "\n");
    }
    text += coverage(record);
    for (const missing_call& each : record.missing_calls) text += "note: " + describe(each) + '\n';
    if (record.forgot) text += "all ranks forgot the steps before, because some rank could not judge one of them\n";
    if (const std::size_t repeated = record.repeated_calls(); repeated != 0) {
        text += "the same data as in the step before: in " + detail::counted(repeated, "call")
            + " of most ranks, so no rank is named (a benchmark, or a frozen layer)\n";
    }
    const auto has_finding = [&record](int call, auto... kinds) { // of any kind, if none is given
        return std::any_of(record.findings.begin(), record.findings.end(), [&](const finding& each) {
            return each.call == call && (sizeof...(kinds) == 0 || ((each.what == kinds) || ...));
        });
    };
    const auto for_each_call = [&record](const auto& tell) {
        for (const call_record& call : record.calls) tell(call, static_cast<int>(&call - record.calls.data()));
    };
    const auto note = [&text](const call_record& call, int index, const std::string& words) {
        text += "note: " + describe_call(index, call.site) + ": " + words + '\n';
    };
    for_each_call([&](const call_record& call, int c) {
        if (call.is_on_some_ranks() && has_finding(c)) {
            note(call, c, detail::counted(static_cast<std::uint64_t>(call.without_input), "rank") + " sent nothing, "
                + detail::counted(static_cast<std::uint64_t>(call.without_result), "rank") + " got no result");
        }
        if (call.has_excess() && !has_finding(c, finding_kind::sum_differs, finding_kind::shard_differs))
            note(call, c,
                "its result is too long for its inputs, or holds other elements, unless it is scaled on purpose");
    });
    for_each_call([&](const call_record& call, int c) {
        if (!call.audit.checked || call.audit.sum_checked || !call.audit.is_other_sum()) return;
        note(call, c,
            std::string("its sum is not checked: what was observed is not the plain sum or mean of the inputs, and ")
                + (call.weights.seen ? "no weights explain it" : "no weights are known in this step (weight_probe)"));
    });
    for_each_call([&](const call_record& call, int c) {
        if (!is_finite(call.headroom) || call.headroom >= 4 || call.result_nonfinite != 0) return;
        const std::string type = collprobe::name(call.type);
        note(call, c, call.headroom > 1
            ? "its result may be " + short_number(call.headroom) + " times larger before " + type + " overflows"
            : "its result is finite, but its largest terms together would overflow " + type);
    });
    for_each_call([&](const call_record& call, int c) {
        if (call.quantisation.seen) text += "quantisation: " + describe(c, call.site, call.quantisation) + '\n';
    });
    std::size_t expected = 0;
    for_each_call([&](const call_record& call, int c) {
        const call_weights& of = call.weights;
        if (!of.seen) return;
        const bool has_zeros
            = std::any_of(of.weights.begin(), of.weights.end(), [](double each) { return is_nan(each); });
        if (of.expected && of.how != averaging::unknown && of.others.empty() && !has_zeros) ++expected;
        else text += "weights: " + describe(c, call.site, of) + '\n';
    });
    if (expected != 0) text += "weights: as expected in " + detail::counted(expected, "call") + '\n';
    text += detail::number_lines(record);
    if (const std::string last = detail::lateness_text(record); !last.empty()) text += last + '\n';
    if (record.silent_evidence > 0) {
        text += "no evidence over the run from "
            + detail::counted(static_cast<std::uint64_t>(record.silent_evidence), "number")
            + " (losses, norms): ranks keep their places in them from step to step, as if they differed on purpose\n";
    }
    for (std::size_t rank = 0; rank < record.evidence_by_rank.size(); ++rank) {
        const rank_evidence& each = record.evidence_by_rank[rank];
        if (!each.unlike) continue;
        text += "unlike the others: rank " + std::to_string(rank) + ", " + describe(each) + '\n';
        if (each.metric != finding_kind::late || rank >= record.lateness_by_rank.size()) continue;
        const rank_lateness& late = record.lateness_by_rank[rank];
        text += "late: rank " + std::to_string(rank) + ", by " + milliseconds(late.behind)
            + " in the median of " + detail::counted(static_cast<std::uint64_t>(late.steps), "step") + ", "
            + milliseconds(late.behind_before) + " of it between the calls; last in "
            + short_number(100 * late.share_last) + " % of them";
        const std::string gain = detail::gain_text(record, static_cast<int>(rank));
        text += gain.empty() ? "\n" : "; " + gain + '\n';
    }
    text += detail::finding_lines(record);
    return text;
}

} // namespace collprobe::report
