// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/checks/judged_step.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Ranks that made another call, where most ranks made the same one.
class places_check {
public:
    explicit places_check(int ranks) : holders_(ranks), is_named_(at_rank(ranks)) {}

    /// Names each rank once, and leaves it out. Precondition: the ranks' places differ.
    COLLPROBE_COLD_INLINE void judge(const judged_step& step)
    {
        find_places_of_most(step);
        is_named_.assign(is_named_.size(), false);
        for (std::size_t b = 0; b < step.calls.size(); ++b) judge_call(step, b);
        for (int r = 0; r < step.ranks(); ++r)
            if (is_named_[at_rank(r)]) step.out.leave_out(r);
    }

private:
    COLLPROBE_COLD_INLINE void find_places_of_most(const judged_step& step)
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
    }
    /// Whether most ranks make, at another place in the step, the call that the rank makes here.
    COLLPROBE_COLD_INLINE bool is_of_another_call(const judged_step& step, int rank, std::uint64_t own) const
    {
        auto at = std::lower_bound(sorted_places_.begin(), sorted_places_.end(), std::pair{own, std::size_t{0}});
        while (at != sorted_places_.end() && at->first == own && step.messages.place(rank, at->second) == own) ++at;
        return at != sorted_places_.end() && at->first == own;
    }
    COLLPROBE_COLD_INLINE void judge_call(const judged_step& step, std::size_t b)
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

/// Whether the values that the ranks told are as expected, and since when they are not.
class values_check {
public:
    explicit values_check(int ranks) : holders_(ranks) {}

    void forget() { broken_.clear(); }

    COLLPROBE_COLD_INLINE void judge(const judged_step& step, view<const expected_value> expected)
    {
        for (std::size_t v = 0; v < expected.size(); ++v) judge_value(step, expected, v);
    }

    /// Completes a value's part of the record, of which `holds` is known. `place`: of the step's values.
    COLLPROBE_COLD_INLINE void remember_since(
        std::size_t value, function_ref<std::uint64_t(std::size_t)> place, std::uint64_t step, expectation_record& of)
    {
        const std::uint64_t own = place(value);
        bool is_known = !of.holds;
        for (const broken_value& each : broken_) is_known = is_known || each.place == own;
        if (!is_known) return;
        std::size_t order = 0; // of the values with this name, as in a loop over all weights
        for (std::size_t v = 0; v < value; ++v) order += place(v) == own ? 1 : 0;
        auto known = broken_.begin();
        while (known != broken_.end() && (known->place != own || known->order != order)) ++known;
        if (of.holds) {
            if (known != broken_.end()) broken_.erase(known);
            return;
        }
        constexpr std::size_t most = 1024;
        if (known == broken_.end()) {
            if (broken_.size() == most) broken_.clear();
            broken_.push_back({own, order, step});
            of.since = step;
            return;
        }
        of.since = known->since;
    }

private:
    COLLPROBE_COLD_INLINE void judge_value(const judged_step& step, view<const expected_value> expected, std::size_t v)
    {
        const auto told_by = [&](int rank) -> const told_value& { return step.messages.values(rank)[v]; };
        expectation_record& of = step.out.expectations[v];
        of.site = expected[v].site;
        of.what = expected[v].what;
        of.groups.resize(at_rank(step.ranks()));
        of.values.resize(at_rank(step.ranks()));
        holders_.clear();
        bool same_names = true;
        std::uint64_t digests = 0;
        double samples = 0;
        for (int r = 0; r < step.ranks(); ++r) {
            const told_value& told = told_by(r);
            holders_.add(told.digest, r);
            of.values[at_rank(r)] = told.value;
            digests += told.digest;
            samples += told.value;
            same_names = same_names && told.place == told_by(0).place;
        }
        for (int r = 0; r < step.ranks(); ++r) of.groups[at_rank(r)] = holders_.find(told_by(r).digest).first_rank;
        const int distinct = holders_.distinct();
        const sample_set& whole = expected[v].whole;
        const auto expected_samples = static_cast<double>(whole.count);
        switch (of.what) {
        case expectation::equal: of.holds = distinct == 1; break;
        case expectation::distinct: of.holds = distinct == step.ranks(); break;
        case expectation::partition:
            of.holds = digests == whole.digest && absolute(samples - expected_samples) < 0.5;
            break;
        }
        of.holds = of.holds && same_names;
        remember_since(
            v, [&](std::size_t u) { return step.messages.values(0)[u].place; }, step.out.step, of);
        if (!same_names) {
            finding found{.what = finding_kind::other_call, .site = of.site};
            for (const expected_value& each : expected)
                if (each.place() == told_by(0).place) found.site = each.site;
            step.out.add(std::move(found));
            return;
        }
        if (of.holds) return;
        const bool is_equal = of.what == expectation::equal;
        const digest_index::group* const most = is_equal ? holders_.majority() : nullptr;
        finding found{.what = is_equal ? finding_kind::value_differs : finding_kind::value_repeats, .site = of.site};
        found.number = {.value = samples, .expected = expected_samples, .since = of.since};
        found.statistic = distinct;
        if (of.what == expectation::partition || (is_equal && most == nullptr)) {
            step.out.add(std::move(found));
            return;
        }
        for (int r = 0; r < step.ranks(); ++r) {
            const digest_index::group& own = holders_.find(told_by(r).digest);
            if (is_equal ? &own == most : own.ranks == 1) continue;
            found.ranks = {r};
            found.other_rank = is_equal ? most->first_rank : own.first_rank;
            found.number.value = of.values[at_rank(r)];
            found.number.expected = of.values[at_rank(found.other_rank)];
            step.out.add(found);
        }
    }

    struct broken_value {
        std::uint64_t place;
        std::size_t order; // among the values at this place
        std::uint64_t since;
    };

    digest_index holders_;
    std::vector<broken_value> broken_; // those that did not hold when they were told last
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
