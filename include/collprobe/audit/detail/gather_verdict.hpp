// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>

/// What the ranks find in an all-gather, and the verdict from it.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The rank that the digests of a damaged shard point to.
enum class gather_culprit : std::uint32_t {
    receiver, ///< other ranks hold the owner's bits
    owner, ///< most receivers, or the owner's own copy, hold the same wrong bits: the owner sent them
    unknown, ///< with two ranks: either of them
};

/// A shard whose bits at a receiver differ from its owner's.
struct damaged_shard {
    std::int32_t owner = -1;
    std::int32_t receiver = -1;
    gather_culprit culprit = gather_culprit::unknown;

    friend bool operator==(const damaged_shard&, const damaged_shard&) = default;
};

/// The result of checking an all-gather: all shards at all receivers. Equal on every rank.
struct gather_verdict {
    static constexpr std::uint32_t most_listed = 16;

    std::uint64_t damaged = 0; ///< damaged shards, counted at each receiver
    std::uint32_t receivers = 0; ///< ranks that hold a damaged shard
    std::uint32_t listed = 0;
    damaged_shard shard[most_listed]; ///< the first damaged shards, by receiver, then owner

    bool intact() const noexcept { return damaged == 0; }

    /// The ranks that the listed shards name, ascending; empty if no rank can be named.
    std::vector<int> culprits() const
    {
        std::vector<int> all;
        for (std::uint32_t i = 0; i < listed; ++i) {
            const damaged_shard& each = shard[i];
            if (each.culprit == gather_culprit::unknown) continue;
            all.push_back(each.culprit == gather_culprit::owner ? each.owner : each.receiver);
        }
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
        return all;
    }
};

/// A receiver's report of its shards, as words: how many are wrong, and the first of them.
struct receiver_report {
    static constexpr std::uint64_t most = 3; ///< listed
    static constexpr std::uint64_t words = 1 + 2 * most;
    const std::uint64_t* word;

    std::uint64_t wrong() const noexcept { return word[0]; }
    std::uint64_t listed() const noexcept { return wrong() < most ? wrong() : most; }
    std::uint64_t owner(std::uint64_t i) const noexcept { return word[1 + 2 * i]; }
    std::uint64_t digest(std::uint64_t i) const noexcept { return word[2 + 2 * i]; }
    bool has(std::uint64_t owner_, std::uint64_t digest_) const noexcept
    {
        for (std::uint64_t i = 0; i < listed(); ++i) {
            if (owner(i) == owner_ && digest(i) == digest_) return true;
        }
        return false;
    }
};

/// Compares the digests of the shards that a rank received with those of their owners. A body for `sum_each` with one
/// item; the sum is the number of wrong shards, nearly always 0.
struct compare_shards {
    const std::uint64_t* owners; ///< one digest per rank, at distances of `stride`
    std::uint64_t stride;
    const std::uint64_t* received;
    std::uint64_t ranks;
    std::uint64_t* report;

    COLLPROBE_HD double part(std::uint64_t, unsigned lane, unsigned lanes) const noexcept
    {
        double wrong = 0;
        for (std::uint64_t rank = lane; rank < ranks; rank += lanes) wrong += is_right(rank) ? 0 : 1;
        return wrong;
    }
    COLLPROBE_HD void store(std::uint64_t, double wrong) const noexcept
    {
        for (std::uint64_t i = 1; i < receiver_report::words; ++i) report[i] = 0;
        report[0] = static_cast<std::uint64_t>(wrong);
        if (report[0] == 0) return;
        std::uint64_t listed = 0;
        for (std::uint64_t rank = 0; rank < ranks && listed < receiver_report::most; ++rank) {
            if (is_right(rank)) continue;
            report[1 + 2 * listed] = rank;
            report[2 + 2 * listed] = received[rank];
            ++listed;
        }
    }

private:
    COLLPROBE_HD bool is_right(std::uint64_t rank) const noexcept { return owners[rank * stride] == received[rank]; }
};

/// Blame: a receiver, if its copy differs while most ranks hold the owner's bits. The owner, if most receivers, or one
/// receiver and the owner itself, hold the same wrong bits. With two ranks the two cases cannot be told apart. A report
/// lists its first damaged shards only; a shard that is not listed counts as right at that receiver.
inline gather_culprit culprit_of(
    const std::vector<receiver_report>& reports, std::size_t receiver, std::uint64_t owner, std::uint64_t digest)
{
    const std::size_t ranks = reports.size();
    std::uint64_t others = 0; // receivers other than the owner with the same wrong bits
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (rank != owner && reports[rank].has(owner, digest)) ++others;
    }
    if (receiver == owner) return others != 0 ? gather_culprit::owner : gather_culprit::receiver;
    if (reports[owner].has(owner, digest)) return gather_culprit::owner;
    if (ranks == 2) return gather_culprit::unknown;
    return others >= 2 && 2 * others > ranks - 1 ? gather_culprit::owner : gather_culprit::receiver;
}

/// Makes the verdict from the reports of all receivers, by rank.
inline gather_verdict judge_gather(const std::vector<receiver_report>& reports)
{
    gather_verdict verdict;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        const receiver_report& report = reports[rank];
        verdict.damaged += report.wrong();
        verdict.receivers += report.wrong() != 0 ? 1 : 0;
        for (std::uint64_t i = 0; i < report.listed() && verdict.listed < gather_verdict::most_listed; ++i) {
            verdict.shard[verdict.listed++] = {static_cast<std::int32_t>(report.owner(i)),
                static_cast<std::int32_t>(rank), culprit_of(reports, rank, report.owner(i), report.digest(i))};
        }
    }
    return verdict;
}

} // namespace collprobe::detail
