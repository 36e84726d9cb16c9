// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <collprobe/audit/detail/judge.hpp>

namespace collprobe::testing::judge_test {
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

TEST_CASE("what ranks hold, and what they say of the sum, tells where the damage is and who has it")
{
    struct way {
        std::vector<entry> entries;
        damage where;
        ranks culprits = {};
        bool majority = true;
        bool conserved = true;
    };
    const entry a = right(7), b = right(8), bad_a = wrong(7), bad_b = wrong(8), some_a = unchecked(7), some_b = unchecked(8);
    const way ways[] = {
        {{a}, damage::none},
        {{a, a}, damage::none},
        {{a, a, a, a, a}, damage::none},
        {{bad_a, bad_a, bad_a}, damage::reduce, {}, true, false}, // equal bits, but not the sum
        // Other bits than the majority, with or without a sum.
        {{a, b, a, a}, damage::broadcast, {1}},
        {{a, bad_b, a, a}, damage::broadcast, {1}},
        {{a, some_b, a, a}, damage::broadcast, {1}},
        {{some_a, b, some_a, some_a}, damage::broadcast, {0, 2, 3}}, // the others received a NaN
        {{some_a, some_b, some_a, some_a}, damage::broadcast, {1}},
        // The sum tells which of two is right, and speaks before the majority.
        {{a, bad_b}, damage::broadcast, {1}, false},
        {{bad_a, b}, damage::broadcast, {0}, false},
        {{some_a, b}, damage::broadcast, {0}, false},
        {{bad_a, bad_a, bad_a, b}, damage::broadcast, {0, 1, 2}},
        {{bad_a, a, bad_b}, damage::broadcast, {2}}, // rank 0 was told damaged checksums
        {{some_a, some_a, b}, damage::broadcast, {0, 1}},
        // Without a right group.
        {{a, b}, damage::unknown, {}, false},
        {{bad_a, bad_b}, damage::unknown, {}, false, false},
        {{some_a, some_b}, damage::unknown, {}, false},
        {{bad_a, bad_a, bad_b}, damage::unknown, {}, true, false},
        {{bad_a, bad_a, bad_a, b, right(9)}, damage::unknown, {}, true, false},
        {{right(1), right(2), right(3), right(4)}, damage::unknown, {}, false},
        {{a, bad_a, a}, damage::unknown, {}, true, false}, // equal bits that ranks judge differently: they were told different checksums
    };
    for (const way& of : ways) {
        CAPTURE(&of - ways);
        const judgement found = judge(of.entries);
        const bool agree = std::all_of(of.entries.begin(), of.entries.end(), [&](const entry& e) { return e.digest == of.entries[0].digest; });
        CHECK(found.call.results_agree == agree);
        CHECK(found.call.audit.where == of.where);
        CHECK(found.call.audit.culprits == of.culprits);
        CHECK(found.call.audit.majority == of.majority);
        CHECK(found.call.audit.conserved == of.conserved);
        if (of.where == damage::none) {
            CHECK(found.call.audit.residual_limit == 8);
            CHECK(found.call.audit.residual == 1);
            CHECK(found.findings.empty());
            continue;
        }
        if (agree && of.where == damage::unknown) continue;
        REQUIRE(found.findings.size() == 1);
        CHECK(found.findings[0].what == (of.where == damage::reduce ? finding_kind::sum_differs : finding_kind::result_differs));
        CHECK(found.findings[0].ranks == of.culprits);
        CHECK(found.findings[0].call == call_index);
        if (of.where == damage::reduce) {
            CHECK(found.findings[0].statistic == 99);
            CHECK(found.findings[0].threshold == 8);
        } else if (of.culprits.empty()) {
            CHECK(found.findings[0].statistic >= 2);
        }
    }
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

} // namespace collprobe::testing::judge_test
