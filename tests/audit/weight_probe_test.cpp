// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/errors.hpp"
#include "support/run_ranks.hpp"
#include "weight_steps.hpp"

using namespace collprobe;
using namespace testing_weights;

namespace {

/// A trainer's average of gradients that a probe observes from outside.
struct outside {
    double before[4] = {1, 1, 1, 1}; ///< factors of the ranks' gradients
    double behind = 1; ///< of the sum
    double tokens[4] = {1, 1, 1, 1};
    double told_scale = 1;
    reduction operation = reduction::sum; ///< as the observer tells it
};

auto audits()
{
    return [] { return audit(); };
}

/// The same between `observe` and its `result`, of four ranks.
template <class T, class... Parts>
step_record observed(const outside& of, const Parts&... parts)
{
    return one_step(4, [&](auto& comm, host::stream& stream) {
        const int rank = comm.rank();
        if constexpr (requires { comm.template part<weight_probe>(); })
            comm.template part<weight_probe>().scale(of.told_scale);
        const std::vector<T> mine = gradient<T>(rank);
        const auto token = comm.observe(view<const T>(mine), stream, collective::all_reduce, of.operation, call_site::named("wte"));
        stream.synchronize(testing::soon_ms);
        std::vector<T> data = times(mine, of.before[rank]);
        comm.base().all_reduce(view<const T>(data), view<T>(data), reduction::sum, stream);
        stream.synchronize(testing::soon_ms);
        data = times(data, of.behind);
        token.result(view<const T>(data), stream);
        comm.end_step(3, {.weight = of.tokens[rank]}, stream);
        stream.synchronize(testing::soon_ms);
    }, parts...);
}

} // namespace

TEST_CASE_TEMPLATE(
    "what happens to gradients outside of the collective is named, on all ranks alike", T, float, bfloat16)
{
    struct expectation {
        outside of;
        averaging how;
        int named = -1;
        bool expected = true;
        const char* described = "";
    };
    const expectation cases[] = {
        {{.behind = 0.25}, averaging::mean, -1, true, "all ranks entered the average with weight 1/4: mean"},
        {{}, averaging::sum, -1, true, "all ranks entered the average with weight 1: sum"},
        {{.before = {0.25, 0.25, 0.25, 0.25}, .behind = 0.25}, averaging::divided_twice, -1, false,
            "all ranks entered the average with weight 1/16: divided twice"},
        {{.before = {0.125, 0.25, 0.125, 0.5}, .tokens = {100, 200, 100, 400}}, averaging::token_weighted, -1, true,
            "the ranks entered the average with weights of 1/8 to 1/2: weighted by tokens"},
        {{.behind = 0.25, .tokens = {100, 200, 300, 400}}, averaging::mean, -1, true,
            "all ranks entered the average with weight 1/4: mean"},
        {{.before = {1, 1, 0, 1}, .behind = 0.25}, averaging::rank_lost, 2, false,
            "rank 2 entered the average with weight 0 (others 1/4): rank lost"},
        {{.before = {0, 1, 1, 1}, .behind = 1.0 / 3}, averaging::rank_lost, 0, false,
            "rank 0 entered the average with weight 0 (others 1/3): rank lost"},
        {{.before = {1, 1, 1, 2}, .behind = 0.25}, averaging::rank_doubled, 3, false,
            "rank 3 entered the average with weight 1/2 (others 1/4): rank counted twice"},
        {{.before = {1, 2, 3, 4}}, averaging::other, -1, false,
            "the ranks entered the average with weights of 1 to 4: no known form"},
        {{.behind = 0.25 / 1024, .told_scale = 1.0 / 1024}, averaging::mean, -1, true,
            "all ranks entered the average with weight 1/4096: mean"},
        {{.behind = 0.25 / 1024}, averaging::other, -1, false,
            "all ranks entered the average with weight 1/4096: no known form"},
    };
    for (const expectation& each : cases) {
        CAPTURE(each.described);
        const step_record record = observed<T>(each.of, weights());
        const call_weights& found = record.calls.at(0).weights;
        CHECK(found.seen);
        CHECK(name(found.how) == std::string(name(each.how)));
        CHECK(found.expected == each.expected);
        CHECK(found.scale == each.of.told_scale);
        if (each.named >= 0) CHECK(found.ranks == std::vector<int>{each.named});
        REQUIRE(found.weights.size() == 4);
        for (std::size_t r = 0; r < 4; ++r) {
            const double truth = each.of.before[r] * each.of.behind;
            CHECK(std::abs(found.weights[r] - truth) <= found.bounds[r] + 1e-7 * truth);
        }
        CHECK(found.residual < found.residual_limit);
        CHECK(report::describe(0, record.calls[0].site, found) == std::string("bucket 0 'wte': ") + each.described);

        std::vector<finding> suspects;
        for (const finding& one : record.findings) {
            if (one.what == finding_kind::weights) suspects.push_back(one);
        }
        REQUIRE(suspects.size() == (each.expected ? 0 : 1));
        if (each.expected) continue;
        CHECK(suspects[0].rank() == each.named);
        CHECK(suspects[0].call == 0);
        CHECK_FALSE(suspects[0].exact);
        CHECK(suspects[0].false_alarms_per_step == doctest::Approx(8e-9));
        CHECK(std::string(suspects[0].site.name) == "wte");
    }
}

TEST_CASE("texts and JSON lines tell the form, the weights and the rank")
{
    const step_record record
        = observed<float>({.before = {1, 0, 1, 1}, .behind = 0.25}, weights());
    const std::string table = report::step_table(record);
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
    CHECK(has(table, "\nweights: bucket 0 'wte': rank 1 entered the average with weight 0 (others 1/4): rank lost\n"));
    CHECK(has(table, "\nfinding: bucket 0 'wte': rank 1 entered the average with another weight than is expected (weights): 0 times that of a mean\n"));
    const std::string line = report::json_line("run", record);
    CHECK(has(line, "\"weights\":{\"form\":\"rank_lost\",\"expected\":false,\"by_rank\":[0.2"));
    CHECK(has(line, "\"ranks\":[1],\"common\":0.2"));
    CHECK(has(line, "\"bins\":256}"));
    const step_record equal = observed<float>({.behind = 0.25}, weights());
    CHECK(has(report::step_table(equal), "\nweights: as expected in 1 call\n"));
    CHECK_FALSE(has(report::json_line("run", observed<float>({}, audits())), "\"weights\""));

    const step_record same_inputs = one_step(3, [&](auto& comm, host::stream& stream) {
        std::vector<float> data = gradient<float>(7);
        comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    CHECK(same_inputs.calls[0].weights.why_not == weights_refusal::collinear);
    CHECK(has(report::step_table(same_inputs), "unknown: the inputs are alike, or combinations of each other\n"));
    CHECK(has(report::json_line("run", same_inputs), "\"weights\":{\"form\":\"unknown\",\"expected\":true,\"why_not\":\"collinear\""));
}

TEST_CASE("calls that are made are measured, in place or not, beside an audit that shares the reads")
{
    const auto work = [](auto& comm, host::stream& stream) {
        std::vector<float> mine = gradient<float>(comm.rank()), result(count), part(count / 4);
        std::vector<bfloat16> half = gradient<bfloat16>(comm.rank());
        comm.all_reduce(view<const float>(mine), view<float>(result), reduction::average, stream);
        comm.reduce_scatter(view<const float>(mine), view<float>(part), reduction::sum, stream);
        comm.all_reduce(view<const bfloat16>(half), view<bfloat16>(half), reduction::average, stream);
        comm.all_reduce(view<const float>(mine), view<float>(mine), reduction::sum, stream);
        std::vector<std::int32_t> integers(100, 1);
        comm.all_reduce(view<const std::int32_t>(integers), view<std::int32_t>(integers), reduction::sum, stream);
        comm.all_reduce(view<const float>(result), view<float>(result), reduction::max, stream);
        comm.broadcast(view<const float>(result), view<float>(result), 0, stream);
        std::vector<float> none;
        comm.all_reduce(view<const float>(none), view<float>(none), reduction::sum, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    };
    const step_record alone = one_step(4, work, weights());
    const step_record behind = one_step(4, work, audits(), weights());
    // Of other signs no sketch can be made from the audit's.
    const step_record reread = one_step(4, work, audits(), weights({.every = 1, .seed = 5}));
    CHECK(alone.calls[0].weights.how == averaging::mean);
    CHECK(alone.calls[1].weights.how == averaging::sum);
    CHECK(alone.calls[2].weights.how == averaging::mean);
    CHECK(alone.calls[3].weights.how == averaging::sum);
    for (const std::size_t c : {4u, 5u, 6u}) CHECK_FALSE(alone.calls[c].weights.seen);
    CHECK(alone.calls[7].weights.why_not == weights_refusal::few_elements);
    for (std::size_t c = 0; c < 8; ++c) {
        const call_weights& of = behind.calls[c].weights;
        CHECK(of.how == alone.calls[c].weights.how);
        CHECK(of.how == reread.calls[c].weights.how);
        for (std::size_t r = 0; r < of.weights.size(); ++r)
            CHECK(of.weights[r] == doctest::Approx(alone.calls[c].weights.weights[r]).epsilon(1e-12));
        CHECK(behind.calls[c].audit.conserved);
        CHECK(behind.calls[c].audit.residual == reread.calls[c].audit.residual);
    }
    CHECK(behind.calls[0].audit.sum_checked);
    CHECK(behind.findings.empty());

    // The audit has more bins, so where it is the second it reads by itself.
    const outside mean{.behind = 0.25};
    const step_record first = observed<float>(mean, audits(), weights());
    const step_record second = observed<float>(mean, weights(), audits());
    CHECK(first.calls[0].audit.residual == second.calls[0].audit.residual);
    CHECK(first.calls[0].weights.how == averaging::mean);
    CHECK(second.calls[0].weights.how == averaging::mean);
}

TEST_CASE("it looks at each k-th step, or at those that are asked for, and at groups of ranks by themselves")
{
    for (const int every : {0, 3}) {
        testing::local_provider{4}.run([&](local::communicator& world) {
            auto two = world.split(world.rank() % 2, world.rank()).value();
            probed comm{std::move(two), {}, audit(), weight_probe({.every = every})};
            host::stream stream;
            std::vector<float> result(count);
            step_record record;
            for (int step = 0; step < 7; ++step) {
                const std::vector<float> mine = gradient<float>(world.rank() + 4 * step);
                const bool due = every == 0 ? step == 2 : step % 3 == 0;
                if (every == 0 && due) comm.request<weight_probe>();
                comm.all_reduce(view<const float>(mine), view<float>(result), reduction::average, stream);
                comm.end_step(static_cast<std::uint64_t>(step), stream);
                testing::require(comm.wait(record), "no record");
                stream.synchronize(testing::soon_ms);
                const call_weights& of = record.calls.at(0).weights;
                testing::require(of.seen == due, "looked at a wrong step");
                testing::require(!due || (of.how == averaging::mean && of.weights.size() == 2), "wrong form");
                testing::require(record.calls[0].audit.conserved && record.findings.empty(), "suspects");
            }
        });
    }
}

TEST_CASE("expected forms are the user's, and equal tokens are a mean")
{
    const auto suspects_of = [](const outside& of, std::vector<averaging> expected) {
        std::size_t found = 0;
        for (const finding& each : observed<float>(of, weights({.every = 1, .expected = expected})).findings)
            found += each.what == finding_kind::weights ? 1 : 0;
        return found;
    };
    CHECK(suspects_of({.behind = 0.25}, {averaging::sum}) == 1);
    CHECK(suspects_of({}, {averaging::sum}) == 0);
    CHECK(suspects_of({.behind = 0.25, .tokens = {5, 5, 5, 5}}, {averaging::token_weighted}) == 0);
    CHECK(suspects_of({.behind = 0.25, .tokens = {5, 5, 5, 9}}, {averaging::token_weighted}) == 1);
}

TEST_CASE("of an average a sum is a suspect, and of a sum it is none")
{
    std::string text; // of the last suspect
    const auto weights_of = [&text](const outside& of) {
        const step_record record = observed<float>(of, weights());
        const call_weights& found = record.calls.at(0).weights;
        std::size_t named = 0;
        for (const finding& each : record.findings) named += each.what == finding_kind::weights ? 1 : 0;
        CHECK(named == (found.expected ? 0 : 1));
        for (const finding& each : record.findings) {
            if (each.what == finding_kind::weights) text = report::describe(each);
        }
        return found;
    };
    const call_weights undivided = weights_of({.operation = reduction::average});
    CHECK(undivided.how == averaging::sum);
    CHECK_FALSE(undivided.expected);
    CHECK(text.find("with another weight than is expected (weights): the one farthest from a mean's is 4 times that") != text.npos);
    const call_weights divided = weights_of({.behind = 0.25, .operation = reduction::average});
    CHECK(divided.how == averaging::mean);
    CHECK(divided.expected);
    const call_weights by_tokens = weights_of({.before = {0.125, 0.25, 0.125, 0.5}, .tokens = {100, 200, 100, 400},
        .operation = reduction::average});
    CHECK(by_tokens.how == averaging::token_weighted);
    CHECK(by_tokens.expected);
    CHECK(weights_of({}).expected);
}
