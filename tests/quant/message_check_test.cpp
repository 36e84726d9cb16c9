// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report.hpp>

#include "quant/flipping.hpp"
#include "quant/probed_steps.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using std::uint64_t;

namespace {

constexpr quantisation int4{.format = code_format::int4};
constexpr quantisation int8{.format = code_format::int8};

/// Steps on ranks whose messages are damaged on the way.
template <class T = float, class Make>
probed_run run_flipped(const probed_steps& of, const std::vector<flip>& flips, const Make& make)
{
    probed_run out;
    out.results.resize(static_cast<std::size_t>(of.ranks.ranks()));
    local::run(of.ranks.ranks(), {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
        flips_of_rank mine{flips, bare.rank()};
        flipping<local::communicator> world(bare, mine);
        if (of.ranks.nodes == 0) {
            quantised comm(world, of.within, of.options);
            make_steps<T>(of, comm, make, out);
        } else {
            node_groups nodes(world, of.ranks.per_node);
            quantised comm(world, nodes, of.within, of.across, of.options);
            make_steps<T>(of, comm, make, out);
        }
    });
    return out;
}

constexpr collective exchange = collective::all_to_all;
constexpr collective gather = collective::all_gather;

} // namespace

TEST_CASE("messages that are damaged on the way name their sender and receiver")
{
    // Slices of 512 elements of int8 are messages of 528 bytes, 8 of which are scales; of two slices, 1040.
    const struct {
        shape ranks;
        bool scatters;
        flip where;
        int sender;
    } rows[] = {
        {{0, 3}, false, {2, exchange, 0, 528 + 100, 1}, 1},
        {{0, 3}, false, {0, exchange, 0, 2 * 528 + 514, 128}, 2}, // a scale
        {{0, 3}, true, {1, exchange, 0, 17, 4}, 0},
        {{0, 3}, false, {1, gather, 0, 2 * 528 + 511, 64}, 2},
        {{2, 2}, false, {3, exchange, 0, 10, 1}, 2},
        {{2, 2}, true, {2, exchange, 1, 528, 2}, 2}, // to itself
        {{2, 2}, true, {2, exchange, 1, 500, 2}, 0},
        {{2, 2}, false, {0, gather, 0, 528 + 3, 1}, 2},
        {{2, 2}, false, {0, gather, 1, 2 * 528 + 3, 1}, 1},
    };
    const auto make = [](const shape& ranks) {
        return [&](int rank, int step) {
            return gradient(rank + 10 * step, 512 * static_cast<uint64_t>(ranks.ranks()), 0, 1);
        };
    };
    for (const auto& row : rows) {
        for (const bool aggregate : {false, true}) {
            probed_steps of{row.ranks, int8, int8, row.scatters, reduction::average, 2};
            of.checks = {.aggregate = aggregate, .messages = true};
            const probed_run run = run_flipped(of, {row.where}, make(row.ranks));
            const call_quantisation& call = run.records.at(0).calls.at(0).quantisation;
            CHECK(call.verdict == quantisation_verdict::corrupt);
            CHECK(call.damaged_pairs == 1);
            CHECK(call.damaged_receiver == row.where.rank);
            CHECK(call.damaged_sender == row.sender);
            const std::vector<finding> named = suspects_of(run.records.at(0), finding_kind::codes_differ);
            REQUIRE(named.size() == 1);
            CHECK(named[0].rank() == row.where.rank);
            CHECK(named[0].other_rank == row.sender);
            CHECK(named[0].exact);
            CHECK(run.call().messages_checked); // of the next step, without damage
            CHECK(run.call().damaged_pairs == 0);
            CHECK(suspects_of(run.record(), finding_kind::codes_differ).empty());
        }
    }
    probed_steps pieces{{2, 2}, int8, int4, false, reduction::sum};
    pieces.checks = {.messages = true};
    const auto many = [](int rank, int) { return gradient(rank, 100'001, 0, 1); };
    const probed_run clean = run_flipped(pieces, {}, many);
    CHECK(clean.call().messages_checked);
    CHECK(clean.call().verdict != quantisation_verdict::corrupt);
    const probed_run last = run_flipped(pieces, {{1, gather, 3, 40, 1}, {2, gather, 3, 40, 1}}, many);
    CHECK(last.call().damaged_pairs == 2);
    CHECK(last.call().damaged_receiver == 1);
    CHECK(contains(report::step_table(last.record()), "corrupt; "));
    CHECK(contains(report::step_table(last.record()), "; damaged messages between 2 pairs of ranks"));
    CHECK(contains(report::json_line("run", last.record()), "\"damaged_pairs\":2,"));
}

TEST_CASE("codes that are gathered name who damaged them, too")
{
    local::run(3, {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
        flips_of_rank mine{{{1, gather, 1, 2 * 528 + 5, 1}}, bare.rank()};
        quantised comm(flipping<local::communicator>(bare, mine), int8, tiny);
        host::stream stream;
        probed probe(std::move(comm), {}, quantisation_probe({}, {.messages = true}));
        const std::vector<float> shard = gradient(probe.rank(), 512, 0, 1);
        std::vector<float> all(3 * 512);
        for (int call = 0; call < 3; ++call) probe.all_gather(view<const float>(shard), view<float>(all), stream);
        probe.end_step(1, stream);
        step_record record;
        require(probe.wait(record), "no record");
        const std::vector<finding> named = suspects_of(record, finding_kind::codes_differ);
        require(named.size() == 1 && named[0].call == 1, "one call");
        require(named[0].rank() == 1 && named[0].other_rank == 2, "who");
    });
}

TEST_CASE("gathers in two levels go over all ranks, and so do the digests of their messages")
{
    for (const int damaged : {-1, 5}) {
        CAPTURE(damaged);
        local::run(6, {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
            flips_of_rank mine;
            mine.rank = bare.rank();
            if (damaged >= 0) mine.flips = {{damaged, gather, 0, 2 * 528 + 5, 1}};
            flipping<local::communicator> world(bare, mine);
            node_groups nodes(bare, 2);
            quantised comm(std::move(world), nodes, int8, int8, tiny);
            host::stream stream;
            probed probe(std::move(comm), {}, quantisation_probe({}, {.messages = true}));
            const std::vector<float> shard = gradient(probe.rank(), 512, 0, 1);
            std::vector<float> all(6 * 512);
            probe.all_gather(view<const float>(shard), view<float>(all), stream);
            probe.end_step(1, stream);
            step_record record;
            require(probe.wait(record), "no record");
            require(record.calls.at(0).quantisation.messages_checked, "not checked");
            const std::vector<finding> named = suspects_of(record, finding_kind::codes_differ);
            require(named.size() == (damaged < 0 ? 0 : 1), "pairs");
            if (damaged >= 0) require(named[0].rank() == damaged && named[0].other_rank == 2, "who");
        });
    }
}

TEST_CASE("a sum that its type cannot hold is no damage, also where a rotation makes a whole block NaN")
{
    for (const bool rotate : {false, true}) {
        probed_steps of{.ranks = {0, 2}, .operation = reduction::sum};
        of.within = of.across = {.rotate = rotate};
        const probed_run run = run_steps(of, [](int rank, int) {
            std::vector<float> x = gradient(rank, 1000, 0, 1);
            x[300] = 2.5e38f;
            return x;
        });
        CHECK(run.call().nonfinite == 0);
        CHECK(run.call().nonfinite_results != 0);
        CHECK(run.call().verdict == quantisation_verdict::harmful);
        CHECK(contains(report::step_table(run.record()), "sums overflow"));
    }
}
