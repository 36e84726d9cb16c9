// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/report/words.hpp>

/// The texts of core/record/finding_kind.hpp, filled in.
namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// "2, most ranks have 3, "; nothing of digests, whose digits say nothing to people.
COLLPROBE_COLD_INLINE std::string value_text(const finding& of)
{
    if (collprobe::detail::absolute(of.number.value) >= 0x1p53) return "";
    const std::string own = short_number(of.number.value);
    const std::string most = short_number(of.number.expected);
    if (of.what == finding_kind::value_repeats) return own + ", ";
    return own != most ? own + ", most ranks have " + most + ", " : "other bits of " + own + ", ";
}

COLLPROBE_COLD_INLINE std::string word_of_evidence(std::string_view word, const finding& of)
{
    const auto rank = [&of] { return "rank " + std::to_string(of.other_rank); };
    const auto at_index = [&of](const char* what) {
        return of.index == no_index ? std::string() : what + std::to_string(of.index);
    };
    const std::uint64_t count = count_of(of.statistic);
    if (word == "elements") return of.call < 0 ? "its loss" : counted(count, "element");
    if (word == "first") return at_index(", the first at index ");
    if (word == "block") return at_index(", worst in the block at index ");
    if (word == "count") return with_commas(count);
    if (word == "statistic") return short_number(of.statistic);
    if (word == "threshold") return short_number(of.threshold);
    if (word == "limit") return of.threshold > 0 ? ", limit " + short_number(of.threshold) : "";
    if (word == "says")
        return of.other.site.name[0] == '\0' ? "" : collprobe::detail::printable(of.other.site.name) + ' ';
    if (word == "percent") return short_number(100 * of.statistic);
    if (word == "since") return "since step " + with_commas(of.number.since);
    if (word == "from") return of.other_rank < 0 ? "another rank" : rank();
    if (word == "other" && of.ranks.size() > 1) return of.other_rank < 0 ? "other ranks" : "each other";
    if (word == "other") return of.other_rank < 0 || of.names(of.other_rank) ? "another rank" : rank();
    if (word == "in result") return of.other_rank < 0 ? "" : "in the result of " + rank() + ", ";
    if (word == "value") return value_text(of);
    if (word == "samples") return counted(count_of(of.number.value), "sample");
    if (word == "expected") return with_commas(count_of(of.number.expected));
    if (word == "number") return describe(of.number, of.what, of.call, of.is_named());
    if (word == "evidence") return describe(of.evidence);
    if (word == "weight") return weight_text(of.statistic, of.threshold);
    if (word == "weights") {
        if (collprobe::detail::absolute(of.statistic - 1) <= of.threshold) return "all weights are equal, as in a mean";
        return "the one farthest from a mean's is " + weight_text(of.statistic, of.threshold) + " times that";
    }
    if (word == "cause") {
        return of.threshold > 1
            ? "these inputs cannot overflow, so the reduction or the memory of its result is damaged"
            : "the reduction leaves the range of its type: scale the inputs down, or reduce in a wider type";
    }
    if (word == "missing")
        return describe(missing_call{of.other, of.number.since, of.number.steps, static_cast<std::uint32_t>(count)});
    if (word == "form" && of.other.count != 0) return describe(of.other);
    return "the names of calls or values, or their order, are not the same on all ranks";
}

/// What was seen, of a finding: the evidence of its kind, filled in. Empty where the bits say all.
COLLPROBE_COLD_INLINE std::string evidence_text(const finding& of)
{
    if (of.by_length && of.what == finding_kind::shard_differs)
        return "the squares of the results off by " + short_number(100 * of.statistic) + " %";
    if (of.by_length) {
        return "a length of " + short_number(of.statistic) + ", and the inputs together at most "
            + short_number(of.threshold);
    }
    const char* const text = facts_of(of.what).evidence.of(of.is_named());
    return filled(text, [&of](std::string_view word) { return word_of_evidence(word, of); });
}

constexpr const char* place_in_words(damage where) noexcept
{
    return name_list<damage::unknown>{"", "damage: in the rank's own data, before the call",
        "damage: in the sum, alike for all ranks", "damage: on the result's way to the ranks, or in their memory",
        "ranks have the same data and should have their own",
        "the evidence does not show where the damage happened"}[where];
}

/// How often a healthy step, or run, has such a finding.
COLLPROBE_COLD_INLINE std::string false_alarms_of(const finding& found)
{
    const double rate = found.false_alarms_per_step;
    if (is_by_odds(found)) return "in a run, 1 in " + round_count(found.threshold);
    if (found.what == finding_kind::sum_differs && !found.exact && rate > 0) // by a model of rounding
        return "about " + short_number(rate) + " a step, unless a rank is far larger than the others";
    if (rate > 0) return "at most " + short_number(rate) + " a step";
    return found.exact ? "none: exact" : "not stated";
}

} // namespace collprobe::inline COLLPROBE_ABI::report::detail
