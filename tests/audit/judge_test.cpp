// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/audit/detail/judge.hpp>

using namespace collprobe;

namespace {

using entry = detail::audit_finding;

entry right(std::uint64_t digest) { return {digest, {.residual = 1, .limit = 8, .bin = 0, .checked = true, .conserved = true}}; }
entry wrong(std::uint64_t digest)
{
    return {digest, {.residual = 99, .limit = 8, .bin = 3, .checked = true, .conserved = false}};
}
entry unchecked(std::uint64_t digest)
{
    return {digest, {.residual = 0, .limit = 0, .bin = 0, .checked = false, .conserved = true}};
}

struct judgement {
    call_record call;
    std::vector<finding> findings;
};

judgement judge(const std::vector<entry>& entries)
{
    judgement result;
    detail::audit_judge judge(static_cast<int>(entries.size()));
    judge.judge(entries, 4, result.call, result.findings);
    return result;
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
    CHECK(found.findings[0].call == 4);
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
    detail::gather_verdict verdict;
    call_record call;
    std::vector<finding> findings;
    const call_audit& audit = call.audit;
    detail::judge_gather_audit(verdict, 1, call, findings);
    CHECK(call.results_agree);
    CHECK(audit.where == damage::none);
    CHECK(findings.empty());

    verdict.damaged = 3;
    verdict.listed = 2;
    verdict.shard[0] = {.owner = 0, .receiver = 2, .culprit = detail::gather_culprit::receiver};
    verdict.shard[1] = {.owner = 1, .receiver = 2, .culprit = detail::gather_culprit::receiver};
    detail::judge_gather_audit(verdict, 1, call, findings);
    CHECK_FALSE(call.results_agree);
    CHECK(audit.where == damage::broadcast);
    CHECK(audit.culprits == ranks{2});
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].rank() == 2);
    CHECK(findings[0].what == finding_kind::shard_differs);
    CHECK(findings[0].call == 1);

    CHECK(findings[0].other_rank == 0);

    verdict.shard[0] = {.owner = 3, .receiver = 0, .culprit = detail::gather_culprit::owner};
    verdict.shard[1] = {.owner = 3, .receiver = 1, .culprit = detail::gather_culprit::owner};
    findings.clear();
    detail::judge_gather_audit(verdict, 1, call, findings);
    CHECK(audit.where == damage::input);
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].rank() == 3);
    CHECK(findings[0].other_rank == 3);

    verdict.shard[0].culprit = verdict.shard[1].culprit = detail::gather_culprit::unknown;
    findings.clear();
    detail::judge_gather_audit(verdict, 1, call, findings);
    CHECK(audit.where == damage::unknown);
    CHECK(audit.culprits.empty());
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].rank() == -1);
}
