// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/words.hpp>

/// What was seen of a finding, and where, in words.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The evidence of what is exact and has no number.
inline constexpr const char* only_bits = "bits compared";

/// Of a suspect or an alarm.
template <class Found>
std::string evidence_of(const Found& found, bool has_rank)
{
    const finding what = found.what;
    const double statistic = found.statistic;
    const double threshold = found.threshold;
    if (what == finding::unlike) return describe(found.evidence);
    if (found.by_length) return length_text(what, statistic, threshold);
    if (is_of_number(what)) return describe(found.number, what, found.call, has_rank);
    if (is_of_spread(found)) return spread_text(statistic, found.number.since);
    if (what == finding::non_finite)
        return with_commas(count_of(statistic)) + (statistic > 1 ? " elements are" : " element is")
            + " NaN or infinite";
    if (what == finding::weights)
        return weight_text(statistic, threshold) + " times the mean's weight, within " + short_number(threshold);
    if (std::string fact = fact_text(found, no_index); !fact.empty()) return fact;
    if (!(threshold > 0))
        return what == finding::quantisation ? "value " + short_number(statistic) : only_bits;
    return "residual " + short_number(statistic) + ", limit " + short_number(threshold);
}

COLLPROBE_COLD_INLINE const char* place_in_words(damage where) noexcept
{
    switch (where) {
    case damage::none: return "";
    case damage::input: return "damage: in the rank's own data, before the call";
    case damage::reduce: return "damage: in the sum, alike for all ranks";
    case damage::broadcast: return "damage: on the result's way to the ranks, or in their memory";
    case damage::duplicated_data: return "ranks have the same data and should have their own";
    case damage::unknown: return "the evidence does not show where the damage happened";
    }
    return "";
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
