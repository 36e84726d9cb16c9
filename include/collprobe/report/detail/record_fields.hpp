// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include <collprobe/report/detail/fields.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

/// The tables. A member that is always written is `"nan"`, null or an empty list where it is not known.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The members of a record, each behind a comma.
void write_members(json_writer& json, field_table fields, const walk& at, const void* fresh);

template <class Record>
void write_members(json_writer& json, const Record& record, const step_record* step = nullptr)
{
    write_members(json, fields_of<Record>(), {&record, step, 0}, type_of<Record>::fresh());
}

template <>
inline field_table fields_of<spread>()
{
    static const field all[] = {
        member("mean", &spread::mean), member("std", &spread::std), member("std_sample", &spread::std_sample),
        member("range", &spread::range), member("cv", &spread::cv), member("min", &spread::minimum).unless_new(),
        member("min_rank", &spread::minimum_rank).unless_new(), member("max", &spread::maximum).unless_new(),
        member("max_rank", &spread::maximum_rank).unless_new(),
        member("finite", &spread::finite, unit::ranks).unless_new()};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<statistics>()
{
    static const field all[] = {
        member("count", &statistics::count, unit::elements).unless_new(), member("sum", &statistics::sum),
        member("sum_of_squares", &statistics::sum_of_squares),
        member("absolute_maximum", &statistics::absolute_maximum),
        member("zero", &statistics::zero, unit::elements).unless_new(),
        member("nan", &statistics::nan, unit::elements).unless_new(),
        member("positive_infinity", &statistics::positive_infinity, unit::elements).unless_new(),
        member("negative_infinity", &statistics::negative_infinity, unit::elements).unless_new(),
        member("first_nonfinite", &statistics::first_nonfinite, unit::index).unless_new(),
        member("digest", &statistics::digest, unit::bits)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<call_form>()
{
    static const field all[] = {member("call", &call_form::call), member("type", &call_form::type),
        member("count", &call_form::count, unit::elements), member("name", &call_form::site)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<missing_call>()
{
    static const field all[] = {member("since", &missing_call::since),
        member("steps_before", &missing_call::steps, unit::steps), member("calls", &missing_call::calls, unit::calls),
        member("call", &missing_call::call)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<rank_with_zeros>()
{
    static const field all[] = {member("rank", &rank_with_zeros::rank), member("since", &rank_with_zeros::since),
        member("no_weight", &rank_with_zeros::has_no_weight)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<rank_evidence>()
{
    static const field all[] = {member("metric", &rank_evidence::metric), member("bucket", &rank_evidence::call),
        member("side", &rank_evidence::side), member("odds", &rank_evidence::odds),
        member("recurrence", &rank_evidence::recurrence, unit::steps), member("since", &rank_evidence::since),
        member("extreme", &rank_evidence::extreme, unit::steps), member("among", &rank_evidence::among, unit::ranks),
        member("unlike", &rank_evidence::unlike)};
    return {all, std::size(all)};
}

/// The evidence in words.
COLLPROBE_COLD_INLINE void write_text(json_writer& json, const walk& at) { json.text(evidence_text(at.as<finding>())); }

template <>
inline field_table fields_of<finding>()
{
    constexpr condition of_number = [](const walk& at) { return is_of_number(at.as<finding>().what); };
    constexpr condition has_value
        = [](const walk& at) { return is_of_number(at.as<finding>().what) || is_of_value(at.as<finding>().what); };
    constexpr condition is_missing = [](const walk& at) { return at.as<finding>().what == finding_kind::call_missing; };
    constexpr condition has_since = [](const walk& at) {
        const finding& of = at.as<finding>();
        return of.number.is_new_level || of.what == finding_kind::zeros || of.what == finding_kind::call_missing
            || is_of_value(of.what);
    };
    static const field all[] = {
        member("step", &finding::step).only_if(
            [](const walk& at) { return at.step == nullptr || at.step->step != at.as<finding>().step; }),
        member("check", &finding::what), member("ranks", &finding::ranks), member("other_rank", &finding::other_rank),
        member("bucket", &finding::call), member("name", &finding::site), member("exact", &finding::exact),
        member("statistic", &finding::statistic), member("threshold", &finding::threshold),
        member("index", &finding::index, unit::index),
        member("false_alarms_per_step", &finding::false_alarms_per_step), member("damage", &finding::where),
        member("advice", &finding::action), member("source", &finding::source),
        follows("text", write_text).only_if([](const walk& at) { return !evidence_text(at.as<finding>()).empty(); }),
        member("by_length", &finding::by_length).unless_new(),
        member("value", &finding::number, &unusual_number::value).unless_new(has_value),
        member("expected", &finding::number, &unusual_number::expected).unless_new(has_value),
        member("usual_difference", &finding::number, &unusual_number::usual_difference).unless_new(of_number),
        member("window", &finding::number, &unusual_number::steps, unit::steps).only_if([](const walk& at) {
            const finding& of = at.as<finding>();
            return is_of_number(of.what) || (of.number.steps != 0 && of.what != finding_kind::call_missing);
        }),
        member("new_level", &finding::number, &unusual_number::is_new_level).unless_new(),
        member("since", &finding::number, &unusual_number::since).unless_new(has_since),
        member("steps_before", &finding::number, &unusual_number::steps, unit::steps).only_if(is_missing),
        member("other_call", &finding::other).unless_new([](const walk& at) {
            const finding& of = at.as<finding>();
            return of.what == finding_kind::call_missing || of.what == finding_kind::other_call;
        }),
        member("evidence", &finding::evidence).unless_new(
            [](const walk& at) { return at.as<finding>().what == finding_kind::unlike; })};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<call_audit>()
{
    static const field all[] = {member("damage", &call_audit::where), member("sum_checked", &call_audit::sum_checked),
        member("residual", &call_audit::residual), member("residual_limit", &call_audit::residual_limit),
        member("bins", &call_audit::bins), member("majority", &call_audit::majority),
        member("conserved", &call_audit::conserved), member("ranks", &call_audit::culprits)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<call_weights>()
{
    constexpr condition are_known = [](const walk& at) { return !at.as<call_weights>().weights.empty(); };
    static const field all[] = {member("form", &call_weights::how), member("expected", &call_weights::expected),
        member("why_not", &call_weights::why_not).unless_new(), member("by_rank", &call_weights::weights).unless_new(),
        member("bounds", &call_weights::bounds).unless_new(are_known),
        member("ranks", &call_weights::ranks).unless_new(are_known),
        member("common", &call_weights::common).unless_new(are_known),
        member("scale", &call_weights::scale).unless_new(are_known),
        member("residual", &call_weights::residual).unless_new(are_known),
        member("residual_limit", &call_weights::residual_limit).unless_new(are_known),
        member("bins", &call_weights::bins).unless_new(are_known),
        member("holders", &call_weights::holders).unless_new(), member("others", &call_weights::others).unless_new()};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<call_lateness>()
{
    static const field all[] = {member("last", &call_lateness::last),
        member("spread", &call_lateness::spread, unit::ns), member("transport", &call_lateness::transport, unit::ns),
        member("present", &call_lateness::present, unit::ranks).unless_new(),
        member("next", &call_lateness::next).unless_new(),
        member("gain", &call_lateness::gain, unit::ns).unless_new(),
        member("gain_before", &call_lateness::gain_before, unit::ns).unless_new()};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<step_lateness>()
{
    static const field all[] = {member("calls", &step_lateness::calls, unit::calls),
        member("present", &step_lateness::present, unit::ranks), member("last", &step_lateness::last),
        member("behind", &step_lateness::behind, unit::ns),
        member("behind_before", &step_lateness::behind_before, unit::ns),
        member("noise", &step_lateness::noise, unit::ns), member("floor", &step_lateness::floor, unit::ns),
        member("stands_out", &step_lateness::stands_out)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<rank_lateness>()
{
    static const field all[] = {member("steps", &rank_lateness::steps, unit::steps),
        member("latest", &rank_lateness::latest, unit::ns).unless_new(),
        member("behind", &rank_lateness::behind, unit::ns).unless_new(),
        member("behind_before", &rank_lateness::behind_before, unit::ns).unless_new(),
        member("share_last", &rank_lateness::share_last).unless_new(),
        member("gain", &rank_lateness::gain, unit::ns).unless_new(),
        member("gain_before", &rank_lateness::gain_before, unit::ns).unless_new()};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<call_interval>()
{
    static const field all[] = {member("entered", &call_interval::entered), member("left", &call_interval::left)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<order_sensitivity>()
{
    static const field all[] = {member("elements", &order_sensitivity::elements, unit::elements),
        member("nonfinite", &order_sensitivity::nonfinite, unit::elements), member("orders", &order_sensitivity::orders),
        member("changed", &order_sensitivity::changed, unit::elements),
        member("max_ulp_spread", &order_sensitivity::max_ulp_spread, unit::ulp),
        member("rms_ulp_error", &order_sensitivity::rms_ulp_error, unit::ulp),
        member("max_ulp_error", &order_sensitivity::max_ulp_error, unit::ulp)};
    return {all, std::size(all)};
}

/// What to do about the verdict.
COLLPROBE_COLD_INLINE void write_advice(json_writer& json, const walk& at)
{
    json.text(quantisation_advice(at.as<call_quantisation>()));
}

template <>
inline field_table fields_of<call_quantisation>()
{
    using q = call_quantisation;
    using o = quantised_outcome;
    constexpr condition is_coded = [](const walk& at) { return at.as<q>().outcome.quantised(); };
    constexpr condition has_messages = [](const walk& at) {
        return at.as<q>().outcome.quantised() && at.as<q>().messages_checked;
    };
    static const field all[] = {
        member("bytes_plain", &q::outcome, &o::bytes_plain, unit::bytes),
        member("bytes_sent", &q::outcome, &o::bytes_sent, unit::bytes),
        member("bytes_across", &q::outcome, &o::bytes_across, unit::bytes).unless_new(),
        member("unquantised", &q::outcome, &o::why_not).unless_new(),
        member("verdict", &q::verdict).unless_new(is_coded),
        member("within", &q::outcome, &o::within).unless_new(is_coded),
        member("across", &q::outcome, &o::across).unless_new(is_coded),
        member("block", &q::outcome, &o::block, unit::elements).unless_new(is_coded),
        member("levels", &q::outcome, &o::levels).unless_new(is_coded),
        member("ranks_per_node", &q::outcome, &o::ranks_per_node, unit::ranks).unless_new(),
        member("roundings", &q::outcome, &o::roundings_per_element).unless_new(is_coded),
        member("average", &q::outcome, &o::average).unless_new(),
        member("inputs_fed_back", &q::outcome, &o::inputs_fed_back).unless_new(),
        member("sums_fed_back", &q::outcome, &o::sums_fed_back).unless_new(),
        member("feedback", &q::outcome, &o::feedback).unless_new(is_coded),
        member("collectives", &q::outcome, &o::collectives, unit::calls).unless_new(),
        member("sqnr_db", &q::sqnr_db, unit::db).unless_new(is_coded),
        member("worst_rank", &q::worst_rank).unless_new(is_coded),
        member("worst_block", &q::worst_block, unit::index).unless_new(is_coded),
        member("noise_ratio", &q::noise_ratio).unless_new(is_coded), member("bias", &q::bias).unless_new(is_coded),
        member("bias_rank", &q::bias_rank).unless_new(), member("mean_error", &q::mean_error).unless_new(is_coded),
        member("aggregate_sqnr_db", &q::aggregate_sqnr_db, unit::db).unless_new(is_coded),
        member("coherence", &q::coherence).unless_new(is_coded), member("drift", &q::drift).unless_new(is_coded),
        member("drifting_steps", &q::drifting_steps, unit::steps).unless_new(is_coded),
        member("bins", &q::bins).unless_new(is_coded), member("messages_checked", &q::messages_checked).unless_new(),
        member("damaged_pairs", &q::damaged_pairs).unless_new(has_messages),
        member("damaged_sender", &q::damaged_sender).unless_new(has_messages),
        member("damaged_receiver", &q::damaged_receiver).unless_new(has_messages),
        member("zeroed", &q::zeroed).unless_new(is_coded),
        member("zeroed_expected", &q::zeroed_expected).unless_new(is_coded),
        member("crest", &q::crest).unless_new(is_coded),
        member("saturated", &q::saturated, unit::elements).unless_new(is_coded),
        member("nonfinite", &q::nonfinite, unit::elements).unless_new(is_coded),
        member("nonfinite_results", &q::nonfinite_results, unit::elements).unless_new(),
        follows("advice", write_advice).only_if([](const walk& at) {
            return at.as<q>().outcome.quantised() && !quantisation_advice(at.as<q>()).empty();
        })};
    return {all, std::size(all)};
}

/// Of members that a step writes in a list of its own.
inline constexpr condition in_step = [](const walk&) { return false; };

/// Index of the call in its step.
COLLPROBE_COLD_INLINE void write_bucket(json_writer& json, const walk& at) { json.integer(at.index); }
/// Number of the call, counted over the steps, alike on all ranks.
COLLPROBE_COLD_INLINE void write_sequence(json_writer& json, const walk& at)
{
    json.integer((at.step == nullptr ? 0 : at.step->first_call) + at.index);
}

template <>
inline field_table fields_of<call_record>()
{
    static const field all[] = {follows("bucket", write_bucket), member("name", &call_record::site),
        member("call", &call_record::call), member("type", &call_record::type),
        member("observed", &call_record::is_observed).unless_new(), follows("collective_seq_id", write_sequence),
        member("input_sizes", &call_record::count, unit::sizes),
        member("output_sizes", &call_record::result_count, unit::sizes),
        member("digest", &call_record::result_digest, unit::bits).if_set(&call_record::has_result_digest),
        member("result_norm", &call_record::result_norm), member("grad_norm", &call_record::gradient_norm),
        member("cosine", &call_record::pooled_cosine), member("nonfinite", &call_record::nonfinite, unit::elements),
        member("results_agree", &call_record::results_agree),
        member("result_nonfinite", &call_record::result_nonfinite, unit::elements).unless_new(),
        member("headroom", &call_record::headroom).unless_new(), member("excess", &call_record::excess).unless_new(),
        member("repeating_ranks", &call_record::repeating_ranks, unit::ranks).unless_new(),
        member("without_input", &call_record::without_input, unit::ranks).unless_new(),
        member("without_result", &call_record::without_result, unit::ranks).unless_new(),
        member("audit", &call_record::audit).if_set(&call_record::audit, &call_audit::checked),
        member("weights", &call_record::weights).if_set(&call_record::weights, &call_weights::seen),
        member("lateness", &call_record::lateness).unless_new(), member("order", &call_record::order).unless_new(),
        member("times", &call_record::intervals, unit::rows).unless_new(),
        member("result_sample", &call_record::result_sample).unless_new(),
        member("inputs", &call_record::inputs, unit::columns).unless_new(),
        member("quantisation", &call_record::quantisation)
            .if_set(&call_record::quantisation, &call_quantisation::seen).only_if(in_step)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<expectation_record>()
{
    static const field all[] = {member("name", &expectation_record::site),
        member("expected", &expectation_record::what), member("holds", &expectation_record::holds),
        member("since", &expectation_record::since).unless_new(
            [](const walk& at) { return !at.as<expectation_record>().holds; }),
        member("values", &expectation_record::values), member("groups", &expectation_record::groups)};
    return {all, std::size(all)};
}

/// The mean of the ranks' losses, each weighted by its tokens, where it is another one to five digits.
COLLPROBE_COLD_INLINE void write_loss_of_tokens(json_writer& json, const walk& at)
{
    json.number(loss_of_tokens(at.as<step_record>()));
}
/// The samples of all calls together.
COLLPROBE_COLD_INLINE void write_order(json_writer& json, const walk& at)
{
    json.open('{');
    write_members(json, at.as<step_record>().order());
    json.close('}');
}
/// How many calls were audited, and of these the checked sums: {calls, sums}.
COLLPROBE_COLD_INLINE void write_audit_counts(json_writer& json, const walk& at)
{
    std::uint64_t audited = 0;
    std::uint64_t sums = 0;
    for (const call_record& call : at.as<step_record>().calls) {
        audited += call.audit.checked ? 1 : 0;
        sums += call.audit.checked && call.audit.sum_checked ? 1 : 0;
    }
    json.open('{').key("calls").integer(audited).key("sums").integer(sums).close('}');
}
/// How much shorter a step would be if the last rank came with the next, in ns.
COLLPROBE_COLD_INLINE void write_gain(json_writer& json, const walk& at)
{
    const step_record& record = at.as<step_record>();
    json.number(record.lateness_by_rank[static_cast<std::size_t>(record.lateness.last)].gain);
}
/// The part of it that arose before the calls, in ns.
COLLPROBE_COLD_INLINE void write_gain_before(json_writer& json, const walk& at)
{
    const step_record& record = at.as<step_record>();
    json.number(record.lateness_by_rank[static_cast<std::size_t>(record.lateness.last)].gain_before);
}
/// By rank: its arrival after the median of the others, in ns.
COLLPROBE_COLD_INLINE void write_latest(json_writer& json, const walk& at)
{
    json.open('[');
    for (const rank_lateness& each : at.as<step_record>().lateness_by_rank) json.element().number(each.latest);
    json.close(']');
}
/// The ranks of which the evidence is that they come late: {rank, behind, behind_before, share_last}.
COLLPROBE_COLD_INLINE void write_late(json_writer& json, const walk& at)
{
    const step_record& record = at.as<step_record>();
    const std::size_t ranks = std::min(record.lateness_by_rank.size(), record.evidence_by_rank.size());
    json.open('[');
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const rank_evidence& evidence = record.evidence_by_rank[rank];
        if (!evidence.unlike || evidence.metric != finding_kind::late) continue;
        const rank_lateness& each = record.lateness_by_rank[rank];
        json.element().open('{').key("rank").integer(rank).key("behind").number(each.behind);
        json.key("behind_before").number(each.behind_before).key("share_last").number(each.share_last).close('}');
    }
    json.close(']');
}

COLLPROBE_COLD_INLINE bool is_strong(const rank_evidence& of) { return of.unlike || of.odds >= 1; }
COLLPROBE_COLD_INLINE bool is_weak(const rank_evidence& of) { return !is_strong(of) && !(of == rank_evidence{}); }
COLLPROBE_COLD_INLINE void write_evidence_list(json_writer& json, const walk& at, bool (*is_listed)(const rank_evidence&))
{
    const std::vector<rank_evidence>& all = at.as<step_record>().evidence_by_rank;
    json.open('[');
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (!is_listed(all[rank])) continue;
        json.element().open('{').key("rank").integer(rank);
        write_members(json, all[rank]);
        json.close('}');
    }
    json.close(']');
}
/// The ranks with odds of at least 1; empty if no rank has.
COLLPROBE_COLD_INLINE void write_evidence(json_writer& json, const walk& at)
{
    write_evidence_list(json, at, is_strong);
}
/// The other ranks of which something is known, as in `evidence`.
COLLPROBE_COLD_INLINE void write_weak_evidence(json_writer& json, const walk& at)
{
    write_evidence_list(json, at, is_weak);
}
/// What quantisation did to the calls that a quantised communicator made.
COLLPROBE_COLD_INLINE void write_quantisation(json_writer& json, const walk& at)
{
    const std::vector<call_record>& calls = at.as<step_record>().calls;
    json.open('[');
    for (std::size_t c = 0; c < calls.size(); ++c) {
        if (!calls[c].quantisation.seen) continue;
        write_site(json.element().open('{').key("bucket").integer(c), calls[c].site);
        write_members(json, calls[c].quantisation);
        json.close('}');
    }
    json.close(']');
}
/// The calls whose result is longer than their inputs allow: [{bucket, excess}].
COLLPROBE_COLD_INLINE void write_excess(json_writer& json, const walk& at)
{
    const std::vector<call_record>& calls = at.as<step_record>().calls;
    json.open('[');
    for (std::size_t c = 0; c < calls.size(); ++c) {
        if (!calls[c].has_excess()) continue;
        json.element().open('{').key("bucket").integer(c).key("excess").number(calls[c].excess).close('}');
    }
    json.close(']');
}
/// Calls in which most ranks sent what they had sent last.
COLLPROBE_COLD_INLINE void write_repeated_calls(json_writer& json, const walk& at)
{
    json.integer(at.as<step_record>().repeated_calls());
}

COLLPROBE_COLD_INLINE bool has_last(const walk& at) { return at.as<step_record>().lateness.last >= 0; }
COLLPROBE_COLD_INLINE bool has_gain(const walk& at)
{
    const step_record& record = at.as<step_record>();
    return record.lateness.last >= 0 && static_cast<std::size_t>(record.lateness.last) < record.lateness_by_rank.size();
}

template <auto holds>
bool any_call(const walk& at)
{
    const std::vector<call_record>& calls = at.as<step_record>().calls;
    return std::any_of(calls.begin(), calls.end(), holds);
}

template <>
inline field_table fields_of<step_record>()
{
    using s = step_record;
    constexpr condition has_order = [](const walk& at) {
        const order_sensitivity order = at.as<s>().order();
        return order.elements != 0 || order.nonfinite != 0;
    };
    constexpr condition has_evidence = [](const walk& at) { return !at.as<s>().evidence_by_rank.empty(); };
    constexpr condition has_weak = [](const walk& at) {
        return std::any_of(at.as<s>().evidence_by_rank.begin(), at.as<s>().evidence_by_rank.end(), is_weak);
    };
    static const field all[] = {member("step", &s::step), member("ranks", &s::ranks),
        member("mode", &s::mode).unless_new(), member("first_call", &s::first_call, unit::calls).unless_new(),
        member("false_alarms_per_step", &s::false_alarms_per_step), member("loss", &s::loss),
        follows("loss.mean_of_tokens", write_loss_of_tokens).only_if(
            [](const walk& at) { return !is_nan(loss_of_tokens(at.as<s>())); }),
        member("loss.by_rank", &s::losses).unless_new(),
        member("loss_weighted", &s::loss_weighted).only_if([](const walk& at) {
            return !is_same(type_of<spread>::is, &at.as<s>().loss_weighted, &at.as<s>().loss);
        }),
        member("grad_norm", &s::gradient_norm), member("grad_norm.by_rank", &s::gradient_norms).unless_new(),
        member("cosine.mean_pairwise", &s::cosine, &direction::mean_pairwise),
        member("cosine.pooled", &s::cosine, &direction::pooled),
        member("cosine.predicted", &s::cosine, &direction::predicted_cosine),
        member("cosine.leave_one_out", &s::cosine, &direction::leave_one_out),
        member("noise_scale", &s::cosine, &direction::noise_scale), member("calls", &s::calls).unless_new(),
        member("result_norm", &s::result_norm).unless_new(), member("expectations", &s::expectations).unless_new(),
        follows("order", write_order).only_if(has_order),
        follows("audit", write_audit_counts).only_if(any_call<[](const call_record& of) { return of.audit.checked; }>),
        member("lateness", &s::lateness).unless_new(), follows("lateness.gain", write_gain).only_if(has_gain),
        follows("lateness.gain_before", write_gain_before).only_if(has_gain),
        follows("lateness.latest", write_latest).only_if(has_last),
        follows("lateness.late", write_late).only_if(has_last),
        member("lateness.by_rank", &s::lateness_by_rank, unit::columns).unless_new(),
        member("zero_ranks", &s::zero_ranks).unless_new(),
        member("silent_evidence", &s::silent_evidence).unless_new(),
        follows("evidence", write_evidence).only_if(has_evidence),
        follows("weak_evidence", write_weak_evidence).only_if(has_weak),
        member("evidence_by_rank", &s::evidence_by_rank).only_if(in_step),
        follows("quantisation", write_quantisation).only_if(
            any_call<[](const call_record& of) { return of.quantisation.seen; }>),
        member("forgot", &s::forgot).unless_new(), member("missing_calls", &s::missing_calls).unless_new(),
        follows("excess", write_excess).only_if(any_call<[](const call_record& of) { return of.has_excess(); }>),
        follows("repeated_calls", write_repeated_calls).only_if(
            [](const walk& at) { return at.as<s>().repeated_calls() != 0; }),
        member("unprobed_calls", &s::unprobed_calls, unit::calls).unless_new(),
        member("unread_calls", &s::unread_calls, unit::calls).unless_new(),
        member("findings", &s::findings)};
    return {all, std::size(all)};
}

template <>
inline field_table fields_of<inspection::order_of_elements>()
{
    using o = inspection::order_of_elements;
    static const field all[] = {member("brackets", &o::brackets), member("first", &o::first),
        member("elements", &o::elements, unit::elements), member("ranks", &o::ranks).unless_new()};
    return {all, std::size(all)};
}

/// The number of different orders.
COLLPROBE_COLD_INLINE void write_orders(json_writer& json, const walk& at)
{
    json.integer(at.as<inspection>().orders.size());
}

template <>
inline field_table fields_of<inspection>()
{
    using i = inspection;
    static const field all[] = {member("communicator", &i::communicator), member("element", &i::element),
        member("count", &i::count, unit::elements), member("ranks", &i::ranks),
        member("roundings_per_element", &i::roundings_per_element),
        member("partial_sum_precision", &i::partial_sum_bits, unit::positive),
        member("partial_sum_precision_or_more", &i::partial_sum_bits_or_more), member("order_class", &i::order),
        follows("orders", write_orders), member("order_calls", &i::order_calls, unit::calls).unless_new(),
        member("order_list", &i::orders).unless_new(), member("run_stable", &i::run_stable),
        member("size_stable", &i::size_stable), member("permutation_stable", &i::permutation_stable),
        member("ranks_agree", &i::ranks_agree), member("max_ulp", &i::max_ulp, unit::ulp),
        member("rms_ulp", &i::rms_ulp, unit::ulp), member("reproduced", &i::reproduced),
        member("median_us", &i::time_us, unit::us), member("algbw_gbs", &i::algbw_gbs, unit::gbs),
        member("busbw_gbs", &i::busbw_gbs, unit::gbs)};
    return {all, std::size(all)};
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
