// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/record.hpp>

/// The interpretation of a step's findings. No state.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct interpretation {
    damage where;
    advice action; ///< for a finding that does not last
};

/// Results that differ are damaged after the sum, a wrong sum that all ranks hold in the sum, all else before the sum.
/// `audited`: the damage that the audit found in the call, which says more of a result; `none` if it found none.
constexpr interpretation interpret(const suspect& found, damage audited) noexcept
{
    const bool is_named = found.rank >= 0;
    const damage of_result = audited != damage::none ? audited : is_named ? damage::broadcast : damage::unknown;
    switch (found.what) {
    case finding::non_finite: // without a rank: the weights have it
        return is_named ? interpretation{damage::input, advice::skip} : interpretation{damage::unknown, advice::resync};
    case finding::stale: return {damage::input, advice::skip};
    case finding::duplicate: return {damage::duplicated_data, advice::recheck};
    case finding::sum_differs: return {of_result, found.exact ? advice::skip : advice::recheck};
    case finding::result_differs: // without a majority the right result is unknown, so all ranks drop it
        return {of_result, is_named ? advice::resync : advice::skip};
    case finding::shard_differs: // a shard that its owner sent wrong is right on no rank
        return {of_result, is_named && found.rank != found.other_rank ? advice::resync : advice::skip};
    case finding::value_differs: return {damage::unknown, advice::resync};
    case finding::codes_differ:
        return {is_named ? damage::unknown : damage::reduce, advice::skip}; // a message of terms or of results
    case finding::quantisation: return {damage::reduce, advice::none}; // or in a gather, alike for all ranks
    case finding::weights: return {damage::reduce, advice::recheck}; // or in what is done before and behind it
    case finding::late: return {damage::none, advice::none}; // the data are right
    case finding::overflow: return {damage::reduce, advice::skip};
    case finding::zeros: return {damage::input, advice::recheck};
    case finding::call_missing: return {damage::none, advice::recheck}; // the calls that are there are right
    case finding::other_call: return {damage::input, advice::skip};
    case finding::value_repeats: return {is_named ? damage::duplicated_data : damage::none, advice::recheck};
    case finding::norm_differs: return {damage::none, advice::recheck};
    case finding::unexplained: return {damage::reduce, advice::recheck};
    case finding::unlike:
        if (found.evidence.metric == finding::late) return {damage::none, advice::recheck};
        [[fallthrough]];
    case finding::loss:
    case finding::gradient_norm:
    case finding::largest_magnitude:
    case finding::cosine: break;
    }
    return {is_named ? damage::input : damage::unknown, advice::recheck};
}

/// Whether a rank with such findings in many steps is to be taken out. (Equal data do not tell which rank owns them,
/// codes are as coarse as the caller has them, a rank does not choose its weight, and a value that differs does so
/// until somebody sets it.)
constexpr bool is_blame(const suspect& found) noexcept
{
    return found.exact
        && (found.what == finding::non_finite || found.what == finding::stale || found.what == finding::result_differs
            || found.what == finding::shard_differs || found.what == finding::codes_differ);
}

/// Whether the audit found the result of a reduction wrong, on all ranks or on some. If so, the cosine of a gradient
/// with that result says nothing about the gradient.
inline bool has_wrong_sum(const step_record& record) noexcept
{
    for (const call_record& judged : record.calls) {
        const bool is_reduction = judged.call == collective::all_reduce || judged.call == collective::reduce_scatter;
        if (is_reduction && judged.audit.checked && !(judged.results_agree && judged.audit.conserved)) return true;
    }
    return false;
}

} // namespace collprobe::detail
