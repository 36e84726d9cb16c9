// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/outlier.hpp>

/// What the findings of a step mean: where the damage is, what to do. No state.
namespace collprobe::inline COLLPROBE_ABI::detail {

inline constexpr int check_count = static_cast<int>(finding::cosine) + 1;

/// Checks that need several strikes.
constexpr bool is_statistical(finding what) noexcept
{
    return what == finding::loss || what == finding::gradient_norm || what == finding::cosine;
}

/// More ranks than this do not fail one by one: what they have in common is at fault. The rule by which NCCL's RAS
/// prints its outliers, at most a quarter of the ranks and at most ten; one rank is never too many.
constexpr int blame_limit(int ranks) noexcept { return ranks < 8 ? 1 : ranks < 40 ? ranks / 4 : 10; }

/// Where the damage is, as the table of evidence has it (results that differ: after the sum; a wrong sum that all
/// hold: in it; neither: before). `audited` is what the audit attributed the call to, none if it did not.
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
    }
    return damage::unknown;
}

/// What to do the first time.
constexpr advice first_advice(const suspect& found) noexcept
{
    switch (found.what) {
    case finding::non_finite:
    case finding::stale: return advice::skip;
    case finding::sum_differs: return found.exact ? advice::skip : advice::recheck;
    case finding::duplicate: return advice::recheck;
    case finding::result_differs: // with no majority nobody knows the right one: all drop it
        return found.rank >= 0 ? advice::resync : advice::skip;
    case finding::shard_differs: // what an owner sent wrong is wrong at all: nobody holds the right one
        return found.rank >= 0 && found.rank != found.other_rank ? advice::resync : advice::skip;
    case finding::replica_differs: return advice::resync;
    case finding::loss:
    case finding::gradient_norm:
    case finding::cosine: return advice::recheck;
    }
    return advice::none;
}

/// Whether a rank that this names again and again is to be taken out. (Equal data do not tell whose they are.)
constexpr bool is_blame(finding what) noexcept { return what != finding::duplicate && what != finding::sum_differs; }

/// By what a score against a rank's own past must exceed its threshold to be 1000 times rarer than the threshold is, even if
/// it has the tails of Student's t of 5 degrees.
inline constexpr double strong_history = 4;
/// The same of a score over n ranks: with few ranks its own tail is heavier.
inline double strong_excess(int ranks, double p) noexcept
{
    if (ranks < 3) return strong_history;
    const double ratio = outlier_cutoff(ranks, p * 1e-3) / outlier_cutoff(ranks, p);
    return ratio > strong_history ? ratio : strong_history;
}
/// How much stronger where suspects are more frequent than was assumed: again 100 times rarer with such tails.
inline constexpr double strong_heavy = 2.5;

} // namespace collprobe::detail
