// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step says of the numbers of its ranks: of one step, of zeros, of the evidence over the run.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/report/table.hpp>

#include "support/element_types.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::step_numbers_test {
namespace {

/// What a rank contributes to a step.
struct rank_step {
    double loss = 2;
    double weight = 1;
    std::vector<float> first = {};
    std::vector<float> second = {};
};
using maker = std::function<rank_step(int rank, std::uint64_t step)>;

struct outcome {
    std::vector<step_record> records;
    std::vector<std::uint64_t> state;

    std::vector<finding> all(finding_kind what) const
    {
        std::vector<finding> found;
        for (const step_record& record : records)
            for (const finding& each : findings_of(record, what)) found.push_back(each);
        return found;
    }
};

const probe_options untimed{.times = false}; // a busy machine makes a rank late

/// The steps from `from` on, as rank 0 sees them; all ranks have the same state.
template <class T = float>
outcome run(int ranks, std::uint64_t from, std::uint64_t to, const maker& made, const probe_options& options = untimed,
    const std::vector<std::uint64_t>& state = {})
{
    std::vector<outcome> of(static_cast<std::size_t>(ranks));
    local::run(ranks, [&](local::communicator& world) {
        probed comm{world, options};
        if (!state.empty()) comm.restore_evidence(state);
        host::stream stream;
        outcome& own = of[static_cast<std::size_t>(world.rank())];
        step_record record;
        for (std::uint64_t step = from; step < to; ++step) {
            const rank_step now = made(world.rank(), step);
            std::vector<T> first(now.first.begin(), now.first.end()), second(now.second.begin(), now.second.end());
            comm.all_reduce(first, view(first), reduction::average, stream, call_site::named("first"));
            comm.all_reduce(second, view(second), reduction::average, stream, call_site::named("second"));
            comm.end_step(step, {.loss = now.loss, .weight = now.weight}, stream);
            REQUIRE(comm.wait(record));
            if (world.rank() == 0) own.records.push_back(record);
        }
        own.state = comm.evidence_state();
    });
    for (const outcome& each : of) CHECK(each.state == of[0].state);
    return of[0];
}

/// Healthy training: each rank's own numbers, of a width that all share and, unless told otherwise, 2 % of its own.
rank_step healthy(int rank, std::uint64_t step, std::size_t count = 500, double of_rank = 0.02)
{
    std::mt19937_64 shared(1000 + step), own(static_cast<std::uint64_t>(1 + rank) * 1'000'003 + step);
    std::normal_distribution<double> normal;
    const double level = std::exp(0.1 * normal(shared));
    rank_step made{.loss = level * 2 * std::exp(0.02 * normal(own))};
    const double width = level * std::exp(of_rank * normal(own));
    for (std::size_t i = 0; i < count; ++i) made.first.push_back(static_cast<float>(width * normal(own)));
    return made;
}

/// Numbers with heavy tails.
rank_step heavy(int rank, std::uint64_t step)
{
    std::mt19937_64 random(1000 * step + static_cast<std::uint64_t>(rank));
    std::student_t_distribution<double> tail(3);
    std::normal_distribution<double> normal;
    rank_step made{.loss = 5 + tail(random), .first = std::vector<float>(100), .second = std::vector<float>(31)};
    const double level = std::exp(0.3 * tail(random));
    for (std::vector<float>* const each : {&made.first, &made.second})
        for (float& x : *each) x = static_cast<float>(level * normal(random));
    return made;
}

int count(const step_record& record, finding_kind what, int rank)
{
    int found = 0;
    for (const finding& each : record.findings)
        found += each.what == what && (rank < 0 ? !each.is_named() : each.names(rank)) ? 1 : 0;
    return found;
}

/// Records with a finding that is not of that step.
int beside(const outcome& of, std::uint64_t step)
{
    int found = 0;
    for (const step_record& record : of.records) found += record.step != step && !record.findings.empty() ? 1 : 0;
    return found;
}

std::size_t alarms_in(const outcome& of, int ranks)
{
    alarms watch(ranks);
    std::size_t raised = 0;
    for (const step_record& record : of.records) raised += watch.judge(record).size();
    return raised;
}

} // namespace

TEST_CASE("an exponent bit that doubles the energy of a bfloat16 gradient is named in its step by its magnitude")
{
    for (int trial = 0; trial < COLLPROBE_TEST_UNLESS_BRIEF(6, 2); ++trial) {
        const int who = trial % 4;
        const outcome of = run<bfloat16>(4, 0, 61, [&](int rank, std::uint64_t step) {
            rank_step made = healthy(rank, step, 65536 / 16);
            if (rank == who && step == 60) made.first[static_cast<std::size_t>(100 + trial)] = 60;
            return made;
        });
        CHECK(beside(of, 60) == 0);
        CHECK(count(of.records[60], finding_kind::largest_magnitude, who) == 1);
        for (const finding& each : of.records[60].findings) CHECK(each.rank() == who);
    }
}

TEST_CASE("losses near zero, of one squared number a rank, are healthy however small, and one far above all is named")
{
    for (std::uint64_t trial = 0; trial < COLLPROBE_TEST_UNLESS_BRIEF(6u, 2u); ++trial) {
        const outcome of = run(8, 0, 401, [&](int rank, std::uint64_t step) {
            std::mt19937_64 own(static_cast<std::uint64_t>(1 + rank) * 1'000'003 + 1000 * trial + step);
            const double error = std::normal_distribution<double>()(own);
            return rank_step{rank == 5 && step == 400 ? 1e5 : error * error};
        });
        CHECK(beside(of, 400) == 0);
        CHECK(count(of.records[400], finding_kind::loss, 5) == 1);
    }
}

TEST_CASE("losses of any sign are compared as they are, from the first negative one on")
{
    const outcome of = run(8, 0, 200, [](int rank, std::uint64_t step) {
        rank_step made = healthy(rank, step, 100);
        if (step >= 60) made.loss -= 2.2; // most are negative, some are not
        if (rank == 3 && step == 190) made.loss += 2;
        return made;
    });
    CHECK(beside(of, 190) <= 1);
    REQUIRE(count(of.records[190], finding_kind::loss, 3) == 1);
    CHECK(alarms_in(of, 8) == 1);
    CHECK(of.records[190].findings[0].number.value == of.records[190].losses[3]);
}

TEST_CASE("of ranks with copies the copies count once: no other rank is an outlier for it, and a real one is named")
{
    // Of three ranks one copies another one from step 50 on, and of six in the long run; of eight four are copies.
    const outcome three = run(3, 0, 100, [](int rank, std::uint64_t step) { return healthy(step >= 50 && rank == 1 ? 0 : rank, step); });
    const outcome six = run(6, 0, 400, [](int rank, std::uint64_t step) { return healthy(step >= 50 && rank == 1 ? 0 : rank, step); });
    for (const outcome* const of : {&three, &six}) {
        for (const step_record& record : of->records) {
            CAPTURE(record.step);
            for (const int rank : {0, 1}) CHECK(count(record, finding_kind::duplicate, rank) == (record.step >= 50 ? 1 : 0));
            CHECK(record.findings.size() == (record.step >= 50 ? 1 : 0));
        }
    }
    const outcome eight = run(8, 0, 100, [](int rank, std::uint64_t step) {
        rank_step made = healthy(rank < 4 ? 0 : rank, step);
        if (rank == 6 && step == 90) made.loss *= 2;
        return made;
    });
    for (const step_record& record : eight.records) {
        CHECK(record.findings.size() == (record.step == 90 ? 2 : 1));
        CHECK(count(record, finding_kind::loss, 6) == (record.step == 90 ? 1 : 0));
    }
}

TEST_CASE("NaN that has reached the weights is told once for all ranks, and one rank's NaN as before")
{
    for (const report_mode mode : testing::both_modes) {
        const outcome of = run(4, 0, 30, [](int rank, std::uint64_t step) {
            rank_step made = healthy(rank, step);
            const float nan = std::numeric_limits<float>::quiet_NaN();
            if ((step == 5 && rank == 2) || (step >= 10 && step < 20)) {
                for (float& x : made.first) x = nan;
                made.loss = nan;
            }
            return made;
        }, {.mode = mode, .times = false});
        for (const step_record& record : of.records) {
            CAPTURE(record.step);
            const bool lasts = record.step > 10 && record.step < 20;
            // Loss and gradient, in step 10 of all ranks.
            CHECK(record.findings.size() == (record.step == 5 || record.step == 10 ? 2 : lasts ? 1 : 0));
            if (record.step == 5) CHECK(count(record, finding_kind::non_finite, 2) == 2);
            CHECK(count(record, finding_kind::non_finite, -1) == (lasts ? 1 : 0));
            if (!lasts) continue;
            CHECK(record.findings[0].statistic == 4);
            CHECK(record.findings[0].number.is_new_level);
            CHECK(record.findings[0].number.since == 10);
        }
    }
}

TEST_CASE("a lasting factor is named in eight steps, then told as a new level, and is then the evidence's")
{
    const outcome of = run(8, 0, 200, [](int rank, std::uint64_t step) {
        rank_step made = healthy(rank, step);
        if (rank == 4 && step >= 100) made.loss *= 1.5;
        return made;
    });
    for (const step_record& record : of.records) {
        CAPTURE(record.step);
        const auto named = findings_of(record, finding_kind::loss);
        REQUIRE(named.size() == (record.step >= 100 && record.step < 108 ? 1 : 0));
        if (named.empty()) continue;
        CHECK(named[0].rank() == 4);
        CHECK(named[0].number.is_new_level == (record.step == 107));
        if (named[0].number.is_new_level) CHECK(named[0].number.since == 100);
    }
    CHECK(of.all(finding_kind::unlike).size() == 1);
}

TEST_CASE("a rank is named by the number in which it is unlike the others")
{
    struct fault {
        finding_kind metric;
        rank_side side;
        std::function<void(rank_step&)> disturb;
    };
    const auto times = [](std::vector<float>& data, float factor) {
        for (float& x : data) x *= factor;
    };
    const fault faults[] = {
        {finding_kind::loss, rank_side::smallest, [](rank_step& made) { made.loss -= 5; }},
        {finding_kind::gradient_norm, rank_side::largest, [&](rank_step& made) { times(made.first, 4), times(made.second, 4); }},
        {finding_kind::non_finite, rank_side::largest,
            [](rank_step& made) { made.second[5] = std::numeric_limits<float>::quiet_NaN(); }},
    };
    for (const fault& each : faults) {
        CAPTURE(name(each.metric));
        const outcome of = run(4, 0, 120, [&](int rank, std::uint64_t step) {
            rank_step made = heavy(rank, step);
            if (rank == 2) each.disturb(made);
            return made;
        }, {});
        const std::vector<finding> found = of.all(finding_kind::unlike);
        REQUIRE_FALSE(found.empty());
        for (const finding& one : found) CHECK(one.rank() == 2);
        CHECK(found[0].evidence.metric == each.metric);
        CHECK(found[0].evidence.side == each.side);
        CHECK(found[0].statistic >= found[0].threshold);
        CHECK_FALSE(found[0].exact);
        CHECK(found[0].false_alarms_per_step > 0);
        CHECK(found[0].false_alarms_per_step <= 0.01);
        const step_record& last = of.records.back();
        CHECK(last.evidence_by_rank[2].unlike);
        CHECK(last.evidence_by_rank[2].odds > 100);
    }
}

TEST_CASE("one call that is unlike is named by its index, site and name")
{
    const outcome of = run(4, 0, 150, [](int rank, std::uint64_t step) {
        rank_step made = heavy(rank, step);
        for (float& x : made.second) x *= rank == 1 ? 8.0f : 1.0f;
        return made;
    });
    bool named = false;
    for (const finding& found : of.all(finding_kind::unlike)) {
        CHECK(found.rank() == 1);
        if (found.call != 1) continue;
        named = true;
        CHECK(contains(report::describe(found), "bucket 1 'second': rank 1 was unlike the other ranks over many steps (unlike): the norm of its gradient was the largest in "));
    }
    CHECK(named);
}

TEST_CASE("ranks whose gradients are the same but for a factor are alike in direction")
{
    for (const int ranks : {3, 4, 6, 8}) {
        CAPTURE(ranks);
        for (const finding& found : run(ranks, 0, 60, [](int rank, std::uint64_t step) {
                 return rank_step{.first = std::vector<float>(10, static_cast<float>(rank + 1) * (1.0f + static_cast<float>(step)))};
             }).all(finding_kind::unlike))
            CHECK(found.evidence.metric != finding_kind::cosine);
    }
}

TEST_CASE("groups, no evidence, and evidence that goes on from a checkpoint, in both modes")
{
    const auto of = [](const probe_options& options, std::uint64_t from = 0, std::uint64_t to = 60, const std::vector<std::uint64_t>& state = {}) {
        return run(4, from, to, [](int rank, std::uint64_t step) {
            rank_step made = heavy(rank, step);
            made.loss += rank == 3 ? 20 : 0;
            return made;
        }, options, state);
    };
    for (const report_mode mode : testing::both_modes) {
        CHECK(of({.mode = mode, .groups = {0, 0, 0, 1}}).all(finding_kind::unlike).empty());
        const outcome named = of({.mode = mode});
        CHECK_FALSE(named.all(finding_kind::unlike).empty());
        CHECK(named.records.back().evidence_by_rank.size() == 4);
        const outcome before = of({.mode = mode}, 0, 40), after = of({.mode = mode}, 40, 60, before.state);
        CHECK(after.records.back().evidence_by_rank == named.records.back().evidence_by_rank);
    }
    const outcome without = of({.false_alarms_per_run = 0});
    CHECK(without.all(finding_kind::unlike).empty());
    CHECK(without.records.back().evidence_by_rank.empty());
    CHECK(without.state.empty());
}

TEST_CASE("wrong states are refused")
{
    local::run(1, [](local::communicator& world) {
        const std::vector<std::uint64_t> words(10);
        probed comm(world, {.false_alarms_per_run = 0}), watching(world);
        CHECK(contains(refusal([&] { comm.restore_evidence(words); }), "no evidence is gathered"));
        exchangeability_watch foreign(1); // a state, but not of a probe
        CHECK(contains(refusal([&] { watching.restore_evidence(foreign.state()); }), "not that of a probe"));
        foreign.add(finding_kind::loss, {1, 0, 0});
        CHECK(contains(refusal([&] { watching.restore_evidence(foreign.state()); }), "not that of a probe"));
        CHECK(contains(refusal([&] { watching.restore_evidence(words); }), "no such state"));
    });
}

namespace {

/// Whether a rank has zeros in a call ("whole" has two) of a step.
using emptiness = std::function<bool(int rank, std::uint64_t step, int call)>;

/// Steps of four ranks, some without a gradient. `no_data`: this rank tells the weight 0.
outcome run_empty(std::uint64_t from, std::uint64_t to, const emptiness& is_empty, int no_data = -1,
    const std::vector<std::uint64_t>& state = {}, const probe_options& options = untimed)
{
    return run(4, from, to, [&](int rank, std::uint64_t step) {
        rank_step made = healthy(rank, step, 100, 0.1);
        made.second = healthy(rank + 100, step, 31, 0.1).first;
        if (is_empty(rank, step, 0)) made.first.assign(100, 0.0f);
        if (is_empty(rank, step, 1)) made.second.assign(31, 0.0f);
        if (rank == no_data) made.loss = made.weight = 0;
        return made;
    }, options, state);
}

/// The only finding, which is exact, of zeros, and of this step, rank and call; it names the first such step.
void check_zeros(const outcome& of, std::uint64_t step, int rank, int call, std::uint64_t since)
{
    CHECK(beside(of, step) == 0);
    const auto found = of.all(finding_kind::zeros);
    REQUIRE(found.size() == 1);
    CHECK(of.records.at(step - of.records[0].step).findings.size() == 1);
    CHECK(found[0].rank() == rank);
    CHECK(found[0].call == call);
    CHECK(found[0].exact);
    CHECK(found[0].number.since == since);
    CHECK(found[0].number.steps == step - since + 1);
}

} // namespace

TEST_CASE("a rank without a gradient is noted at once, and named once when it lasts")
{
    for (const report_mode mode : testing::both_modes) {
        const int silent = mode == report_mode::gather ? 0 : 3;
        const std::string which = std::to_string(silent);
        const outcome of = run_empty(0, 400, [&](int rank, std::uint64_t step, int) { return rank == silent && step >= 100; }, -1, {}, {.mode = mode, .times = false});
        check_zeros(of, 115, silent, -1, 100);
        CHECK(alarms_in(of, 4) == 1);
        CHECK(contains(report::describe(of.records[115].findings[0]),
            "whole step: rank " + which + " sent zeros only, where others did not (zeros): since step 100"));
        for (const step_record& record : of.records) {
            REQUIRE(record.zero_ranks.size() == (record.step < 100 ? 0 : 1));
            if (record.step < 100) continue;
            CHECK(record.zero_ranks[0].rank == silent);
            CHECK(record.zero_ranks[0].since == 100);
            CHECK_FALSE(record.zero_ranks[0].has_no_weight);
            if (record.step != 399) continue;
            CHECK(contains(report::step_table(record), "\nnote: rank " + which + " sends zeros only, since step 100\n"));
            CHECK(contains(report::json_line("r", record), R"("zero_ranks":[{"rank":)" + which + R"(,"since":100,"no_weight":false}])"));
        }
    }
}

TEST_CASE("a rank that tells that it has no data is noted, and never named nor unlike the others")
{
    const outcome of = run_empty(0, COLLPROBE_TEST_UNLESS_BRIEF(2000, 400), [](int rank, std::uint64_t, int) { return rank == 3; }, 3);
    CHECK(beside(of, no_index) == 0);
    for (const rank_evidence& each : of.records.back().evidence_by_rank) {
        CHECK_FALSE(each.unlike);
        CHECK(each.odds < 100);
    }
    for (const step_record& record : of.records) {
        REQUIRE(record.zero_ranks.size() == 1);
        CHECK(record.zero_ranks[0].has_no_weight);
    }
    CHECK(contains(report::step_table(of.records[0]), "sends zeros only, since step 0, and tells that it has no data (weight 0)\n"));
}

TEST_CASE("what comes and goes, what all ranks do and what most ranks do is named on no rank")
{
    const auto is_silent = [](const outcome& of) { return beside(of, no_index) == 0 && alarms_in(of, 4) == 0; };
    // A rank without data in 12 steps of 20; then twice as long is needed, also behind a checkpoint.
    const emptiness comes_and_goes = [](int rank, std::uint64_t step, int) { return rank == 2 && step % 20 < 12; };
    const outcome before = run_empty(0, 300, comes_and_goes);
    CHECK(is_silent(before));
    check_zeros(run_empty(300, 400, [](int rank, std::uint64_t, int) { return rank == 1; }, -1, before.state), 323, 1, -1, 300);
    // Layers that are frozen, and steps without any gradient.
    CHECK(is_silent(run_empty(0, 200, [](int, std::uint64_t step, int call) { return call == 1 && step >= 50; })));
    CHECK(is_silent(run_empty(0, 100, [](int, std::uint64_t step, int) { return step % 2 == 1; })));
    // An expert that gets tokens of any rank in one step of four.
    CHECK(is_silent(run_empty(0, 600, [](int rank, std::uint64_t step, int call) {
        return call == 1 && detail::mix64(step * 4 + static_cast<std::uint64_t>(rank) + 77) % 4 != 0;
    })));
    CHECK(run_empty(0, 100, [](int rank, std::uint64_t, int call) { return call == 1 && rank != 0; }).all(finding_kind::zeros).empty());
}

TEST_CASE("healthy ranks, one of them at times without data, are silent over thousands of steps")
{
    const outcome of = run_empty(0, COLLPROBE_TEST_UNLESS_BRIEF(COLLPROBE_TEST_UNLESS_SANITIZED(10'000, 1'000), 1'000),
        [](int rank, std::uint64_t step, int) { return rank == 3 && step % 100 == 99; });
    for (const step_record& record : of.records)
        for (const finding& each : record.findings) CHECK_FALSE(each.exact);
    CHECK(beside(of, no_index) <= 5); // 1e-4 a step: one is expected
    CHECK(alarms_in(of, 4) == 0);
}

TEST_CASE("ranks that send nothing have no zeros, and are not unlike the others")
{
    for (const bool is_expert : {false, true}) { // beside a gradient of all; or a rank has none in the whole step
        CAPTURE(is_expert);
        for (const step_record& record : testing::records_of({4, COLLPROBE_TEST_UNLESS_SANITIZED(400, 100), untimed},
                 [&](auto& comm, host::stream& stream, int step, auto&) {
                     std::mt19937_64 random(static_cast<std::uint64_t>(4 * step + comm.rank()));
                     std::normal_distribution<float> normal;
                     std::vector<float> data(64), sum(64);
                     for (float& x : data) x = normal(random);
                     if (is_expert) comm.all_reduce(data, view(sum), reduction::average, stream);
                     stream.synchronize(60'000);
                     const bool sends = is_expert ? comm.rank() < 2 : comm.rank() != 1;
                     for (int c = 0; c < 2; ++c) {
                         const bool with_zeros = is_expert || random() % 4 == 0; // a frozen expert of two ranks
                         for (float& x : data) x = with_zeros ? 0 : normal(random);
                         const auto site = call_site::named("part");
                         const auto token = sends
                             ? comm.observe(view<const float>(data), stream, collective::all_reduce, reduction::average, site)
                             : comm.template observe_no_input<float>(data.size(), stream, collective::all_reduce, reduction::average, site);
                         token.no_result(stream);
                         stream.synchronize(60'000);
                     }
                 })) {
            CHECK(record.findings.empty());
            for (const rank_with_zeros& each : record.zero_ranks) CHECK(each.rank != 1);
        }
    }
}

} // namespace collprobe::testing::step_numbers_test
