// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A rank that sends zeros where others do not: told once where it lasts, and evidence of nothing else.
#include <doctest/doctest.h>

#include <algorithm>
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

#include "support/element_types.hpp"
#include "support/errors.hpp"

using namespace collprobe;
using testing::contains;

namespace {

constexpr int ranks = 4;

/// Whether a rank has zeros in a call ("whole" has two) of a step.
using emptiness = std::function<bool(int rank, std::uint64_t step, int call)>;
using weighting = std::function<double(int rank, std::uint64_t step)>;

const weighting ones = [](int, std::uint64_t) { return 1.0; };

/// A step's suspects and notes.
struct seen {
    std::vector<std::pair<std::uint64_t, finding>> findings;
    std::vector<step_record> kept; ///< of the steps that are asked for
    std::size_t alarms = 0;
    std::vector<rank_evidence> evidence; ///< of the last step
};

seen run(std::uint64_t steps, const emptiness& is_empty, const weighting& weight = ones,
    const std::vector<std::uint64_t>& keep = {})
{
    seen found;
    local::run(ranks, [&](local::communicator& world) {
        probe_options options;
        options.times = false; // a busy machine makes a rank late
        probed comm{world, options};
        host::stream stream;
        std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
        std::normal_distribution<float> normal;
        std::vector<float> first(100), second(31);
        alarms watch(ranks);
        step_record record;
        const auto fill = [&](std::vector<float>& data, bool with_zeros) {
            const float level = 1 + 0.1f * normal(random);
            for (float& x : data) x = level * normal(random);
            if (with_zeros) std::fill(data.begin(), data.end(), 0.0f);
        };
        for (std::uint64_t step = 0; step < steps; ++step) {
            fill(first, is_empty(world.rank(), step, 0));
            fill(second, is_empty(world.rank(), step, 1));
            const double loss = 3 + 0.1 * static_cast<double>(normal(random));
            comm.all_reduce(first, view(first), reduction::average, stream, call_site::named("first"));
            comm.all_reduce(second, view(second), reduction::average, stream, call_site::named("second"));
            const double told = weight(world.rank(), step);
            comm.end_step(step, {.loss = told > 0 ? loss : 0.0, .weight = told}, stream);
            if (!comm.wait(record)) continue;
            if (world.rank() != 0) continue;
            found.alarms += watch.judge(record).size();
            for (const finding& each : record.findings) found.findings.push_back({step, each});
            if (std::find(keep.begin(), keep.end(), step) != keep.end()) found.kept.push_back(record);
            found.evidence = record.evidence_by_rank;
        }
    });
    return found;
}

} // namespace

TEST_CASE("a rank without a gradient is noted at once, and named once when it lasts")
{
    const seen found = run(400, [](int rank, std::uint64_t step, int) { return rank == 3 && step >= 100; }, ones,
        {99, 100, 399});
    REQUIRE(found.findings.size() == 1);
    CHECK(found.findings[0].first == 115);
    const finding& named = found.findings[0].second;
    CHECK(named.what == finding_kind::zeros);
    CHECK(named.rank() == 3);
    CHECK(named.call == -1);
    CHECK(named.exact);
    CHECK(named.number.since == 100);
    CHECK(named.number.steps == 16);
    CHECK(found.alarms == 1);
    CHECK(contains(report::describe(named), "whole step: rank 3 sent zeros only, where others did not (zeros): since step 100"));
    CHECK(found.kept[0].zero_ranks.empty());
    for (const std::size_t at : {1u, 2u}) {
        const step_record& record = found.kept.at(at);
        REQUIRE(record.zero_ranks.size() == 1);
        CHECK(record.zero_ranks[0].rank == 3);
        CHECK(record.zero_ranks[0].since == 100);
        CHECK_FALSE(record.zero_ranks[0].has_no_weight);
        CHECK(contains(report::step_table(record), "\nnote: rank 3 sends zeros only, since step 100\n"));
        CHECK(contains(report::json_line("r", record), R"("zero_ranks":[{"rank":3,"since":100,"no_weight":false}])"));
    }
}

TEST_CASE("a rank that tells that it has no data is noted, and never named nor unlike the others")
{
    const seen found = run(2000, [](int rank, std::uint64_t, int) { return rank == 3; },
        [](int rank, std::uint64_t) { return rank == 3 ? 0.0 : 100.0; }, {0, 1999});
    CHECK(found.findings.empty());
    CHECK(found.alarms == 0);
    for (const rank_evidence& each : found.evidence) {
        CHECK_FALSE(each.unlike);
        CHECK(each.odds < 100);
    }
    for (const step_record& record : found.kept) {
        REQUIRE(record.zero_ranks.size() == 1);
        CHECK(record.zero_ranks[0].has_no_weight);
        CHECK(contains(report::step_table(record), "sends zeros only, since step 0, and tells that it has no data (weight 0)\n"));
    }
}

TEST_CASE("a parameter without gradient on one rank is named by its call, and once")
{
    const seen found = run(130, [](int rank, std::uint64_t step, int call) {
        return rank == 1 && call == 1 && step >= 50;
    }); // in the end the norm of the whole gradient, which is smaller, makes the rank unlike the others
    REQUIRE(found.findings.size() == 1);
    CHECK(found.findings[0].first == 65);
    const finding& named = found.findings[0].second;
    CHECK(named.what == finding_kind::zeros);
    CHECK(named.rank() == 1);
    CHECK(named.call == 1);
    CHECK(std::string(named.site.name) == "second");
    CHECK(named.number.since == 50);
}

TEST_CASE("what comes and goes, what all ranks do and what most ranks do is named on no rank")
{
    const auto is_silent = [](const seen& found) { return found.findings.empty() && found.alarms == 0; };
    // A rank without data in 12 steps of 20; then twice as long is needed.
    const emptiness comes_and_goes = [](int rank, std::uint64_t step, int) { return rank == 2 && step % 20 < 12; };
    CHECK(is_silent(run(300, comes_and_goes)));
    const seen later = run(400, [&](int rank, std::uint64_t step, int call) {
        return step >= 300 ? rank == 1 : comes_and_goes(rank, step, call);
    });
    REQUIRE(later.findings.size() == 1);
    CHECK(later.findings[0].first == 323);
    CHECK(later.findings[0].second.rank() == 1);
    // Layers that are frozen, and steps without any gradient.
    CHECK(is_silent(run(200, [](int, std::uint64_t step, int call) { return call == 1 && step >= 50; })));
    CHECK(is_silent(run(100, [](int, std::uint64_t step, int) { return step % 2 == 1; })));
    // An expert that gets tokens of any rank in one step of four.
    CHECK(is_silent(run(600, [](int rank, std::uint64_t step, int call) {
        return call == 1 && detail::mix64(step * 4 + static_cast<std::uint64_t>(rank) + 77) % 4 != 0;
    })));
    for (const auto& [step, each] : run(100, [](int rank, std::uint64_t, int call) { return call == 1 && rank != 0; }).findings)
        CHECK(each.what != finding_kind::zeros);
}

TEST_CASE("healthy ranks, one of them at times without data, are silent over 10000 steps")
{
    const seen found = run(COLLPROBE_TEST_UNLESS_SANITIZED(10'000, 1'000),
        [](int rank, std::uint64_t step, int) { return rank == 3 && step % 100 == 99; });
    for (const auto& [step, each] : found.findings) CHECK_FALSE(each.exact);
    CHECK(found.findings.size() <= 5); // 1e-4 a step: one is expected
    CHECK(found.alarms == 0);
}

TEST_CASE("a run that goes on knows what came and went before")
{
    std::vector<std::uint64_t> words;
    std::size_t named = 0;
    for (const std::uint64_t first : {0u, 100u}) {
        local::run(ranks, [&](local::communicator& world) {
            probed comm{world, {.times = false}};
            if (first != 0) comm.restore_evidence(words);
            host::stream stream;
            step_record record;
            std::vector<std::uint64_t> state;
            for (std::uint64_t step = first; step < first + 60; ++step) {
                const bool is_empty = world.rank() == 3 && (first == 0 ? step >= 10 && step < 50 : true);
                std::vector<float> data(64);
                for (std::size_t i = 0; i < data.size() && !is_empty; ++i)
                    data[i] = static_cast<float>(1 + detail::mix64(step * 256 + i * 4 + static_cast<std::uint64_t>(world.rank())) % 99);
                comm.all_reduce(data, view(data), reduction::average, stream);
                comm.end_step(step, stream);
                if (!comm.wait(record)) continue;
                for (const finding& each : record.findings)
                    if (world.rank() == 0 && each.what == finding_kind::zeros) ++named;
            }
            state = comm.evidence_state();
            if (world.rank() == 0) words = state;
        });
        CHECK(named == 1); // the 40 steps before the restart; 80 are needed behind it
    }
}

TEST_CASE("ranks that send nothing have no zeros, and are not unlike the others")
{
    for (const bool is_expert : {false, true}) { // beside a gradient of all; or a rank has none in the whole step
        CAPTURE(is_expert);
        local::run(ranks, [&](local::communicator& world) {
            probed comm{world, {.times = false}};
            host::stream stream;
            std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
            std::normal_distribution<float> normal;
            std::vector<float> data(64), sum(64);
            step_record record;
            for (std::uint64_t step = 0; step < COLLPROBE_TEST_UNLESS_SANITIZED(400, 100); ++step) {
                const auto fill = [&](bool with_zeros) {
                    for (float& x : data) x = with_zeros ? 0 : normal(random);
                };
                fill(false);
                if (is_expert) comm.all_reduce(data, view(sum), reduction::average, stream);
                stream.synchronize(60'000);
                const bool sends = is_expert ? world.rank() < 2 : world.rank() != 1;
                for (int c = 0; c < 2; ++c) {
                    fill(is_expert || random() % 4 == 0); // a frozen expert of two ranks
                    const auto token = sends ? comm.observe(view<const float>(data), stream)
                                             : comm.observe_no_input<float>(data.size(), stream);
                    token.no_result(stream);
                    stream.synchronize(60'000);
                }
                comm.end_step(step, stream);
                stream.synchronize(60'000);
                REQUIRE(comm.wait(record));
                CHECK(record.findings.empty());
                for (const rank_with_zeros& each : record.zero_ranks) CHECK(each.rank != 1);
            }
        });
    }
}
