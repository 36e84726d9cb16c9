// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Values that ranks must have alike, or each its own; calls that they make in another order.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/table.hpp>

#include "support/steps.hpp"

namespace collprobe::testing::expectations_test {
namespace {

template <class Step>
std::vector<step_record> run(int ranks, int steps, probe_options options, const Step& step)
{
    options.times = false;
    return testing::records_of({.ranks = ranks, .steps = steps, .options = options, .has_own_names = true}, step);
}

std::vector<finding> of(const step_record& record, finding_kind what) { return testing::findings_of(record, what); }

} // namespace

TEST_CASE("a number that one rank has otherwise is named with both values and its first step, in a step without calls")
{
    const auto records = run(4, 6, {}, [](auto& comm, auto&, int s, auto&) {
        comm.expect_equal("lr", comm.rank() == 2 && s >= 3 ? 0.01 : 0.001);
        comm.expect_equal("epoch", s);
        comm.expect_distinct("dropout seed", comm.rank() + 17);
    });
    for (int s = 0; s < 6; ++s) {
        const step_record& record = records[static_cast<std::size_t>(s)];
        CAPTURE(s);
        REQUIRE(record.expectations.size() == 3);
        CHECK(record.expectations[0].holds == (s < 3));
        CHECK(record.expectations[1].holds);
        CHECK(record.expectations[1].values == std::vector<double>(4, s));
        CHECK(record.expectations[2].holds);
        CHECK(record.expectations[2].what == expectation::distinct);
        CHECK(record.expectations[2].groups == std::vector<int>{0, 1, 2, 3});
        CHECK(record.findings.size() == (s < 3 ? 0 : 1));
        if (s < 3) continue;
        CHECK(record.expectations[0].since == 3);
        CHECK(record.expectations[0].groups == std::vector<int>{0, 0, 2, 0});
        const finding& found = record.findings[0];
        CHECK(found.what == finding_kind::value_differs);
        CHECK(found.rank() == 2);
        CHECK(found.other_rank == 0);
        CHECK(found.exact);
        CHECK(std::string(found.site.name) == "lr");
        CHECK(report::describe(found)
            == "'lr': rank 2 held another value than the other ranks, where all must have the same (value_differs): 0.01, most ranks have 0.001, since step 3");
    }
}

TEST_CASE("without a majority nobody is named, and a value that comes right begins anew")
{
    const auto records = run(4, 6, {}, [](auto& comm, auto&, int s, auto&) {
        const bool is_split = s == 1 || s == 2 || s == 5;
        comm.expect_equal("loss scale", is_split && comm.rank() % 2 == 1 ? 32768 : 65536);
    });
    for (const step_record& record : records) {
        CAPTURE(record.step);
        const bool is_split = record.step == 1 || record.step == 2 || record.step == 5;
        REQUIRE(record.findings.size() == (is_split ? 1 : 0));
        if (!is_split) continue;
        CHECK(record.findings[0].rank() == -1);
        CHECK(record.expectations[0].groups == std::vector<int>{0, 1, 0, 1});
        CHECK(record.expectations[0].since == (record.step == 5 ? 5 : 1));
    }
}

TEST_CASE("a buffer is compared where its stream is, by bits, type and count, in both modes")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        const auto records = run(3, 4, {.mode = mode}, [](auto& comm, auto& stream, int s, auto&) {
            static thread_local std::vector<float> gradient(1001), sum(1001), integers;
            static thread_local std::vector<std::int32_t> steps(7);
            for (float& x : gradient) x = static_cast<float>(comm.rank() + 1);
            for (std::int32_t& x : steps) x = s;
            if (s == 3 && comm.rank() == 0) steps[6] = 99;
            comm.all_reduce(gradient, view(sum), reduction::sum, stream, call_site::named("g"));
            // Behind the sum, on the stream: only there are the buffers alike.
            stream.enqueue([last = &sum[1000], damages = s == 2 && comm.rank() == 1] {
                if (damages) *last = std::nextafter(*last, 0.0f);
            });
            comm.expect_equal("gradient after sync", view<const float>(sum), stream);
            comm.expect_equal("optimizer steps", view<const std::int32_t>(steps), stream);
            comm.expect_equal("part", view<const float>(sum).part(0, s == 1 && comm.rank() == 2 ? 10u : 11u), stream);
            stream.synchronize(60'000);
        });
        for (std::size_t s = 0; s < 4; ++s) {
            CAPTURE(s);
            REQUIRE(records[s].expectations.size() == 3);
            CHECK(records[s].expectations[0].holds == (s != 2));
            CHECK(records[s].expectations[1].holds == (s != 3));
            CHECK(records[s].expectations[2].holds == (s != 1));
            CHECK(records[s].expectations[0].values.front() == doctest::Approx(6 * std::sqrt(1001.0)));
            const auto found = of(records[s], finding_kind::value_differs);
            REQUIRE(found.size() == (s == 0 ? 0 : 1));
            if (s == 0) continue;
            const int culprit = s == 1 ? 2 : s == 2 ? 1 : 0;
            CHECK(found[0].rank() == (mode == report_mode::gather ? culprit : -1));
            CHECK(found[0].number.since == s);
            if (s != 2 || mode != report_mode::gather) continue;
            CHECK(report::describe(found[0])
                == "'gradient after sync': rank 1 held another value than the other ranks, where all must have the same (value_differs): other bits of 189.8, since step 2"); // norms read alike
        }
    }
}

TEST_CASE("ranks with one seed are all named, together")
{
    const auto records = run(5, 1, {}, [](auto& comm, auto&, int, auto&) {
        comm.expect_distinct("seed", comm.rank() == 3 ? 1 : comm.rank());
    });
    const auto found = of(records[0], finding_kind::value_repeats);
    REQUIRE(found.size() == 1);
    CHECK(found[0].ranks == std::vector<int>{1, 3});
    CHECK(found[0].other_rank == 1);
    CHECK(report::describe(found[0])
        == "'seed': ranks 1 and 3 held the value of another rank, where each must have its own (value_repeats): 1, since step 0");
}

TEST_CASE("samples that the ranks have not drawn each once are told at the end of the epoch")
{
    // Ranks that draw as many samples, but rank 1 one of rank 0's; one that draws less; one that means another epoch.
    const auto told = [](std::uint64_t first, std::uint64_t last, std::uint64_t whole, finding_kind what) {
        const step_record record = run(2, 1, {}, [=](auto& comm, auto&, int, auto&) {
            sample_set drawn;
            const std::uint64_t from = comm.rank() == 0 ? 0 : first;
            for (std::uint64_t id = from; id < (comm.rank() == 0 ? 3 : last); ++id) drawn.add(id);
            comm.expect_partition("samples of the epoch", drawn, sample_set::first(comm.rank() == 0 ? 6 : whole));
        })[0];
        CHECK(record.expectations[0].values == std::vector<double>{3, static_cast<double>(last - first)});
        const auto found = of(record, what);
        CHECK(record.findings.size() == found.size());
        return found.empty() ? std::string() : report::describe(found[0]);
    };
    CHECK(told(3, 6, 6, finding_kind::value_repeats) == "");
    CHECK(told(2, 5, 6, finding_kind::value_repeats)
        == "'samples of the epoch': the ranks together did not draw the samples that are expected (value_repeats): "
           "6 samples, not 6, since step 0");
    CHECK(contains(told(3, 5, 6, finding_kind::value_repeats), "5 samples, not 6"));
    CHECK(told(3, 6, 7, finding_kind::other_call) != "");
}

TEST_CASE("a step that grows to its last call has room for all values")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        const auto records = run(3, 6, {.mode = mode, .calls = 1}, [](auto& comm, auto& stream, int s, auto&) {
            static thread_local std::vector<float> gradient(100), sum(100);
            for (float& x : gradient) x = static_cast<float>(comm.rank() + s);
            comm.expect_equal("sum", view<const float>(sum), stream); // before the step grows
            for (int c = 0; c < 1 << s; ++c) comm.all_reduce(gradient, view(sum), reduction::sum, stream);
            for (int v = 1; v < 32; ++v) comm.expect_equal("number", comm.rank() == 1 && v == 31 ? -1 : v);
            stream.synchronize(60'000);
        });
        for (const step_record& record : records) {
            REQUIRE(record.expectations.size() == 32);
            for (int v = 0; v < 32; ++v) CHECK(record.expectations[static_cast<std::size_t>(v)].holds == (v != 31));
        }
    }
}

TEST_CASE("what cannot be told is refused, and the step goes on")
{
    local::run(2, [](local::communicator& world) {
        host::stream stream;
        probed comm(world, {.expectations = 2});
        comm.expect_equal("a", 1);
        comm.expect_equal("b", 1);
        CHECK_THROWS_WITH_AS(comm.expect_equal("c", 1), doctest::Contains("probe_options::expectations"), error);
        CHECK_THROWS_WITH_AS(
            comm.expect_equal("c", view<const float>(nullptr, 3), stream), doctest::Contains("expectations"), error);
        comm.end_step(0, stream);
        step_record record;
        REQUIRE(comm.wait(record));
        CHECK(record.expectations.size() == 2);
        CHECK_THROWS_WITH_AS(comm.expect_equal("weights", view<const float>(nullptr, 3), stream),
            doctest::Contains("weights is null with count 3"), error);
        probed summed(world, {.mode = report_mode::summary});
        CHECK_THROWS_WITH_AS(summed.expect_distinct("seed", 1), doctest::Contains("summary"), error);
    });
}

TEST_CASE("a rank that reduces other tensors of the same shape, in calls without names, is named by their lines")
{
    const auto records = run(4, 2, {}, [&](auto& comm, auto& stream, int s, auto&) {
        static thread_local std::vector<float> data(64), sum(64);
        for (std::size_t i = 0; i < 64; ++i) data[i] = static_cast<float>(comm.rank() + s) + 0.01f * static_cast<float>(i);
        const auto energy = [&] { comm.all_reduce(data, view(sum), reduction::sum, stream); };
        const auto forces = [&] { comm.all_reduce(data, view(sum), reduction::sum, stream); };
        const bool is_swapped = s == 1 && comm.rank() == 2;
        if (is_swapped) forces();
        energy();
        if (!is_swapped) forces();
        stream.synchronize(60'000);
    });
    CHECK(of(records[0], finding_kind::other_call).empty());
    const auto found = of(records[1], finding_kind::other_call);
    REQUIRE(found.size() == 1);
    CHECK(found[0].rank() == 2);
    CHECK(found[0].call == 0);
    CHECK(found[0].exact);
    CHECK(records[1].left_out == std::vector{2});
}

TEST_CASE("a broadcast of another tensor is named; ranks at other lines are not")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        const auto records = run(3, 2, {.mode = mode}, [](auto& comm, auto& stream, int s, auto&) {
            static thread_local std::vector<float> data(64, 1.0f);
            const char* const name = s == 1 && comm.rank() == 1 ? "running_var" : "running_mean";
            comm.broadcast(view<const float>(data), view(data), 0, stream, call_site::named(name));
            // The root has a line of its own, as in many programs.
            if (comm.rank() == 0) comm.broadcast(view<const float>(data), view(data), 0, stream);
            else comm.broadcast(view<const float>(data), view(data), 0, stream);
            stream.synchronize(60'000);
        });
        CHECK(of(records[0], finding_kind::other_call).empty());
        const auto found = of(records[1], finding_kind::other_call);
        REQUIRE(found.size() == 1);
        CHECK(found[0].rank() == (mode == report_mode::gather ? 1 : -1));
    }
}

TEST_CASE("values of one name, as in a loop over all weights, have each its own first step")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (int wrong = 0; wrong < 3; ++wrong) {
            CAPTURE(wrong);
            const auto records = run(4, 12, {.mode = mode}, [&](auto& comm, auto&, int s, auto&) {
                for (int v = 0; v < 3; ++v)
                    comm.expect_equal("weights", v == wrong && s >= 5 && comm.rank() == 2 ? -1 : v);
            });
            for (std::size_t s = 5; s < 12; ++s) {
                REQUIRE(records[s].findings.size() == 1);
                CHECK(records[s].findings[0].number.since == 5);
                CHECK(records[s].expectations[static_cast<std::size_t>(wrong)].since == 5);
            }
        }
    }
}

TEST_CASE("ranks that expect other things of a value, or tell other values, are told with the name")
{
    const auto records = run(4, 3, {}, [](auto& comm, auto&, int s, auto&) {
        if (s == 0 && comm.rank() == 1) comm.expect_distinct("seed", 5);
        else comm.expect_equal("seed", 5);
        const bool is_swapped = s == 1 && comm.rank() == 3; // the rank whose record this is
        comm.expect_equal(is_swapped ? "decay" : "lr", 1);
        comm.expect_equal(is_swapped ? "lr" : "decay", 1);
    });
    const auto names_of = [&](std::size_t s) {
        std::vector<std::string> names;
        for (const finding& each : records[s].findings) {
            CHECK(each.what == finding_kind::other_call);
            CHECK(report::describe(each).find(
                      ": the names of calls or values, or their order, are not the same on all ranks")
                != std::string::npos);
            names.push_back(each.site.name);
        }
        return names;
    };
    CHECK(names_of(0) == std::vector<std::string>{"seed"});
    CHECK_FALSE(records[0].expectations[0].holds);
    CHECK(names_of(1) == std::vector<std::string>{"lr", "decay"});
    CHECK(records[2].findings.empty());
    for (const step_record& record : run(3, 2, {.mode = report_mode::summary}, [](auto& comm, auto&, int s, auto&) { // the only value
             comm.expect_equal(s == 0 && comm.rank() == 1 ? "lr" : "decay", 1);
         }))
        CHECK(of(record, finding_kind::other_call).size() == (record.step == 0 ? 1 : 0));
}

TEST_CASE("the other call of a rank has the form of the call that it made, whatever has the name elsewhere")
{
    for (const int last : {2, 3}) { // the record of another rank, and of the one itself
        const auto records = run(last + 1, 1, {}, [&](auto& comm, auto& stream, int, auto&) {
            static thread_local std::vector<float> data(640);
            for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i * 7 % 64) + static_cast<float>(comm.rank());
            const bool is_swapped = comm.rank() == (last == 2 ? 0 : 3);
            const auto reduce = [&](std::size_t count, const char* name) {
                comm.all_reduce(view<const float>(data).part(0, count), view(data).part(0, count), reduction::sum,
                    stream, call_site::named(name));
            };
            reduce(640, is_swapped ? "h" : "g");
            reduce(512, is_swapped ? "g" : "h");
            reduce(100, "h");
            stream.synchronize(60'000);
        });
        const auto found = of(records[0], finding_kind::other_call);
        REQUIRE(found.size() == 1);
        CHECK(found[0].rank() == (last == 2 ? 0 : 3));
        CHECK(found[0].call == 0);
        CHECK(std::string(found[0].site.name) == "g");
        CHECK(std::string(found[0].other.site.name) == "h");
        CHECK(found[0].other.count == 640);
        CHECK(contains(report::describe(found[0]),
            "made another call than the other ranks (other_call): all_reduce 'h' (640 elements of float, "));
    }
}

} // namespace collprobe::testing::expectations_test
