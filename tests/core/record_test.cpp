// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/version.hpp>

namespace collprobe::testing::record_test {

TEST_CASE("derived counts and norms of statistics follow from the fields")
{
    statistics s;
    s.count = 10;
    s.nan = 1;
    s.positive_infinity = 2;
    s.negative_infinity = 3;
    s.sum_of_squares = 16;
    CHECK(s.infinite() == 5);
    CHECK(s.nonfinite() == 6);
    CHECK(s.finite() == 4);
    CHECK(s.l2() == 4);
}

TEST_CASE("statistics of nothing are zero")
{
    const statistics s;
    CHECK(s.finite() == 0);
    CHECK(s.l2() == 0);
    CHECK(s.first_nonfinite == no_index);
}

TEST_CASE("what is not known yet is NaN by its bits")
{
    const spread s;
    CHECK(is_nan(s.mean));
    CHECK(is_nan(s.std_sample));
    CHECK(s.minimum_rank == -1);
    CHECK(is_nan(direction{}.mean_pairwise));
}

TEST_CASE("ranks of which a check says the same share a finding, NaN is like NaN, and an owner is no receiver")
{
    const auto groups = [](const finding& of) {
        step_record record;
        for (const int rank : {3, 1, 2}) {
            finding one = of;
            one.ranks = {rank};
            record.add(one);
        }
        return record.findings;
    };
    finding value{.other_rank = 0, .what = finding_kind::value_repeats};
    value.number = {.value = std::nan(""), .expected = 4, .since = 7};
    REQUIRE(groups(value).size() == 1);
    CHECK(groups(value)[0].ranks == std::vector<int>{1, 2, 3});
    value.number.steps = 1;
    CHECK(groups(value).size() == 1);
    const auto shards = groups({.other_rank = 1, .call = 0, .what = finding_kind::shard_differs});
    REQUIRE(shards.size() == 2);
    CHECK(shards[0].ranks == std::vector<int>{2, 3});
    CHECK(shards[1].ranks == std::vector<int>{1});
}

TEST_CASE("every enumerator has a name")
{
    for (int i = 0; i <= static_cast<int>(finding_kind::cosine); ++i) CHECK(std::strcmp(name(static_cast<finding_kind>(i)), "unknown") != 0);
    for (int i = 0; i <= static_cast<int>(collective::split); ++i) {
        CHECK(std::strcmp(name(static_cast<collective>(i)), "unknown") != 0);
    }
    CHECK(std::strcmp(name(static_cast<finding_kind>(99)), "unknown") == 0);
    CHECK(std::strcmp(name(report_mode::summary), "summary") == 0);
}

TEST_CASE("the version number is made of its parts")
{
    CHECK(COLLPROBE_VERSION
        == COLLPROBE_VERSION_MAJOR * 10000 + COLLPROBE_VERSION_MINOR * 100 + COLLPROBE_VERSION_PATCH);
}

TEST_CASE("ranks of which a check says the same share a finding, others do not")
{
    step_record record;
    const finding nan{.ranks = {2}, .call = 1, .what = finding_kind::non_finite, .statistic = 3, .index = 7};
    record.add(nan);
    finding next = nan;
    next.ranks = {0};
    record.add(next);
    REQUIRE(record.findings.size() == 1);
    CHECK(record.findings[0].ranks == std::vector<int>{0, 2});
    const auto parts = [&](auto&& change) {
        finding other = nan;
        other.ranks = {5};
        change(other);
        step_record with = record;
        with.add(other);
        return with.findings.size() == 2;
    };
    CHECK_FALSE(parts([](finding&) {}));
    CHECK(parts([](finding& of) { of.call = 2; }));
    CHECK(parts([](finding& of) { of.statistic = 4; }));
    CHECK(parts([](finding& of) { of.index = 8; }));
    CHECK(parts([](finding& of) { of.other_rank = 1; }));
    CHECK(parts([](finding& of) { of.number.value = 1; }));
    CHECK(parts([](finding& of) { of.ranks.clear(); }));
    // The owner of a damaged shard did another thing than a rank that received it damaged.
    step_record shards;
    shards.add({.ranks = {1}, .other_rank = 1, .what = finding_kind::shard_differs});
    for (const int rank : {2, 3}) shards.add({.ranks = {rank}, .other_rank = 1, .what = finding_kind::shard_differs});
    shards.settle_findings();
    REQUIRE(shards.findings.size() == 2);
    CHECK(shards.findings[0].action == advice::skip);
    CHECK(shards.findings[1].action == advice::resync);
    CHECK(shards.findings[1].ranks == std::vector<int>{2, 3});
}

} // namespace collprobe::testing::record_test
