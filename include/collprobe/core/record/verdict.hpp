// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/detail/names.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The question a verdict answers.
enum class finding : std::uint8_t {
    non_finite, ///< NaN or infinity in the rank's buffer: exact
    /// The rank sends the same bits as another rank: exact. All ranks that do are named, because equal bits do not show
    /// which rank they belong to.
    duplicate,
    /// The rank's buffer has the same bits as when it made this call last, and those of at least half of the ranks have
    /// not: exact.
    stale,
    result_differs, ///< ranks received different bits from a collective that gives all ranks the same: exact
    /// A rank received other bits of a shard than the shard's owner sent: exact. Without a rank: what all ranks
    /// together received by a call that only moves data is not what was sent (`suspect::by_length`).
    shard_differs,
    /// A rank has another value than most ranks of what must be equal (`expect_equal`): exact. The site has its name.
    value_differs,
    /// The result is not the sum of the inputs: exact for integers and by length, else statistical (`suspect::exact`).
    sum_differs,
    /// This, the next three and `largest_magnitude`: a number of the rank is unlike those of the others in this step.
    /// Statistical, with a stated false-alarm rate. `unusual_number` has the number; statistic and threshold are on the
    /// scale of metrics/outlier.hpp.
    loss,
    gradient_norm,
    cosine, ///< leave-one-out cosine
    late, ///< arrival at the calls after the median of the others, in ns
    /// Quantisation harmed the call, or hid something: `call_quantisation` has the verdict and the numbers. Statistic
    /// and threshold: those of the verdict. Index: the first element of the rank's worst block.
    quantisation,
    /// Messages of codes came otherwise than they were sent. Rank: the receiver. Statistic: pairs of ranks with damaged
    /// messages. Without a rank: the result has an error that no roundings to codes can have. Statistic: its coherence,
    /// and the threshold is its limit.
    codes_differ,
    /// The rank is unlike the others over many steps: `rank_evidence` says in what, since when, and how surely. Holds
    /// for any distribution. Told once. Statistic and threshold: `rank_evidence::odds`, or `recurrence`, whichever is
    /// further above its limit. Without a rank: two ranks, or groups of ranks, are unlike each other.
    unlike,
    /// The ranks entered an average with weights that are not expected: `call_weights` has them. Rank: the only one
    /// that was lost or doubled. Statistic: its weight (or the one that is farthest off) in units of the mean's;
    /// threshold: the bound of its error.
    weights,
    largest_magnitude, ///< as `loss`: of the elements that the rank sent
    /// The result of a reduction has NaN or infinity, and no input has: exact. Statistic: elements; index: the first
    /// one. Rank: whose part of a reduce-scatter it is. Threshold: 0; or, if no reduction of these inputs leaves the
    /// range of the type, so that the result is damaged, how many times larger they may be.
    overflow,
    /// The rank has sent zeros only since `unusual_number::since`, in the whole gradient or in one call, where others
    /// have not: exact. Told once, after 16 such steps (`unusual_number::steps`) in which it did not tell the weight 0,
    /// and after twice as many as the longest such time that has ended, of any rank and call.
    zeros,
    /// The step has no call `suspect::other`, which `unusual_number::steps` steps before it had, all of them: exact.
    /// Statistic: `missing_call::calls`.
    call_missing,
    /// Where most ranks made the call `suspect::call`, the rank made `suspect::other`: exact.
    other_call,
    value_repeats, ///< the rank has the value of another rank, where each must have its own: exact
    /// The norm of the gradient that the trainer computed (statistic) is not that of the step's results (threshold).
    norm_differs,
    /// A part of the result is of no input: the share of its norm (statistic) is above what rounding explains by more
    /// than `threshold`. Micro-batches that are not in the input, another gradient, noise.
    unexplained,
};

constexpr const char* name(finding what) noexcept
{
    return detail::name_of<finding::unexplained>(what,
        {"non_finite", "duplicate", "stale", "result_differs", "shard_differs", "value_differs", "sum_differs",
            "loss", "gradient_norm", "cosine", "late", "quantisation", "codes_differ", "unlike", "weights",
            "largest_magnitude", "overflow", "zeros", "call_missing", "other_call", "value_repeats", "norm_differs",
            "unexplained"});
}

/// The place of a rank's number among those of the other ranks.
enum class rank_side : std::uint8_t {
    largest,
    smallest,
    farthest, ///< from the median of the other ranks
    nearest, ///< to the median of the other ranks
};

constexpr const char* name(rank_side side) noexcept
{
    return detail::name_of<rank_side::nearest>(side, {"largest", "smallest", "farthest", "nearest"});
}

/// The evidence, over the steps of a run, that a rank is not like the others: metrics/exchangeability.hpp.
struct rank_evidence {
    /// The number with the strongest evidence: `loss`, `gradient_norm`, `cosine`, `non_finite` (the share of such
    /// elements) or `late`.
    finding metric = finding::loss;
    int call = -1; ///< index of the call in the step; -1: the whole step
    rank_side side = rank_side::largest;
    /// 1 : `odds` against chance. In a run of any length, alike ranks reach such odds with a probability of at most
    /// 1 / `odds`. 0: nothing is known.
    double odds = 0;
    /// Alike ranks reach such evidence once in so many steps on average, or less often. It forgets, and so sees late
    /// changes sooner than `odds`.
    double recurrence = 0;
    std::uint64_t since = 0; ///< the step in which this evidence began
    std::uint32_t extreme = 0; ///< steps since then in which the rank was among the `among` at this side
    std::uint32_t among = 1; ///< an eighth of the ranks, at least 1
    bool unlike = false; ///< named, and the evidence still lasts
};

/// The number by which a rank, or the pair of two ranks, is unlike the others in a step. In the number's own units.
struct unusual_number {
    double value = 0;
    double expected = 0; ///< from the median of the others, and the rank's usual distance from it
    double usual_difference = 0; ///< the largest difference of any rank in the last `steps` steps
    std::uint32_t steps = 0;
    /// The rank has a new level `since` that step, and is not named again while it stays there. Of `non_finite`: most
    /// ranks have had NaN or infinity since then, and the step tells it once for all ranks and calls.
    bool is_new_level = false;
    std::uint64_t since = 0;
};

/// A call as it is told where it has no index in the step.
struct call_form {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0;
    call_site site = {}; ///< its name, or the line that made it; neither is known of calls of other processes
};

/// Whether both tell of one call. Names and files are compared by their addresses.
constexpr bool is_same(const call_form& a, const call_form& b) noexcept
{
    return a.call == b.call && a.type == b.type && a.count == b.count && a.site.name == b.site.name
        && a.site.file == b.site.file && a.site.line == b.site.line;
}

/// Calls that a step does not make, and steps before it did.
struct missing_call {
    call_form call = {}; ///< the largest of them; without `calls` the form, and the elements that are less
    std::uint64_t since = 0; ///< step
    std::uint64_t steps = 0; ///< before it: all of its kind since the first one with the call
    std::uint32_t calls = 1; ///< 0: there are other calls instead, with less elements together
};

/// One rank that a check names, with the evidence.
struct suspect {
    int rank = -1; ///< -1: the check found an error, but not the rank that has it
    /// `duplicate`: the lowest other rank that holds the same; `shard_differs`: the owner of the shard;
    /// `codes_differ`: the sender of a damaged message to the rank; `weights`, `unexplained`: the lowest rank with the
    /// result, if ranks hold different ones; else -1.
    int other_rank = -1;
    int call = -1; ///< index of the call in the step, -1 for the whole step
    finding what = finding::non_finite;
    double statistic = 0; ///< the measured value: a distance, or a count for exact checks
    double threshold = 0; ///< the limit of the statistic; 0 where equal bits are asked for
    std::uint64_t index = no_index; ///< first bad element, if known
    bool exact = true; ///< neither chance nor rounding can explain it
    /// Of `sum_differs` and `shard_differs`: proven by the lengths of inputs and result alone (`call_record::excess`).
    /// The statistic is the length of the sum, or how far the squares are off, relative to them.
    bool by_length = false;
    /// The largest rate at which a healthy step has such a suspect, if the check itself states one; else 0. Of a number
    /// in a step the rate at which healthy steps have one so unlike, in any number and rank; `alarms` asks for less. Of
    /// `unlike` by its odds: the chance that a healthy run of any length has one. Of `sum_differs` an estimate that
    /// takes roundings for independent. Where one rank is far larger than the others they are not: then healthy sums
    /// have residuals of up to 2.2 sqrt(ranks - 1) times as many deviations. What holds without that: no rounding is
    /// above 4 * ranks * threshold, and beyond it the suspect is `exact`. audit/conservation_bound.md has both.
    double false_alarms_per_step = 0;
    call_site site = {}; ///< of the call: its name, and the line that made it
    rank_evidence evidence = {}; ///< of `unlike`
    /// Of `loss`, `gradient_norm`, `cosine`, `late`, `largest_magnitude`; of `zeros` and `call_missing` its `since` and
    /// `steps`; of values (`is_of_value`).
    unusual_number number = {};
    call_form other = {}; ///< of `call_missing` and `other_call`
};

/// Whether a check judges a number of the ranks in a step: statistical, with a stated rate.
constexpr bool is_of_number(finding what) noexcept
{
    return what == finding::loss || what == finding::gradient_norm || what == finding::cosine || what == finding::late
        || what == finding::largest_magnitude;
}

/// Whether a check judges a value that `probed::expect_equal` or `expect_distinct` told. `unusual_number` has the value
/// of the rank, that of most ranks (or the one that it repeats), and the first step.
constexpr bool is_of_value(finding what) noexcept
{
    return what == finding::value_differs || what == finding::value_repeats;
}

namespace detail {

/// Whether two suspects, or two alarms, of one check are of the same call; or of the whole step, and of the same value
/// or missing call if of any.
template <class Found>
bool is_same_place(const Found& a, const Found& b) noexcept
{
    return a.call == b.call && (a.call >= 0 || std::strcmp(a.site.name, b.site.name) == 0)
        && (a.what != finding::call_missing || is_same(a.other, b.other));
}

/// The largest number of ranks to name. More ranks do not fail independently; they have a common cause. NCCL's RAS
/// prints its outliers by the same rule.
constexpr int blame_limit(int ranks) noexcept { return ranks < 8 ? 1 : ranks < 40 ? ranks / 4 : 10; }

} // namespace detail

/// The place between inputs and results where the damage happened, as far as the checks show it.
enum class damage : std::uint8_t {
    none, ///< no check has fired, or none of data
    input, ///< a rank's own data, before the collective
    reduce, ///< the sum, alike for all ranks
    broadcast, ///< the result on its way to some ranks, or in their memory
    duplicated_data, ///< ranks have the same data and should have their own
    unknown, ///< there is damage, and the evidence does not show where
};

constexpr const char* name(damage where) noexcept
{
    return detail::name_of<damage::unknown>(where,
        {"none", "input", "reduce", "broadcast", "duplicated_data", "unknown"});
}

} // namespace collprobe
