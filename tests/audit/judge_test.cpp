// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <collprobe/audit/detail/judge.hpp>

using namespace collprobe;

namespace {

using entry = detail::audit_entry;

entry right(std::uint64_t digest) { return {digest, {{.residual = 1, .bin = 0, .bins = 64, .checked = true, .conserved = true}}}; }
entry wrong(std::uint64_t digest) { return {digest, {{.residual = 99, .bin = 3, .bins = 64, .checked = true, .conserved = false}}}; }
entry unchecked(std::uint64_t digest) { return {digest, {{.residual = 0, .bin = 0, .bins = 64, .checked = false, .conserved = true}}}; }

struct judgement {
    call_record call;
    std::vector<finding> findings;
};

constexpr int call_index = 4; // of the call

judgement of(const step_record& record) { return {record.calls[call_index], record.findings}; }
step_record step_of(std::size_t ranks)
{
    step_record record;
    record.ranks = static_cast<int>(ranks);
    record.calls.resize(call_index + 1);
    return record;
}

judgement judge(const std::vector<entry>& entries)
{
    step_record record = step_of(entries.size());
    detail::audit_judge judge(record.ranks);
    judge.begin(record);
    judge.judge_results(entries, call_index, record);
    judge.end(record);
    return of(record);
}

/// A receiver's wrong shards.
entry with_shards(std::uint64_t wrong, std::initializer_list<detail::shard_report::shard> first)
{
    entry made;
    made.shards = {wrong, {}};
    std::copy(first.begin(), first.end(), made.shards.first);
    return made;
}

judgement judge_shards(const std::vector<entry>& entries)
{
    step_record record = step_of(entries.size());
    detail::audit_judge(record.ranks).judge_shards(entries, call_index, record);
    return of(record);
}

using ranks = std::vector<int>;

} // namespace

TEST_CASE("equal bits that are the sum are no damage")
{
    for (std::size_t n = 1; n <= 5; ++n) {
        const judgement found = judge(std::vector<entry>(n, right(7)));
        CHECK(found.call.results_agree);
        CHECK(found.call.audit.majority);
        CHECK(found.call.audit.conserved);
        CHECK(found.call.audit.where == damage::none);
        CHECK(found.call.audit.residual == 1);
        CHECK(found.call.audit.residual_limit == 8);
        CHECK(found.findings.empty());
    }
}

TEST_CASE("equal bits that are not the sum were damaged in the reduction, and nobody is named")
{
    const judgement found = judge({wrong(7), wrong(7), wrong(7)});
    CHECK(found.call.results_agree);
    CHECK_FALSE(found.call.audit.conserved);
    CHECK(found.call.audit.where == damage::reduce);
    CHECK(found.call.audit.culprits.empty());
    REQUIRE(found.findings.size() == 1);
    CHECK(found.findings[0].what == finding_kind::sum_differs);
    CHECK(found.findings[0].rank() == -1);
    CHECK(found.findings[0].call == call_index);
    CHECK(found.findings[0].statistic == 99);
    CHECK(found.findings[0].threshold == 8);
}

TEST_CASE("who holds other bits than the majority is named, with or without a sum")
{
    for (const entry good : {right(7), unchecked(7)}) {
        for (const entry bad : {right(8), wrong(8), unchecked(8)}) {
            if (!good.sum.checked && bad.sum.checked) continue; // then most received a NaN: see below
            const judgement found = judge({good, bad, good, good});
            CHECK_FALSE(found.call.results_agree);
            CHECK(found.call.audit.majority);
            CHECK(found.call.audit.conserved);
            CHECK(found.call.audit.where == damage::broadcast);
            CHECK(found.call.audit.culprits == ranks{1});
            REQUIRE(found.findings.size() == 1);
            CHECK(found.findings[0].what == finding_kind::result_differs);
            CHECK(found.findings[0].rank() == 1);
        }
    }
}

TEST_CASE("the sum tells which of two ranks is right")
{
    CHECK(judge({right(7), wrong(8)}).call.audit.culprits == ranks{1});
    CHECK(judge({wrong(7), right(8)}).call.audit.culprits == ranks{0});
    CHECK(judge({unchecked(7), right(8)}).call.audit.culprits == ranks{0}); // it received a NaN
    CHECK(judge({wrong(7), right(8)}).call.audit.where == damage::broadcast);
    CHECK_FALSE(judge({wrong(7), right(8)}).call.audit.majority);
}

TEST_CASE("the sum speaks before the majority")
{
    const judgement found = judge({wrong(7), wrong(7), wrong(7), right(8)});
    CHECK(found.call.audit.where == damage::broadcast);
    CHECK(found.call.audit.culprits == ranks{0, 1, 2});
    CHECK(judge({wrong(7), right(7), wrong(8)}).call.audit.culprits == ranks{2}); // rank 0 was told damaged checksums
    CHECK(judge({unchecked(7), unchecked(7), right(8)}).call.audit.culprits == ranks{0, 1}); // they received a NaN
}

TEST_CASE("without a right group it is unknown what happened, and nobody is named")
{
    for (const judgement& found : {judge({right(7), right(8)}), judge({wrong(7), wrong(8)}),
             judge({unchecked(7), unchecked(8)}), judge({wrong(7), wrong(7), wrong(8)}),
             judge({wrong(7), wrong(7), wrong(7), right(8), right(9)}), judge({right(1), right(2), right(3), right(4)})}) {
        CHECK_FALSE(found.call.results_agree);
        CHECK(found.call.audit.where == damage::unknown);
        CHECK(found.call.audit.culprits.empty());
        REQUIRE(found.findings.size() == 1);
        CHECK(found.findings[0].what == finding_kind::result_differs);
        CHECK(found.findings[0].rank() == -1);
        CHECK(found.findings[0].statistic >= 2);
    }
}

TEST_CASE("ranks that hold the same and judge it differently were told different checksums")
{
    const judgement found = judge({right(7), wrong(7), right(7)});
    CHECK(found.call.audit.where == damage::unknown);
    CHECK(found.call.audit.culprits.empty());
}

TEST_CASE("shards that arrived damaged name whom the digests speak against")
{
    const entry intact = with_shards(0, {});
    const judgement nothing = judge_shards({intact, intact, intact, intact});
    CHECK(nothing.call.results_agree);
    CHECK(nothing.call.audit.where == damage::none);
    CHECK(nothing.findings.empty());

    const judgement received = judge_shards({intact, intact, with_shards(3, {{0, 70}, {1, 71}, {3, 73}}), intact});
    CHECK_FALSE(received.call.results_agree);
    CHECK(received.call.audit.where == damage::broadcast);
    CHECK(received.call.audit.culprits == ranks{2});
    REQUIRE(received.findings.size() == 1);
    CHECK(received.findings[0].rank() == 2);
    CHECK(received.findings[0].what == finding_kind::shard_differs);
    CHECK(received.findings[0].call == call_index);
    CHECK(received.findings[0].other_rank == 0);
    CHECK(received.findings[0].statistic == 3);

    const judgement sent = judge_shards({with_shards(1, {{3, 9}}), with_shards(1, {{3, 9}}), intact, intact});
    CHECK(sent.call.audit.where == damage::input);
    REQUIRE(sent.findings.size() == 1);
    CHECK(sent.findings[0].rank() == 3);
    CHECK(sent.findings[0].other_rank == 3);

    const judgement both = judge_shards({with_shards(1, {{3, 9}}), with_shards(2, {{0, 5}, {3, 9}}), intact, intact});
    CHECK(both.call.audit.where == damage::unknown);
    CHECK(both.call.audit.culprits == ranks{1, 3}); // ascending, whatever the order of the reports

    const judgement either = judge_shards({intact, with_shards(1, {{0, 9}})});
    CHECK(either.call.audit.where == damage::unknown);
    CHECK(either.call.audit.culprits.empty());
    REQUIRE(either.findings.size() == 1);
    CHECK(either.findings[0].rank() == -1);
}
