// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/checks/check_context.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Whether the values that the ranks told are as expected, and since when they are not.
class expectations_check {
public:
    explicit expectations_check(int ranks) : holders_(ranks) {}

    void forget() { broken_.clear(); }

    /// Of value `v`.
    COLLPROBE_COLD_INLINE void judge(const check_context& step, view<const expected_value> expected, std::size_t v)
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
    struct broken_value {
        std::uint64_t place;
        std::size_t order; // among the values at this place
        std::uint64_t since;
    };

    digest_index holders_;
    std::vector<broken_value> broken_; // those that did not hold when they were told last
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
