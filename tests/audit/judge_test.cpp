// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
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

judgement judge(const std::vector<entry>& entries)
{
    step_record record;
    record.ranks = static_cast<int>(entries.size());
    record.calls.resize(call_index + 1);
    detail::audit_judge judge(record.ranks);
    judge.begin(record);
    judge.judge_results(entries, call_index, record);
    judge.end(record);
    return {record.calls[call_index], record.findings};
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

} // namespace collprobe::testing::judge_test
