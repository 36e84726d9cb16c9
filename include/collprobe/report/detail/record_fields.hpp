// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <collprobe/report/detail/evidence_text.hpp>
#include <collprobe/report/detail/json_writer.hpp>

/// The tables. What `member` has is always written; `rare`, where it is other than in a new record; `follows` is said
/// by other members already.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

template <>
inline field_table fields_of<spread>()
{
    using of = spread;
    static const field all[] = {member("mean", &of::mean), member("std", &of::std),
        member("std_sample", &of::std_sample), member("range", &of::range), member("cv", &of::cv),
        rare("min", &of::minimum), rare("min_rank", &of::minimum_rank), rare("max", &of::maximum),
        rare("max_rank", &of::maximum_rank), rare("finite", &of::finite, unit::ranks)};
    return {all};
}

template <>
inline field_table fields_of<statistics>()
{
    using of = statistics;
    static const field all[] = {rare("count", &of::count, unit::elements), member("sum", &of::sum),
        member("sum_of_squares", &of::sum_of_squares), member("absolute_maximum", &of::absolute_maximum),
        rare("zero", &of::zero, unit::elements), rare("nan", &of::nan, unit::elements),
        rare("positive_infinity", &of::positive_infinity, unit::elements),
        rare("negative_infinity", &of::negative_infinity, unit::elements),
        rare("first_nonfinite", &of::first_nonfinite, unit::index), member("digest", &of::digest, unit::bits)};
    return {all};
}

template <>
inline field_table fields_of<call_form>()
{
    using of = call_form;
    static const field all[] = {member("call", &of::call), member("type", &of::type),
        member("count", &of::count, unit::elements), member("name", &of::site)};
    return {all};
}

template <>
inline field_table fields_of<missing_call>()
{
    using of = missing_call;
    static const field all[] = {member("since", &of::since), member("steps_before", &of::steps, unit::steps),
        member("calls", &of::calls, unit::calls), member("call", &of::call)};
    return {all};
}

template <>
inline field_table fields_of<rank_with_zeros>()
{
    using of = rank_with_zeros;
    static const field all[] = {member("rank", &of::rank), member("since", &of::since),
        member("no_weight", &of::has_no_weight)};
    return {all};
}

template <>
inline field_table fields_of<rank_evidence>()
{
    using of = rank_evidence;
    static const field all[] = {member("metric", &of::metric), member("bucket", &of::call), member("side", &of::side),
        member("odds", &of::odds), member("recurrence", &of::recurrence, unit::steps), member("since", &of::since),
        member("extreme", &of::extreme, unit::steps), member("among", &of::among, unit::ranks),
        member("unlike", &of::unlike)};
    return {all};
}

template <>
inline field_table fields_of<finding>()
{
    using of = finding;
    constexpr condition of_number = [](const walk& at) { return is_of_number(at.as<of>().what); };
    constexpr condition is_missing = [](const walk& at) { return at.as<of>().what == finding_kind::call_missing; };
    constexpr condition is_unlike = [](const walk& at) { return at.as<of>().what == finding_kind::unlike; };
    constexpr condition is_of_part = [](const walk& at) { return at.as<of>().what == finding_kind::of_part; };
    constexpr condition has_value
        = [](const walk& at) { return is_of_number(at.as<of>().what) || is_of_value(at.as<of>().what); };
    constexpr condition has_call
        = [](const walk& at) { return is_missing(at) || at.as<of>().what == finding_kind::other_call; };
    constexpr condition has_window
        = [](const walk& at) { return of_number(at) || (at.as<of>().number.steps != 0 && !is_missing(at)); };
    constexpr condition has_since = [](const walk& at) {
        const of& found = at.as<of>();
        return found.number.is_new_level || found.what == finding_kind::zeros || is_missing(at)
            || is_of_value(found.what);
    };
    static const field all[] = {
        member("step", &of::step).only_if(
            [](const walk& at) { return at.step == nullptr || at.step->step != at.as<of>().step; }),
        member("check", &of::what), member("ranks", &of::ranks), member("other_rank", &of::other_rank),
        member("bucket", &of::call), member("name", &of::site), member("exact", &of::exact),
        member("statistic", &of::statistic), member("threshold", &of::threshold),
        member("index", &of::index, unit::index), member("false_alarms_per_step", &of::false_alarms_per_step),
        member("damage", &of::where), member("advice", &of::action), member("source", &of::source),
        /// The evidence in words.
        follows("text", [](const walk& at) { return !evidence_text(at.as<of>()).empty(); },
            [](json_writer& json, const walk& at) { json.text(evidence_text(at.as<of>())); }),
        rare("by_length", &of::by_length), rare("value", {&of::number, &unusual_number::value}, unit::none, has_value),
        rare("expected", {&of::number, &unusual_number::expected}, unit::none, has_value),
        rare("usual_difference", {&of::number, &unusual_number::usual_difference}, unit::none, of_number),
        member("window", {&of::number, &unusual_number::steps}, unit::steps).only_if(has_window),
        rare("new_level", {&of::number, &unusual_number::is_new_level}),
        rare("since", {&of::number, &unusual_number::since}, unit::none, has_since),
        member("steps_before", {&of::number, &unusual_number::steps}, unit::steps).only_if(is_missing),
        member("other_call", &of::other).only_if(has_call),
        /// Of `of_part`: the name of its check, or the line that made it.
        member("own_check.name", {&of::other, &call_form::site}).only_if(is_of_part),
        rare("evidence", &of::evidence, unit::none, is_unlike)};
    return {all};
}

template <>
inline field_table fields_of<call_audit>()
{
    using of = call_audit;
    static const field all[] = {member("damage", &of::where), member("sum_checked", &of::sum_checked),
        member("residual", &of::residual), member("residual_limit", &of::residual_limit), member("bins", &of::bins),
        member("majority", &of::majority), member("conserved", &of::conserved), member("ranks", &of::culprits)};
    return {all};
}

template <>
inline field_table fields_of<call_weights>()
{
    using of = call_weights;
    static const field all[] = {member("form", &of::how).always(), member("expected", &of::expected).always(),
        rare("why_not", &of::why_not), rare("by_rank", &of::weights), member("bounds", &of::bounds),
        member("ranks", &of::ranks), member("common", &of::common), member("scale", &of::scale),
        member("residual", &of::residual), member("residual_limit", &of::residual_limit), member("bins", &of::bins),
        rare("holders", &of::holders), rare("others", &of::others)};
    return {all, [](const walk& at) { return !at.as<of>().weights.empty(); }};
}

template <>
inline field_table fields_of<call_lateness>()
{
    using of = call_lateness;
    static const field all[] = {member("last", &of::last), member("spread", &of::spread, unit::ns),
        member("transport", &of::transport, unit::ns), rare("present", &of::present, unit::ranks),
        rare("next", &of::next), rare("gain", &of::gain, unit::ns), rare("gain_before", &of::gain_before, unit::ns)};
    return {all};
}

template <>
inline field_table fields_of<step_lateness>()
{
    using of = step_lateness;
    static const field all[] = {member("calls", &of::calls, unit::calls), member("present", &of::present, unit::ranks),
        member("last", &of::last), member("behind", &of::behind, unit::ns),
        member("behind_before", &of::behind_before, unit::ns), member("noise", &of::noise, unit::ns),
        member("floor", &of::floor, unit::ns), member("stands_out", &of::stands_out)};
    return {all};
}

template <>
inline field_table fields_of<rank_lateness>()
{
    using of = rank_lateness;
    static const field all[] = {member("steps", &of::steps, unit::steps), rare("latest", &of::latest, unit::ns),
        rare("behind", &of::behind, unit::ns), rare("behind_before", &of::behind_before, unit::ns),
        rare("share_last", &of::share_last), rare("gain", &of::gain, unit::ns),
        rare("gain_before", &of::gain_before, unit::ns)};
    return {all};
}

template <>
inline field_table fields_of<call_interval>()
{
    using of = call_interval;
    static const field all[] = {member("entered", &of::entered), member("left", &of::left)};
    return {all};
}

template <>
inline field_table fields_of<order_sensitivity>()
{
    using of = order_sensitivity;
    static const field all[] = {member("elements", &of::elements, unit::elements),
        member("nonfinite", &of::nonfinite, unit::elements), member("orders", &of::orders),
        member("changed", &of::changed, unit::elements), member("max_ulp_spread", &of::max_ulp_spread, unit::ulp),
        member("rms_ulp_error", &of::rms_ulp_error, unit::ulp), member("max_ulp_error", &of::max_ulp_error, unit::ulp)};
    return {all};
}

template <>
inline field_table fields_of<call_quantisation>()
{
    using of = call_quantisation;
    using did = quantised_outcome;
    constexpr condition is_coded = [](const walk& at) { return at.as<of>().outcome.quantised(); };
    constexpr condition has_messages = [](const walk& at) { return is_coded(at) && at.as<of>().messages_checked; };
    static const field all[] = {member("bytes_plain", {&of::outcome, &did::bytes_plain}, unit::bytes).always(),
        member("bytes_sent", {&of::outcome, &did::bytes_sent}, unit::bytes).always(),
        rare("bytes_across", {&of::outcome, &did::bytes_across}, unit::bytes),
        rare("unquantised", {&of::outcome, &did::why_not}), member("verdict", &of::verdict),
        member("within", {&of::outcome, &did::within}), member("across", {&of::outcome, &did::across}),
        member("block", {&of::outcome, &did::block}, unit::elements), member("levels", {&of::outcome, &did::levels}),
        rare("ranks_per_node", {&of::outcome, &did::ranks_per_node}, unit::ranks),
        member("roundings", {&of::outcome, &did::roundings_per_element}),
        rare("average", {&of::outcome, &did::average}), rare("inputs_fed_back", {&of::outcome, &did::inputs_fed_back}),
        rare("sums_fed_back", {&of::outcome, &did::sums_fed_back}), member("feedback", {&of::outcome, &did::feedback}),
        rare("collectives", {&of::outcome, &did::collectives}, unit::calls), member("sqnr_db", &of::sqnr_db, unit::db),
        member("worst_rank", &of::worst_rank), member("worst_block", &of::worst_block, unit::index),
        member("noise_ratio", &of::noise_ratio), member("bias", &of::bias), rare("bias_rank", &of::bias_rank),
        member("mean_error", &of::mean_error), member("aggregate_sqnr_db", &of::aggregate_sqnr_db, unit::db),
        member("coherence", &of::coherence), member("drift", &of::drift),
        member("drifting_steps", &of::drifting_steps, unit::steps), member("bins", &of::bins),
        rare("messages_checked", &of::messages_checked),
        rare("damaged_pairs", &of::damaged_pairs, unit::none, has_messages),
        rare("damaged_sender", &of::damaged_sender, unit::none, has_messages),
        rare("damaged_receiver", &of::damaged_receiver, unit::none, has_messages), member("zeroed", &of::zeroed),
        member("zeroed_expected", &of::zeroed_expected), member("crest", &of::crest),
        member("saturated", &of::saturated, unit::elements), member("nonfinite", &of::nonfinite, unit::elements),
        rare("nonfinite_results", &of::nonfinite_results, unit::elements),
        /// What to do about the verdict.
        follows("advice",
            [](const walk& at) { return is_coded(at) && !quantisation_advice(at.as<of>()).empty(); },
            [](json_writer& json, const walk& at) { json.text(quantisation_advice(at.as<of>())); })};
    return {all, is_coded};
}

/// Of members that a step writes in a list of its own.
inline constexpr condition in_step = [](const walk&) { return false; };

template <>
inline field_table fields_of<call_record>()
{
    using of = call_record;
    static const field all[] = {
        /// Index of the call in its step.
        follows("bucket", nullptr, [](json_writer& json, const walk& at) { json.integer(at.index); }),
        member("name", &of::site), member("call", &of::call), member("type", &of::type),
        rare("reduction", &of::operation), rare("gradient", &of::is_gradient), rare("observed", &of::is_observed),
        /// Number of the call, counted over the steps, alike on all ranks.
        follows("collective_seq_id", nullptr, [](json_writer& json, const walk& at) {
            json.integer((at.step == nullptr ? 0 : at.step->first_call) + at.index);
        }),
        member("input_sizes", &of::count, unit::sizes), member("output_sizes", &of::result_count, unit::sizes),
        member("digest", &of::result_digest, unit::bits).if_set(&of::has_result_digest),
        member("result_norm", &of::result_norm), member("grad_norm", &of::gradient_norm),
        member("cosine", &of::pooled_cosine), member("nonfinite", &of::nonfinite, unit::elements),
        member("results_agree", &of::results_agree), rare("result_nonfinite", &of::result_nonfinite, unit::elements),
        rare("headroom", &of::headroom), rare("excess", &of::excess),
        rare("repeating_ranks", &of::repeating_ranks, unit::ranks),
        rare("without_input", &of::without_input, unit::ranks),
        rare("without_result", &of::without_result, unit::ranks),
        member("audit", &of::audit).if_set({&of::audit, &call_audit::checked}),
        member("weights", &of::weights).if_set({&of::weights, &call_weights::seen}), rare("lateness", &of::lateness),
        rare("order", &of::order), rare("times", &of::intervals, unit::rows), rare("result_sample", &of::result_sample),
        rare("inputs", &of::inputs, unit::columns),
        member("quantisation", &of::quantisation)
            .if_set({&of::quantisation, &call_quantisation::seen}).only_if(in_step)};
    return {all};
}

template <>
inline field_table fields_of<expectation_record>()
{
    using of = expectation_record;
    static const field all[] = {member("name", &of::site), member("expected", &of::what), member("holds", &of::holds),
        rare("since", &of::since, unit::none, [](const walk& at) { return !at.as<of>().holds; }),
        member("values", &of::values), member("groups", &of::groups)};
    return {all};
}

template <>
inline field_table fields_of<number_record>()
{
    using of = number_record;
    static const field all[] = {
        member("name", &of::site), member("bucket", &of::call), member("by_rank", &of::by_rank)};
    return {all};
}

/// A list of an object for each item that is in it. `named`: the index of an item.
template <class Item, class Is, class Write>
void write_some(json_writer& json, const std::vector<Item>& all, const char* named, const Is& is_in, const Write& write)
{
    json.open('[');
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!is_in(all[i])) continue;
        json.element().open('{').key(named).integer(i);
        write(all[i]);
        json.close('}');
    }
    json.close(']');
}

COLLPROBE_COLD_INLINE bool is_strong(const rank_evidence& of) { return of.unlike || of.odds >= 1; }
COLLPROBE_COLD_INLINE bool is_weak(const rank_evidence& of) { return !is_strong(of) && !(of == rank_evidence{}); }
COLLPROBE_COLD_INLINE bool has_samples(const call_record& of) { return of.order.elements + of.order.nonfinite != 0; }
COLLPROBE_COLD_INLINE bool is_audited(const call_record& of) { return of.audit.checked; }
COLLPROBE_COLD_INLINE bool is_quantised(const call_record& of) { return of.quantisation.seen; }
COLLPROBE_COLD_INLINE bool is_in_excess(const call_record& of) { return of.has_excess(); }

/// The last rank; null if it, or what is known of it, is not there.
COLLPROBE_COLD_INLINE const rank_lateness* last_of(const step_record& of)
{
    const auto last = static_cast<std::size_t>(of.lateness.last);
    return of.lateness.last < 0 || last >= of.lateness_by_rank.size() ? nullptr : &of.lateness_by_rank[last];
}

template <auto list, auto holds>
bool has_any(const walk& at)
{
    const auto& all = at.as<step_record>().*list;
    return std::any_of(all.begin(), all.end(), holds);
}

template <>
inline field_table fields_of<step_record>()
{
    using of = step_record;
    constexpr condition has_last = [](const walk& at) { return at.as<of>().lateness.last >= 0; };
    constexpr condition has_last_rank = [](const walk& at) { return last_of(at.as<of>()) != nullptr; };
    static const field all[] = {member("step", &of::step), member("ranks", &of::ranks), rare("mode", &of::mode),
        rare("first_call", &of::first_call, unit::calls), member("false_alarms_per_step", &of::false_alarms_per_step),
        member("loss", &of::loss),
        /// The mean loss, each rank weighted by its tokens, where that is another number to five digits.
        follows("loss.mean_of_tokens", [](const walk& at) { return !is_nan(loss_of_tokens(at.as<of>())); },
            [](json_writer& json, const walk& at) { json.number(loss_of_tokens(at.as<of>())); }),
        rare("loss.by_rank", &of::losses),
        member("loss_weighted", &of::loss_weighted).only_if([](const walk& at) {
            return !is_same(type_of<spread>::is, &at.as<of>().loss_weighted, &at.as<of>().loss);
        }),
        member("grad_norm", &of::gradient_norm), rare("grad_norm.by_rank", &of::gradient_norms),
        member("cosine.mean_pairwise", {&of::cosine, &direction::mean_pairwise}),
        member("cosine.pooled", {&of::cosine, &direction::pooled}),
        member("cosine.predicted", {&of::cosine, &direction::predicted_cosine}),
        member("cosine.leave_one_out", {&of::cosine, &direction::leave_one_out}),
        rare("cosine.pairwise", {&of::cosine, &direction::pairwise}),
        member("noise_scale", {&of::cosine, &direction::noise_scale}), rare("calls", &of::calls),
        rare("result_norm", &of::result_norm), rare("expectations", &of::expectations),
        rare("numbers", &of::numbers),
        /// The samples of all calls together.
        follows("order", has_any<&of::calls, has_samples>,
            [](json_writer& json, const walk& at) { json.open('{').members(at.as<of>().order()).close('}'); }),
        /// How many calls were audited, and of these the checked sums: {calls, sums}.
        follows("audit", has_any<&of::calls, is_audited>,
            [](json_writer& json, const walk& at) {
                std::uint64_t audited = 0, sums = 0;
                for (const call_record& call : at.as<of>().calls) {
                    audited += is_audited(call) ? 1 : 0;
                    sums += call.audit.checked && call.audit.sum_checked ? 1 : 0;
                }
                json.open('{').key("calls").integer(audited).key("sums").integer(sums).close('}');
            }),
        rare("lateness", &of::lateness),
        /// How much shorter a step would be if the last rank came with the next, in ns.
        follows("lateness.gain", has_last_rank,
            [](json_writer& json, const walk& at) { json.number(last_of(at.as<of>())->gain); }),
        /// The part of it that arose before the calls, in ns.
        follows("lateness.gain_before", has_last_rank,
            [](json_writer& json, const walk& at) { json.number(last_of(at.as<of>())->gain_before); }),
        /// By rank: its arrival after the median of the others, in ns; as in `by_rank`.
        follows("lateness.latest", has_last,
            [](json_writer& json, const walk& at) {
                json.open('[');
                for (const rank_lateness& each : at.as<of>().lateness_by_rank) json.element().number(each.latest);
                json.close(']');
            }),
        /// The ranks of which the evidence is that they come late: [{rank, behind, behind_before, share_last}].
        follows("lateness.late", has_last,
            [](json_writer& json, const walk& at) {
                const of& record = at.as<of>();
                const auto is_late = [&record](const rank_lateness& each) {
                    const auto rank = static_cast<std::size_t>(&each - record.lateness_by_rank.data());
                    return rank < record.evidence_by_rank.size() && record.evidence_by_rank[rank].unlike
                        && record.evidence_by_rank[rank].metric == finding_kind::late;
                };
                write_some(json, record.lateness_by_rank, "rank", is_late, [&json](const rank_lateness& each) {
                    json.key("behind").number(each.behind).key("behind_before").number(each.behind_before);
                    json.key("share_last").number(each.share_last);
                });
            }),
        rare("lateness.by_rank", &of::lateness_by_rank, unit::columns), rare("zero_ranks", &of::zero_ranks),
        rare("left_out", &of::left_out), rare("nonfinite_by_rank", &of::nonfinite_by_rank, unit::elements),
        rare("silent_evidence", &of::silent_evidence),
        /// The ranks with odds of at least 1: [{rank, ...}]; empty if no rank has.
        follows("evidence", [](const walk& at) { return !at.as<of>().evidence_by_rank.empty(); },
            [](json_writer& json, const walk& at) {
                write_some(json, at.as<of>().evidence_by_rank, "rank", is_strong,
                    [&json](const rank_evidence& each) { json.members(each); });
            }),
        /// The other ranks of which anything is known, in the same form.
        follows("weak_evidence", has_any<&of::evidence_by_rank, is_weak>,
            [](json_writer& json, const walk& at) {
                write_some(json, at.as<of>().evidence_by_rank, "rank", is_weak,
                    [&json](const rank_evidence& each) { json.members(each); });
            }),
        member("evidence_by_rank", &of::evidence_by_rank).only_if(in_step),
        /// What quantisation did to the calls that a quantised communicator made: [{bucket, name, line, ...}].
        follows("quantisation", has_any<&of::calls, is_quantised>,
            [](json_writer& json, const walk& at) {
                write_some(json, at.as<of>().calls, "bucket", is_quantised, [&json](const call_record& each) {
                    json.site(each.site).members(each.quantisation);
                });
            }),
        rare("forgot", &of::forgot), rare("places_agree", &of::places_agree), rare("repeats", &of::repeats),
        rare("missing_calls", &of::missing_calls),
        /// The calls whose result is longer than their inputs allow: [{bucket, excess}].
        follows("excess", has_any<&of::calls, is_in_excess>,
            [](json_writer& json, const walk& at) {
                write_some(json, at.as<of>().calls, "bucket", is_in_excess,
                    [&json](const call_record& each) { json.key("excess").number(each.excess); });
            }),
        /// Calls in which most ranks sent what they had sent last.
        follows("repeated_calls", [](const walk& at) { return at.as<of>().repeated_calls() != 0; },
            [](json_writer& json, const walk& at) { json.integer(at.as<of>().repeated_calls()); }),
        rare("unprobed_calls", &of::unprobed_calls, unit::calls), rare("unread_calls", &of::unread_calls, unit::calls),
        member("findings", &of::findings)};
    return {all};
}

template <>
inline field_table fields_of<inspection::order_of_elements>()
{
    using of = inspection::order_of_elements;
    static const field all[] = {member("brackets", &of::brackets), member("first", &of::first),
        member("elements", &of::elements, unit::elements), rare("ranks", &of::ranks)};
    return {all};
}

template <>
inline field_table fields_of<inspection>()
{
    using of = inspection;
    static const field all[] = {member("communicator", &of::communicator), member("element", &of::element),
        member("count", &of::count, unit::elements), member("ranks", &of::ranks),
        member("roundings_per_element", &of::roundings_per_element),
        member("partial_sum_precision", &of::partial_sum_bits, unit::positive),
        member("partial_sum_precision_or_more", &of::partial_sum_bits_or_more), member("order_class", &of::order),
        /// How many orders there are.
        follows("orders", nullptr, [](json_writer& json, const walk& at) { json.integer(at.as<of>().orders.size()); }),
        rare("order_calls", &of::order_calls, unit::calls), rare("order_list", &of::orders),
        member("run_stable", &of::run_stable), member("size_stable", &of::size_stable),
        member("permutation_stable", &of::permutation_stable), member("ranks_agree", &of::ranks_agree),
        member("max_ulp", &of::max_ulp, unit::ulp), member("rms_ulp", &of::rms_ulp, unit::ulp),
        member("reproduced", &of::reproduced), member("median_us", &of::time_us, unit::us),
        member("algbw_gbs", &of::algbw_gbs, unit::gbs), member("busbw_gbs", &of::busbw_gbs, unit::gbs)};
    return {all};
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
