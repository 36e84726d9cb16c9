// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/gather_verdict.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A rank's finding about one audited collective that is not judged by shards.
struct audit_finding {
    std::uint64_t digest; ///< of what it received
    conservation_result sum; ///< not `checked` if the call was no sum, or a value was not finite
};

/// The record of a call in which nothing was found.
inline call_audit& begin_audit(call_record& call)
{
    call_audit& out = call.audit;
    call.results_agree = out.checked = out.majority = out.conserved = true;
    out.sum_checked = false;
    out.residual = out.residual_limit = 0;
    out.bins = 0;
    out.where = damage::none;
    out.culprits.clear();
    return out;
}

/// Adds the verdict on an all-gather's shards, which is already equal on all ranks.
inline void judge_gather_audit(
    const gather_verdict& verdict, int call_index, call_record& call, std::vector<finding>& findings)
{
    call_audit& out = begin_audit(call);
    call.results_agree = out.majority = verdict.intact();
    if (verdict.intact()) return;
    out.culprits = verdict.culprits();
    bool owners = false;
    bool receivers = false;
    finding found{
        .call = call_index, .what = finding_kind::shard_differs, .statistic = static_cast<double>(verdict.damaged)};
    for (const int rank : out.culprits) {
        for (std::uint32_t i = 0; i < verdict.listed; ++i) {
            const damaged_shard& shard = verdict.shard[i];
            const bool by_owner = shard.culprit == gather_culprit::owner;
            if (shard.culprit == gather_culprit::unknown || (by_owner ? shard.owner : shard.receiver) != rank) continue;
            (by_owner ? owners : receivers) = true;
            found.ranks = {rank};
            found.other_rank = shard.owner;
            add_finding(findings, found);
            break;
        }
    }
    if (out.culprits.empty()) findings.push_back(found);
    out.where = owners == receivers ? damage::unknown : owners ? damage::input : damage::broadcast;
}

/// Decides from all ranks' findings about one collective what was damaged. Every rank runs it on the same findings.
///
///     all hold the same bits, which are the sum       nothing
///     all hold the same bits, which are not the sum   the reduction: no rank can be named
///     some hold other bits, and one group of ranks    the way of the result to the others, which are named; also
///       holds the sum, or most hold the same            with two ranks, if the sum shows which of them is right
///     anything else                                   unknown
///
/// The sum has priority over the majority. Damage smaller than rounding is not seen in the sum; such groups count as
/// right, and the majority decides between them. If a rank could not check its sum while others could, it received a
/// value that is not finite although all inputs are finite.
class audit_judge {
public:
    explicit audit_judge(int ranks) : holders_(ranks), has_the_sum_(static_cast<std::size_t>(ranks)) {}

    /// `entries`: one per rank, for the call with index `call_index`, which all ranks should have in common.
    void judge(
        view<const audit_finding> entries, int call_index, call_record& call, std::vector<finding>& findings)
    {
        call_audit& out = begin_audit(call);
        const std::size_t n = entries.size();
        std::size_t conserved = 0;
        for (const audit_finding& entry : entries) {
            if (!entry.sum.checked) continue;
            out.sum_checked = true;
            if (entry.sum.conserved) ++conserved;
            if (entry.sum.residual > out.residual) out.residual = entry.sum.residual;
            if (entry.sum.limit > out.residual_limit) out.residual_limit = entry.sum.limit;
        }
        // An observed result may be weighted on purpose: `settle_observed` asks its weights.
        if (call.is_observed && conserved == 0) out.sum_checked = false;
        out.conserved = !out.sum_checked || conserved == n;

        std::uint64_t right = 0;
        if (!group_of_right_ranks(entries, call, right)) {
            out.where = damage::unknown;
            findings.push_back({.call = call_index,
                .what = finding_kind::result_differs,
                .statistic = static_cast<double>(holders_.distinct())});
        } else if (!call.results_agree) {
            out.where = damage::broadcast;
            for (std::size_t r = 0; r < n; ++r) {
                if (entries[r].digest == right) continue;
                out.culprits.push_back(static_cast<int>(r));
            }
            findings.push_back({.ranks = out.culprits, .call = call_index, .what = finding_kind::result_differs,
                .statistic = 1});
        }
        // A rank that holds the sum shows that the reduction was right; ranks with other bits were named above.
        if (call.results_agree && !out.conserved) {
            // All hold the same bits. If only some find them wrong, the ranks got different sums of checksums.
            out.where = conserved == 0 ? damage::reduce : damage::unknown;
            findings.push_back({.call = call_index,
                .what = finding_kind::sum_differs,
                .statistic = out.residual,
                .threshold = out.residual_limit});
        }
        if (!call.results_agree && out.where == damage::broadcast) out.conserved = true;
    }

private:
    /// Returns whether the right digest is known. Sets `results_agree` and `majority`.
    bool group_of_right_ranks(view<const audit_finding> entries, call_record& call, std::uint64_t& right)
    {
        holders_.clear();
        for (std::size_t r = 0; r < entries.size(); ++r) holders_.add(entries[r].digest, static_cast<int>(r));
        const digest_index::group* const most = holders_.majority();
        call.results_agree = holders_.distinct() == 1;
        call.audit.majority = most != nullptr;
        if (call.results_agree) return true;
        // A group has the sum if one rank of it says so: a rank that received damaged checksums denies it wrongly.
        has_the_sum_.assign(has_the_sum_.size(), false);
        for (const audit_finding& entry : entries) {
            if (!entry.sum.checked || !entry.sum.conserved) continue;
            has_the_sum_[static_cast<std::size_t>(holders_.find(entry.digest).first_rank)] = true;
        }
        int groups_with_the_sum = 0;
        for (std::size_t r = 0; r < entries.size(); ++r) {
            if (!has_the_sum_[r]) continue;
            ++groups_with_the_sum;
            right = entries[r].digest;
        }
        if (groups_with_the_sum == 1) return true;
        if (most == nullptr) return false;
        right = most->digest;
        return !call.audit.sum_checked || has_the_sum_[static_cast<std::size_t>(most->first_rank)];
    }

    digest_index holders_;
    std::vector<bool> has_the_sum_; ///< by the first rank of the group
};

} // namespace collprobe::detail
