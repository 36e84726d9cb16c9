// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>

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

TEST_CASE("a result is too long from what rounding allows on")
{
    call_record call;
    CHECK_FALSE(call.has_excess());
    for (const double of : {0.0, 1.0, -detail::infinity()}) CHECK_FALSE((call.excess = of, call.has_excess()));
    for (const double of : {1 + 0x1p-52, 2.0, 1e300}) CHECK((call.excess = of, call.has_excess()));
}

TEST_CASE("what a part measured stands once for each name and call, of each rank or of all")
{
    step_record record;
    record.begin(0, 3, report_mode::gather, 2);
    const call_site clipped = call_site::named("clipped");
    const std::string same_text = "clipped"; // at another address
    record.add_number(clipped, 1, 2, 5);
    record.add_number(call_site::named("level"), 1, 0, 7);
    record.add_number(call_site::named(same_text.c_str()), 1, 0, -0.0);
    record.add_number(clipped, 1, 2, 6);
    record.add_number(clipped, 0, 1, 1);
    record.add_number(clipped, -1, 1, 2);
    record.add_number(clipped, -1, -1, 3); // of all ranks
    REQUIRE(record.numbers.size() == 5);
    const std::vector<double>& first = record.numbers[0].by_rank;
    REQUIRE(first.size() == 3);
    CHECK((first[0] == 0 && is_nan(first[1]) && first[2] == 6));
    CHECK(record.numbers[1].by_rank[0] == 7);
    for (const std::size_t each : {2u, 3u}) CHECK(record.numbers[each].call == (each == 2 ? 0 : -1));
    CHECK(record.numbers[4].by_rank == std::vector<double>{3});
    for (const auto& [call, rank] : {std::pair{2, 0}, {-2, 0}, {0, 3}, {0, -2}})
        CHECK_THROWS_WITH_AS(record.add_number(clipped, call, rank, 1), doctest::Contains("no such rank or call"), error);
    CHECK_THROWS_WITH_AS(record.add_number({}, 0, 0, 1), doctest::Contains("the number has no name"), error);
    record.begin(1, 3, report_mode::gather, 2);
    CHECK(record.numbers.empty());
}

TEST_CASE("ranks of which a check says the same share a finding, ascending; others do not")
{
    const auto added = [](const finding& of, const std::vector<std::vector<int>>& ranks) {
        step_record record;
        record.begin(0, 6, report_mode::gather, 3);
        for (const std::vector<int>& each : ranks) {
            finding one = of;
            one.ranks = each;
            record.add(one);
        }
        record.settle_findings();
        return record.findings;
    };
    finding value{.other_rank = 0, .what = finding_kind::value_repeats};
    value.number = {.value = std::nan(""), .expected = 4, .since = 7}; // NaN is like NaN
    const auto alike = added(value, {{3, 0, 3}, {1, 2}});
    REQUIRE(alike.size() == 1);
    CHECK(alike[0].ranks == std::vector<int>{0, 1, 2, 3});
    // The owner of a damaged shard did another thing than a rank that received it damaged.
    const auto shards = added({.other_rank = 1, .call = 0, .what = finding_kind::shard_differs}, {{1}, {3}, {2}});
    REQUIRE(shards.size() == 2);
    CHECK(shards[0].ranks == std::vector<int>{1});
    CHECK(shards[0].action == advice::skip);
    CHECK(shards[1].ranks == std::vector<int>{2, 3});
    CHECK(shards[1].action == advice::resync);

    const finding nan{.ranks = {2}, .call = 1, .what = finding_kind::non_finite, .statistic = 3, .index = 7};
    const auto parts = [&](auto&& change) {
        step_record record;
        record.begin(0, 6, report_mode::gather, 3);
        record.add(nan);
        finding other = nan;
        other.ranks = {5};
        change(other);
        record.add(other);
        return record.findings.size() == 2;
    };
    CHECK_FALSE(parts([](finding&) {}));
    CHECK(parts([](finding& of) { of.call = 2; }));
    CHECK(parts([](finding& of) { of.statistic = 4; }));
    CHECK(parts([](finding& of) { of.index = 8; }));
    CHECK(parts([](finding& of) { of.other_rank = 1; }));
    CHECK(parts([](finding& of) { of.number.value = 1; }));
    CHECK(parts([](finding& of) { of.ranks.clear(); }));
    CHECK(parts([](finding& of) { of.other.site = call_site::named("another check of a part"); }));
    for (const finding& wrong : {finding{.ranks = {6}}, {.ranks = {-1}}, {.ranks = {0}, .call = 3}})
        CHECK_THROWS_AS(added(wrong, {wrong.ranks}), error);
}

} // namespace collprobe::testing::record_test
