// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/finding_kind.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/names.hpp>

/// What a check found in a step, with its evidence.
namespace collprobe::inline COLLPROBE_ABI {

/// The place of a rank's number among those of the other ranks.
enum class rank_side : std::uint8_t {
    largest,
    smallest,
    farthest, ///< from the median of the other ranks
    nearest, ///< to the median of the other ranks
};

template <>
inline constexpr auto names_of<rank_side> = name_list<rank_side::nearest>{"largest", "smallest", "farthest", "nearest"};

/// The evidence, over the steps of a run, that a rank is not like the others: metrics/exchangeability.hpp.
struct rank_evidence {
    /// The number with the strongest evidence: `loss`, `gradient_norm`, `cosine`, `non_finite` (the share of such
    /// elements) or `late`.
    finding_kind metric = finding_kind::loss;
    int call = -1; ///< index of the call in the step; -1: the whole step
    rank_side side = rank_side::largest; ///< where the rank's number lies among those of the ranks
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

    bool operator==(const rank_evidence&) const = default;
};

/// The number by which a rank, or the pair of two ranks, is unlike the others in a step. In the number's own units.
struct unusual_number {
    double value = 0; ///< the rank's
    double expected = 0; ///< from the median of the others, and the rank's usual distance from it
    double usual_difference = 0; ///< the largest difference of any rank in the last `steps` steps
    std::uint32_t steps = 0; ///< that it is compared with
    /// The rank has a new level `since` that step, and is not named again while it stays there. Of `non_finite`: most
    /// ranks have had NaN or infinity since then, and the step tells it once for all ranks and calls.
    bool is_new_level = false;
    std::uint64_t since = 0;
};

/// A call as it is told where it has no index in the step.
struct call_form {
    collective call = collective::all_reduce; ///< its kind
    element_type type = element_type::float32; ///< of its elements
    std::uint64_t count = 0; ///< elements
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

/// What a check found in a step, with the evidence: of the ranks of which it says the same. `alarms` tells findings
/// anew as it acts on them: there the evidence is the strongest of the ranks. Equal on all ranks, but for source lines.
struct finding {
    std::vector<int> ranks = {}; ///< that the check names, ascending; empty: it found an error, but not who has it
    /// `duplicate`, `value_repeats`: the lowest rank that holds the same, one of `ranks`; `shard_differs`: the owner of
    /// the shard; `codes_differ`: the sender of a damaged message to the rank; `weights`, `unexplained`: the lowest
    /// rank with the result, if ranks hold different ones; `value_differs`: the lowest one that is right; else -1.
    int other_rank = -1;
    int call = -1; ///< index of the call in the step, -1 for the whole step
    finding_kind what = finding_kind::non_finite; ///< its kind
    double statistic = 0; ///< the measured value: a distance, or a count for exact checks
    double threshold = 0; ///< the limit of the statistic; 0 where equal bits are asked for
    std::uint64_t index = no_index; ///< first bad element, if known
    bool exact = true; ///< neither chance nor rounding can explain it
    /// Of `sum_differs` and `shard_differs`: proven by the lengths of inputs and result alone (`call_record::excess`).
    /// The statistic is the length of the sum, or how far the squares are off, relative to them.
    bool by_length = false;
    /// The largest rate at which a healthy step has such a finding, if the check itself states one; else 0. Of a number
    /// in a step the rate at which healthy steps have one so unlike, in any number and rank; `alarms` asks for less. Of
    /// `unlike` by its odds: the chance that a healthy run of any length has one. Of `sum_differs` an estimate that
    /// takes roundings for independent, which they are not where one rank is far larger than the others. Beyond
    /// 4 * ranks * threshold no rounding is, and the finding is `exact`: audit/conservation_bound.md.
    double false_alarms_per_step = 0;
    call_site site = {}; ///< of the call, its name, and the line that made it; or of the value
    rank_evidence evidence = {}; ///< of `unlike`
    /// Of a number (`is_of_number`); of `zeros` and `call_missing` its `since` and `steps`; of values (`is_of_value`).
    unusual_number number = {};
    /// Of `call_missing` and `other_call`. The name of its site is what an `of_part` says the statistic is: "elements
    /// beyond the clip".
    call_form other = {};
    std::uint64_t step = 0; ///< the number of its step
    damage where = damage::unknown; ///< the place of the damage, as far as it is known
    advice action = advice::none; ///< what to do first
    int source = -1; ///< of an alarm, for `resync`: a rank that holds the right data

    double strength() const noexcept { return detail::absolute(statistic) / (threshold > 0 ? threshold : 1); }
    bool is_named() const noexcept { return !ranks.empty(); }
    int rank() const noexcept { return ranks.empty() ? -1 : ranks.front(); } ///< the lowest; -1: none
    bool names(int of) const noexcept { return std::binary_search(ranks.begin(), ranks.end(), of); }
    void add(int next)
    {
        const auto place = std::lower_bound(ranks.begin(), ranks.end(), next);
        if (place == ranks.end() || *place != next) ranks.insert(place, next);
    }

    /// Sets what follows from its kind. `audited`: the damage that an audit found in the call, or `none`.
    void settle(damage audited)
    {
        const finding_facts& facts = facts_of(what);
        if (facts.how == certainty::statistical) exact = false;
        where = (what == finding_kind::unlike ? facts_of(evidence.metric) : facts).place.of(is_named());
        if (facts.is_of_result) where = is_named() ? damage::broadcast : damage::unknown;
        if (facts.is_of_result && audited != damage::none) where = audited;
        action = facts.action.of(is_named());
        if (!exact && action > advice::recheck) action = advice::recheck;
        // A shard that its owner sent wrong is right on no rank.
        if (action == advice::resync && rank() >= 0 && rank() == other_rank) action = advice::skip;
    }
};

namespace detail {

/// Whether two findings of one kind are of the same call; or of the whole step, and of the same value, missing call or
/// check of a part if of any.
inline bool is_same_place(const finding& a, const finding& b) noexcept
{
    return a.call == b.call && (a.call >= 0 || std::strcmp(a.site.name, b.site.name) == 0)
        && ((a.what != finding_kind::call_missing && a.what != finding_kind::of_part) || is_same(a.other, b.other));
}

/// Whether two findings say the same, but for the ranks.
inline bool says_same(const finding& a, const finding& b) noexcept
{
    const auto is_owner = [](const finding& of) {
        return of.what == finding_kind::shard_differs && of.rank() == of.other_rank;
    };
    const auto is_same_number = [](const unusual_number& x, const unusual_number& y) { // NaN is like NaN
        return to_bits(x.value) == to_bits(y.value) && to_bits(x.expected) == to_bits(y.expected)
            && to_bits(x.usual_difference) == to_bits(y.usual_difference) && x.steps == y.steps
            && x.is_new_level == y.is_new_level && x.since == y.since;
    };
    return a.what == b.what && is_same_place(a, b) && a.other_rank == b.other_rank && is_owner(a) == is_owner(b)
        && to_bits(a.statistic) == to_bits(b.statistic) && to_bits(a.threshold) == to_bits(b.threshold)
        && a.index == b.index && a.exact == b.exact && a.by_length == b.by_length && is_same_number(a.number, b.number)
        && a.evidence == b.evidence && is_same(a.other, b.other);
}

/// The largest number of ranks to name. More ranks do not fail independently; they have a common cause. NCCL's RAS
/// prints its outliers by the same rule.
constexpr int blame_limit(int ranks) noexcept { return ranks < 8 ? 1 : ranks < 40 ? ranks / 4 : 10; }

} // namespace detail

} // namespace collprobe
