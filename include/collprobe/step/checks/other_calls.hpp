// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/detail/digest_index.hpp>
#include <collprobe/step/checks/check_context.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Ranks that made another call, where most ranks made the same one.
class other_calls_check {
public:
    explicit other_calls_check(int ranks) : holders_(ranks), is_named_(at_rank(ranks)) {}

    /// Names each rank once, and leaves it out. Precondition: the ranks' places differ.
    COLLPROBE_COLD_INLINE void judge(const check_context& step)
    {
        places_.clear();
        for (std::size_t b = 0; b < step.calls.size(); ++b) {
            holders_.clear();
            for (int r = 0; r < step.ranks(); ++r) holders_.add(step.messages.place(r, b), r);
            const digest_index::group* const most = holders_.majority();
            places_.push_back({most != nullptr ? most->digest : 0, b});
        }
        sorted_places_ = places_;
        std::sort(sorted_places_.begin(), sorted_places_.end());
        is_named_.assign(is_named_.size(), false);
        for (std::size_t b = 0; b < step.calls.size(); ++b) judge_call(step, b);
        for (int r = 0; r < step.ranks(); ++r)
            if (is_named_[at_rank(r)]) step.out.leave_out(r);
    }

private:
    /// Whether most ranks make, at another place in the step, the call that the rank makes here.
    COLLPROBE_COLD_INLINE bool is_of_another_call(const check_context& step, int rank, std::uint64_t own) const
    {
        auto at = std::lower_bound(sorted_places_.begin(), sorted_places_.end(), std::pair{own, std::size_t{0}});
        while (at != sorted_places_.end() && at->first == own && step.messages.place(rank, at->second) == own) ++at;
        return at != sorted_places_.end() && at->first == own;
    }
    COLLPROBE_COLD_INLINE void judge_call(const check_context& step, std::size_t b)
    {
        const std::uint64_t first = step.messages.place(0, b);
        bool differ = false;
        for (int r = 1; r < step.ranks(); ++r) differ = differ || step.messages.place(r, b) != first;
        if (!differ) return;
        const std::uint64_t most = places_[b].first;
        const std::uint64_t expected = most != 0 ? most : first;
        for (int r = 0; r < step.ranks(); ++r) {
            const std::uint64_t own = step.messages.place(r, b);
            if (own == expected || is_named_[at_rank(r)]) continue;
            // Other names are other calls. At another line the same call may be made, unless it is another call's line.
            if (!(is_named(own) && is_named(expected)) && !is_of_another_call(step, r, own)) continue;
            is_named_[at_rank(r)] = true;
            finding found{.call = static_cast<int>(b), .what = finding_kind::other_call};
            if (most != 0) found.ranks = {r};
            found.other = {step.calls[b].call, step.calls[b].type, step.calls[b].count};
            found.site = step.calls[b].site;
            found.site.name = ""; // it may be this rank that has another one
            for (const probed_call& each : step.calls) {
                if (each.place == own) found.other.site = each.site;
                if (each.place == expected) found.site = each.site;
            }
            step.out.findings.push_back(std::move(found)); // not joined: which site is known depends on the rank
            if (most == 0) return;
        }
    }

    digest_index holders_;
    std::vector<bool> is_named_; // by rank
    std::vector<std::pair<std::uint64_t, std::size_t>> places_; // of most ranks, 0 without a majority; and the call
    std::vector<std::pair<std::uint64_t, std::size_t>> sorted_places_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
