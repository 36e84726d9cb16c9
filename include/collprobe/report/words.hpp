// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/printable.hpp>
#include <collprobe/report/metric.hpp>

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
COLLPROBE_COLD_INLINE std::string milliseconds(double nanoseconds)
{
    return short_number(nanoseconds / 1e6) + " ms";
}

/// A call of a step: "bucket 1", with its name or, without one, the line that made it: "bucket 1 'wte'",
/// "bucket 1 (train.cpp:88)".
std::string describe_call(int call, const call_site& site);

/// What a finding says of the ranks that it names, or of all: "held other bits of a result than the other ranks".
COLLPROBE_COLD_INLINE const char* phrase(finding what, bool has_ranks = true) noexcept
{
    switch (what) {
    case finding::non_finite: return "sent NaN or infinity";
    case finding::duplicate: return "sent the data of another rank";
    case finding::stale: return "sent the data that it had sent last";
    case finding::result_differs: return "held other bits of a result than the other ranks";
    case finding::shard_differs: return "held other bits of a shard than its owner sent";
    case finding::value_differs: return "held another value than the other ranks, where all must have the same";
    case finding::sum_differs: return "received a result that is not the sum of the inputs";
    case finding::loss: return "had a loss that stands out";
    case finding::gradient_norm: return "had a gradient norm that stands out";
    case finding::cosine: return "had a gradient in a direction that stands out";
    case finding::late: return "came later to the calls than usual";
    case finding::quantisation: return "lost too much by quantisation";
    case finding::codes_differ: return "received other codes than were sent";
    case finding::unlike: return "was unlike the other ranks over many steps";
    case finding::weights: return "entered the average with another weight than is expected";
    case finding::largest_magnitude: return "had a gradient element whose size stands out";
    case finding::overflow: return "received NaN or infinity as the result of finite inputs";
    case finding::zeros: return "sent zeros only, where others did not";
    case finding::call_missing: return "left out calls that all steps before had";
    case finding::other_call: return "made another call than the other ranks";
    case finding::value_repeats:
        return has_ranks ? "held the value of another rank, where each must have its own"
                         : "together did not draw the samples that are expected";
    case finding::norm_differs: return "computed a gradient norm that is not that of the reduced gradient";
    case finding::unexplained: return "received a result, a part of which comes from no rank's input";
    }
    return "was named";
}

namespace detail {

/// The place of a finding in its step: that of a call, the name of a value, or "whole step".
std::string describe_place(int call, const call_site& site);

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

/// For numbers that stand for names.
COLLPROBE_COLD_INLINE std::uint64_t hash_of_text(std::string_view text) noexcept
{
    std::uint64_t hash = 0;
    for (const char each : text) {
        hash = collprobe::detail::mix64(hash + 0x9e3779b97f4a7c15u + static_cast<unsigned char>(each));
    }
    return hash;
}

/// A count with two significant digits, rounded down: "340,000", "12"; beyond 10^15 "1.2e+20".
std::string round_count(double value);

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

/// "1 step", "2 steps"
COLLPROBE_COLD_INLINE std::string counted(std::uint64_t number, const char* thing)
{
    return std::to_string(number) + ' ' + thing + (number == 1 ? "" : "s");
}

/// What lengths prove (`suspect::by_length`): "a length of 22.6, and the inputs together at most 8.1".
COLLPROBE_COLD_INLINE std::string length_text(finding what, double statistic, double threshold)
{
    if (what == finding::shard_differs)
        return "the squares of the results off by " + short_number(100 * statistic) + " %";
    return "a length of " + short_number(statistic) + ", and the inputs together at most " + short_number(threshold);
}

/// Whether a suspect or an alarm rests on the odds of a whole run, and so does its rate.
template <class Found>
bool is_by_odds(const Found& found) noexcept
{
    return found.what == finding::unlike && to_bits(found.statistic) == to_bits(found.evidence.odds);
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

/// "the mean loss over ranks is 6, over tokens 9.2: the ranks have unequal tokens"; empty if the two are the same.
COLLPROBE_COLD_INLINE std::string loss_text(const step_record& record)
{
    const double weighted = loss_of_tokens(record);
    if (is_nan(weighted)) return "";
    return "the mean loss over ranks is " + short_number(record.loss.mean) + ", over tokens " + short_number(weighted)
        + ": the ranks have unequal tokens";
}

/// "8 ranks have NaN or infinity; most ranks have had it since step 12, so the weights have it"
COLLPROBE_COLD_INLINE std::string spread_text(double ranks, std::uint64_t since)
{
    return with_commas(count_of(ranks))
        + " ranks have NaN or infinity; most ranks have had it since step " + with_commas(since)
        + ", so the weights have it";
}

/// What was seen, of a finding that has no number to compare with those of other ranks; else empty.
std::string fact_text(finding what, double statistic, double threshold, std::uint64_t index, bool has_rank,
    const unusual_number& number, const call_form& other, int other_rank = -1);
inline std::string fact_text(const suspect& of, std::uint64_t index)
{
    return fact_text(of.what, of.statistic, of.threshold, index, of.rank >= 0, of.number, of.other, of.other_rank);
}
inline std::string fact_text(const alarm_record& of, std::uint64_t index = no_index)
{
    return fact_text(of.what, of.statistic, of.threshold, index, !of.ranks.empty(), of.number, of.other);
}
/// Whether NaN or infinity is all that most ranks have, since `unusual_number::since`.
template <class Found>
bool is_of_spread(const Found& found) noexcept
{
    return found.what == finding::non_finite && found.number.is_new_level;
}
/// The subject of a finding without a rank: "some rank"; "the ranks" or "most ranks" where it is of all or most.
template <class Found>
const char* unnamed(const Found& found) noexcept
{
    switch (found.what) {
    case finding::overflow:
    case finding::call_missing:
    case finding::value_repeats:
    case finding::norm_differs:
    case finding::unexplained: return "the ranks";
    default: return is_of_spread(found) ? "most ranks" : "some rank";
    }
}

/// "rank 3", "ranks 1, 2 and 5", of more than ten ranks the first ten and the number of the others; or `unnamed`.
COLLPROBE_COLD_INLINE std::string list_named(const alarm_record& raised)
{
    constexpr std::size_t most = 10;
    const std::size_t count = raised.ranks.size();
    if (count == 0) return unnamed(raised);
    std::string text = count == 1 ? "rank " : "ranks ";
    const std::size_t shown = count < most ? count : most;
    for (std::size_t i = 0; i < shown; ++i) {
        if (i > 0) text += i + 1 == count ? " and " : ", ";
        text += std::to_string(raised.ranks[i]);
    }
    if (count > most) text += " and " + std::to_string(count - most) + " others";
    return text;
}

/// The advice in words: "resync from rank 0".
COLLPROBE_COLD_INLINE std::string advise(const alarm_record& raised)
{
    switch (raised.action) {
    case advice::none: return "note it";
    case advice::recheck: return "look closer, or repeat the step";
    case advice::skip: return "drop the step's update";
    case advice::resync:
        if (raised.source < 0) return "resync from elsewhere: no rank is known to hold what is right";
        return "resync from rank " + std::to_string(raised.source);
    case advice::quarantine: return "take out of the job";
    }
    return "unknown";
}

using collprobe::detail::utf8_text;

} // namespace detail

COLLPROBE_COLD_INLINE std::string detail::describe_place(int call, const call_site& site)
{
    if (call >= 0) return describe_call(call, site);
    return site.name[0] != '\0' ? quoted_name(site) : std::string("whole step");
}

COLLPROBE_COLD_INLINE std::string describe_call(int call, const call_site& site)
{
    const std::string text = "bucket " + std::to_string(call);
    if (site.name[0] != '\0') {
        return text + ' ' + detail::quoted_name(site);
    }
    if (site.line == 0) return text;
    return text + " (" + detail::short_line(site) + ")";
}

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

/// Evidence over the run in words: "the norm of its gradient was the largest in 37 steps since step 1,204; 1 : 340,000
/// against chance". That is: if the ranks were alike, any of them would reach such odds in the whole run with a
/// probability of at most 1 in 340,000.
COLLPROBE_COLD_INLINE std::string describe(const rank_evidence& of)
{
    std::string text;
    switch (of.metric) {
    case finding::loss: text = "its loss"; break;
    case finding::gradient_norm:
        text = of.call < 0 ? "the norm of its whole gradient" : "the norm of its gradient";
        break;
    case finding::cosine: text = "the cosine of its gradient with the others'"; break;
    case finding::non_finite: text = "its share of NaN and infinities"; break;
    case finding::late: text = "its arrival at the calls"; break;
    default: text = name(of.metric); break;
    }
    const char* const place = of.metric == finding::late ? "last" : name(of.side);
    text += of.among > 1 ? " was among the " + std::to_string(of.among) + ' ' : std::string(" was the ");
    text += place;
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
COLLPROBE_COLD_INLINE std::string describe(const unusual_number& of, finding what, int call, bool has_rank)
{
    const std::string its = has_rank ? "its" : "a";
    std::string text;
    switch (what) {
    case finding::loss: text = its + " loss"; break;
    case finding::gradient_norm: text = "the norm of " + its + (call < 0 ? " whole gradient" : " gradient"); break;
    case finding::largest_magnitude: text = "the largest element of " + its + " gradient"; break;
    case finding::cosine: text = "the cosine of " + its + " gradient with the others'"; break;
    case finding::late: text = "the delay of " + its + (has_rank ? " arrival" : "n arrival"); break;
    default: text = its + ' ' + name(what); break;
    }
    const auto shown = [what](double number) {
        return what == finding::late ? milliseconds(number) : short_number(number);
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

namespace detail {

COLLPROBE_COLD_INLINE std::string fact_text(finding what, double statistic, double threshold, std::uint64_t index,
    bool has_rank, const unusual_number& number, const call_form& other, int other_rank)
{
    const bool is_digest = collprobe::detail::absolute(number.value) >= 0x1p53; // its digits say nothing to people
    const std::string since = "since step " + with_commas(number.since);
    std::string text;
    switch (what) {
    case finding::overflow:
        text = "the inputs are finite, and " + counted(count_of(statistic), "element")
            + " of the result" + (statistic > 1 ? " are" : " is") + " NaN or infinite";
        if (index != no_index) text += ", the first at index " + std::to_string(index);
        return text
            + (threshold > 1 ? ": these inputs cannot overflow, so the reduction or the memory of its result is damaged"
                             : ": the reduction leaves the range of its type; scale the inputs down, or reduce in a "
                               "wider type");
    case finding::value_differs:
        if (!has_rank)
            return "the ranks have " + counted(count_of(statistic), "different value") + ", " + since;
        if (is_digest) return "has another value than most ranks, " + since;
        if (const std::string own = short_number(number.value), most = short_number(number.expected); own != most)
            return "has " + own + ", most ranks have " + most + ", " + since;
        return "has other bits than most ranks, " + since;
    case finding::value_repeats:
        if (!has_rank)
            return "the ranks together have " + counted(count_of(number.value), "sample")
                + ", which are not the " + with_commas(count_of(number.expected))
                + " that are expected, " + since;
        text = other_rank < 0 ? std::string("another rank") : "rank " + std::to_string(other_rank);
        if (is_digest) return "has had the value of " + text + ' ' + since + "; each must have its own";
        return "has had " + short_number(number.value) + ' ' + since + ", as " + text + " has; each must have its own";
    case finding::zeros: return "has sent zeros only, where others have not, " + since;
    case finding::call_missing:
        return describe(
            missing_call{other, number.since, number.steps, static_cast<std::uint32_t>(count_of(statistic))});
    case finding::other_call:
        if (other.count == 0) return "the names of calls or values, or their order, are not the same on all ranks";
        return (has_rank ? "made the call " : "a rank made the call ") + describe(other) + " instead";
    case finding::norm_differs:
        return "the trainer's norm of the gradient, " + short_number(statistic)
            + ", is not that of the reduced gradient, " + short_number(threshold)
            + ": it may be of a shard alone, of the gradient before the reduction, or of a scaled one";
    case finding::unexplained:
        return short_number(100 * statistic)
            + " % of the result comes from no rank's input: micro-batches that were not observed, another gradient, "
              "or noise";
    default: return text;
    }
}

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

} // namespace detail

} // namespace collprobe::report
