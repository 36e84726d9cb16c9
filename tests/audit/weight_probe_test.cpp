// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
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

using namespace collprobe;

namespace {

constexpr std::uint64_t count = 4 * 1001;

template <class T>
std::vector<T> gradient(int rank, std::uint64_t elements = count)
{
    std::vector<T> data;
    std::uint64_t state = 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(rank) + 1);
    for (std::uint64_t i = 0; i < elements; ++i) {
        const std::uint64_t bits = detail::mix64(state += 0x9e3779b97f4a7c15u);
        data.push_back(static_cast<T>(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f));
    }
    return data;
}

template <class T>
std::vector<T> times(std::vector<T> data, double factor)
{
    for (T& each : data) each = static_cast<T>(static_cast<float>(each) * static_cast<float>(factor));
    return data;
}

/// A trainer's average of gradients that a probe observes from outside.
struct outside {
    double before[4] = {1, 1, 1, 1}; ///< factors of the ranks' gradients
    double behind = 1; ///< of the sum
    double tokens[4] = {1, 1, 1, 1};
    double told_scale = 1;
};

auto weights(const weight_probe_options& options = {.every = 1})
{
    return [options] { return weight_probe(options); };
}
auto audits()
{
    return [] { return audit(); };
}

bool same(const call_weights& a, const call_weights& b)
{
    return a.seen == b.seen && a.how == b.how && a.why_not == b.why_not && a.expected == b.expected
        && a.weights == b.weights && a.bounds == b.bounds && a.ranks == b.ranks
        && to_bits(a.common) == to_bits(b.common) && a.residual == b.residual;
}

/// The step that the ranks' `work(comm, stream)` makes, and ends, which is equal on all ranks. `parts` make those of `probed`.
template <class Work, class... Parts>
step_record one_step(int ranks, const Work& work, const Parts&... parts)
{
    std::vector<step_record> records(static_cast<std::size_t>(ranks));
    testing::local_provider{ranks}.run([&](local::communicator& world) {
        probed comm{world, {}, parts()...};
        host::stream stream;
        work(comm, stream);
        (void)comm.wait(records[static_cast<std::size_t>(world.rank())]);
    });
    for (const step_record& each : records) {
        REQUIRE(each.calls.size() == records[0].calls.size());
        for (std::size_t c = 0; c < each.calls.size(); ++c)
            CHECK(same(each.calls[c].weights, records[0].calls[c].weights));
        CHECK(each.suspects.size() == records[0].suspects.size());
    }
    return records[0];
}

/// The same between `observe_input` and `observe_result`, of four ranks.
template <class T, class... Parts>
step_record observed(const outside& of, const Parts&... parts)
{
    return one_step(4, [&](auto& comm, host::stream& stream) {
        const int rank = comm.rank();
        if constexpr (requires { comm.template part<weight_probe>(); })
            comm.template part<weight_probe>().scale(of.told_scale);
        const std::vector<T> mine = gradient<T>(rank);
        comm.observe_input(view<const T>(mine), stream, collective::all_reduce, reduction::sum, call_site::named("wte"));
        stream.synchronize(testing::soon_ms);
        std::vector<T> data = times(mine, of.before[rank]);
        comm.base().all_reduce(view<const T>(data), view<T>(data), reduction::sum, stream);
        stream.synchronize(testing::soon_ms);
        data = times(data, of.behind);
        comm.observe_result(view<const T>(data), stream);
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

        std::vector<suspect> suspects;
        for (const suspect& one : record.suspects) {
            if (one.what == finding::weights) suspects.push_back(one);
        }
        REQUIRE(suspects.size() == (each.expected ? 0 : 1));
        if (each.expected) continue;
        CHECK(suspects[0].rank == each.named);
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
    CHECK(has(table, "\nsuspect: rank 1, bucket 0 'wte': entered the average with another weight than is expected: 0 times that of a mean\n"));
    const std::string line = report::json_line("run", record);
    CHECK(has(line, "\"weights\":{\"form\":\"rank_lost\",\"expected\":false,\"by_rank\":[0.2"));
    CHECK(has(line, "\"ranks\":[1],\"common\":0.2"));
    CHECK(has(line, "\"bins\":256}"));
    const step_record equal = observed<float>({.behind = 0.25}, weights());
    CHECK(has(report::step_table(equal), "\nweights: as expected in 1 call(s)\n"));
    CHECK_FALSE(has(report::json_line("run", observed<float>({}, audits())), "\"weights\""));

    const step_record same_inputs = one_step(3, [&](auto& comm, host::stream& stream) {
        std::vector<float> data = gradient<float>(7);
        comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    CHECK(same_inputs.calls[0].weights.why_not == weights_refusal::collinear);
    CHECK(has(report::step_table(same_inputs), "unknown, because of: the inputs are alike, or combinations of each other\n"));
    CHECK(has(report::json_line("run", same_inputs), "\"weights\":{\"form\":\"unknown\",\"expected\":true,\"why_not\":\"collinear\"}"));
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
    CHECK(behind.suspects.empty());

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
                testing::require(record.calls[0].audit.conserved && record.suspects.empty(), "suspects");
            }
        });
    }
}

TEST_CASE("what cannot be measured is refused, with the reason")
{
    const auto reduce_of = [](auto make) {
        return [make](auto& comm, host::stream& stream) {
            std::vector<float> data = make(comm.rank());
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
            comm.end_step(0, stream);
            stream.synchronize(testing::soon_ms);
        };
    };
    const auto why = [&](int ranks, auto make) {
        const step_record record = one_step(ranks, reduce_of(make), weights());
        CHECK(record.calls.at(0).weights.seen);
        CHECK(record.calls[0].weights.how == averaging::unknown);
        for (const suspect& each : record.suspects) CHECK(each.what != finding::weights);
        return record.calls[0].weights.why_not;
    };
    CHECK(why(3, [](int rank) { return std::vector<float>(1001, rank == 1 ? 0.0f : 1.0f); }) != weights_refusal::none);
    CHECK(why(3, [](int rank) {
        auto data = gradient<float>(rank);
        if (rank == 2) data[5] = detail::bit_cast<float>(0x7fc00000u);
        return data;
    }) == weights_refusal::not_finite);
    CHECK(why(3, [](int rank) { return times(gradient<float>(rank), rank == 1 ? 0 : 1); }) == weights_refusal::zero_input);
    CHECK(why(3, [](int rank) { return gradient<float>(rank, 5); }) == weights_refusal::few_elements);
#if !defined(COLLPROBE_TEST_SANITIZED)
    CHECK(why(65, [](int rank) { return gradient<float>(rank, 500); }) == weights_refusal::many_ranks);
#endif
    const step_record one = one_step(1, reduce_of([](int rank) { return gradient<float>(rank); }),
        weights());
    CHECK(one.calls[0].weights.how == averaging::mean);

    testing::local_provider{2}.run([&](local::communicator& world) {
        const auto refused = [](auto&& make) {
            try {
                make();
            } catch (const error& problem) {
                return problem.code() == status::invalid_argument;
            }
            return false;
        };
        testing::require(refused([&] { probed comm(world, {.mode = report_mode::summary}, weight_probe()); }), "summary");
        testing::require(refused([&] { weight_probe({.every = -1}); }), "every");
        testing::require(refused([&] { weight_probe({.bins = 100}); }), "bins");
        testing::require(refused([&] { weight_probe({.scale = 0}); }), "scale");
        testing::require(refused([&] { weight_probe({.miss = 0}); }), "miss");
    });
}

TEST_CASE("ranks with different results have no common weights, and none is named by them")
{
    using buffers = std::vector<std::vector<float>>;
    const auto observe = [](int ranks, const auto& result_of) {
        return one_step(ranks, [&](auto& comm, host::stream& stream) {
            buffers inputs;
            for (int r = 0; r < ranks; ++r) inputs.push_back(gradient<float>(r));
            std::vector<float> mean(count);
            for (const auto& each : inputs) {
                for (std::size_t i = 0; i < count; ++i) mean[i] += each[i] / static_cast<float>(ranks);
            }
            const std::vector<float> result = result_of(comm.rank(), inputs, mean);
            const auto& mine = inputs[static_cast<std::size_t>(comm.rank())];
            comm.observe_input(view<const float>(mine), stream);
            comm.observe_result(view<const float>(result), stream);
            comm.end_step(0, stream);
            stream.synchronize(testing::soon_ms);
        }, weights());
    };
    const auto refused = [&](int ranks, const auto& result_of) {
        const step_record record = observe(ranks, result_of);
        const call_weights& found = record.calls.at(0).weights;
        CHECK(found.how == averaging::unknown);
        CHECK(found.weights.empty());
        for (const suspect& each : record.suspects) CHECK(each.what != finding::weights);
        CHECK(report::step_table(record).find("the ranks hold different results\n") != std::string::npos);
        CHECK(report::json_line("run", record).find("\"why_not\":\"results_differ\"") != std::string::npos);
        return found.why_not == weights_refusal::results_differ;
    };
    CHECK(refused(4, [](int rank, const buffers& inputs, const auto&) { return inputs[static_cast<std::size_t>(rank)]; }));
    CHECK(refused(4, [](int rank, const buffers& inputs, auto mean) {
        const auto& next = inputs[static_cast<std::size_t>((rank + 1) % 4)];
        for (std::size_t i = 0; i < count; ++i) mean[i] -= next[i] / 4;
        return mean;
    }));
    CHECK(refused(2, [](int rank, const buffers& inputs, const auto& mean) { return rank == 1 ? inputs[1] : mean; }));
    CHECK(refused(4, [](int rank, const buffers&, const auto& mean) { return times(mean, rank == 1 ? 2 : 1); }));
    CHECK(refused(4, [](int rank, const buffers&, const auto& mean) { return times(mean, rank == 3 ? 0 : 1); }));
    CHECK(refused(3, [](int rank, const buffers&, auto mean) {
        if (rank == 2) mean[count - 1] = mean[count - 1] * (1 + 0x1p-20f);
        return mean;
    }));
    const step_record alike = observe(4, [](int, const buffers&, const auto& mean) { return mean; });
    CHECK(alike.calls[0].weights.how == averaging::mean);
    const step_record damaged = observe(3, [](int rank, const buffers&, auto mean) {
        if (rank == 1) mean[7] = detail::bit_cast<float>(0x7fc00000u);
        return mean;
    });
    CHECK(damaged.calls[0].weights.why_not == weights_refusal::not_finite);
}

TEST_CASE("scales that differ between ranks are refused")
{
    const step_record record = one_step(2, [](auto& comm, host::stream& stream) {
        comm.template part<weight_probe>().scale(comm.rank() == 0 ? 1 : 2);
        std::vector<float> data = gradient<float>(comm.rank());
        comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    CHECK(record.calls.at(0).weights.why_not == weights_refusal::scales_differ);
    CHECK(report::step_table(record).find("the ranks were told different scales\n") != std::string::npos);
}

TEST_CASE("a result that is partly of no rank is no pass, and tells how much of it")
{
    const step_record record = one_step(4, [](auto& comm, host::stream& stream) {
        const std::vector<float> mine = gradient<float>(comm.rank());
        comm.observe_input(view<const float>(mine), stream);
        std::vector<float> data = mine;
        if (comm.rank() == 1) std::fill(data.begin(), data.begin() + count / 100, 0.0f);
        comm.base().all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
        stream.synchronize(testing::soon_ms);
        comm.observe_result(view<const float>(data), stream);
        comm.end_step(0, stream);
        stream.synchronize(testing::soon_ms);
    }, weights());
    const call_weights& found = record.calls.at(0).weights;
    CHECK(found.how == averaging::unknown);
    CHECK(found.why_not == weights_refusal::unexplained);
    CHECK(found.weights.size() == 4);
    CHECK(found.residual > 1e4 * found.residual_limit);
    CHECK(record.suspects.empty());
    const std::string table = report::step_table(record);
    CHECK(table.find("unknown, because of: a part of the result is of no rank, ") != std::string::npos);
    CHECK(table.find("weights: as expected") == std::string::npos);
    CHECK(report::json_line("run", record).find("\"why_not\":\"unexplained\"") != std::string::npos);
}

TEST_CASE("healthy averages of one or two magnitudes, and of tokens, make no suspects")
{
    testing::local_provider{16}.run([&](local::communicator& world) {
        probed comm{world, {}, weights()()};
        host::stream stream;
        std::uint64_t state = static_cast<std::uint64_t>(world.rank());
        std::vector<float> data(4096);
        step_record record;
        for (int step = 0; step < 20; ++step) {
            const float unit = 1 + 0.05f * static_cast<float>(step);
            for (float& each : data) each = detail::mix64(state += 16) % 2 == 0 ? unit : 2 * unit;
            comm.all_reduce(view<const float>(data), view<float>(data), reduction::average, stream);
            comm.end_step(static_cast<std::uint64_t>(step), stream);
            testing::require(comm.wait(record), "no record");
            testing::require(record.calls.at(0).weights.how == averaging::mean, "not a mean");
            for (std::size_t r = 0; r < 16; ++r) {
                const call_weights& of = record.calls[0].weights;
                testing::require(std::abs(of.weights[r] - 1.0 / 16) <= of.bounds[r], "beyond its bound");
            }
            testing::require(record.suspects.empty(), "suspects");
        }
    });
}

TEST_CASE("expected forms are the user's, and equal tokens are a mean")
{
    const auto suspects_of = [](const outside& of, std::vector<averaging> expected) {
        std::size_t found = 0;
        for (const suspect& each : observed<float>(of, weights({.every = 1, .expected = expected})).suspects)
            found += each.what == finding::weights ? 1 : 0;
        return found;
    };
    CHECK(suspects_of({.behind = 0.25}, {averaging::sum}) == 1);
    CHECK(suspects_of({}, {averaging::sum}) == 0);
    CHECK(suspects_of({.behind = 0.25, .tokens = {5, 5, 5, 5}}, {averaging::token_weighted}) == 0);
    CHECK(suspects_of({.behind = 0.25, .tokens = {5, 5, 5, 9}}, {averaging::token_weighted}) == 1);
}
