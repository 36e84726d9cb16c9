// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step says of the evidence over the run: of whose numbers, with which odds, and after a restart.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/errors.hpp"

using namespace collprobe;
using testing::contains;
using testing::refusal;

namespace {

constexpr int ranks = 4;

/// What a rank contributes to a step.
struct contribution {
    double loss = 0;
    std::vector<float> first = std::vector<float>(100);
    std::vector<float> second = std::vector<float>(31);
};
using disturbance = std::function<void(contribution&, int rank, std::uint64_t step)>;

contribution healthy(int rank, std::uint64_t step)
{
    std::mt19937_64 random(1000 * step + static_cast<std::uint64_t>(rank));
    std::student_t_distribution<double> heavy(3);
    std::normal_distribution<double> normal;
    contribution made;
    made.loss = 5 + heavy(random);
    const double level = std::exp(0.3 * heavy(random));
    for (float& x : made.first) x = static_cast<float>(level * normal(random));
    for (float& x : made.second) x = static_cast<float>(level * normal(random));
    return made;
}

struct outcome {
    std::vector<step_record> records;
    std::vector<std::uint64_t> state;
};

/// Steps of four ranks, as rank 0 sees them; all ranks must see the same evidence.
outcome run(std::uint64_t from, std::uint64_t to, const probe_options& options, const disturbance& disturb,
    const std::vector<std::uint64_t>& state = {})
{
    std::vector<outcome> of(ranks);
    local::run(ranks, [&](local::communicator& world) {
        probed comm{world, options};
        if (!state.empty()) comm.restore_evidence(state);
        host::stream stream;
        outcome& own = of[static_cast<std::size_t>(world.rank())];
        for (std::uint64_t step = from; step < to; ++step) {
            contribution made = healthy(world.rank(), step);
            disturb(made, world.rank(), step);
            comm.all_reduce(made.first, view(made.first), reduction::average, stream, call_site::named("first"));
            comm.all_reduce(made.second, view(made.second), reduction::average, stream, call_site::named("second"));
            comm.end_step(step, {.loss = made.loss}, stream);
            stream.synchronize();
            for (step_record record; comm.poll(record);) own.records.push_back(record);
        }
        for (step_record record; comm.wait(record);) own.records.push_back(record);
        own.state = comm.evidence_state();
    });
    for (const outcome& each : of) {
        CHECK(each.records.size() == to - from);
        CHECK(each.state == of[0].state);
    }
    return of[0];
}

const disturbance nothing = [](contribution&, int, std::uint64_t) {};

std::vector<finding> unlike(const outcome& of)
{
    std::vector<finding> found;
    for (const step_record& record : of.records)
        for (const finding& each : record.findings)
            if (each.what == finding_kind::unlike) found.push_back(each);
    return found;
}

} // namespace

TEST_CASE("heavy tails give no evidence, and every step has that of each rank")
{
    const outcome of = run(0, 150, {}, nothing);
    CHECK(unlike(of).empty());
    for (const step_record& record : of.records) {
        REQUIRE(record.evidence_by_rank.size() == ranks);
        for (const rank_evidence& each : record.evidence_by_rank) {
            CHECK(each.odds < 100);
            CHECK_FALSE(each.unlike);
        }
    }
}

TEST_CASE("a rank is named by the number in which it is unlike the others, with alarm and words")
{
    struct fault {
        const char* label;
        finding_kind metric;
        rank_side side;
        disturbance disturb;
    };
    const fault faults[] = {
        {"loss", finding_kind::loss, rank_side::smallest,
            [](contribution& made, int rank, std::uint64_t) { made.loss -= rank == 2 ? 5 : 0; }},
        {"gradients", finding_kind::gradient_norm, rank_side::largest,
            [](contribution& made, int rank, std::uint64_t) {
                for (float& x : made.first) x *= rank == 2 ? 4.0f : 1.0f;
                for (float& x : made.second) x *= rank == 2 ? 4.0f : 1.0f;
            }},
        {"NaN", finding_kind::non_finite, rank_side::largest,
            [](contribution& made, int rank, std::uint64_t) {
                if (rank == 2) made.second[5] = std::numeric_limits<float>::quiet_NaN();
            }},
    };
    for (const fault& each : faults) {
        CAPTURE(each.label);
        const outcome of = run(0, 120, {}, each.disturb);
        const std::vector<finding> found = unlike(of);
        REQUIRE_FALSE(found.empty());
        for (const finding& one : found) CHECK(one.rank() == 2);
        CHECK(found[0].evidence.metric == each.metric);
        CHECK(found[0].evidence.side == each.side);
        CHECK(found[0].statistic >= found[0].threshold);
        CHECK_FALSE(found[0].exact);
        const step_record& last = of.records.back();
        CHECK(last.evidence_by_rank[2].unlike);
        CHECK(last.evidence_by_rank[2].odds > 100);
        CHECK(contains(report::step_table(last), "\nunlike the others: rank 2, "));
        CHECK(contains(report::json_line("r", last), R"("evidence":[{"rank":2,"metric":)"));
        alarms watch(ranks);
        int raised = 0;
        for (const step_record& record : of.records) {
            for (const finding& alarm : watch.judge(record)) {
                if (alarm.what != finding_kind::unlike) continue;
                ++raised;
                CHECK(alarm.ranks == std::vector<int>{2});
                CHECK(contains(report::describe_alarm(alarm), " against chance"));
                CHECK(contains(report::json_line("r", alarm), R"("evidence":{"metric":)"));
            }
        }
        CHECK(raised >= 1);
    }
}

TEST_CASE("one call that is unlike is named by its index, site and name")
{
    const outcome of = run(0, 150, {}, [](contribution& made, int rank, std::uint64_t) {
        for (float& x : made.second) x *= rank == 1 ? 8.0f : 1.0f;
    });
    bool named = false;
    for (const finding& found : unlike(of)) {
        CHECK(found.rank() == 1);
        if (found.call != 1) continue;
        named = true;
        CHECK(std::string(found.site.name) == "second");
        CHECK(contains(report::describe(found), "bucket 1 'second': rank 1 was unlike the other ranks over many steps (unlike): the norm of its gradient was the largest in "));
    }
    CHECK(named);
}

TEST_CASE("evidence goes on behind a checkpoint, and without one it begins anew")
{
    const disturbance slow = [](contribution& made, int rank, std::uint64_t) { made.loss += rank == 3 ? 4 : 0; };
    const probe_options untimed{.times = false}; // times differ from run to run
    const outcome whole = run(0, 24, untimed, slow);
    const outcome before = run(0, 8, untimed, slow);
    CHECK(unlike(before).empty());
    const outcome after = run(8, 24, untimed, slow, before.state);
    CHECK(after.records.back().evidence_by_rank[3].odds == whole.records.back().evidence_by_rank[3].odds);
    CHECK(after.state == whole.state);
    const outcome anew = run(8, 24, untimed, slow);
    CHECK(anew.records.back().evidence_by_rank[3].odds < after.records.back().evidence_by_rank[3].odds);
}

TEST_CASE("ranks whose gradients are the same but for a factor are alike in direction")
{
    for (const int n : {3, 4, 6, 8}) {
        CAPTURE(n);
        local::run(n, [&](local::communicator& world) {
            host::stream stream;
            probed comm{local::communicator(world), {.times = false}};
            step_record record;
            std::vector<float> gradient(10), sum(10);
            for (std::uint64_t step = 0; step < 60; ++step) {
                for (float& value : gradient) value = static_cast<float>(world.rank() + 1) * (1.0f + static_cast<float>(step));
                comm.all_reduce(gradient, view(sum), reduction::average, stream);
                comm.end_step(step, stream);
                REQUIRE(comm.wait(record));
                for (const finding& found : record.findings) {
                    if (found.what == finding_kind::unlike) CHECK(found.evidence.metric != finding_kind::cosine);
                }
            }
        });
    }
}

TEST_CASE("groups, no evidence, and the mode summary")
{
    const disturbance by_group = [](contribution& made, int rank, std::uint64_t) { made.loss += rank == 3 ? 20 : 0; };
    probe_options options;
    options.groups = {0, 0, 0, 1};
    CHECK(unlike(run(0, 60, options, by_group)).empty());
    CHECK_FALSE(unlike(run(0, 60, {}, by_group)).empty());
    const outcome without = run(0, 40, {.false_alarms_per_run = 0}, by_group);
    CHECK(unlike(without).empty());
    CHECK(without.records.back().evidence_by_rank.empty());
    CHECK(without.state.empty());

    options.mode = report_mode::summary;
    CHECK(unlike(run(0, 60, options, by_group)).empty());
    const outcome summed = run(0, 60, {.mode = report_mode::summary}, by_group);
    CHECK_FALSE(unlike(summed).empty());
    CHECK(summed.records.back().evidence_by_rank.size() == 4);
    CHECK_FALSE(summed.state.empty());
}

TEST_CASE("wrong options and states are refused")
{
    local::run(1, [](local::communicator& world) {
        CHECK(contains(refusal([&] { probed comm(world, {.false_alarms_per_run = 1}); }), "false_alarms_per_run"));
        CHECK(contains(refusal([&] { probed comm(world, {.tolerance = -0.5}); }), "tolerance"));
        CHECK(contains(refusal([&] { probed comm(world, {.groups = {1, 2}}); }), "groups"));
        probed comm(world, {.false_alarms_per_run = 0});
        const std::vector<std::uint64_t> words(10);
        CHECK(contains(refusal([&] { comm.restore_evidence(words); }), "no evidence is gathered"));
        probed watching(world);
        exchangeability_watch foreign(1); // a state, but not of a probe
        CHECK(contains(refusal([&] { watching.restore_evidence(foreign.state()); }), "not that of a probe"));
        foreign.add(finding_kind::loss, {1, 0, 0});
        CHECK(contains(refusal([&] { watching.restore_evidence(foreign.state()); }), "not that of a probe"));
        CHECK(contains(refusal([&] { watching.restore_evidence(words); }), "no such state"));
    });
}
