// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/math.hpp>

/// What a rank tells of an audited call, and what all ranks conclude from it.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a rank has to say about an audited call.
struct audit_entry {
    std::uint64_t digest = 0; ///< of what it received; 0 of an all-gather whose shards were compared
    union {
        conservation_result sum = {}; ///< not `checked` if the call was no sum, or a value was not finite
        shard_report shards;
    };
};

/// Completes the audit of an observed call, whichever of `audit` and `weight_probe` judges last. Its result may be
/// weighted, so one that is not the plain sum or mean is right if the weights explain it up to rounding, and else not
/// checked. Then the residual of the weights is in place of the audit's, in units of the limits.
COLLPROBE_COLD_INLINE void settle_observed(call_record& call) noexcept
{
    if (!call.is_observed || !call.audit.is_other_sum()) return;
    double worst = 0;
    const auto is_explained = [&worst](const call_weights& of) {
        if (!of.seen || of.weights.empty() || !(of.residual <= of.residual_limit)) return false;
        const double ratio = of.residual_limit > 0 ? of.residual / of.residual_limit : 0;
        worst = ratio > worst ? ratio : worst;
        return true;
    };
    bool all = is_explained(call.weights);
    for (const call_weights& each : call.weights.others) all = all && is_explained(each);
    if (!all) return;
    call.audit.sum_checked = true;
    call.audit.residual = worst * call.audit.residual_limit;
}

/// Decides from all ranks' entries about the audited calls of a step what was damaged: `begin`, then the calls in their
/// order, then `end`. Every rank runs it on the same entries. Precondition: the record is complete but for the audit.
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

    /// The audit's verdict replaces the step's: a rank that holds the correct sum identifies the right result even
    /// without a majority.
    COLLPROBE_COLD_INLINE void begin(step_record& record)
    {
        std::erase_if(record.findings, [](const finding& found) { return found.what == finding_kind::result_differs; });
        first_ = record.findings.size();
    }
    /// Sets how certain the findings of sums are. A residual above the limit is not chance, but unfavourable data can
    /// cause it by rounding alone; one above 4 n times the limit cannot be rounding, of any data. What the step itself
    /// says of results that the audit finds wrong, without a rank, is dropped.
    COLLPROBE_COLD_INLINE void end(step_record& record)
    {
        double bins = 0;
        for (const call_record& call : record.calls) {
            if (call.audit.checked && call.audit.sum_checked) bins += call.audit.bins;
        }
        const double of_a_bin = error_function_complement(conservation_limit * 0.70710678118654752440);
        for (std::size_t i = first_; i < record.findings.size(); ++i) {
            finding& found = record.findings[i];
            if (found.what != finding_kind::sum_differs) continue;
            found.exact = found.statistic > 4.0 * record.ranks * found.threshold;
            found.false_alarms_per_step = bins * of_a_bin;
        }
        // What the lengths prove of a result, the audit says with more detail.
        std::size_t at = 0;
        std::erase_if(record.findings, [&, this](const finding& found) {
            if (at++ >= first_ || !found.by_length) return false;
            bool is_said = false;
            for (std::size_t i = first_; i < record.findings.size(); ++i) {
                finding& own = record.findings[i];
                if (own.call != found.call || own.what != found.what) continue;
                own.exact = is_said = true; // the lengths may prove what the checksum only makes likely
                own.false_alarms_per_step = 0;
            }
            return is_said;
        });
    }

    /// A call that is not judged by shards.
    COLLPROBE_COLD_INLINE void judge_results(view<const audit_entry> entries, int call_index, step_record& record)
    {
        call_record& call = record.calls[static_cast<std::size_t>(call_index)];
        call_audit& out = call.audit;
        out.checked = true;
        const std::size_t n = entries.size();
        std::size_t conserved = 0;
        for (const audit_entry& entry : entries) {
            if (!entry.sum.checked) continue;
            out.sum_checked = true;
            out.residual_limit = conservation_limit;
            out.bins = entry.sum.bins;
            if (entry.sum.conserved) ++conserved;
            if (entry.sum.residual > out.residual) out.residual = entry.sum.residual;
        }
        // An observed result may be weighted on purpose: `settle_observed` asks its weights.
        if (call.is_observed && conserved == 0) out.sum_checked = false;
        out.conserved = !out.sum_checked || conserved == n;
        if (!out.sum_checked) out.bins = 0;

        std::uint64_t right = 0;
        finding found{.call = call_index, .what = finding_kind::result_differs};
        if (!group_of_right_ranks(entries, call, right)) {
            out.where = damage::unknown;
            found.statistic = static_cast<double>(holders_.distinct());
            record.add(std::move(found));
        } else if (!call.results_agree) {
            out.where = damage::broadcast;
            found.statistic = 1;
            for (std::size_t r = 0; r < n; ++r) {
                if (entries[r].digest != right) out.culprits.push_back(static_cast<int>(r));
            }
            found.ranks = out.culprits;
            record.add(std::move(found));
            out.conserved = true; // a rank that holds the sum shows that the reduction was right
        } else if (!out.conserved) {
            // All hold the same bits. If only some find them wrong, the ranks got different sums of checksums.
            out.where = conserved == 0 ? damage::reduce : damage::unknown;
            record.add({.call = call_index,
                .what = finding_kind::sum_differs,
                .statistic = out.residual,
                .threshold = out.residual_limit});
        }
        // Of a reduce-scatter each rank has its own part, so a wrong sum cannot be distinguished from damage behind it.
        const bool is_part = call.call == collective::reduce_scatter;
        if (is_part && out.where == damage::reduce) out.where = damage::unknown;
        // A result that is not finite, of finite inputs, is no sum of theirs, although it could not be checked.
        if ((is_part || call.call == collective::all_reduce) && call.result_nonfinite != 0 && call.nonfinite == 0)
            out.conserved = false;
        if (!out.conserved && out.where == damage::none) out.where = damage::reduce;
    }
    /// An all-gather, by the reports of all receivers. Blamed is a receiver, if its copy of a shard differs while most
    /// ranks hold the owner's bits. The owner, if most receivers, or one receiver and the owner itself, hold the same
    /// wrong bits. With two ranks the two cases cannot be told apart. A report lists its first damaged shards only; a
    /// shard that is not listed counts as right at that receiver.
    COLLPROBE_COLD_INLINE void judge_shards(view<const audit_entry> entries, int call_index, step_record& record)
    {
        constexpr int most_blamed = 16; // shards, by receiver, then owner
        const std::size_t ranks = entries.size();
        call_record& call = record.calls[static_cast<std::size_t>(call_index)];
        call_audit& out = call.audit;
        out.checked = true;
        finding found{.call = call_index, .what = finding_kind::shard_differs};
        for (const audit_entry& each : entries) found.statistic += static_cast<double>(each.shards.wrong);
        call.results_agree = out.majority = !(found.statistic > 0);
        if (call.results_agree) return;
        const std::size_t first = record.findings.size();
        bool owners = false, receivers = false;
        int shards = 0;
        for (std::size_t receiver = 0; receiver < ranks; ++receiver) {
            const shard_report& report = entries[receiver].shards;
            for (std::uint64_t i = 0; i < report.listed() && shards < most_blamed; ++i, ++shards) {
                const auto [owner, digest] = report.first[i];
                std::uint64_t others = 0; // receivers other than the owner with the same wrong bits
                for (std::size_t r = 0; r < ranks; ++r) others += r != owner && entries[r].shards.has(owner, digest);
                const bool is_at_owner = receiver == owner;
                const bool owner_has_it = !is_at_owner && entries[owner].shards.has(owner, digest);
                if (!is_at_owner && !owner_has_it && ranks == 2) continue; // either of them
                const bool by_owner = is_at_owner ? others != 0
                    : owner_has_it || (others >= 2 && 2 * others > ranks - 1);
                const int rank = static_cast<int>(by_owner ? owner : receiver);
                found.other_rank = static_cast<int>(owner);
                if (std::find(out.culprits.begin(), out.culprits.end(), rank) != out.culprits.end()) continue;
                (by_owner ? owners : receivers) = true;
                out.culprits.push_back(rank);
                found.ranks = {rank};
                record.add(found);
            }
        }
        std::sort(out.culprits.begin(), out.culprits.end());
        std::sort(record.findings.begin() + static_cast<std::ptrdiff_t>(first), record.findings.end(),
            [](const finding& a, const finding& b) { return a.rank() < b.rank(); });
        if (out.culprits.empty()) record.add(std::move(found));
        out.where = owners == receivers ? damage::unknown : owners ? damage::input : damage::broadcast;
    }

private:
    /// Returns whether the right digest is known. Sets `results_agree` and `majority`.
    bool group_of_right_ranks(view<const audit_entry> entries, call_record& call, std::uint64_t& right)
    {
        call.results_agree = std::all_of(entries.begin(), entries.end(),
            [first = entries[0].digest](const audit_entry& each) { return each.digest == first; });
        if (call.results_agree) return true;
        holders_.clear();
        for (std::size_t r = 0; r < entries.size(); ++r) holders_.add(entries[r].digest, static_cast<int>(r));
        const digest_index::group* const most = holders_.majority();
        call.audit.majority = most != nullptr;
        // A group has the sum if one rank of it says so: a rank that received damaged checksums denies it wrongly.
        has_the_sum_.assign(has_the_sum_.size(), false);
        for (const audit_entry& entry : entries) {
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
    std::size_t first_ = 0; ///< finding of this audit
};

} // namespace collprobe::detail
