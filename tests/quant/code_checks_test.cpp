// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
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

/// Elements of all sizes, and zeros: what rounds badly.
std::vector<float> uneven(int rank, int step, uint64_t count)
{
    std::mt19937_64 random(static_cast<unsigned>(rank + 100 * step));
    std::normal_distribution<double> normal;
    std::vector<float> x(count);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double size = i / 1000 % 4 == 3 ? 1e-6 : i % 389 == 0 ? 300 : 1;
        x[i] = random() % 16 == 0 ? 0.0f : static_cast<float>(size * normal(random));
    }
    return x;
}

template <class T>
double clean_residual(probed_steps of, uint64_t count, float size = 1)
{
    of.checks.codes = true;
    of.options = {.least_bytes = 1, .scratch_bytes = 64 << 10};
    of.steps = of.across.feedback == error_feedback::none ? 1 : 3;
    const probed_run run
        = run_flipped<T>(of, {}, [&](int rank, int step) {
              const detail::gradual_underflow as_ieee_has_it;
              std::vector<float> x = uneven(rank, step, count);
              for (float& each : x) each = static_cast<float>(static_cast<double>(each) * static_cast<double>(size));
              return x;
          });
    double worst = 0;
    for (const step_record& record : run.records) {
        const call_quantisation& call = record.calls.at(0).quantisation;
        CHECK(call.codes_checked);
        CHECK(call.damaged_bin == no_index);
        CHECK(call.verdict != quantisation_verdict::corrupt);
        worst = std::max(worst, call.codes_residual);
    }
    return worst;
}

std::vector<quantisation> all_formats()
{
    std::vector<quantisation> all;
    for (const code_format format : {code_format::int8, code_format::int4, code_format::e4m3, code_format::e5m2}) {
        all.push_back({.format = format});
        all.push_back({.format = format, .rounding = code_rounding::stochastic});
        all.push_back({.format = format, .block = 64, .rotate = true});
        all.push_back({.format = format, .feedback = error_feedback::all});
    }
    for (const code_format format : {code_format::int8, code_format::int4}) {
        all.push_back({.format = format, .rule = scaling::signed_maximum, .feedback = error_feedback::owner});
        all.push_back({.format = format, .block = 512, .rule = scaling::asymmetric, .scale = scale_format::float32});
        all.push_back({.format = format, .rotate = true, .feedback = error_feedback::all});
    }
    return all;
}

} // namespace

TEST_CASE("results are the sums of their codes: all formats, types and levels")
{
    double worst = 0;
    for (const quantisation& how : all_formats()) {
        for (const shape ranks : {shape{0, 3}, shape{2, 2}}) {
            for (const bool scatters : {false, true}) {
                const reduction operation = scatters ? reduction::sum : reduction::average;
                worst = std::max(worst, clean_residual<float>({ranks, how, how, scatters, operation}, 12 * 211));
                const probed_steps other{ranks, how, how, !scatters, operation};
                const double narrow = ranks.nodes == 0 ? clean_residual<bfloat16>(other, 12 * 211)
                                                       : clean_residual<float16>(other, 12 * 211);
                worst = std::max(worst, narrow);
            }
        }
    }
    // Subnormal numbers, which the mode of the build may drop.
    for (const quantisation& how : {quantisation{.rotate = true}, {.rule = scaling::asymmetric}}) {
        for (const bool scatters : {false, true}) {
            const probed_steps tiny_ones{{0, 3}, how, how, scatters, reduction::average};
            worst = std::max(worst, clean_residual<bfloat16>(tiny_ones, 12 * 211, 0x1p-120f));
            worst = std::max(worst, clean_residual<float>(tiny_ones, 12 * 211, 0x1p-130f));
        }
    }
    MESSAGE("largest residual " << worst);
    CHECK(worst > 0.01); // something is rounded
}

namespace {

constexpr collective exchange = collective::all_to_all;
constexpr collective gather = collective::all_gather;

/// Damage to one element of int4, in a byte of codes of a message that has so many slices.
struct place {
    shape ranks;
    bool scatters;
    flip where; ///< its byte: in the message
    uint64_t message;
    uint64_t slices;
    int damaged; ///< the only rank whose result is damaged, or -1
};
const place places[] = {
    {{0, 4}, false, {2, exchange, 0, 1001, 1}, 0, 1, -1},
    {{2, 2}, false, {3, exchange, 1, 1500, 1}, 0, 1, -1},
    {{0, 4}, true, {1, exchange, 0, 10, 16}, 3, 1, -1},
    {{0, 4}, false, {3, gather, 0, 2000, 1}, 1, 1, 3},
    {{2, 2}, true, {0, exchange, 0, 2900, 16}, 1, 2, -1},
    {{2, 2}, false, {1, gather, 0, 0, 1}, 1, 1, -1}, // of two ranks: handed on to the other rank of the node
    {{2, 2}, false, {1, gather, 1, 700, 1}, 0, 2, 1},
};

probed_run run_place(const place* each, uint64_t count)
{
    // Each rank has them in another order.
    static const std::vector<float> normal = gradient(0, 1 << 20, 0, 1);
    const auto make = [count](int rank, int) {
        std::vector<float> x(count);
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] = normal[(i * 5 + static_cast<std::size_t>(rank) * 77777) % normal.size()];
        return x;
    };
    probed_steps of{each->ranks, int4, int4, each->scatters, reduction::average};
    of.checks.codes = true;
    of.options = {.least_bytes = 1};
    flip where = each->where;
    const uint64_t slice = count / 4;
    where.byte += each->message * each->slices * (slice / 2 + slice / 128 * 2);
    return run_flipped(of, {where}, make);
}

} // namespace

TEST_CASE("one flipped bit of a code among 2^20 elements of int4 is seen")
{
    for (const place* each = places; each < places + 2; ++each) {
        const call_quantisation call = run_place(each, 1 << 20).call();
        CHECK(call.codes_residual > 100);
        CHECK(call.verdict == quantisation_verdict::corrupt);
    }
    place none = places[0];
    none.where.rank = -1;
    const call_quantisation call = run_place(&none, 1 << 20).call();
    CHECK(call.codes_checked);
    CHECK(call.codes_residual < 8);
    CHECK(call.verdict != quantisation_verdict::corrupt);
}

TEST_CASE("a flipped bit of a code is seen wherever it is flipped, and its only holder is named")
{
    for (const place& each : places) {
        const probed_run run = run_place(&each, 1 << 14);
        const call_quantisation& call = run.call();
        INFO("to " << each.where.rank << " of " << each.ranks.nodes << " nodes: " << call.codes_residual);
        CHECK(call.codes_residual > 100);
        CHECK(call.damaged_bin < call.bins);
        CHECK(call.damaged_rank == each.damaged);
        CHECK(call.verdict == quantisation_verdict::corrupt);
        const std::vector<suspect> named = suspects_of(run.record(), finding::codes_differ);
        REQUIRE(named.size() == 1);
        CHECK(named[0].rank == call.damaged_rank);
        CHECK(named[0].statistic == call.codes_residual);
        CHECK(named[0].exact);
    }
}

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
        for (const bool also_codes : {false, true}) {
            probed_steps of{row.ranks, int8, int8, row.scatters, reduction::average, 2};
            of.checks = {.aggregate = also_codes, .codes = also_codes, .messages = true};
            const probed_run run = run_flipped(of, {row.where}, make(row.ranks));
            const call_quantisation& call = run.records.at(0).calls.at(0).quantisation;
            CHECK(call.verdict == quantisation_verdict::corrupt);
            CHECK(call.damaged_pairs == 1);
            CHECK(call.damaged_receiver == row.where.rank);
            CHECK(call.damaged_sender == row.sender);
            CHECK((call.damaged_bin != no_index) == also_codes);
            const std::vector<suspect> named = suspects_of(run.records.at(0), finding::codes_differ);
            REQUIRE(named.size() == 1);
            CHECK(named[0].rank == row.where.rank);
            CHECK(named[0].other_rank == row.sender);
            CHECK(named[0].exact);
            CHECK(run.call().messages_checked); // of the next step, without damage
            CHECK(run.call().damaged_pairs == 0);
            CHECK(suspects_of(run.record(), finding::codes_differ).empty());
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
        const std::vector<suspect> named = suspects_of(record, finding::codes_differ);
        require(named.size() == 1 && named[0].call == 1, "one call");
        require(named[0].rank == 1 && named[0].other_rank == 2, "who");
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
            const std::vector<suspect> named = suspects_of(record, finding::codes_differ);
            require(named.size() == (damaged < 0 ? 0 : 1), "pairs");
            if (damaged >= 0) require(named[0].rank == damaged && named[0].other_rank == 2, "who");
        });
    }
}

TEST_CASE("a sum that its type cannot hold is no damage, also where it makes a whole block NaN")
{
    for (const scaling rule : {scaling::symmetric, scaling::signed_maximum}) {
        for (const bool rotate : {false, true}) {
            probed_steps of{.ranks = {0, 2}, .operation = reduction::sum};
            of.within = of.across = {.rule = rule, .rotate = rotate};
            of.checks.codes = true;
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
}

TEST_CASE("a flipped bit is seen in codes of any format, and in scales")
{
    std::mt19937_64 random(1);
    for (const quantisation& how : all_formats()) {
        const bool is_float = how.format == code_format::e4m3 || how.format == code_format::e5m2;
        for (const shape ranks : {shape{0, 3}, shape{2, 2}}) {
            probed_steps of{ranks, how, how, false, reduction::average};
            of.checks = {.codes = true};
            of.options = {.least_bytes = 1, .scratch_bytes = 1 << 18};
            // Of floating-point codes the last bits may be those of numbers far below the others.
            const unsigned mask = is_float ? 0x40 : 1u << random() % 8;
            const flip where{static_cast<int>(random() % 3), exchange, 0, random() % 500, mask};
            const auto make = [](int rank, int) { return gradient(rank, 9000, 0, 1); };
            const call_quantisation call = run_flipped(of, {where}, make).call();
            INFO(name(how.format) << " " << name(how.rule) << ": " << call.codes_residual);
            CHECK(call.verdict == quantisation_verdict::corrupt);
        }
    }
}
