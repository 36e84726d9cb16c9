// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/printable.hpp>

/// Numbers and names as every report writes them.
namespace collprobe::inline COLLPROBE_ABI::report {

/// A number with four significant digits, from 10,000 to 10 million to the next whole number; "-" if it is undefined.
COLLPROBE_COLD_INLINE std::string short_number(double value)
{
    if (is_nan(value)) return "-";
    // snprintf is not used here: under -ffast-math only the bits show reliably whether a number is infinite.
    if (!is_finite(value)) return (to_bits(value) >> 63) != 0 ? "-inf" : "inf";
    char text[32];
    const double size = collprobe::detail::absolute(value);
    std::snprintf(text, sizeof text, size >= 9999.5 && size < 1e7 ? "%.0f" : "%.4g", value);
    return text;
}

/// A duration in nanoseconds as milliseconds: "1.25 ms".
COLLPROBE_COLD_INLINE std::string milliseconds(double nanoseconds) { return short_number(nanoseconds / 1e6) + " ms"; }

namespace detail {

/// The name of a call or a value: "'wte'".
COLLPROBE_COLD_INLINE std::string quoted_name(const call_site& site)
{
    return '\'' + collprobe::detail::printable(collprobe::detail::short_name(site.name)) + '\'';
}

/// The name of a source file without its folders, and the line: "train.cpp:88".
COLLPROBE_COLD_INLINE std::string short_line(const call_site& site)
{
    const std::string_view file = site.file;
    const std::size_t folder = file.find_last_of("/\\");
    return std::string(folder == file.npos ? file : file.substr(folder + 1)) + ':' + std::to_string(site.line);
}

} // namespace detail

/// A call of a step: "bucket 1", with its name or, without one, the line that made it: "bucket 1 'wte'",
/// "bucket 1 (train.cpp:88)".
COLLPROBE_COLD_INLINE std::string describe_call(int call, const call_site& site)
{
    const std::string text = "bucket " + std::to_string(call);
    if (site.name[0] != '\0') return text + ' ' + detail::quoted_name(site);
    return site.line == 0 ? text : text + " (" + detail::short_line(site) + ")";
}

namespace detail {

/// The place of a finding in its step: that of a call, the name of a value, or "whole step".
COLLPROBE_COLD_INLINE std::string describe_place(int call, const call_site& site)
{
    if (call >= 0) return describe_call(call, site);
    return site.name[0] != '\0' ? quoted_name(site) : std::string("whole step");
}

/// The text with `word(name)` in place of each "{name}".
template <class Word>
std::string filled(std::string_view text, const Word& word)
{
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t open = text.find('{', at);
        out += text.substr(at, open - at);
        if (open == text.npos) break;
        const std::size_t close = text.find('}', open);
        out += word(text.substr(open + 1, close - open - 1));
        at = close + 1;
    }
    return out;
}

/// "its loss", "the norm of a gradient"; the number of a finding, or of the evidence over a run.
COLLPROBE_COLD_INLINE std::string number_in_words(finding_kind what, int call, bool has_rank)
{
    return filled(facts_of(what).number, [&](std::string_view word) {
        return word == "its" ? (has_rank ? "its" : "a") : call < 0 ? " whole" : "";
    });
}

/// For numbers that stand for names.
COLLPROBE_COLD_INLINE std::uint64_t hash_of_text(std::string_view text) noexcept
{
    std::uint64_t hash = 0;
    for (const char each : text) {
        hash = collprobe::detail::mix64(hash + 0x9e3779b97f4a7c15u + static_cast<unsigned char>(each));
    }
    return hash;
}

COLLPROBE_COLD_INLINE std::string with_commas(std::uint64_t value)
{
    std::string text = std::to_string(value);
    for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
    return text;
}

/// A number of a record that is a count, as an integer: 0 where it is NaN or negative, the largest where it is beyond.
COLLPROBE_COLD_INLINE std::uint64_t count_of(double number) noexcept
{
    if (is_nan(number) || !(number > 0)) return 0;
    return number < 0x1p64 ? static_cast<std::uint64_t>(number) : ~std::uint64_t{0};
}

/// A count with two significant digits, rounded down: "340,000", "12"; beyond 10^15 "1.2e+20".
COLLPROBE_COLD_INLINE std::string round_count(double value)
{
    if (!(value < 1e15)) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1e", value);
        return is_finite(value) ? text : short_number(value);
    }
    std::uint64_t whole = count_of(value);
    std::uint64_t unit = 1;
    while (whole / unit >= 100) unit *= 10;
    return with_commas(whole / unit * unit);
}

/// "1 step", "2 steps"
COLLPROBE_COLD_INLINE std::string counted(std::uint64_t number, const char* thing)
{
    return std::to_string(number) + ' ' + thing + (number == 1 ? "" : "s");
}

/// Whether a finding rests on the odds of a whole run, and so does its rate.
inline bool is_by_odds(const finding& found) noexcept
{
    return found.what == finding_kind::unlike && to_bits(found.statistic) == to_bits(found.evidence.odds);
}

/// A weight that is known within a bound: "0", "1/8" or "3" where it may be that, else "0.1437".
COLLPROBE_COLD_INLINE std::string weight_text(double weight, double bound)
{
    using collprobe::detail::absolute;
    if (!is_finite(weight) || !is_finite(bound) || absolute(weight) >= 1e6) return short_number(weight);
    if (absolute(weight) <= bound) return "0";
    const auto is_near = [&](double value) { return absolute(weight - value) <= bound; };
    const bool is_large = absolute(weight) > 0.75;
    const double size = absolute(is_large ? weight : 1 / weight);
    if (size >= 1e6 || bound > 0.1 * absolute(weight)) return short_number(weight);
    const auto whole = static_cast<std::uint64_t>(size + 0.5);
    const double sign = weight < 0 ? -1 : 1;
    const auto number = static_cast<double>(whole);
    if (!is_near(sign * (is_large ? number : 1 / number))) return short_number(weight);
    return std::string(weight < 0 ? "-" : "") + (is_large ? "" : "1/") + std::to_string(whole);
}

/// The mean loss with each rank weighted by its tokens (`step_observation::weight`). NaN by bits if the ranks' mean is
/// the same to five digits.
constexpr double loss_of_tokens(const step_record& record) noexcept
{
    const double weighted = record.loss_weighted.mean;
    const double mean = record.loss.mean;
    const double limit = 1e-5 * collprobe::detail::absolute(mean);
    const bool differs = is_finite(weighted) && is_finite(mean)
        && (weighted - mean > limit || mean - weighted > limit);
    return differs ? weighted : collprobe::detail::not_a_number();
}

/// "the mean loss over ranks is 6, over tokens 9.2: the ranks have unequal tokens"; empty if the two are the same.
COLLPROBE_COLD_INLINE std::string loss_text(const step_record& record)
{
    const double weighted = loss_of_tokens(record);
    if (is_nan(weighted)) return "";
    return "the mean loss over ranks is " + short_number(record.loss.mean) + ", over tokens " + short_number(weighted)
        + ": the ranks have unequal tokens";
}

/// "a step would be 12 ms shorter if rank 3 came with the next"; empty if that is not known, or nothing.
COLLPROBE_COLD_INLINE std::string gain_text(const step_record& record, int rank)
{
    const auto at = static_cast<std::size_t>(rank);
    if (rank < 0 || at >= record.lateness_by_rank.size()) return "";
    const double gain = record.lateness_by_rank[at].gain;
    if (!is_finite(gain) || !(gain > 0)) return "";
    return "a step would be " + milliseconds(gain) + " shorter if rank " + std::to_string(rank) + " came with the next";
}

/// Who came last to the calls of the step, and what that costs; empty if nobody stands out.
COLLPROBE_COLD_INLINE std::string lateness_text(const step_record& record)
{
    const step_lateness& late = record.lateness;
    if (!late.stands_out) return "";
    const std::string rank = "rank " + std::to_string(late.last);
    std::string text = "last to the calls: " + rank + " came " + milliseconds(late.behind)
        + " after the median of the other ranks; they waited for it";
    if (const std::string gain = gain_text(record, late.last); !gain.empty()) text += "; " + gain;
    return text;
}

/// "rank 3", "ranks 1, 2 and 5", of more than `most` ranks the first ones and the number of the others.
COLLPROBE_COLD_INLINE std::string list_ranks(const std::vector<int>& ranks, std::size_t most = 10)
{
    const std::size_t count = ranks.size();
    std::string text = count == 1 ? "rank " : "ranks ";
    const std::size_t shown = count < most ? count : most;
    for (std::size_t i = 0; i < shown; ++i) {
        if (i > 0) text += i + 1 == count ? " and " : ", ";
        text += std::to_string(ranks[i]);
    }
    if (count > most) text += " and " + std::to_string(count - most) + " others";
    return text;
}

/// The ranks of a finding; without any "some rank", or as its kind has it.
COLLPROBE_COLD_INLINE std::string subject(finding_kind what, const std::vector<int>& ranks)
{
    return ranks.empty() ? facts_of(what).subject : list_ranks(ranks);
}

/// The advice in words: "resync from rank 0".
COLLPROBE_COLD_INLINE std::string advise(const finding& raised)
{
    if (raised.action == advice::resync && raised.source >= 0)
        return "resync from rank " + std::to_string(raised.source);
    return name_list<advice::quarantine>{"note it", "look closer, or repeat the step", "drop the step's update",
        "resync from elsewhere: no rank is known to hold what is right", "take out of the job"}[raised.action];
}

using collprobe::detail::utf8_text;

} // namespace detail

/// A call without a place in the step: "all_reduce 'wte' (4,096 elements of float, train.cpp:88)".
COLLPROBE_COLD_INLINE std::string describe(const call_form& call)
{
    std::string text = name(call.call);
    if (call.site.name[0] != '\0') {
        const std::string named = collprobe::detail::printable(collprobe::detail::short_name(call.site.name));
        if (named.rfind(text + '#', 0) == 0) return named; // of a preloaded program: it says all
        text += ' ' + detail::quoted_name(call.site);
    }
    text += " (" + detail::with_commas(call.count) + " elements of " + name(call.type);
    if (call.site.line != 0) text += ", " + detail::short_line(call.site);
    return text + ')';
}

/// "since step 30 without all_reduce 'wte' (4,096 elements of float), made in all 30 steps before"
COLLPROBE_COLD_INLINE std::string describe(const missing_call& of)
{
    const std::string before
        = (of.steps == 1 ? std::string("the step") : "all " + detail::counted(of.steps, "step")) + " before";
    const std::string since = "since step " + detail::with_commas(of.since);
    if (of.calls == 0) {
        return since + " the calls of " + name(of.call.call) + " have " + detail::with_commas(of.call.count) + ' '
            + name(of.call.type) + " elements less than in " + before;
    }
    if (of.calls == 1) return since + " without " + describe(of.call) + ", made in " + before;
    return since + " without " + detail::counted(of.calls, "call") + ", made in " + before + "; the largest is "
        + describe(of.call);
}

/// The advice that goes with a verdict on quantisation; empty if there is none.
COLLPROBE_COLD_INLINE std::string quantisation_advice(const call_quantisation& of)
{
    // The mean crest of Gaussian blocks of 32, 64, ..., 1024 elements.
    constexpr double gaussian[] = {2.347, 2.596, 2.828, 3.044, 3.248, 3.442};
    std::size_t doublings = 0;
    while (doublings < 5 && 32u << doublings < of.outcome.block) ++doublings;
    switch (of.verdict) {
    case quantisation_verdict::corrupt: return "not an error of codes: check links and memory";
    case quantisation_verdict::non_finite_hidden:
        return "the optimiser does not see that the step is bad: skip it";
    case quantisation_verdict::biased:
        return of.coherence > 1.5 ? "the ranks' errors are alike: round stochastically"
                                  : "round stochastically, or feed the errors back";
    case quantisation_verdict::harmful:
        if (of.nonfinite == 0 && of.nonfinite_results != 0) return "sums overflow: scale the gradients down";
        [[fallthrough]];
    case quantisation_verdict::degenerate_blocks:
        return of.crest > 1.2 * gaussian[doublings] ? "heavy tails: rotate, or halve the block"
                                                    : "a format with more bits for this call";
    case quantisation_verdict::negligible:
        return of.noise_ratio < 1e-3 && of.outcome.across == code_format::int8 ? "fewer bits may do" : "";
    case quantisation_verdict::visible:
    case quantisation_verdict::unknown: break;
    }
    return "";
}

/// Evidence over the run in words: "the norm of its gradient was the largest in 37 steps since step 1,204; 1 : 340,000
/// against chance". That is: if the ranks were alike, any of them would reach such odds in the whole run with a
/// probability of at most 1 in 340,000.
COLLPROBE_COLD_INLINE std::string describe(const rank_evidence& of)
{
    std::string text = detail::number_in_words(of.metric, of.call, true);
    text += of.among > 1 ? " was among the " + std::to_string(of.among) + ' ' : std::string(" was the ");
    text += name(of.side);
    if (of.side == rank_side::farthest) text += " from the others'";
    if (of.side == rank_side::nearest) text += " to the others'";
    text += " in " + detail::counted(of.extreme, "step") + " since step " + detail::with_commas(of.since) + "; ";
    // Late in a run the odds of the whole run begin low, and the evidence that forgets says more.
    if (of.odds >= 1) text += "1 : " + detail::round_count(of.odds) + " against chance";
    if (of.odds >= 100 || !(of.recurrence > of.odds)) return text;
    if (of.odds >= 1) text += ", and ";
    return text + "chance does so once in " + detail::round_count(of.recurrence) + " steps";
}

/// A number of a step that is unlike those of the others, in words: "its loss, 3.1, is 1.1 above the 2 expected from
/// the other ranks; the largest such difference in the last 384 steps was 0.2". `has_rank`: it is known whose it is.
COLLPROBE_COLD_INLINE std::string describe(const unusual_number& of, finding_kind what, int call, bool has_rank)
{
    std::string text = detail::number_in_words(what, call, has_rank);
    const auto shown = [what](double number) {
        return what == finding_kind::late ? milliseconds(number) : short_number(number);
    };
    const double difference = of.value - of.expected;
    text += ", " + shown(of.value) + ", is " + shown(collprobe::detail::absolute(difference));
    text += std::string(difference < 0 ? " below" : " above") + " the " + shown(of.expected)
        + " expected from the other ranks; the largest such difference in the last "
        + detail::counted(of.steps, "step") + " was " + shown(of.usual_difference);
    if (of.is_new_level)
        text += "; so since step " + detail::with_commas(of.since) + ", and not told again while it stays there";
    return text;
}

} // namespace collprobe::report
