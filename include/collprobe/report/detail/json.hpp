// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>

#include <collprobe/core/element.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

/// Writes the members that a step and a summary have in common. `value` maps a metric to its number; the numbers by
/// rank are those of a step.
template <class Value>
void write_metrics(json_writer& json, const Value& value, const std::vector<double>& leave_one_out,
    const step_record& by_rank = {})
{
    const auto ranks = [&](const spread& of, const std::vector<double>& values) {
        if (!is_nan(of.minimum)) {
            json.key("min").number(of.minimum).key("min_rank").index(of.minimum_rank);
            json.key("max").number(of.maximum).key("max_rank").index(of.maximum_rank);
        }
        if (!values.empty()) json.key("by_rank").numbers(values);
        json.close('}');
    };
    json.key("loss").open('{');
    json.key("mean").number(value(metric::loss_mean));
    const double of_tokens = value(metric::loss_of_tokens);
    if (!is_nan(of_tokens)) json.key("mean_of_tokens").number(of_tokens);
    json.key("std").number(value(metric::loss_std));
    json.key("std_sample").number(value(metric::loss_std_sample));
    json.key("range").number(value(metric::loss_range));
    ranks(by_rank.loss, by_rank.losses);
    json.key("grad_norm").open('{');
    json.key("mean").number(value(metric::norm_mean));
    json.key("std").number(value(metric::norm_std));
    json.key("cv").number(value(metric::norm_cv));
    ranks(by_rank.gradient_norm, by_rank.gradient_norms);
    json.key("cosine").open('{');
    json.key("mean_pairwise").number(value(metric::cosine_mean_pairwise));
    json.key("pooled").number(value(metric::cosine_pooled));
    json.key("predicted").number(value(metric::cosine_predicted));
    json.key("leave_one_out").numbers(leave_one_out).close('}');
    json.key("noise_scale").number(value(metric::noise_scale));
}

COLLPROBE_COLD_INLINE void json_writer::quoted(std::string_view value)
{
    out_ += '"';
    bool is_plain = true;
    for (const char character : value) {
        const auto code = static_cast<unsigned char>(character);
        is_plain = is_plain && code >= 0x20 && code < 0x80 && character != '"' && character != '\\' && character != '<';
    }
    if (is_plain) {
        out_.append(value).append(1, '"');
        return;
    }
    for (const char character : utf8_text(value)) {
        const auto code = static_cast<unsigned char>(character);
        if (character == '"' || character == '\\') {
            out_ += '\\';
            out_ += character;
        } else if (code < 0x20 || character == '<') { // "<" may end a script that the line stands in
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code));
            out_ += escape;
        } else {
            out_ += character;
        }
    }
    out_ += '"';
}

COLLPROBE_COLD_INLINE void write_quantisation(json_writer& json, std::size_t bucket, const call_record& call)
{
    const call_quantisation& of = call.quantisation;
    json.element().open('{').key("bucket").integer(bucket);
    write_site(json, call.site);
    json.key("bytes_plain").integer(of.outcome.bytes_plain).key("bytes_sent").integer(of.outcome.bytes_sent);
    if (!of.outcome.quantised()) {
        json.key("unquantised").text(name(of.outcome.why_not)).close('}');
        return;
    }
    json.key("verdict").text(name(of.verdict)).key("within").text(name(of.outcome.within));
    json.key("across").text(name(of.outcome.across)).key("block").integer(of.outcome.block);
    json.key("levels").integer(of.outcome.levels);
    json.key("roundings").integer(of.outcome.roundings_per_element).key("feedback").text(name(of.outcome.feedback));
    json.key("sqnr_db").number(of.sqnr_db).key("worst_rank").index(of.worst_rank).key("worst_block");
    if (of.worst_block == no_index) json.index(-1);
    else json.integer(of.worst_block);
    json.key("noise_ratio").number(of.noise_ratio).key("bias").number(of.bias).key("mean_error").number(of.mean_error);
    json.key("aggregate_sqnr_db").number(of.aggregate_sqnr_db).key("coherence").number(of.coherence);
    json.key("drift").number(of.drift).key("drifting_steps").index(of.drifting_steps).key("bins").integer(of.bins);
    if (of.messages_checked) {
        json.key("damaged_pairs").integer(of.damaged_pairs).key("damaged_sender").index(of.damaged_sender);
        json.key("damaged_receiver").index(of.damaged_receiver);
    }
    json.key("zeroed").number(of.zeroed).key("zeroed_expected").number(of.zeroed_expected);
    json.key("crest").number(of.crest);
    json.key("saturated").integer(of.saturated).key("nonfinite").integer(of.nonfinite);
    if (const std::string advice = quantisation_advice(of); !advice.empty()) json.key("advice").text(advice);
    json.close('}');
}

COLLPROBE_COLD_INLINE void write_weights(json_writer& json, const call_weights& of)
{
    json.key("form").text(name(of.how)).key("expected").boolean(of.expected);
    if (of.why_not != weights_refusal::none) json.key("why_not").text(name(of.why_not));
    if (!of.weights.empty()) {
        json.key("by_rank").numbers(of.weights).key("bounds").numbers(of.bounds).key("ranks");
        write_ranks(json, of.ranks);
        json.key("common").number(of.common).key("scale").number(of.scale);
        json.key("residual").number(of.residual).key("residual_limit").number(of.residual_limit);
        json.key("bins").integer(of.bins);
    }
    if (of.holders.empty()) return;
    write_ranks(json.key("holders"), of.holders);
    if (of.others.empty()) return;
    json.key("others").open('[');
    for (const call_weights& each : of.others) {
        json.element().open('{');
        write_weights(json, each);
        json.close('}');
    }
    json.close(']');
}

/// By rank. Counts that are zero on all ranks are left out.
COLLPROBE_COLD_INLINE void write_inputs(json_writer& json, const std::vector<statistics>& inputs)
{
    const auto array = [&](const char* name, const auto& write, const auto& is_telling) {
        if (std::none_of(inputs.begin(), inputs.end(), is_telling)) return;
        json.key(name).open('[');
        for (const statistics& each : inputs) write(json.element(), each);
        json.close(']');
    };
    const auto always = [](const statistics&) { return true; };
    const auto number = [&](const char* name, double statistics::* of) {
        array(name, [of](json_writer& to, const statistics& each) { to.number(each.*of); }, always);
    };
    const auto count = [&](const char* name, auto of) {
        array(name, [of](json_writer& to, const statistics& each) { to.integer(each.*of); },
            [of](const statistics& each) { return each.*of != 0; });
    };
    json.key("inputs").open('{');
    count("count", &statistics::count);
    number("sum", &statistics::sum);
    number("sum_of_squares", &statistics::sum_of_squares);
    number("absolute_maximum", &statistics::absolute_maximum);
    count("zero", &statistics::zero);
    count("nan", &statistics::nan);
    count("positive_infinity", &statistics::positive_infinity);
    count("negative_infinity", &statistics::negative_infinity);
    array("first_nonfinite",
        [](json_writer& to, const statistics& each) {
            if (each.first_nonfinite == no_index) to.index(-1);
            else to.integer(each.first_nonfinite);
        },
        [](const statistics& each) { return each.first_nonfinite != no_index; });
    array("digest", [](json_writer& to, const statistics& each) { to.bits(each.digest); }, always);
    json.close('}');
}

/// Whether the record has the call's times. (Nobody noted when a rank entered a call whose input was not read.)
COLLPROBE_COLD_INLINE bool has_times(const call_record& call, int ranks) noexcept
{
    const auto n = static_cast<std::size_t>(ranks);
    return ranks > 0 && call.count != 0 && call.intervals.size() == n && call.inputs.size() == n;
}

COLLPROBE_COLD_INLINE void write_call(json_writer& json, const step_record& record, std::size_t c)
{
    const call_record& call = record.calls[c];
    json.key("bucket").integer(c);
    write_site(json, call.site);
    json.key("call").text(collprobe::name(call.call)).key("type").text(collprobe::name(call.type));
    if (call.is_observed) json.key("observed").boolean(true);
    json.key("collective_seq_id").integer(record.first_call + c);
    json.key("input_sizes").open('[').element().open('[').element().integer(call.count).close(']').close(']');
    json.key("output_sizes").open('[').element().open('[').element().integer(call.result_count).close(']').close(']');
    if (call.has_result_digest) json.key("digest").bits(call.result_digest);
    json.key("result_norm").number(call.result_norm);
    json.key("grad_norm").open('{').key("mean").number(call.gradient_norm.mean);
    json.key("cv").number(call.gradient_norm.cv).close('}').key("cosine").number(call.pooled_cosine);
    json.key("nonfinite").integer(call.nonfinite).key("results_agree").boolean(call.results_agree);
    if (call.result_nonfinite != 0) json.key("result_nonfinite").integer(call.result_nonfinite);
    if (is_finite(call.headroom)) json.key("headroom").number(call.headroom);
    if (const call_audit& of = call.audit; of.checked) {
        json.key("audit").open('{').key("damage").text(collprobe::name(of.where)).key("sum_checked");
        json.boolean(of.sum_checked).key("residual").number(of.residual);
        json.key("residual_limit").number(of.residual_limit).key("bins").integer(of.bins);
        json.key("majority").boolean(of.majority).key("conserved").boolean(of.conserved);
        write_ranks(json.key("ranks"), of.culprits);
        json.close('}');
    }
    if (call.weights.seen) {
        json.key("weights").open('{');
        write_weights(json, call.weights);
        json.close('}');
    }
    if (const call_lateness& of = call.lateness; of.last >= 0) {
        json.key("lateness").open('{').key("last").index(of.last).key("spread").number(of.spread);
        json.key("transport").number(of.transport).close('}');
    }
    if (has_times(call, record.ranks)) {
        json.key("times").open('[');
        for (const call_interval& of : call.intervals)
            json.element().open('[').element().integer(of.entered).element().integer(of.left).close(']');
        json.close(']');
    }
    if (!call.result_sample.empty()) json.key("result_sample").numbers(call.result_sample);
    if (!call.inputs.empty()) write_inputs(json, call.inputs);
}

COLLPROBE_COLD_INLINE void write_finding(json_writer& json, const finding& of)
{
    json.key("check").text(name(of.what)).key("ranks");
    write_ranks(json, of.ranks);
    json.key("other_rank").index(of.other_rank).key("bucket").index(of.call);
    write_site(json, of.site);
    json.key("exact").boolean(of.exact).key("statistic").number(of.statistic).key("threshold").number(of.threshold);
    json.key("index");
    if (of.index == no_index) json.index(-1);
    else json.integer(of.index);
    json.key("false_alarms_per_step").number(of.false_alarms_per_step).key("damage").text(name(of.where));
    json.key("advice").text(name(of.action)).key("source").index(of.source);
    if (const std::string text = evidence_text(of); !text.empty()) json.key("text").text(text);
    if (of.by_length) json.key("by_length").boolean(true);
    const bool is_missing = of.what == finding_kind::call_missing;
    if (is_of_number(of.what) || is_of_value(of.what))
        json.key("value").number(of.number.value).key("expected").number(of.number.expected);
    if (is_of_number(of.what))
        json.key("usual_difference").number(of.number.usual_difference).key("window").integer(of.number.steps);
    if (of.number.is_new_level) json.key("new_level").boolean(true);
    if (of.number.is_new_level || of.what == finding_kind::zeros || is_missing || is_of_value(of.what))
        json.key("since").integer(of.number.since);
    if (is_missing) json.key("steps_before").integer(of.number.steps);
    if (is_missing || of.what == finding_kind::other_call) write_form(json.key("other_call"), of.other);
    if (of.what != finding_kind::unlike) return;
    json.key("evidence").open('{');
    write_evidence(json, of.evidence);
    json.close('}');
}

COLLPROBE_COLD_INLINE void write_finding(json_writer& json, const repeated_finding& of)
{
    json.element().open('{');
    write_finding(json, of.first);
    json.key("first_step").integer(of.first_step).key("last_step").integer(of.last_step);
    json.key("steps").integer(of.steps).close('}');
}

} // namespace detail

COLLPROBE_COLD_INLINE std::string json_line(const line_head& head, const step_record& record)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "step", head);
    json.key("step").integer(record.step).key("ranks").index(record.ranks);
    if (record.mode != report_mode::gather) json.key("mode").text(name(record.mode));
    detail::write_metrics(
        json, [&](metric which) { return detail::value_of(which, record); }, record.cosine.leave_one_out, record);
    if (!record.calls.empty()) {
        json.key("calls").open('[');
        for (std::size_t c = 0; c < record.calls.size(); ++c) {
            json.element().open('{');
            detail::write_call(json, record, c);
            json.close('}');
        }
        json.close(']');
    }
    if (!is_nan(record.result_norm)) json.key("result_norm").number(record.result_norm);
    if (!record.expectations.empty()) {
        json.key("expectations").open('[');
        for (const expectation_record& each : record.expectations) {
            json.element().open('{');
            write_site(json, each.site);
            json.key("expected").text(name(each.what)).key("holds").boolean(each.holds);
            if (!each.holds) json.key("since").integer(each.since);
            write_ranks(json.key("values").numbers(each.values).key("groups"), each.groups);
            json.close('}');
        }
        json.close(']');
    }
    if (const order_sensitivity order = record.order(); order.elements != 0 || order.nonfinite != 0) {
        json.key("order").open('{');
        json.key("elements").integer(order.elements).key("nonfinite").integer(order.nonfinite);
        json.key("orders").integer(order.orders).key("changed").integer(order.changed);
        json.key("max_ulp_spread").integer(order.max_ulp_spread);
        json.key("rms_ulp_error").number(order.rms_ulp_error);
        json.key("max_ulp_error").number(order.max_ulp_error).close('}');
    }
    std::uint64_t audited = 0;
    std::uint64_t sums = 0;
    for (const call_record& call : record.calls) {
        audited += call.audit.checked ? 1 : 0;
        sums += call.audit.checked && call.audit.sum_checked ? 1 : 0;
    }
    if (audited != 0) json.key("audit").open('{').key("calls").integer(audited).key("sums").integer(sums).close('}');
    if (const step_lateness& late = record.lateness; late.last >= 0) {
        json.key("lateness").open('{').key("calls").index(late.calls).key("last").index(late.last);
        json.key("behind").number(late.behind).key("behind_before").number(late.behind_before);
        json.key("noise").number(late.noise).key("stands_out").boolean(late.stands_out);
        const auto last = static_cast<std::size_t>(late.last);
        if (last < record.lateness_by_rank.size()) {
            json.key("gain").number(record.lateness_by_rank[last].gain);
            json.key("gain_before").number(record.lateness_by_rank[last].gain_before);
        }
        json.key("latest").open('[');
        for (const rank_lateness& each : record.lateness_by_rank) json.element().number(each.latest);
        json.close(']').key("late").open('[');
        for (std::size_t rank = 0; rank < record.lateness_by_rank.size(); ++rank) {
            if (rank >= record.evidence_by_rank.size()) break;
            const rank_evidence& evidence = record.evidence_by_rank[rank];
            if (!evidence.unlike || evidence.metric != finding_kind::late) continue;
            const rank_lateness& each = record.lateness_by_rank[rank];
            json.element().open('{').key("rank").integer(rank).key("behind").number(each.behind);
            json.key("behind_before").number(each.behind_before).key("share_last").number(each.share_last).close('}');
        }
        json.close(']').close('}');
    }
    if (!record.zero_ranks.empty()) {
        json.key("zero_ranks").open('[');
        for (const rank_with_zeros& each : record.zero_ranks) {
            json.element().open('{').key("rank").index(each.rank).key("since").integer(each.since);
            json.key("no_weight").boolean(each.has_no_weight).close('}');
        }
        json.close(']');
    }
    if (record.silent_evidence > 0) json.key("silent_evidence").index(record.silent_evidence);
    const auto counts = [](const rank_evidence& of) { return of.unlike || of.odds >= 1; };
    if (!record.evidence_by_rank.empty()) {
        json.key("evidence").open('[');
        for (std::size_t rank = 0; rank < record.evidence_by_rank.size(); ++rank) {
            const rank_evidence& each = record.evidence_by_rank[rank];
            if (!counts(each)) continue;
            json.element().open('{').key("rank").integer(rank);
            detail::write_evidence(json, each);
            json.key("unlike").boolean(each.unlike).close('}');
        }
        json.close(']');
    }
    if (std::any_of(record.calls.begin(), record.calls.end(),
            [](const call_record& call) { return call.quantisation.seen; })) {
        json.key("quantisation").open('[');
        for (std::size_t c = 0; c < record.calls.size(); ++c) {
            if (record.calls[c].quantisation.seen) detail::write_quantisation(json, c, record.calls[c]);
        }
        json.close(']');
    }
    if (record.forgot) json.key("forgot").boolean(true);
    if (!record.missing_calls.empty()) {
        json.key("missing_calls").open('[');
        for (const missing_call& each : record.missing_calls) {
            json.element().open('{').key("since").integer(each.since).key("steps_before").integer(each.steps);
            json.key("calls").integer(each.calls);
            detail::write_form(json.key("call"), each.call);
            json.close('}');
        }
        json.close(']');
    }
    if (std::any_of(record.calls.begin(), record.calls.end(),
            [](const call_record& each) { return each.has_excess(); })) {
        json.key("excess").open('[');
        for (std::size_t c = 0; c < record.calls.size(); ++c) {
            if (!record.calls[c].has_excess()) continue;
            json.element().open('{').key("bucket").integer(c).key("excess").number(record.calls[c].excess).close('}');
        }
        json.close(']');
    }
    if (record.repeated_calls() != 0) json.key("repeated_calls").integer(record.repeated_calls());
    if (record.unprobed_calls != 0) json.key("unprobed_calls").integer(record.unprobed_calls);
    if (record.unread_calls != 0) json.key("unread_calls").integer(record.unread_calls);
    json.key("findings").open('[');
    for (const finding& each : record.findings) {
        json.element().open('{');
        detail::write_finding(json, each);
        json.close('}');
    }
    json.close(']').close('}');
    line += '\n';
    return line;
}

COLLPROBE_COLD_INLINE std::string json_line(const run_record& run)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "run", run.name);
    json.key("job").text(run.job).key("comm").text(run.communicator).key("comm_id").text(run.communicator_id);
    json.key("host").text(run.host).key("device").text(run.device).key("writer").index(run.rank);
    json.key("global_rank").index(run.rank_of_job()).key("ranks").index(run.ranks).key("nodes");
    json.index(run.nodes == 0 ? -1 : run.nodes).key("pid").integer(static_cast<std::uint64_t>(run.process));
    json.key("started_us").integer(run.started_ns / 1000).key("version").text(run.library);
    json.key("settings").open('{');
    for (const auto& [setting, value] : run.settings) json.key(setting).text(value);
    json.close('}').close('}');
    return line + '\n';
}

COLLPROBE_COLD_INLINE std::string json_line(
    const run_summary& summary, const std::vector<std::pair<std::string_view, double>>& extra)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "summary", summary.run);
    json.key("steps").integer(summary.steps).key("ranks").index(summary.ranks);
    detail::write_metrics(
        json, [&](metric which) { return summary[which]; }, summary.leave_one_out);
    json.key("findings").open('[');
    for (const repeated_finding& found : summary.findings) detail::write_finding(json, found);
    json.close(']').key("suspicious_steps").integer(summary.suspicious_steps);
    json.key("verdict").text(summary.verdict);
    for (const auto& [name, value] : extra) json.key(name).number(value);
    json.close('}');
    line += '\n';
    return line;
}

} // namespace collprobe::inline COLLPROBE_ABI::report
