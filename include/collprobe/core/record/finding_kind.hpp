// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include <collprobe/detail/names.hpp>

/// The kinds of findings: all that is known of a kind is its row in `finding_kinds`.
namespace collprobe::inline COLLPROBE_ABI {

/// The question that a check answers: `finding_kinds` has the answers.
enum class finding_kind : std::uint8_t {
    non_finite, duplicate, stale, result_differs, shard_differs, value_differs, sum_differs, loss, gradient_norm,
    cosine, late, quantisation, codes_differ, unlike, weights, largest_magnitude, overflow, zeros, call_missing,
    other_call, value_repeats, norm_differs, unexplained, of_part,
};

/// The place between inputs and results where the damage happened, as far as the checks show it.
enum class damage : std::uint8_t {
    none, ///< no check has fired, or none of data
    input, ///< a rank's own data, before the collective
    reduce, ///< the sum, alike for all ranks
    broadcast, ///< the result on its way to some ranks, or in their memory
    duplicated_data, ///< ranks have the same data and should have their own
    unknown, ///< there is damage, and the evidence does not show where
};

template <>
inline constexpr auto names_of<damage> = name_list<damage::unknown>{"none", "input", "reduce", "broadcast",
    "duplicated_data", "unknown"};

/// The action that a finding advises.
enum class advice : std::uint8_t {
    none, ///< take note
    recheck, ///< repeat the step, or look closer: the evidence is statistical
    skip, ///< drop the step's update
    resync, ///< restore the ranks from another one
    quarantine, ///< take the rank out: it was at fault, or unlike the others, in many steps. Only `alarms` says so.
};

template <>
inline constexpr auto names_of<advice> = name_list<advice::quarantine>{"none", "recheck", "skip", "resync",
    "quarantine"};

/// Whether chance or rounding may explain a finding.
enum class certainty : std::uint8_t { exact, statistical, of_finding /**< `finding::exact` says it */ };

/// What a kind says with ranks, and what without.
template <class T>
struct by_naming {
    constexpr by_naming(T both) : named(both), unnamed(both) {}
    constexpr by_naming(T with_ranks, T without) : named(with_ranks), unnamed(without) {}
    constexpr T of(bool is_named) const noexcept { return is_named ? named : unnamed; }

    T named;
    T unnamed;
};

/// A row of the table of kinds.
struct finding_facts {
    finding_kind kind;
    const char* name; ///< in JSON, tables and metrics
    by_naming<const char*> sentence; ///< what the ranks did
    const char* subject = "some rank"; ///< of the sentence, where no rank is named
    /// What was seen, behind the sentence; may be empty. report/detail/evidence_text.hpp fills in what is in braces.
    by_naming<const char*> evidence = "";
    certainty how = certainty::exact;
    by_naming<damage> place = damage::unknown;
    /// Where the results differ: an audit says more of the place. Without one: their way to the ranks that are named.
    bool is_of_result = false;
    by_naming<advice> action = advice::recheck; ///< of an exact finding; of another one at most `recheck`
    /// Exact findings in many steps are reason to take the rank out. Not so of `duplicate` (equal bits do not show
    /// their owner), codes by their coherence (the caller chose them), `weights` (a rank does not set its own) and
    /// `value_differs` (it does so until somebody sets it).
    bool may_blame = false;
    /// A number of the ranks in a step, in words; also of the evidence over a run.
    const char* number = "";
    bool is_of_number = false; ///< judges such a number in a step: a stated rate, and `finding::number`
    bool is_of_value = false; ///< judges a value of `expect_equal` and its sisters
};

/// All kinds, in the order of their enumerators. A new kind has a row here, and a check that finds it.
/// The meaning of `finding::statistic`, `threshold` and `index` is said where it is not plain.
inline constexpr finding_facts finding_kinds[] = {
    // NaN or infinity in the rank's loss or buffer (statistic: elements). Without a rank: most ranks have had it for
    // two steps or longer (statistic: ranks).
    {.kind = finding_kind::non_finite, .name = "non_finite", .sentence = "sent NaN or infinity",
        .subject = "most ranks",
        .evidence = {"in {elements}{first}", "{count} ranks; most have done so {since}, so the weights have it"},
        .place = {damage::input, damage::unknown}, .action = {advice::skip, advice::resync}, .may_blame = true,
        .number = "{its} share of NaN and infinities"},
    {.kind = finding_kind::duplicate, .name = "duplicate", .sentence = "sent the data of another rank",
        .evidence = "the same bits as {other}", .place = damage::duplicated_data},
    // The buffer has the bits of the last such call, and those of at least half of the ranks that send have not. A
    // shard of an all-gather is told once, when it stops to change.
    {.kind = finding_kind::stale, .name = "stale", .sentence = "sent the same data as in the last such call",
        .place = damage::input, .action = advice::skip, .may_blame = true},
    // Without a rank no result has a majority.
    {.kind = finding_kind::result_differs, .name = "result_differs",
        .sentence = "held other bits of a result than the other ranks",
        .evidence = {"", "which bits are right is not known"},
        .is_of_result = true, .action = {advice::resync, advice::skip}, .may_blame = true},
    // Without a rank: what all received together is not what was sent.
    {.kind = finding_kind::shard_differs, .name = "shard_differs",
        .sentence = "held other bits of a shard than its owner sent", .evidence = {"the shard of {from}", ""},
        .is_of_result = true, .action = {advice::resync, advice::skip}, .may_blame = true},
    // Without a rank no value has a majority (statistic: values).
    {.kind = finding_kind::value_differs, .name = "value_differs",
        .sentence = "held another value than the other ranks, where all must have the same",
        .evidence = {"{value}{since}", "{count} different values, {since}"},
        .action = advice::resync, .is_of_value = true},
    // The result is not the sum of the inputs: exact for integers and by length.
    {.kind = finding_kind::sum_differs, .name = "sum_differs",
        .sentence = "received a result that is not the sum of the inputs", .evidence = "residual {statistic}{limit}",
        .how = certainty::of_finding, .is_of_result = true, .action = advice::skip},
    // A number of the rank is unlike those of the others in this step: this one, the next three, `largest_magnitude`.
    // Statistic and threshold are on the scale of metrics/outlier.hpp.
    {.kind = finding_kind::loss, .name = "loss", .sentence = "had a loss that stands out", .evidence = "{number}",
        .how = certainty::statistical, .place = {damage::input, damage::unknown}, .number = "{its} loss",
        .is_of_number = true},
    {.kind = finding_kind::gradient_norm, .name = "gradient_norm", .sentence = "had a gradient norm that stands out",
        .evidence = "{number}", .how = certainty::statistical, .place = {damage::input, damage::unknown},
        .number = "the norm of {its}{whole} gradient", .is_of_number = true},
    {.kind = finding_kind::cosine, .name = "cosine", .sentence = "had a gradient in a direction that stands out",
        .evidence = "{number}", .how = certainty::statistical, .place = {damage::input, damage::unknown},
        .number = "the cosine of {its} gradient with the others'", .is_of_number = true},
    // Arrival at the calls after the median of the others, in ns. The data are right.
    {.kind = finding_kind::late, .name = "late", .sentence = "came later to the calls than usual",
        .evidence = "{number}", .how = certainty::statistical, .place = damage::none, .action = advice::none,
        .number = "{its} delay at the calls", .is_of_number = true},
    // Quantisation harmed the call, or hid something: `call_quantisation`. Index: of the rank's worst block.
    {.kind = finding_kind::quantisation, .name = "quantisation", .sentence = "lost too much by quantisation",
        .evidence = "{statistic}{limit}{block}", .how = certainty::of_finding, .place = damage::reduce,
        .action = advice::none},
    // Codes came otherwise than they were sent to the rank (statistic: pairs of ranks). Without a rank: the result has
    // an error that no roundings to codes can have.
    {.kind = finding_kind::codes_differ, .name = "codes_differ", .sentence = "received other codes than were sent",
        .evidence = {"those of {from}",
            "the result is off by more than codes can be, coherence {statistic}{limit}"},
        .place = {damage::unknown, damage::reduce}, .action = advice::skip, .may_blame = true},
    // Unlike the others over many steps, for any distribution: `finding::evidence`. Told once. Statistic and
    // threshold: `odds`, or `recurrence`. Without a rank: two ranks, or groups of them, are unlike each other.
    {.kind = finding_kind::unlike, .name = "unlike", .sentence = "was unlike the other ranks over many steps",
        .evidence = "{evidence}", .how = certainty::statistical, .place = {damage::input, damage::unknown}},
    // Other weights in an average than are expected: `call_weights`. Statistic: the rank's, or the one that is
    // farthest off, in units of a mean's; threshold: the bound of its error.
    {.kind = finding_kind::weights, .name = "weights",
        .sentence = "entered the average with another weight than is expected",
        .evidence = {"{in result}{weight} times that of a mean", "{in result}{weights}"},
        .how = certainty::statistical, .place = damage::reduce},
    {.kind = finding_kind::largest_magnitude, .name = "largest_magnitude",
        .sentence = "had a gradient element whose size stands out", .evidence = "{number}",
        .how = certainty::statistical, .place = {damage::input, damage::unknown},
        .number = "the largest element of {its} gradient", .is_of_number = true},
    // The result of a reduction has NaN or infinity (statistic: elements), and no input has. Rank: whose part of a
    // reduce-scatter it is. Threshold, if above 1: how many times larger the inputs may be.
    {.kind = finding_kind::overflow, .name = "overflow",
        .sentence = "received NaN or infinity as the result of finite inputs", .subject = "the ranks",
        .evidence = "{elements}{first}; {cause}",
        .place = damage::reduce, .action = advice::skip},
    // Zeros only, in the whole gradient or in one call, where others have not. Told once, after 16 such steps in which
    // the rank did not tell the weight 0, and after twice as many as the longest such time that has ended.
    {.kind = finding_kind::zeros, .name = "zeros", .sentence = "sent zeros only, where others did not",
        .evidence = "{since}", .place = damage::input},
    // No call `finding::other`, which all of `number.steps` steps before had. Statistic: `missing_call::calls`.
    {.kind = finding_kind::call_missing, .name = "call_missing",
        .sentence = "left out calls that all steps before had", .subject = "the ranks", .evidence = "{missing}",
        .place = damage::none},
    // Where most ranks made the call of this index, the rank made `finding::other`.
    {.kind = finding_kind::other_call, .name = "other_call", .sentence = "made another call than the other ranks",
        .evidence = "{form}", .place = damage::input, .action = advice::skip},
    // The value of another rank, where each must have its own. Without a rank: a partition that does not hold.
    {.kind = finding_kind::value_repeats, .name = "value_repeats",
        .sentence = {"held the value of another rank, where each must have its own",
            "together did not draw the samples that are expected"},
        .subject = "the ranks",
        .evidence = {"{value}{since}", "{samples}, not {expected}, {since}"},
        .place = {damage::duplicated_data, damage::none}, .is_of_value = true},
    // The norm of the gradient that the trainer computed (statistic) is not that of the step's results (threshold).
    {.kind = finding_kind::norm_differs, .name = "norm_differs",
        .sentence = "computed a gradient norm that is not that of the reduced gradient", .subject = "the ranks",
        .evidence = "{statistic}, not {threshold}: it may be of a shard alone, of the gradient before the reduction, "
                    "or of a scaled one",
        .place = damage::none},
    // A part of the result is of no input. Statistic: its share of the norm; threshold: what is allowed of it.
    {.kind = finding_kind::unexplained, .name = "unexplained",
        .sentence = "received a result, a part of which comes from no rank's input", .subject = "the ranks",
        .evidence = "{in result}{percent} % of it: micro-batches that were not observed, another gradient, or noise",
        .how = certainty::statistical, .place = damage::reduce},
    // A part of the caller's own says so (step/part.hpp), of a rank in a call: the name of `finding::other`, statistic
    // and limit.
    {.kind = finding_kind::of_part, .name = "of_part", .sentence = "did not pass a check of the program's own",
        .evidence = "{says}{statistic}{limit}", .how = certainty::of_finding},
};

static_assert([] {
    std::size_t index = 0;
    for (const finding_facts& each : finding_kinds)
        if (static_cast<std::size_t>(each.kind) != index++) return false;
    return index == static_cast<std::size_t>(finding_kind::of_part) + 1;
}(), "each kind has its row, in the order of the enumerators");

/// The row of a kind. Precondition: it is one.
constexpr const finding_facts& facts_of(finding_kind what) noexcept
{
    return finding_kinds[static_cast<std::size_t>(what)];
}

constexpr const char* name(finding_kind what) noexcept
{
    return static_cast<std::size_t>(what) < std::size(finding_kinds) ? facts_of(what).name : "unknown";
}

/// Whether a check judges a number of the ranks in a step: statistical, with a stated rate.
constexpr bool is_of_number(finding_kind what) noexcept { return facts_of(what).is_of_number; }

/// Whether `probe_options` state the rate at which healthy steps, or runs, have it.
constexpr bool is_of_rate(finding_kind what) noexcept { return is_of_number(what) || what == finding_kind::unlike; }

/// Whether a check judges a value that `probed::expect_equal` or `expect_distinct` told. `unusual_number` has the value
/// of the rank, that of most ranks (or the one that it repeats), and the first step.
constexpr bool is_of_value(finding_kind what) noexcept { return facts_of(what).is_of_value; }

} // namespace collprobe
