// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/printable.hpp>

/// Numbers and names as every report writes them.
namespace collprobe::inline COLLPROBE_ABI::report {

/// A number with four significant digits, from 10,000 to 10 million to the next whole number; "-" if it is undefined.
std::string short_number(double value);

/// A duration in nanoseconds as milliseconds: "1.25 ms".
std::string milliseconds(double nanoseconds);

/// A call of a step: "bucket 1", with its name or, without one, the line that made it: "bucket 1 'wte'",
/// "bucket 1 (train.cpp:88)".
std::string describe_call(int call, const call_site& site);

/// "since step 30 without all_reduce 'wte' (4,096 elements of float), made in all 30 steps before"
std::string describe(const missing_call& of);

/// A call without a place in the step: "all_reduce 'wte' (4,096 elements of float, train.cpp:88)".
std::string describe(const call_form& call);

/// Evidence over the run in words: "the norm of its gradient was the largest in 37 steps since step 1,204; 1 : 340,000
/// against chance". That is: if the ranks were alike, any of them would reach such odds in the whole run with a
/// probability of at most 1 in 340,000.
std::string describe(const rank_evidence& of);

/// A number of a step that is unlike those of the others, in words: "its loss, 3.1, is 1.1 above the 2 expected from
/// the other ranks; the largest such difference in the last 384 steps was 0.2". `has_rank`: it is known whose it is.
std::string describe(const unusual_number& of, finding what, int call, bool has_rank);

/// What a finding says of the ranks that it names, or of all: "held other bits of a result than the other ranks".
const char* phrase(finding what, bool has_ranks = true) noexcept;

namespace detail {

/// The place of a finding in its step: that of a call, the name of a value, or "whole step".
std::string describe_place(int call, const call_site& site);
/// The name of a call or a value: "'wte'".
std::string quoted_name(const call_site& site);
/// The name of a source file without its folders, and the line: "train.cpp:88".
std::string short_line(const call_site& site);
/// For numbers that stand for names.
std::uint64_t hash_of_text(std::string_view text) noexcept;
/// A count with two significant digits, rounded down: "340,000", "12"; beyond 10^15 "1.2e+20".
std::string round_count(double value);
std::string with_commas(std::uint64_t value);
/// A number of a record that is a count, as an integer: 0 where it is NaN or negative, the largest where it is beyond.
std::uint64_t count_of(double number) noexcept;
/// "1 step", "2 steps"
std::string counted(std::uint64_t number, const char* thing);
/// What lengths prove (`suspect::by_length`): "a length of 22.6, and the inputs together at most 8.1".
std::string length_text(finding what, double statistic, double threshold);
/// Whether a suspect or an alarm rests on the odds of a whole run, and so does its rate.
template <class Found>
bool is_by_odds(const Found& found) noexcept
{
    return found.what == finding::unlike && to_bits(found.statistic) == to_bits(found.evidence.odds);
}
/// A weight that is known within a bound: "0", "1/8" or "3" where it may be that, else "0.1437".
std::string weight_text(double weight, double bound);
/// "the mean loss over ranks is 6, over tokens 9.2: the ranks have unequal tokens"; empty if the two are the same.
std::string loss_text(const step_record& record);
/// "8 ranks have NaN or infinity; most ranks have had it since step 12, so the weights have it"
std::string spread_text(double ranks, std::uint64_t since);
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
std::string list_named(const alarm_record& raised);
/// The advice in words: "resync from rank 0".
std::string advise(const alarm_record& raised);
using collprobe::detail::utf8_text;
/// Text for HTML, within and outside of attributes: escaped; control characters become U+FFFD.
std::string html_text(std::string_view bytes);

} // namespace detail
} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/words.ipp>
#endif
