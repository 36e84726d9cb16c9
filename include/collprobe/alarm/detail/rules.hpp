// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/outlier.hpp>

/// The interpretation of a step's findings: the place of the damage, and the advice. No state.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr int check_count = static_cast<int>(finding::weights) + 1;

/// Whether a check needs several strikes.
constexpr bool is_statistical(finding what) noexcept
{
    return what == finding::loss || what == finding::gradient_norm || what == finding::cosine;
}

/// The largest number of ranks to name: a quarter of the ranks, at most ten, and at least one. More ranks do not fail
/// independently; they have a common cause. NCCL's RAS prints its outliers by the same rule.
constexpr int blame_limit(int ranks) noexcept { return ranks < 8 ? 1 : ranks < 40 ? ranks / 4 : 10; }

/// The place of the damage. Results that differ: after the sum. A wrong sum that all ranks hold: in the sum. Neither:
/// before the sum. `audited`: the damage that the audit found in the call; `none` if it found none.
constexpr damage place_of(const suspect& found, damage audited) noexcept
{
    const damage named = found.rank < 0 ? damage::unknown : damage::broadcast;
    switch (found.what) {
    case finding::non_finite:
    case finding::stale: return damage::input;
    case finding::duplicate: return damage::duplicated_data;
    case finding::result_differs:
    case finding::shard_differs: return audited == damage::none ? named : audited;
    case finding::replica_differs: return named;
    case finding::sum_differs: return audited == damage::none ? damage::unknown : audited;
    case finding::loss:
    case finding::gradient_norm:
    case finding::cosine: return found.rank < 0 ? damage::unknown : damage::input;
    case finding::late: return damage::none; // the data are right
    case finding::unlike:
        if (found.evidence.metric == finding::late) return damage::none;
        return found.rank < 0 ? damage::unknown : damage::input;
    case finding::quantisation: return damage::reduce; // or a gather, alike for all ranks
    case finding::codes_differ: // a damaged message is one of terms or of results
        return found.other_rank >= 0 ? damage::unknown : found.rank < 0 ? damage::reduce : damage::broadcast;
    case finding::weights: return damage::reduce; // or in what is done before and behind it
    }
    return damage::unknown;
}

/// The advice for the first finding.
constexpr advice first_advice(const suspect& found) noexcept
{
    switch (found.what) {
    case finding::non_finite:
    case finding::stale: return advice::skip;
    case finding::sum_differs: return found.exact ? advice::skip : advice::recheck;
    case finding::duplicate: return advice::recheck;
    case finding::result_differs: // without a majority the right result is unknown, so all ranks drop it
        return found.rank >= 0 ? advice::resync : advice::skip;
    case finding::shard_differs: // a shard that its owner sent wrong is right on no rank
        return found.rank >= 0 && found.rank != found.other_rank ? advice::resync : advice::skip;
    case finding::replica_differs: return advice::resync;
    case finding::loss:
    case finding::gradient_norm:
    case finding::cosine:
    case finding::unlike: return advice::recheck;
    case finding::codes_differ: return found.rank >= 0 && found.other_rank < 0 ? advice::resync : advice::skip;
    case finding::weights: return advice::recheck;
    case finding::late:
    case finding::quantisation: return advice::none;
    }
    return advice::none;
}

/// Whether a rank that a check names repeatedly is to be taken out. (Equal data do not
/// tell which rank owns them, codes are as coarse as the caller has them, and a rank does not choose its weight.)
constexpr bool is_blame(finding what) noexcept
{
    return what != finding::duplicate && what != finding::sum_differs && what != finding::quantisation
        && what != finding::weights;
}

/// The factor by which a score against a rank's own past must exceed its threshold to be 1000 times rarer than the
/// threshold, even with the tails of Student's t with 5 degrees of freedom.
inline constexpr double strong_history = 4;
/// The same factor for a score over n ranks; with few ranks the score itself has a heavier tail.
inline double strong_excess(int ranks, double p) noexcept
{
    if (ranks < 3) return strong_history;
    const double ratio = outlier_cutoff(ranks, p * 1e-3) / outlier_cutoff(ranks, p);
    return ratio > strong_history ? ratio : strong_history;
}
/// A further factor if suspects are more frequent than assumed: 100 times rarer again with such tails.
inline constexpr double strong_heavy = 2.5;

} // namespace collprobe::detail
